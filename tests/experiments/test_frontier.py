"""The frontier: what is on it, what the rule chooses, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

import robustcf
from robustcf.data import Interactions, Split, load
from robustcf.errors import InputError
from robustcf.experiments import frontier as module
from robustcf.experiments.frontier import Frontier, Point, frontier, write_frontier
from robustcf.training.presets import choose, read_preset

SEEDS = (0, 1, 2)


def two_tastes(seed=0, users=80, items=40):
    rng = np.random.default_rng(seed)
    chance = np.where(np.arange(items) % 2 == (np.arange(users) % 2)[:, None], 0.5, 0.05)
    rows, columns = np.nonzero(rng.random((users, items)) < chance)
    part = rng.random(len(rows))
    parts = [
        Interactions.from_pairs(rows[mask], columns[mask], users, items)[0]
        for mask in (part < 0.6, (part >= 0.6) & (part < 0.8), part >= 0.8)
    ]
    return Split("two tastes", *parts, valid_source="published")


@pytest.mark.parametrize("seed", SEEDS)
def test_the_front_and_the_choice_are_those_of_the_definition(seed):
    rng = np.random.default_rng(seed)
    points = tuple(
        Point({"model": "als", "factors": n}, *rng.random(2).round(1)) for n in range(30)
    )
    found = Frontier(points, max(p.clean for p in points), 0.05, 0.7)
    beaten = [
        any(
            q.clean >= p.clean and q.left >= p.left and (q.clean, q.left) != (p.clean, p.left)
            for q in points
        )
        for p in points
    ]
    expected = {(p.clean, p.left) for p, below in zip(points, beaten, strict=True) if not below}
    assert {(p.clean, p.left) for p in found.front} == expected
    good = [p.left for p in points if p.clean >= 0.7 * found.best_clean]
    assert found.chosen.left == max(good)
    assert found.to_frame()["frontier"].sum() >= len(expected)
    assert "*" in str(found)


def test_a_search_gives_a_preset_that_train_takes(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_RANKS", (4,))
    split, lines = two_tastes(), []
    found = frontier(split, minutes=0.01, report=lines.append)
    assert len(lines) == len(found.points)
    assert found.skipped > 0
    assert {point.stored for point in found.points} == {"items", "users, items"}
    write_frontier(found, tmp_path / "robust.json", split)
    assert read_preset(tmp_path / "robust.json").config == found.config
    model = robustcf.train(split, preset=str(tmp_path / "robust.json"))
    for key in ("gauge", "rank", "serve"):
        assert model.training["config"][key] == getattr(found.config, key)
    assert found.plot(tmp_path / "a.png").stat().st_size > 0


def test_only_one_way_to_serve(monkeypatch):
    monkeypatch.setattr(module, "_RANKS", ())
    found = frontier(two_tastes(), minutes=0.01, serve="stored")
    assert {point.stored for point in found.points} == {"users, items"}


def test_the_robust_preset_of_own_data_is_searched_for(monkeypatch):
    monkeypatch.setattr(module, "_RANKS", (4,))
    assert choose("two tastes", kind="robust").under_attack
    assert not choose("ml-1m", kind="robust").under_attack
    model = robustcf.train(two_tastes(), preset="robust", minutes=0.01)
    assert model.training["preset"] == "robust"
    assert model.training["frontier"]["clean"] > 0


def test_what_cannot_be_searched(tmp_path):
    split = two_tastes()
    for wrong in ({"kept": 0.0}, {"kept": 1.5}, {"size": 0.0}, {"minutes": -1.0}):
        with pytest.raises(InputError):
            frontier(split, **wrong)
    none = split.valid.take(np.zeros(len(split.valid), dtype=bool))
    with pytest.raises(InputError, match="validation"):
        frontier(Split("none", split.train, none, split.test, valid_source="none"))
    with pytest.raises(InputError, match="json"):
        write_frontier(
            Frontier((Point({"model": "als"}, 0.1, 0.1),), 0.1, 0.05, 0.9), tmp_path, load("demo")
        )
