"""Robustness curves as pictures: a metric against the size of the attack."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from robustcf._io.plots import Kind, Line, Panel, plot_panels
from robustcf.errors import InputError
from robustcf.robustness.curves import RobustnessCurve

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Curves = Mapping[str, RobustnessCurve]


def plot_curves(
    curves: Curves,
    path: str | Path | None = None,
    *,
    metric: str = "ndcg@10",
    controls: Curves | None = None,
    certificates: Curves | None = None,
    title: str = "",
) -> Figure | Path:
    """Draw a metric against the size of the attack, one line per curve.

    Args:
        curves: label -> curve; all of one kind of budget.
        path: ``.png`` or ``.svg`` file; None returns the figure, which a notebook shows.
        metric: metric to draw.
        controls: label -> random control, drawn dashed in the same colour.
        certificates: label -> certified curve, drawn dotted in the same colour.
        title: title of the picture.
    """
    if not curves:
        raise InputError("plot_curves needs at least one curve, got none")
    groups: dict[Kind, Curves] = {
        "attack": curves,
        "random": controls or {},
        "certificate": certificates or {},
    }
    axes = {curve.threat.axis for group in groups.values() for curve in group.values()}
    if len(axes) > 1:
        words = "; ".join(sorted(axes))
        raise InputError(f"curves of different budgets do not share an axis: {words}")
    lines = []
    for label, curve in curves.items():
        shown = f"{label}, {curve.attack}" + (f" on {curve.objective}" if curve.objective else "")
        lines += [
            Line(shown, group[label].epsilons, group[label][metric][None], kind)
            for kind, group in groups.items()
            if label in group
        ]
    protocol = next(iter(curves.values())).protocol
    name = f"{metric.upper()} on {protocol.dataset} ({protocol.part})"
    return plot_panels([[Panel(lines, axes.pop(), name, title)]], path)
