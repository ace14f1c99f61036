"""``robustcf poison``: inject fake users into training data and retrain the victim."""

from __future__ import annotations

import sys
from typing import Any

import click

from robustcf._registry import DEFENCES, MODELS, POISONINGS
from robustcf.cli.kinds import COUNT, NameOf
from robustcf.cli.options import absolute, data_options, grid_options, refuse
from robustcf.cli.reporting import Report, command
from robustcf.cli.signatures import options

_PLAN = "experiments.poison:PoisonPlan"


@command(threads=False)
@options(_PLAN, "models=model", "preset", models=NameOf(MODELS, "vote"))
@options(_PLAN, "attacks=attack", unset=True, attacks=NameOf(POISONINGS, "auto"))
@click.option(
    "--fakes",
    metavar="N|P%...",
    multiple=True,
    help="Fake users, as numbers or in percent of the genuine ones (default 1%).",
)
@options(
    "poisoning.threat:Targets",
    *("count=targets", "kind=target_kind", "labels=target"),
    kind="poisoning.threat:TARGET_KINDS",
)
@options(
    "poisoning.threat:PoisonThreat",
    *("length", "goal", "knowledge", "known"),
    goal="poisoning.threat:GOALS",
    knowledge="poisoning.threat:KNOWLEDGE",
)
@options(_PLAN, "defences=defence", "profiles", defences=NameOf(DEFENCES, "none"))
@options(_PLAN, "ks=k", unset=True, ks=COUNT)
@grid_options(seeds=3)
@data_options()
def poison(
    fakes: tuple[str, ...],
    targets: int,
    target_kind: str,
    labels: tuple[str, ...],
    profiles: tuple[str, ...],
    settings: dict[str, Any],
    jobs: int,
    out: str,
    **how: Any,
) -> Report:
    """Put fake users into training data, retrain the victim, and see what genuine users get.

    Every victim is trained anew for each attack, number of fakes and seed, and once without fakes.
    Injected profiles are kept as tables in the folder. A stopped command is resumed.
    """
    from robustcf.experiments.poison import PoisonPlan
    from robustcf.experiments.poison import poison as run_poison
    from robustcf.poisoning.threat import Targets, parse_fakes

    if profiles:
        refuse("has no effect with --profiles", "attacks", "fakes", "length")
    if labels:
        refuse("has no effect with --target", "targets", "target_kind")
    if how["knowledge"] != "part":
        refuse("is for --knowledge part", "known")
    how["fakes"] = tuple(map(parse_fakes, fakes))
    for name in ("attacks", "fakes", "ks"):
        if not how[name]:
            del how[name]  # the plan has a default
    plan = PoisonPlan(
        changes=settings,
        targets=Targets(targets, target_kind, labels),
        profiles=tuple(map(absolute, profiles)),
        **how,
    )
    summary = run_poison(plan, out, jobs=jobs, progress=sys.stderr.isatty())
    report = summary.out / "report.md"
    facts = {"out": str(summary.out), "report": str(report)} | summary.as_dict()
    return Report(facts, f"{summary.text()}\n\nreport: {report}")
