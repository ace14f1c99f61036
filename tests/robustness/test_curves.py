"""Curves: what they hold, their names, and how they are saved and read."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from robustcf.attacks import FGM, RandomNoise, Softmax
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.metrics.evaluate import evaluate
from robustcf.recommender import Recommender
from robustcf.robustness import RobustnessCurve, Threat, measure
from robustcf.robustness.curves import FORMAT, SavedCurve, read_curves, settings_of
from tests.robustness.helpers import BOARD, PARITY, RIGHT, contents, curve_of


def test_a_curve_starts_at_the_clean_result_to_the_bit_and_falls():
    # Nearly right: where all items of a parity are alike, they move alike and stay in order.
    noise = torch.randn(50, 2, generator=torch.Generator().manual_seed(0))
    nearly = Factors(RIGHT.users + 0.2 * noise[:20], RIGHT.items + 0.2 * noise[20:])
    clean = evaluate(nearly, BOARD)
    curve = curve_of(nearly, FGM(Softmax(BOARD.train), relative=False), [0, 0.2, 3.0])
    for name, value in clean.values.items():
        assert curve[name][0] == value
    for name, values in clean.per_user.items():
        np.testing.assert_array_equal(curve.per_user[name][0], values)
        assert curve.per_user[name].shape == (3, clean.protocol.n_users)
        np.testing.assert_allclose(curve.per_user[name].mean(axis=1), curve[name])
    assert curve["ndcg@10"][2] < curve["ndcg@10"][0]
    assert curve.realised[0] == {"users": 0.0, "items": 0.0}
    assert curve.realised[2]["users"] == pytest.approx(3.0)


@pytest.fixture(scope="module")
def curve():
    return curve_of(RIGHT, RandomNoise(side="users", seed=3), [0, 0.5, 2], ks=(5,))


def test_a_curve_as_values(curve):
    data = json.loads(json.dumps(curve.as_dict()))
    assert data["epsilons"] == [0.0, 0.5, 2.0]
    assert (data["relative"], data["unit"], data["knowledge"]) == (True, "own", "data")
    assert (data["budget"], data["side"], data["objective"]) == ("row", "users", None)
    assert data["seed"] == 3
    assert len(data["ndcg@5"]) == len(data["coverage@5"]) == 3
    assert data["protocol"]["masked"] == ["train", "valid"]
    assert list(curve.to_frame()["epsilon"]) == [0.0, 0.5, 2.0]
    assert "0.5: " in repr(curve)
    assert "<td" in curve._repr_html_()
    with pytest.raises(InputError, match="ndcg@99"):
        curve["ndcg@99"]
    with pytest.raises(InputError, match="different data"):
        curve_of(Factors(PARITY, PARITY), RandomNoise(), [0])


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_saved_curve_comes_back(tmp_path, seed):
    curve = curve_of(RIGHT, RandomNoise(side="users", seed=seed), [0, 0.5, 2], ks=(5, 10**6))
    path = curve.save(tmp_path / "new" / "curve.json", {"members": {"a": 1}, "attack": "not this"})
    again = RobustnessCurve.load(path)
    assert again.as_dict() == curve.as_dict()
    assert (again.threat, again.protocol) == (curve.threat, curve.protocol)
    assert again.name == curve.name
    facts = json.loads(path.read_text())
    assert (facts["format"], facts["members"]) == (FORMAT, {"a": 1})
    np.testing.assert_array_equal(again.users, curve.users)
    assert set(again.per_user) == set(curve.per_user)
    for name, values in curve.per_user.items():
        np.testing.assert_allclose(again.per_user[name], values, atol=1e-7)
    (found,) = read_curves(path.parent).values()
    assert found.name == curve.name
    assert found.settings == settings_of({**curve.as_dict(), "metrics": list(curve.values)})


def test_equal_settings_share_a_name_and_different_ones_never(curve):
    def changed(**facts):
        return dataclasses.replace(curve, **facts)

    protocol = curve.protocol
    others = [
        changed(attack="other"),
        changed(objective="bce"),
        changed(kind="per user"),
        changed(epsilons=(0.0, 0.5, np.nextafter(2, 3))),
        changed(values={**curve.values, "ndcg@7": curve.values["ndcg@5"]}),
        *(changed(threat=dataclasses.replace(curve.threat, **{key: value})) for key, value in (
            ("unit", "relative"), ("unit", "absolute"), ("side", "both"), ("knowledge", "labels"))),
        changed(threat=Threat("spectral", "absolute")), changed(threat=Threat(unit="absolute")),
        *(changed(options={**curve.options, key: 7})
          for key in ("steps", "restarts", "seed", "draws")),
        changed(options={"bound": "plain"}),
        *(changed(protocol=dataclasses.replace(protocol, **{key: value})) for key, value in (
            ("part", "valid"), ("masked", ("train",)), ("sampled_from", 99))),
    ]  # fmt: skip
    assert len({each.name for each in (curve, *others)}) == len(others) + 1
    again = {name: values + 0.1 for name, values in curve.values.items()}
    assert changed(values=again, realised=()).name == curve.name, "results are not settings"
    assert changed(epsilons=(0, 0.5, 2)).name == curve.name
    assert changed(attack="my.module:Mine", objective="bce").name.startswith("my.module.Mine-bce-")


def test_curves_are_found_by_what_they_hold_not_by_their_files_names(curve, tmp_path):
    other = dataclasses.replace(curve, attack="other")
    for each in (curve, other):
        each.save(tmp_path / f"{each.name}.json")
    # A copy of one over the file of the other: its values of users are next to its own name.
    (tmp_path / f"{other.name}.json").write_bytes((tmp_path / f"{curve.name}.json").read_bytes())
    (found,) = read_curves(tmp_path).values()
    assert (found.name, found.path.stem) == (curve.name, curve.name)
    (tmp_path / f"{curve.name}.json").unlink()
    (found,) = read_curves(tmp_path).values()
    assert (found.name, found.path.stem) == (curve.name, other.name)
    for name, text in (("list", "[1]"), ("notes", '{"a": 1}'), ("q", '{"format": "robustcf q"}')):
        (tmp_path / f"{name}.json").write_text(text)
    (tmp_path / f"{other.name}.npz").unlink()
    assert read_curves(tmp_path) == {}, "not whole, and not curves"


def test_the_same_curve_twice_touches_nothing_and_another_is_told(curve, tmp_path):
    path, replaced = curve.store(tmp_path, {"a": 1})
    assert (path.name, replaced) == (f"{curve.name}.json", False)
    whole, times = contents(tmp_path), [p.stat().st_mtime_ns for p in tmp_path.iterdir()]
    assert curve.store(tmp_path, {"a": 1}) == (path, False)
    assert [p.stat().st_mtime_ns for p in tmp_path.iterdir()] == times
    arrays = path.with_suffix(".npz")
    for spoil in (lambda: arrays.unlink(), lambda: arrays.write_bytes(arrays.read_bytes()[:60])):
        spoil()
        assert curve.store(tmp_path, {"a": 1})[1] is False, "damaged, not another result"
        assert contents(tmp_path) == whole
    users = {**curve.per_user, "ndcg@5": curve.per_user["ndcg@5"][:, ::-1]}
    assert dataclasses.replace(curve, per_user=users).store(tmp_path, {"a": 1})[1] is True
    path.write_text("{")
    assert curve.store(tmp_path, {"a": 1})[1] is True
    assert contents(tmp_path) == whole


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("epsilons", [0], r"ndcg@5 must be a list of 1"),
        ("epsilons", [1, 0.1, 0], "ascending"),
        ("epsilons", "x", "epsilons"),
        ("metrics", ["x"], r"metrics\[0\]"),
        ("metrics", ["ndcg@99"], "ndcg@99"),
        ("ndcg@5", [1, None, 1], r"ndcg@5\[1\]"),
        ("ndcg@5", [1, -1e308, 1], r"ndcg@5\[1\]"),
        ("ndcg@5", [1, 0.5, 1.1], r"ndcg@5\[2\]"),
        ("protocol", {}, "protocol.dataset"),
        ("budget", 5, "budget"),
        ("kind", [], "kind"),
        ("steps", "many", "steps"),
        ("realised", None, "realised"),
        ("format", "robustcf curve 3", "attack again"),
    ],
)  # fmt: skip
def test_curves_with_something_else(curve, tmp_path, key, value, message):
    path = curve.save(tmp_path / "c.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    for read in (RobustnessCurve.load, lambda path: read_curves(path.parent)):
        with pytest.raises(InputError, match=message) as caught:
            read(path)
        assert "c.json" in str(caught.value)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"users": np.zeros(3)}, "float64"),
        ({}, "users"),
        ({"users": np.arange(3), "ndcg@5": np.zeros((3, 4))}, "shape"),
        ({"users": np.arange(1), "ndcg@5": np.full((3, 1), np.nan)}, r"\[0, 1\]"),
        ({"users": np.arange(1), "ndcg@5": np.full((3, 1), -1e308)}, r"\[0, 1\]"),
    ],
)
def test_values_of_users_of_another_kind(curve, tmp_path, arrays, message):
    path = curve.save(tmp_path / "c.json")
    np.savez(path.with_suffix(".npz"), **arrays)
    (found,) = read_curves(tmp_path).values()
    for read in (found.users, lambda: RobustnessCurve.load(path)):
        with pytest.raises(InputError, match=message):
            read()


def test_values_of_users_of_a_saved_curve(curve, tmp_path):
    saved = SavedCurve(Path(curve.save(tmp_path / "c.json")), curve.as_dict())
    np.testing.assert_array_equal(saved.users(), curve.users)
    np.testing.assert_allclose(saved.per_user("mrr@5"), curve.per_user["mrr@5"], atol=1e-7)
    with pytest.raises(InputError, match="values per user"):
        saved.per_user("coverage@5")


def test_what_is_not_a_saved_curve_is_refused(curve, tmp_path):
    path = curve.save(tmp_path / "curve.json")
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "half.json").write_text("{")
    for name in ("absent", "list", "half"):
        with pytest.raises(InputError, match="make it again"):
            RobustnessCurve.load(tmp_path / f"{name}.json")
    with pytest.raises(InputError, match="half.json"):
        read_curves(tmp_path)
    path.with_suffix(".npz").unlink()
    with pytest.raises(InputError, match="make it again"):
        RobustnessCurve.load(path)


@pytest.mark.parametrize("last", [-0.1, float("nan"), float("inf"), 0.1, 0.2])
@pytest.mark.parametrize("attack", [RandomNoise(), "fgm-softmax", "certificate"])
def test_bad_epsilons_are_refused(last, attack):
    with pytest.raises(InputError, match="epsilons"):
        measure(Recommender(*RIGHT, BOARD), attack, epsilons=[0.2, last])
