"""Plots that are readable without colour: lines in panels with one legend.

Settings differ by marker and colour. Solid lines are attacks, dashed ones the random control,
dotted ones certificates; a band reaches from the lowest to the highest seed.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import numpy.typing as npt

from robustcf._io.files import write_bytes
from robustcf.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Kind = Literal["attack", "random", "certificate", "bound"]
# Marker, colour: either of them tells settings apart.
_STYLES = (
    *(("o", "#1b4f8a"), ("s", "#c2410c"), ("^", "#3f7d20")),
    *(("D", "#7a2e8e"), ("v", "#8a6d1b"), ("P", "#0f766e")),
)
# Dashes, and words of the legend.
_KINDS: Mapping[Kind, tuple[Literal["-", "--", ":"], str]] = {
    "attack": ("-", "attacked"),
    "random": ("--", "random control, same budget"),
    "certificate": (":", "certified lower bound"),
    "bound": (":", "certified upper bound"),
}
# A legend of more entries than this would cover the lines of a single panel: it goes below.
_INSIDE = 5
# Enough for a dozen colours with their smooth edges; a third of the size of full colour.
_PALETTE = 128


@dataclass(frozen=True, eq=False)
class Line:
    """A metric against the size of the attack, for one setting."""

    label: str  # lines of one label share marker and colour
    epsilons: Sequence[float]
    values: npt.NDArray[np.float64]  # seeds x epsilons: the mean is drawn, and a band of seeds
    kind: Kind = "attack"


@dataclass(frozen=True, eq=False)
class Panel:
    """Lines that share their axes."""

    lines: Sequence[Line]
    axis: str  # what epsilon means
    metric: str
    title: str = ""
    bottom: float | None = 0.0  # of the vertical axis; None for where the lines begin


Rows = Sequence[Sequence[Panel]]


@overload
def plot_panels(panels: Rows, path: None = None, *, title: str = "") -> Figure: ...
@overload
def plot_panels(panels: Rows, path: str | Path, *, title: str = "") -> Path: ...
@overload
def plot_panels(panels: Rows, path: str | Path | None, *, title: str = "") -> Figure | Path: ...
def plot_panels(panels: Rows, path: str | Path | None = None, *, title: str = "") -> Figure | Path:
    """Draw a grid of panels with one legend; return the figure, or the path of its file.

    Args:
        panels: rows of panels, all rows of one length.
        path: ``.png`` (few colours), ``.svg`` or ``.pdf``; None returns the figure, for notebooks.
        title: above the panels.
    """
    if not panels or not panels[0] or len({len(row) for row in panels}) > 1:
        raise InputError("plot_panels needs rows of panels, all of one length and not empty")
    if path is None:
        return _drawn(panels, title)
    target = Path(path)
    formats = {".png": _png, ".svg": _svg, ".pdf": _pdf}
    if target.suffix not in formats:
        raise InputError(f"a picture must end in {', '.join(formats)}, got {target.name}")
    figure = _drawn(panels, title)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(target, formats[target.suffix](figure))
    return target


def _drawn(panels: Rows, title: str) -> Figure:
    # No global state of pyplot: a library must not open or keep windows.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    class Picture(Figure):
        """A figure that a notebook shows without any set-up."""

        def _repr_png_(self) -> bytes:
            return _png(self)

    rows, columns = len(panels), len(panels[0])
    single = rows * columns == 1
    size = (6.0, 4.0) if single else (3.6 * columns + 0.2, 2.7 * rows + 0.9)
    figure = Picture(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, columns, squeeze=False)
    every = [line for row in panels for panel in row for line in panel.lines]
    styles = {
        label: _STYLES[n % len(_STYLES)]
        for n, label in enumerate(dict.fromkeys(line.label for line in every))
    }
    for axes_row, panel_row in zip(grid, panels, strict=True):
        for axes, panel in zip(axes_row, panel_row, strict=True):
            _draw(axes, panel, styles)
    handles = _legend(every, styles)
    if single and len(handles) <= _INSIDE:
        grid[0, 0].legend(handles=handles, frameon=False, fontsize="small")
    else:
        _legend_below(figure, handles, min(4, 2 * columns + single))
    if title and single:  # one title, above the axes
        both = "\n".join(filter(None, (title, panels[0][0].title)))
        grid[0, 0].set_title(_plain(both), fontsize="medium")
    elif title:
        figure.suptitle(_plain(title), fontsize="medium")
    return figure


def _legend_below(figure: Figure, handles: list[Any], columns: int) -> None:
    """Draw a legend in as many columns as fit."""
    width = figure.get_figwidth() * figure.dpi
    for ncols in range(columns, 0, -1):
        legend = figure.legend(
            handles=handles, loc="outside lower center", ncols=ncols, frameon=False,
            fontsize="small",
        )  # fmt: skip
        if ncols == 1 or legend.get_window_extent().width <= width:
            return
        legend.remove()


def _draw(axes: Axes, panel: Panel, styles: Mapping[str, tuple[str, str]]) -> None:
    for line in panel.lines:
        marker, colour = styles[line.label]
        attacked = line.kind == "attack"
        values = np.atleast_2d(line.values)
        if len(values) > 1:
            axes.fill_between(
                line.epsilons, values.min(axis=0), values.max(axis=0), color=colour,
                alpha=0.25 if attacked else 0.12, linewidth=0,
            )  # fmt: skip
        axes.plot(
            line.epsilons, values.mean(axis=0), linestyle=_KINDS[line.kind][0],
            linewidth=1.6 if attacked else 1.0, marker=marker, markersize=5 if attacked else 3.5,
            markerfacecolor=colour if attacked else "white", color=colour,
        )  # fmt: skip
    # A small panel has room for about this many letters below and above it.
    narrow = axes.get_window_extent().width / axes.figure.dpi < 5
    wrap = (lambda text: fill(text, 44)) if narrow else str
    axes.set_xlabel(_plain(wrap(panel.axis)), fontsize="small")
    axes.set_ylabel(panel.metric)
    if panel.bottom is not None:
        axes.set_ylim(bottom=panel.bottom)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(_plain(wrap(panel.title)), fontsize="medium")


def _plain(text: str) -> str:
    """Escape text for matplotlib: dollars begin a formula, and a leading _ hides a label."""
    return (" " if text.startswith("_") else "") + text.replace("$", r"\$")


def _legend(lines: Sequence[Line], styles: Mapping[str, tuple[str, str]]) -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [
        Line2D(
            [], [], color=colour, marker=marker, markersize=5, linewidth=1.6, label=_plain(label)
        )
        for label, (marker, colour) in styles.items()
    ]
    kinds = list(dict.fromkeys(line.kind for line in lines))
    if kinds != ["attack"]:
        handles += [
            Line2D([], [], color="#444444", linestyle=dashes, label=words)
            for dashes, words in (_KINDS[kind] for kind in kinds)
        ]
    seeds = max(len(np.atleast_2d(line.values)) for line in lines)
    if seeds > 1:
        band = f"band: lowest to highest of {seeds} seeds"
        handles.append(Patch(color="#444444", alpha=0.25, linewidth=0, label=band))
    return handles


def _png(figure: Figure) -> bytes:
    from PIL import Image

    full, light = io.BytesIO(), io.BytesIO()
    figure.savefig(full, format="png", dpi=150)
    with Image.open(full) as picture:
        picture.convert("RGB").quantize(_PALETTE).save(light, format="png", optimize=True)
    return light.getvalue()


def _svg(figure: Figure, kind: str = "svg", date: str = "Date") -> bytes:
    from matplotlib import rc_context

    buffer = io.BytesIO()
    # Ids from the content and no date: the same picture is the same file. Text stays text, to be
    # searched, selected and read aloud.
    with rc_context({"svg.hashsalt": "robustcf", "svg.fonttype": "none", "pdf.fonttype": 42}):
        figure.savefig(buffer, format=kind, metadata={date: None})
    return buffer.getvalue()


def _pdf(figure: Figure) -> bytes:
    return _svg(figure, "pdf", "CreationDate")
