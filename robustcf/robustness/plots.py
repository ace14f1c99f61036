"""Robustness curves as pictures: a metric against the size of the attack."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from robustcf._io.plots import Kind, Line, Panel, draw_panels, plot_panels
from robustcf.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from robustcf.robustness.curves import RobustnessCurve


def draw_curves(
    curves: Mapping[str, RobustnessCurve],
    *,
    metric: str = "ndcg@10",
    controls: Mapping[str, RobustnessCurve] | None = None,
    certificates: Mapping[str, RobustnessCurve] | None = None,
    title: str = "",
) -> Figure:
    """Return the figure that :func:`plot_curves` writes; a notebook shows it."""
    return draw_panels([[_panel(curves, metric, controls, certificates, title)]])


def plot_curves(
    curves: Mapping[str, RobustnessCurve],
    path: str | Path,
    *,
    metric: str = "ndcg@10",
    controls: Mapping[str, RobustnessCurve] | None = None,
    certificates: Mapping[str, RobustnessCurve] | None = None,
    title: str = "",
) -> Path:
    """Draw a metric against the size of the attack, one line per curve.

    Args:
        curves: label -> curve; all of one kind of budget.
        path: where to; ``.png`` or ``.svg``.
        metric: what to draw.
        controls: label -> random control of the same name, drawn dashed in the same colour.
        certificates: label -> certified curve of the same name, drawn dotted in the same colour.
        title: above the picture.

    Returns:
        The path.

    Raises:
        InputError: nothing to draw, or curves of different budgets in one picture.
    """
    return plot_panels([[_panel(curves, metric, controls, certificates, title)]], path)


def _panel(
    curves: Mapping[str, RobustnessCurve],
    metric: str,
    controls: Mapping[str, RobustnessCurve] | None,
    certificates: Mapping[str, RobustnessCurve] | None,
    title: str,
) -> Panel:
    if not curves:
        raise InputError("plot_curves needs at least one curve, got none")
    others: dict[Kind, Mapping[str, RobustnessCurve]] = {
        "random": controls or {},
        "certificate": certificates or {},
    }
    everything = [c for group in (curves, *others.values()) for c in group.values()]
    axes_names = {curve.threat.axis for curve in everything}
    if len(axes_names) > 1:
        raise InputError(
            f"curves of different budgets do not share an axis: {'; '.join(sorted(axes_names))}"
        )
    lines = []
    for label, curve in curves.items():
        shown = f"{label}, {curve.attack}" + (f" on {curve.objective}" if curve.objective else "")
        lines.append(Line(shown, curve.epsilons, curve[metric][None]))
        lines += [
            Line(shown, group[label].epsilons, group[label][metric][None], kind)
            for kind, group in others.items()
            if label in group
        ]
    first = everything[0]
    name = f"{metric.upper()} on {first.protocol.dataset} ({first.protocol.part})"
    return Panel(lines, first.threat.axis, name, title)
