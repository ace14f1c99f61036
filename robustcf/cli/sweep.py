"""``robustcf sweep``: models x settings x seeds, trained, attacked and compared in one folder."""

from __future__ import annotations

import sys
from typing import Any

from robustcf._registry import MODELS
from robustcf.cli.kinds import Choice, NameOf
from robustcf.cli.options import budget_option, data_options, grid_options, unit_options
from robustcf.cli.reporting import Report, command, numbers, table
from robustcf.cli.signatures import options

_PLAN = "experiments.sweep:SweepPlan"


@command(threads=False)
@options(_PLAN, "models=model", "regs", "attacks", "epsilons", models=NameOf(MODELS, paths=True))
@unit_options
@budget_option
@options(_PLAN, "preset", preset=Choice(["tuned", "paper"]))
@grid_options(seeds=5)
@data_options()
def sweep(settings: dict[str, Any], jobs: int, out: str, **how: Any) -> Report:
    """Train models x settings x seeds, attack and compare all runs; or resume a stopped sweep.

    Results depend on the threads of a run, which are kept with the sweep, and not on --jobs.
    """
    from robustcf.experiments.sweep import METRIC, SweepPlan
    from robustcf.experiments.sweep import sweep as run_sweep

    plan = SweepPlan(changes=settings, **how)
    summary = run_sweep(plan, out, jobs=jobs, progress=sys.stderr.isatty())
    rows = []
    for attack in summary.curves:
        for setting in summary.settings:
            means = [summary.area(attack, setting), *summary.values(attack, setting).mean(axis=0)]
            rows.append((attack, setting, *numbers(means)))
    said, report = summary.findings(), summary.out / "report.md"
    kinds = "\n".join(f"{name}: {summary.words(name)}" for name in summary.curves)
    header = ("attack", METRIC, "area", *(f"{size:g}" for size in plan.epsilons))
    parts = [kinds, table(header, rows, left=(0, 1)), *said, f"report: {report}"]
    facts = {"out": str(summary.out), "report": str(report), "findings": said}
    return Report(facts | summary.as_dict(), "\n\n".join(parts))
