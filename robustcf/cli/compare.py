"""``robustcf compare``: which run holds better under attack, with paired statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from robustcf.cli.kinds import COUNT, SHARE
from robustcf.cli.reporting import Report, command, numbers, table
from robustcf.cli.signatures import options
from robustcf.cli.sources import unfinished_option

if TYPE_CHECKING:
    from robustcf.experiments.comparison import Comparison

_UNITS = {"relative": "in units of the factors", "own": "in lengths of each row"}


@command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN RUN...")
@options("experiments.comparison:compare_runs", "attack", "metric")
@options(
    "experiments.comparison:compare_curves",
    *("seed", "resamples", "confidence"),
    resamples=COUNT,
    confidence=SHARE,
)
@unfinished_option
def compare(runs: tuple[str, ...], **how: Any) -> Report:
    """Compare RUNs by the attack curves that 'robustcf attack' saved in them.

    Runs that differ in their seed alone are averaged, user by user. Nothing is computed but
    statistics: a missing curve is named with the command that makes it.
    """
    from robustcf.experiments.comparison import METHOD, compare_runs
    from robustcf.robustness.curves import kind_words

    found, curve, facts = compare_runs(runs, **how)
    budget, unit = facts["budget"], _UNITS.get(facts["unit"], "absolute")
    kind = f"{kind_words(curve.facts)}\n{curve.name}; epsilon: {budget} budget, {unit}"
    text = "\n\n".join([kind, _values(found), _differences(found), *found.words(), METHOD])
    return Report(facts, text)


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
            *numbers(group.value[1:]),
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
