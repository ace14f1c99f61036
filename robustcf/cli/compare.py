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

_CURVES = "experiments.comparison:compare_curves"
_UNITS = {"relative": "in units of the factors", "own": "in lengths of each row"}


@command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN RUN...")
@options("experiments.comparison:compare_runs", "attack", "metric")
@options(_CURVES, "seed", "resamples", "confidence", resamples=COUNT, confidence=SHARE)
@unfinished_option
@click.option("--out", metavar="DIR", help="Write tables (CSV, Markdown, LaTeX) and a figure here.")
def compare(runs: tuple[str, ...], out: str | None, **how: Any) -> Report:
    """Compare RUNs by the attack curves that 'robustcf attack' saved in them.

    Runs that differ in their seed alone are averaged per user. A missing curve is not computed but
    named with the command that makes it. In the LaTeX table the best setting is bold only where the
    paired test finds it better than every other.
    """
    from robustcf.experiments.comparison import METHOD, compare_runs
    from robustcf.robustness.curves import kind_words

    found, curve, facts = compare_runs(runs, **how)
    budget, unit = facts["budget"], _UNITS.get(facts["unit"], "absolute")
    kind = f"{kind_words(curve.facts)}\n{curve.name}; epsilon: {budget} budget, {unit}"
    if out is not None:
        facts["out"] = str(found.write(out, f"epsilon, {budget} budget, {unit}"))
    parts = [kind, _values(found), _differences(found), *found.words(), METHOD]
    return Report(facts, "\n\n".join(parts))


def _values(found: Comparison) -> str:
    sizes = [f"{size:g}" for size in found.epsilons]
    header = (found.metric, "area", f"{found.confidence:.4g} interval", "seeds", "area over seeds")
    rows = []
    for group in found.groups:
        area, *values = numbers(group.value)
        interval = f"[{group.lower[0]:.4f}, {group.upper[0]:.4f}]"
        seeds = group.by_seed[:, 0]
        spread = f"{seeds.min():.4f} to {seeds.max():.4f}"
        rows.append((group.label, area, interval, str(len(seeds)), spread, *values))
    return table((*header, *sizes), rows)


def _differences(found: Comparison) -> str:
    places = ["area", *(f"{size:g}" for size in found.epsilons)]
    header = ("first", "second", "epsilon", "difference", "interval", "p (Holm)", "better")
    better = {1: "first", -1: "second", 0: "-"}
    rows = [
        (
            *((contrast.first, contrast.second) if n == 0 else ("", "")),
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
