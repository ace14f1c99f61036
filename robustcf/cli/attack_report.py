"""What ``robustcf attack`` shows of its curves: tables and pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from robustcf.cli.common import table

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from robustcf.attack_settings import Settings
    from robustcf.factors import Factors
    from robustcf.robustness import RobustnessCurve
    from robustcf.runs import RunDir


def curve_table(
    curve: RobustnessCurve, control: RobustnessCurve, draws: int, asked: Settings
) -> str:
    """Metrics by size, the control beside."""
    rows = [
        (
            f"{size:g}",
            *(f"{curve[metric][n]:.4f}" for metric in asked.shown),
            f"{control[asked.metric][n]:.4f}",
        )
        for n, size in enumerate(asked.epsilons)
    ]
    control_name = "random" if draws == 1 else f"worst of {draws} random"
    return table(("epsilon", *asked.shown, f"{control_name}: {asked.metric}"), rows, left=())


def uneven_note(factors: Factors, side: str) -> tuple[dict[str, Any], str]:
    """For sizes in median row norms: what JSON shall hold of it, and a warning where it matters."""
    from robustcf.attacks import unevenness
    from robustcf.saved_curves import uneven_words

    ratios = {"users": unevenness(factors.users), "items": unevenness(factors.items)}
    words = uneven_words({name: ratios[name] for name in ratios if side in ("both", name)})
    note = f"\nnote: {words}: sizes in medians are small for the long rows, which rank first; "
    note += "compare by --budget frobenius"
    return {"unevenness": ratios}, note if words else ""


def members_table(
    members: Mapping[str, RobustnessCurve], counts: Mapping[str, Any], asked: Settings
) -> str:
    """What each member of an ensemble does, and for how many users nothing else does more."""
    rows = [
        (
            name,
            *(
                f"{curve[asked.metric][n]:.4f} ({counts[name]['worst'][n]})"
                for n in range(len(asked.epsilons))
            ),
        )
        for name, curve in members.items()
    ]
    title = f"{asked.metric} (users it is worst for)"
    return table((title, *(f"{size:g}" for size in asked.epsilons)), rows)


def draw(
    trained: RunDir,
    curve: RobustnessCurve,
    control: RobustnessCurve,
    members: Mapping[str, RobustnessCurve],
    metric: str,
    stem: Path,
) -> list[str]:
    """Draw the curve, its control and its members; returns the paths of PNG and SVG."""
    from robustcf.plots import plot_curves
    from robustcf.robustness import worst_of

    result = trained.metrics()
    label = f"{result['model']}, {result['reg']}"
    curves = {label: curve}
    # One line an objective: with all members apart the picture could not be read.
    for n, objective in enumerate(dict.fromkeys(each.objective for each in members.values()), 1):
        same = {name: each for name, each in members.items() if each.objective == objective}
        curves[f"member {n}"] = worst_of(same, "fgm or pgd")
    controls = {label: control} if curve is not control else None
    return [
        str(plot_curves(curves, f"{stem}.{ending}", metric=metric, controls=controls))
        for ending in ("png", "svg")
    ]
