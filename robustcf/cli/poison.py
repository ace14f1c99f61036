"""``robustcf poison``: fake users put into training data, the victim retrained, users asked."""

from __future__ import annotations

import sys
from typing import Any

import click

from robustcf._registry import DEFENCES, MODELS, POISONINGS
from robustcf.cli.kinds import COUNT, NameOf
from robustcf.cli.options import absolute, data_options, grid_options, refuse
from robustcf.cli.reporting import Report, command
from robustcf.cli.signatures import choice, options

_PLAN, _THREAT = "experiments.poison:PoisonPlan", "poisoning.threat"


@command(threads=False)
@options(_PLAN, "models=model", "preset", models=NameOf(MODELS))
@options(_PLAN, "attacks=attack", unset=True, attacks=NameOf(POISONINGS, "auto"))
@click.option(
    "--fakes",
    metavar="N|P%...",
    multiple=True,
    help="Fake users, as numbers or in percent of the genuine ones (default 1%).",
)
@options(
    f"{_THREAT}:Targets",
    *("count=targets", "kind=target_kind", "labels=target"),
    kind=choice(f"{_THREAT}:TARGET_KINDS"),
)
@options(
    f"{_THREAT}:PoisonThreat",
    *("length", "goal", "knowledge", "known"),
    goal=choice(f"{_THREAT}:GOALS"),
    knowledge=choice(f"{_THREAT}:KNOWLEDGE"),
)
@options(_PLAN, "defences=defence", "profiles", defences=NameOf(DEFENCES, "none"))
@click.option(
    "--seeds",
    type=click.IntRange(1, 1000),
    default=3,
    show_default=True,
    help="How many seeds of targets, attacks and training: 0, 1, ...",
)
@options(_PLAN, "ks=k", unset=True, ks=COUNT)
@grid_options
@data_options()
def poison(
    dataset: str,
    attacks: tuple[str, ...],
    fakes: tuple[str, ...],
    targets: int,
    target_kind: str,
    labels: tuple[str, ...],
    profiles: str | None,
    seeds: int,
    ks: tuple[int, ...],
    settings: dict[str, Any],
    jobs: int,
    out: str,
    data: dict[str, Any],
    **how: Any,
) -> Report:
    """Put fake users into training data, retrain the victim, and see what genuine users get.

    Every victim is trained anew for each attack, number of fakes and seed, and once without fakes.
    Injected profiles are kept as tables in the folder. A stopped command is resumed.
    """
    from robustcf.experiments.poison import PoisonPlan
    from robustcf.experiments.poison import poison as run_poison
    from robustcf.poisoning.threat import Targets, parse_fakes

    if profiles is not None:
        refuse("has no effect with --profiles", "attacks", "fakes", "length")
    if labels:
        refuse("has no effect with --target", "targets", "target_kind")
    if how["knowledge"] != "part":
        refuse("is for --knowledge part", "known")
    given: dict[str, Any] = {"attacks": attacks, "fakes": tuple(map(parse_fakes, fakes)), "ks": ks}
    plan = PoisonPlan(
        dataset=dataset,
        data=data,
        changes=settings,
        targets=Targets(targets, target_kind, labels),
        profiles=None if profiles is None else absolute(profiles),
        seeds=tuple(range(seeds)),
        **{name: value for name, value in given.items() if value},
        **how,
    )
    summary = run_poison(plan, out, jobs=jobs, progress=sys.stderr.isatty())
    report = summary.out / "report.md"
    facts = {"out": str(summary.out), "report": str(report)} | summary.as_dict()
    return Report(facts, f"{summary.text()}\n\nreport: {report}")
