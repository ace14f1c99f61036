"""Curves: what they hold, how they are saved, and their pictures."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from robustcf._checks import check_epsilons
from robustcf.attacks import FGM, RandomNoise, Softmax
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.metrics.evaluate import evaluate
from robustcf.recommender import Recommender
from robustcf.robustness import AttackSpec, RobustnessCurve, Threat, measure
from robustcf.robustness.curves import threat_of
from tests.robustness.helpers import BOARD, PARITY, RIGHT, curve_of


def test_a_curve_starts_at_the_clean_result_to_the_bit_and_falls():
    # Nearly right: where all items of a parity are alike, they move alike and stay in order.
    noise = torch.randn(50, 2, generator=torch.Generator().manual_seed(0))
    nearly = Factors(RIGHT.users + 0.2 * noise[:20], RIGHT.items + 0.2 * noise[20:])
    clean = evaluate(nearly, BOARD)
    attack = FGM(Softmax(BOARD.train), relative=False)
    curve = curve_of(nearly, attack, [0, 0.2, 3.0])
    for name, value in clean.values.items():
        assert curve[name][0] == value
    for name, values in clean.per_user.items():
        np.testing.assert_array_equal(curve.per_user[name][0], values)
        assert curve.per_user[name].shape == (3, clean.protocol.n_users)
        np.testing.assert_allclose(curve.per_user[name].mean(axis=1), curve[name])
    assert curve["ndcg@10"][2] < curve["ndcg@10"][0]
    assert curve.realised[0] == {"users": 0.0, "items": 0.0}
    assert curve.realised[2]["users"] == pytest.approx(3.0)


def test_a_curve_as_json():
    curve = curve_of(RIGHT, RandomNoise(relative=True), [0, 0.5], ks=(5,))
    data = json.loads(json.dumps(curve.as_dict()))
    assert data["epsilons"] == [0.0, 0.5]
    assert (data["relative"], data["unit"], data["knowledge"]) == (True, "relative", "data")
    assert (data["budget"], data["side"]) == ("row", "both")
    assert data["objective"] is None
    assert len(data["ndcg@5"]) == len(data["coverage@5"]) == 2
    assert data["protocol"]["masked"] == ["train", "valid"]


@pytest.mark.parametrize(
    ("epsilons", "message"),
    [
        ([], "at least one attack size"),
        ([0.0, -0.1], "finite and not negative, got -0.1"),
        ([0.0, float("nan")], "finite and not negative, got nan"),
        ([0.0, float("inf")], "finite and not negative"),
        ([0.2, 0.1], "ascending and differ, got 0.2, 0.1: sort them"),
        ([0.1, 0.1], "ascending and differ"),
    ],
)
def test_bad_epsilons_are_refused(epsilons, message):
    with pytest.raises(InputError, match=message):
        check_epsilons(epsilons)
    if epsilons:  # none are asked for: the sizes of the table
        for attack in (RandomNoise(), "fgm-softmax", "certificate"):
            with pytest.raises(InputError, match=message):
                measure(Recommender(*RIGHT, BOARD), attack, epsilons=epsilons)


def test_other_factors_than_the_splits_and_unknown_metrics():
    with pytest.raises(InputError, match="belong to different data"):
        curve_of(Factors(PARITY, PARITY), RandomNoise(), [0])
    curve = curve_of(RIGHT, RandomNoise(), [0])
    with pytest.raises(InputError, match="no metric 'ndcg@99' here; there are ndcg@10"):
        curve["ndcg@99"]


def test_the_axis_names_the_budget():
    one = curve_of(RIGHT, RandomNoise(relative=False), [0]).threat
    assert one.axis == "attack size epsilon, row budget, absolute"
    two = curve_of(RIGHT, RandomNoise(relative=True, side="items"), [0]).threat
    assert two.axis == "attack size, row budget on items, in median row norms of the factors"


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_saved_curve_comes_back(tmp_path, seed):
    attack = RandomNoise(relative=True, side="users", seed=seed)
    curve = curve_of(RIGHT, attack, [0, 0.5, 2], ks=(5,))
    again = RobustnessCurve.load(curve.save(tmp_path / "new" / "curve.json"))
    assert again.as_dict() == curve.as_dict()
    assert again.threat == curve.threat
    assert json.loads((tmp_path / "new" / "curve.json").read_text())["format"] == "robustcf curve 3"
    np.testing.assert_array_equal(again.users, curve.users)
    assert set(again.per_user) == set(curve.per_user)
    more = curve.save(tmp_path / "more.json", {"members": {"a": 1}, "attack": "not this"})
    assert json.loads(more.read_text())["members"] == {"a": 1}
    assert RobustnessCurve.load(more).as_dict() == curve.as_dict()
    for name, values in curve.per_user.items():
        np.testing.assert_allclose(again.per_user[name], values, atol=1e-7)


def test_what_is_no_saved_curve_is_refused(tmp_path):
    path = curve_of(RIGHT, RandomNoise(), [0]).save(tmp_path / "curve.json")
    with pytest.raises(InputError, match="no readable robustness curve"):
        RobustnessCurve.load(tmp_path / "other.json")
    (tmp_path / "list.json").write_text("[1]")
    with pytest.raises(InputError, match="no robustness curve"):
        RobustnessCurve.load(tmp_path / "list.json")
    whole = path.with_suffix(".npz").read_bytes()
    path.with_suffix(".npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="make it again"):
        RobustnessCurve.load(path)
    path.with_suffix(".npz").unlink()
    with pytest.raises(InputError, match="make it again"):
        RobustnessCurve.load(path)


def test_an_unknown_objective_is_refused():
    with pytest.raises(InputError, match="one of bce, bpr, softmax, or module:Class, got 'mse'"):
        AttackSpec("fgm", "mse")


@pytest.mark.parametrize(
    ("attack", "oracle", "knowledge"),
    [
        ("fgm", False, "data"),
        ("fgm", True, "labels"),
        ("random", False, "none"),
        ("certificate", None, "labels"),
    ],
)
def test_a_curve_of_version_0_1_is_read_with_what_its_attacker_knew(
    tmp_path, attack, oracle, knowledge
):
    path = curve_of(RIGHT, RandomNoise(side="users"), [0, 1]).save(tmp_path / "curve.json")
    facts = json.loads(path.read_text()) | {"format": "robustcf curve 1", "attack": attack}
    facts["objective"] = "oracle-softmax" if oracle else None
    del facts["unit"], facts["knowledge"], facts["kind"]
    facts |= {} if oracle is None else {"oracle": oracle}
    path.write_text(json.dumps(facts))
    found = RobustnessCurve.load(path)
    assert found.threat == Threat("row", "relative", "users", knowledge)
    assert found.objective == ("softmax" if oracle else None)
    assert threat_of(facts | {"relative": False}).unit == "absolute"
    assert found.kind == ("certified" if attack == "certificate" else "joint")


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize(
    ("attack", "kind"),
    [("auto", "per user"), ("pgd", "per user"), ("fgm", "joint"), ("random", "joint"),
     ("certificate", "certified"), ("personal", "each user alone")],
)  # fmt: skip
def test_ensembles_of_older_formats_were_taken_user_by_user(tmp_path, number, attack, kind):
    path = curve_of(RIGHT, RandomNoise(), [0, 1]).save(tmp_path / "curve.json")
    facts = json.loads(path.read_text())
    assert facts["kind"] == "joint"
    facts |= {"format": f"robustcf curve {number}", "attack": attack}
    if number < 3:
        del facts["kind"]
    path.write_text(json.dumps(facts))
    assert RobustnessCurve.load(path).kind == (kind if number < 3 else "joint")
    again = RobustnessCurve.load(path).save(tmp_path / "again.json")
    assert RobustnessCurve.load(again).as_dict() == RobustnessCurve.load(path).as_dict()
    path.write_text(json.dumps(facts | {"format": "robustcf curve 4"}))
    with pytest.raises(InputError, match="no robustness curve"):
        RobustnessCurve.load(path)
