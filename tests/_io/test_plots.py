"""Pictures: written whole, the same every time, with all the text that readers need."""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
import pytest

from robustcf._io.plots import Line, Panel, plot_panels
from robustcf.attacks import FGM, RandomNoise, RowBudget, Softmax
from robustcf.attacks.budgets import FrobeniusBudget
from robustcf.errors import InputError
from robustcf.recommender import Recommender
from robustcf.robustness import measure
from robustcf.robustness.plots import plot_curves
from tests.robustness.helpers import BOARD, PNG, RIGHT, curve_of

SIZES = (0.0, 0.1, 0.4)


def test_pictures_are_written_and_mixed_axes_refused(tmp_path):
    row, control = (
        curve_of(RIGHT, attack, [0, 0.5]) for attack in (FGM(Softmax(BOARD.train)), RandomNoise())
    )
    path = plot_curves({"a": row}, tmp_path / "new" / "a.png", controls={"a": control}, title="t")
    assert path.read_bytes().startswith(PNG)
    assert b"<svg" in plot_curves({"a": row}, tmp_path / "a.svg").read_bytes()
    others = RandomNoise(RowBudget()), RandomNoise(FrobeniusBudget()), RandomNoise(relative=False)
    for noise in others:
        other = curve_of(RIGHT, noise, [0, 0.5])
        with pytest.raises(InputError, match="share"):
            plot_curves({"a": row, "b": other}, tmp_path / "b.png")
    with pytest.raises(InputError, match="curve"):
        plot_curves({}, tmp_path / "c.png")


def test_a_certificate_is_drawn_dotted(tmp_path):
    target = Recommender(*RIGHT, BOARD)
    attacked, certificate = (
        measure(target, name, epsilons=[0, 0.2, 0.5]).curve for name in ("random", "certificate")
    )
    path = plot_curves({"a": attacked}, tmp_path / "a.svg", certificates={"a": certificate})
    drawn = path.read_text()
    assert "stroke-dasharray" in drawn
    assert "stroke-dasharray" not in plot_curves({"a": attacked}, tmp_path / "b.svg").read_text()


@pytest.mark.slow
def test_pictures_of_panels(tmp_path):
    rng = np.random.default_rng(0)
    lines = [
        Line(label, SIZES, rng.random((3, 3)), kind)
        for label in ("a", "b")
        for kind in ("attack", "random", "certificate")
    ]
    panels = [[Panel(lines, "the axis", "METRIC", "left"), Panel(lines[:2], "x", "y")]]
    png = plot_panels(panels, tmp_path / "new" / "a.png", title="above")
    assert png.read_bytes().startswith(b"\x89PNG")
    svg = plot_panels(panels, tmp_path / "a.svg", title="above").read_text()
    for text in ("the axis", "METRIC", "left", "above", "random control", "certified lower bound"):
        assert text in svg
    assert "band: lowest to highest of 3 seeds" in svg
    assert svg.count("stroke-dasharray") > 4
    assert plot_panels(panels, tmp_path / "b.svg", title="above").read_text() == svg
    one = plot_panels(
        [[Panel([Line("a", SIZES, rng.random((1, 3)))], "x", "y")]], tmp_path / "c.svg"
    )
    assert "band" not in one.read_text()
    assert not list(tmp_path.glob(".*"))


def test_pictures_refuse(tmp_path):
    panel = Panel([Line("a", SIZES, np.zeros((1, 3)))], "x", "y")
    for panels in ([], [[]], [[panel], [panel, panel]]):
        with pytest.raises(InputError, match="rows of panels"):
            plot_panels(panels, tmp_path / "a.png")
    with pytest.raises(InputError, match="must end in .png, .svg, .pdf, got a.jpg"):
        plot_panels([[panel]], tmp_path / "a.jpg")


@pytest.mark.parametrize(
    "label", ["<script>alert(1)</script>", "cost $x_{ $ y", r"$\frac{$", "_hidden", "a & b"]
)
def test_labels_of_users_are_drawn_as_they_are(tmp_path, label):
    """No formula, no hidden entry, no markup."""
    line = Line(label, (0.0, 0.1), np.array([[0.2, 0.1]]), "attack")
    panel = Panel([line], label, "ndcg@10", label)
    path = plot_panels([[panel]], tmp_path / "a.svg", title=label)
    drawn = path.read_text(encoding="utf-8")
    ElementTree.fromstring(drawn)
    assert "<script" not in drawn
    plot_panels([[panel]], tmp_path / "a.png")


@pytest.mark.parametrize("columns", [1, 2, 3])
@pytest.mark.parametrize("labels", [("a", "b"), ("a rather long name of a setting", "b", "c")])
def test_the_legend_below_is_not_cut_off(columns, labels, tmp_path, monkeypatch):
    """Four entries of several words side by side are wider than two panels."""
    drawn = []
    monkeypatch.setattr(
        "robustcf._io.plots._png", lambda figure: drawn.append(figure) or PNG + b"..."
    )
    values = np.array([[0.3, 0.2], [0.4, 0.1]])
    lines = [
        Line(label, (0.0, 0.1), values, kind)
        for label in labels
        for kind in ("attack", "random", "certificate")
    ]
    panel = Panel(lines, "size", "NDCG@10", "")
    plot_panels([[panel] * columns] * 2, tmp_path / "a.png")
    figure = drawn[0]
    assert len(figure.legends) == 1
    box, whole = figure.legends[0].get_window_extent(), figure.bbox
    assert box.x0 >= whole.x0 - 1
    assert box.x1 <= whole.x1 + 1
