"""``robustcf poison``: inject fake users into training data and retrain the victim."""

from __future__ import annotations

import sys
from typing import Any

from robustcf._registry import DEFENCES, MODELS
from robustcf.cli.kinds import NameOf
from robustcf.cli.options import absolute, accounts_options, data_options, grid_options, refuse
from robustcf.cli.reporting import Report, command
from robustcf.cli.signatures import options

_PLAN = "experiments.poison:PoisonPlan"


@command(threads=False)
@options(_PLAN, "models=model", "preset", models=NameOf(MODELS, "vote"))
@accounts_options(_PLAN)
@options("poisoning.threat:PoisonThreat", "goal", goal="poisoning.threat:GOALS")
@options(_PLAN, "defences=defence", "profiles", defences=NameOf(DEFENCES, "none"))
@grid_options(seeds=3)
@data_options()
def poison(
    profiles: tuple[str, ...], settings: dict[str, Any], jobs: int, out: str, **how: Any
) -> Report:
    """Put fake users into training data, retrain the victim, and see what genuine users get.

    Every victim is trained anew for each attack, number of fakes and seed, and once without fakes.
    Injected profiles are kept as tables in the folder. A stopped command is resumed.
    """
    from robustcf.experiments.poison import PoisonPlan
    from robustcf.experiments.poison import poison as run_poison

    if profiles:
        refuse("has no effect with --profiles", "attacks", "fakes", "length")
    plan = PoisonPlan(changes=settings, profiles=tuple(map(absolute, profiles)), **how)
    summary = run_poison(plan, out, jobs=jobs, progress=sys.stderr.isatty())
    report = summary.out / "report.md"
    facts = {"out": str(summary.out), "report": str(report)} | summary.as_dict()
    return Report(facts, f"{summary.text()}\n\nreport: {report}")
