"""``robustcf compare``: which run holds better under attack, with honest statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from robustcf.cli.opening import unfinished_option
from robustcf.cli.options import threads_option
from robustcf.cli.reporting import Report, reports, table
from robustcf.cli.words import SEED, FiniteRange

if TYPE_CHECKING:
    from robustcf.experiments.comparison import Comparison


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN RUN...")
@click.option(
    "--attack",
    metavar="NAME",
    help="A saved curve or its beginning: fgm-bce, certificate (default: the strongest attack "
    "that all runs have: auto, joint, with labels).",
)
@click.option("--metric", default="ndcg@10", show_default=True, help="What to compare by.")
@click.option("--seed", type=SEED, default=0, show_default=True, help="Seed of resamples.")
@click.option(
    "--resamples",
    type=click.IntRange(min=1),
    default=10_000,
    show_default=True,
    help="Number of bootstrap resamples and of sign-flip permutations.",
)
@click.option(
    "--confidence",
    type=FiniteRange(0, 1, min_open=True, max_open=True),
    default=0.95,
    show_default=True,
    help="Confidence level; tests use 1 minus this as their level.",
)
@unfinished_option
@threads_option
@reports
def compare(
    runs: tuple[str, ...],
    attack: str | None,
    metric: str,
    seed: int,
    resamples: int,
    confidence: float,
    allow_unfinished: bool,
) -> Report:
    """Compare RUNs by the attack curves that 'robustcf attack' saved in them.

    Runs that differ in their seed alone are averaged, user by user. Nothing is computed but
    statistics: a missing curve is named with the command that makes it.
    """
    from robustcf.experiments.comparison import METHOD
    from robustcf.experiments.comparison import compare_curves as compare_groups
    from robustcf.experiments.saved import common_curves, group_runs, kind_words, open_run

    opened = [open_run(run, allow_unfinished=allow_unfinished) for run in runs]
    curves = common_curves(opened, attack)
    groups = group_runs(opened)
    if len(groups) < 2:
        raise click.UsageError(
            "all runs have the same settings and differ in their seed alone: give runs of at "
            "least two settings"
        )
    first = curves[0]
    found = compare_groups(
        {label: [curves[n].per_user(metric) for n in places] for label, places in groups.items()},
        first.epsilons,
        metric=metric,
        seed=seed,
        resamples=resamples,
        confidence=confidence,
    )
    shared = ("kind", "objective", "budget", "relative", "unit", "side", "knowledge")
    facts = {key: first.facts[key] for key in shared}
    data = {"curve": first.name, "attack": first.facts["attack"], **facts, **found.as_dict()}
    data["protocol"] = first.facts["protocol"]
    for group, places in zip(data["groups"], groups.values(), strict=True):
        group["runs"] = [str(opened[n].path) for n in places]
    unit = {"relative": "in units of the factors", "own": "in lengths of each row"}.get(
        first.facts["unit"], "absolute"
    )
    budget = first.facts["budget"]
    kind = f"{kind_words(first.facts)}\n{first.name}; epsilon: {budget} budget, {unit}"
    text = "\n\n".join([kind, _values(found), _differences(found), *found.words(), METHOD])
    return Report(data, text)


def _values(found: Comparison) -> str:
    sizes = [f"{size:g}" for size in found.epsilons]
    header = (found.metric, "area", f"{found.confidence:.4g} interval", "seeds", "area over seeds")
    rows = [
        (
            group.label,
            f"{group.value[0]:.4f}",
            f"[{group.lower[0]:.4f}, {group.upper[0]:.4f}]",
            str(len(group.by_seed)),
            f"{group.by_seed[:, 0].min():.4f} to {group.by_seed[:, 0].max():.4f}",
            *(f"{value:.4f}" for value in group.value[1:]),
        )
        for group in found.groups
    ]
    return table((*header, *sizes), rows)


def _differences(found: Comparison) -> str:
    places = ["area", *(f"{size:g}" for size in found.epsilons)]
    header = ("first", "second", "epsilon", "difference", "interval", "p (Holm)", "better")
    better = {1: "first", -1: "second", 0: "-"}
    rows = [
        (
            contrast.first if n == 0 else "",
            contrast.second if n == 0 else "",
            place,
            f"{contrast.difference[n]:+.4f}",
            f"[{contrast.lower[n]:+.4f}, {contrast.upper[n]:+.4f}]",
            f"{contrast.p_holm[n]:.4f}",
            better[int(contrast.verdict[n])],
        )
        for contrast in found.contrasts
        for n, place in enumerate(places)
    ]
    return table(header, rows, left=(0, 1, 6))
