"""Robustness curves as pictures a paper could print: readable without colour."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from robustcf.errors import InputError
from robustcf.robustness import RobustnessCurve

# Line style, marker, colour: any one of the three tells the lines apart.
_STYLES = (
    ("-", "o", "#1b4f8a"),
    ("-", "s", "#c2410c"),
    ("-", "^", "#3f7d20"),
    ("-", "D", "#7a2e8e"),
    ("-", "v", "#8a6d1b"),
)


def plot_curves(
    curves: Mapping[str, RobustnessCurve],
    path: str | Path,
    *,
    metric: str = "ndcg@10",
    controls: Mapping[str, RobustnessCurve] | None = None,
    certificates: Mapping[str, RobustnessCurve] | None = None,
    title: str = "",
) -> Path:
    """Draw a metric against the size of the attack, one line a curve.

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
    if not curves:
        raise InputError("plot_curves needs at least one curve, got none")
    everything = [
        curve for group in (curves, controls or {}, certificates or {}) for curve in group.values()
    ]
    axes_names = {curve.axis for curve in everything}
    if len(axes_names) > 1:
        raise InputError(
            f"curves of different budgets do not share an axis: {'; '.join(sorted(axes_names))}"
        )
    # No global state of pyplot: a library must not open or keep windows.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.0, 4.0), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for number, (label, curve) in enumerate(curves.items()):
        line, marker, colour = _STYLES[number % len(_STYLES)]
        shown = f"{label}, {curve.attack}" + (f" on {curve.objective}" if curve.objective else "")
        axes.plot(
            curve.epsilons, curve[metric], linestyle=line, marker=marker, color=colour, label=shown
        )
        if controls and label in controls:
            control = controls[label]
            axes.plot(
                control.epsilons,
                control[metric],
                linestyle="--",
                marker=marker,
                markerfacecolor="white",
                color=colour,
                label=f"{label}, random control",
            )
        if certificates and label in certificates:
            certificate = certificates[label]
            axes.plot(
                certificate.epsilons,
                certificate[metric],
                linestyle=":",
                marker=marker,
                markersize=3,
                color=colour,
                label=f"{label}, certified: no attack goes below",
            )
    first = everything[0]
    axes.set_xlabel(first.axis)
    axes.set_ylabel(f"{metric.upper()} on {first.protocol.dataset} ({first.protocol.part})")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize="small")
    if title:
        axes.set_title(title)
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=150)
    return target
