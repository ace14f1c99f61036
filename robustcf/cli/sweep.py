"""``robustcf sweep``: settings x seeds, trained, attacked and summed up in one folder."""

from __future__ import annotations

import sys
from typing import Any

import click

from robustcf._registry import MODELS
from robustcf.cli.options import (
    budget_option,
    data_options,
    grid_options,
    load_arguments,
    parse_settings,
    typed_threads,
    unit_options,
)
from robustcf.cli.reporting import Report, reports, table
from robustcf.cli.words import FINITE, ListCommand, NameOf


@click.command(cls=ListCommand)
@click.option("--dataset", metavar="NAME|FILE", required=True, help="A known set, or a file.")
@click.option(
    "--model",
    type=NameOf(MODELS),
    default="ultragcn",
    show_default=True,
    help="What to train.",
)
@click.option(
    "--regs",
    multiple=True,
    metavar="R...",
    default=("weight_decay", "two_to_inf", "max_norm"),
    show_default=True,
    help="Settings to compare: none, weight_decay, two_to_inf, max_norm, apr (adversarial "
    "training on BPR), robust (the robust preset of the model).",
)
@click.option(
    "--seeds",
    type=click.IntRange(1, 1000),
    default=5,
    show_default=True,
    help="How many training seeds per setting: 0, 1, ...",
)
@click.option(
    "--attacks",
    multiple=True,
    metavar="A...",
    default=("auto",),
    show_default=True,
    help="auto: the strongest, joint, by somebody who knows the labels; cutoff; fgm- or pgd- with "
    "bce, bpr or softmax, by somebody who knows the training pairs. The random control and the "
    "certificate are always added.",
)
@click.option(
    "--epsilons",
    type=FINITE,
    multiple=True,
    metavar="E...",
    help="Sizes, ascending (default 0 0.02 0.05 0.1 0.2; absolute: 0 0.1 0.2 0.4 0.8 1.6).",
)
@unit_options
@budget_option
@click.option(
    "--preset",
    type=click.Choice(["tuned", "paper"]),
    default="tuned",
    show_default=True,
    help="Settings chosen on valid, or the paper's.",
)
@grid_options("run", "sweep")
@data_options
@reports
def sweep(
    dataset: str,
    model: str,
    regs: tuple[str, ...],
    seeds: int,
    attacks: tuple[str, ...],
    epsilons: tuple[float, ...],
    unit: str,
    budget: str,
    preset: str,
    settings: tuple[str, ...],
    split_seed: int,
    threads: int | None,
    jobs: int,
    out: str,
    data: dict[str, Any],
) -> Report:
    """Train settings x seeds, attack all runs, draw and compare; or go on with a stopped sweep.

    Results depend on the threads of a run, which are kept with the sweep, and not on --jobs.
    """
    from robustcf.experiments.grids import threads_per_job
    from robustcf.experiments.sweeps import SweepPlan
    from robustcf.experiments.sweeps import sweep as run_sweep
    from robustcf.experiments.sweeps.execute import kept_threads
    from robustcf.experiments.sweeps.report import findings
    from robustcf.experiments.sweeps.summary import METRIC
    from robustcf.robustness.table import ATTACK_SIZES

    dataset, options = load_arguments(dataset, data, split_seed)
    plan = SweepPlan(
        dataset=dataset,
        data=options,
        model=model,
        regs=regs,
        seeds=tuple(range(seeds)),
        attacks=attacks,
        epsilons=epsilons or ATTACK_SIZES[unit],
        unit=unit,
        budget=budget,
        preset=preset,
        changes=parse_settings(settings),
        threads=typed_threads(threads) or kept_threads(out) or threads_per_job(jobs),
    )
    summary = run_sweep(plan, out, jobs=jobs, progress=sys.stderr.isatty())
    sizes = [f"{size:g}" for size in plan.epsilons]
    rows = [
        (
            attack,
            setting,
            f"{summary.area(attack, setting):.4f}",
            *(f"{value:.4f}" for value in summary.values(attack, setting).mean(axis=0)),
        )
        for attack in summary.curves
        for setting in summary.settings
    ]
    said = findings(summary)
    kinds = "\n".join(f"{name}: {summary.words(name)}" for name in summary.curves)
    parts = [kinds, table(("attack", METRIC, "area", *sizes), rows, left=(0, 1)), *said]
    report = summary.out / "report.md"
    data_out = {"out": str(summary.out), "report": str(report), "findings": said}
    return Report(data_out | summary.as_dict(), "\n\n".join([*parts, f"report: {report}"]))
