"""``robustcf poison``: fake users put into training data, the victim retrained, users asked."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from robustcf._registry import DEFENCES, MODELS, POISONINGS
from robustcf.cli.options import (
    data_options,
    exposure_cutoffs_option,
    grid_options,
    load_arguments,
    parse_settings,
    typed_threads,
)
from robustcf.cli.reporting import Report, reports
from robustcf.cli.words import FINITE, ListCommand, NameOf


@click.command(cls=ListCommand)
@click.option("--dataset", metavar="NAME|FILE", required=True, help="A known set, or a file.")
@click.option(
    "--model",
    "models",
    type=NameOf(MODELS),
    multiple=True,
    help="The victims, one or several (default: the best known for the data).",
)
@click.option(
    "--preset",
    metavar="[tuned|robust|paper|FILE]",
    help="How the victims train (default tuned); or a file that 'robustcf tune' wrote.",
)
@click.option(
    "--attack",
    "attacks",
    type=NameOf(POISONINGS, "auto"),
    multiple=True,
    help="How the fake users choose their items; auto: all of them, and the worst for each seed "
    "(the default).",
)
@click.option(
    "--fakes",
    metavar="N|P%...",
    multiple=True,
    help="Fake users, as numbers or in percent of the genuine ones (default 1%).",
)
@click.option("--length", type=int, help="Items of a fake user at most (default: the mean).")
@click.option(
    "--targets", type=int, default=5, show_default=True, help="How many targets are drawn."
)
@click.option(
    "--target-kind",
    type=click.Choice(["rare", "middle", "popular"]),
    default="rare",
    show_default=True,
    help="Which items they are drawn from.",
)
@click.option(
    "--target", "labels", metavar="LABEL...", multiple=True, help="Targets by name instead."
)
@click.option(
    "--goal",
    type=click.Choice(["promote", "demote", "availability"]),
    default="promote",
    show_default=True,
    help="Have the targets shown, keep them from being shown, or make lists worse for everybody.",
)
@click.option(
    "--knowledge",
    type=click.Choice(["data", "part", "none"]),
    default="data",
    show_default=True,
    help="What the attacker knows: all pairs, those of some users, or popularity alone.",
)
@click.option(
    "--known",
    type=FINITE,
    default=0.2,
    show_default=True,
    help="For part: the share of the users that is known.",
)
@click.option(
    "--defence",
    "defences",
    type=NameOf(DEFENCES, "none"),
    multiple=True,
    default=("none",),
    show_default=True,
    help="What the victim does about it; attacks are judged after it.",
)
@click.option(
    "--profiles",
    metavar="FILE",
    help="Fake users from a table with the columns user and item, instead of attacks.",
)
@click.option(
    "--seeds",
    type=click.IntRange(1, 1000),
    default=3,
    show_default=True,
    help="How many seeds of targets, attacks and training: 0, 1, ...",
)
@exposure_cutoffs_option
@grid_options("training", "poisoning")
@data_options
@reports
def poison(
    dataset: str,
    models: tuple[str, ...],
    preset: str | None,
    attacks: tuple[str, ...],
    fakes: tuple[str, ...],
    length: int | None,
    targets: int,
    target_kind: str,
    labels: tuple[str, ...],
    goal: str,
    knowledge: str,
    known: float,
    defences: tuple[str, ...],
    profiles: str | None,
    seeds: int,
    ks: tuple[int, ...],
    settings: tuple[str, ...],
    split_seed: int,
    threads: int | None,
    jobs: int,
    out: str,
    data: dict[str, Any],
) -> Report:
    """Put fake users into training data, retrain the victim, and see what genuine users get.

    Every victim is trained anew for each attack, number of fakes and seed, and once without fakes.
    Injected profiles are kept as tables in the folder. A stopped command goes on where it was.
    """
    from robustcf.experiments.poisoning import PoisonPlan
    from robustcf.experiments.poisoning import poison as run_poison
    from robustcf.experiments.poisoning.report import text
    from robustcf.poisoning.exposure import CUTOFFS
    from robustcf.poisoning.threat import Targets, parse_fakes

    if profiles is not None and (attacks or fakes or length is not None):
        raise click.UsageError(
            "--profiles brings its own fake users: leave --attack, --fakes and --length out"
        )
    dataset, options = load_arguments(dataset, data, split_seed)
    plan = PoisonPlan(
        dataset=dataset,
        data=options,
        models=models,
        preset=preset,
        changes=parse_settings(settings),
        attacks=attacks or ("auto",),
        fakes=tuple(map(parse_fakes, fakes)) or (0.01,),
        targets=Targets(targets, target_kind, labels),
        length=length,
        goal=goal,
        knowledge=knowledge,
        known=known,
        defences=defences,
        profiles=None if profiles is None else os.path.abspath(os.path.expanduser(profiles)),
        seeds=tuple(range(seeds)),
        ks=ks or CUTOFFS,
        threads=typed_threads(threads),
    )
    summary = run_poison(plan, out, jobs=jobs, progress=sys.stderr.isatty())
    report = summary.out / "report.md"
    found = {"out": str(summary.out), "report": str(report)} | summary.as_dict()
    return Report(found, f"{text(summary)}\n\nreport: {report}")
