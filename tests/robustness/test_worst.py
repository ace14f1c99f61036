"""The worst of an ensemble: a naive transcription, its laws, and what it costs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from robustcf.attacks import BUDGETS, FGM, PGD, Pairwise, RandomNoise, Softmax
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.metrics.evaluate import evaluate
from robustcf.objectives import BCEConfig
from robustcf.recommender import Recommender
from robustcf.robustness import Threat, certify, measure, worst_counts, worst_of
from robustcf.robustness.table import _GUESSING_STEPS, STEPS, guessed_labels
from robustcf.robustness.worst import joint_of
from tests.robustness.helpers import BOARD, contents, curve_of, nearly_right

EPSILONS = [0.0, 0.05, 0.2, 0.6]
WEIGHTS = BCEConfig(negative_weight=20.0)


def target_of(factors: Factors, **options) -> Recommender:
    return Recommender(*factors, BOARD, bce=WEIGHTS, **options)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_auto_is_the_pairwise_attack_of_its_size_or_of_a_smaller_one(seed):
    factors = nearly_right(seed)
    result = measure(target_of(factors), "auto", epsilons=EPSILONS, ks=(5, 10), steps=4)
    joint = result.curve
    assert (joint.attack, joint.objective, joint.kind) == ("auto", None, "joint")
    assert joint.threat == Threat(knowledge="labels")
    assert result.members is result.per_user is result.per_user_control is None
    attack = Pairwise(BOARD.test, BOARD.train_full, 5, steps=4)
    attacked = [attack.perturb(factors, size).factors for size in EPSILONS]
    reports = [evaluate(each, BOARD, (5, 10)) for each in attacked]
    for n in range(len(EPSILONS)):
        chosen = min(report["ndcg@5"] for report in reports[: n + 1])
        assert joint["ndcg@5"][n] == chosen
        assert any(
            all(joint[name][n] == value for name, value in report.values.items())
            and all(np.array_equal(joint.per_user[m][n], v) for m, v in report.per_user.items())
            for report in reports[: n + 1]
        ), "all metrics and users are of one perturbation"
    assert joint["ndcg@10"][0] == evaluate(factors, BOARD)["ndcg@10"], "clean, to the bit"
    assert joint["ndcg@5"][-1] < joint["ndcg@5"][0]


def naive_joint(curves, metric):
    """(least, size, member) at each size, over all choices of this size and smaller ones."""
    found = []
    for n in range(len(curves[0].epsilons)):
        pool = [(curve[metric][m], m, c) for m in range(n + 1) for c, curve in enumerate(curves)]
        found.append(min(pool))
    return found


@pytest.mark.parametrize("seed", range(6))
def test_joint_is_its_definition(seed):
    """Curves out of the blue, in which ties and rises are frequent."""
    rng = np.random.default_rng(seed)
    one = curve_of(nearly_right(0), RandomNoise(), EPSILONS, (5, 10))
    curves = []
    for number in range(4):
        per_user = {m: rng.integers(0, 3, v.shape) / 2 for m, v in one.per_user.items()}
        values = {
            m: per_user[m].mean(axis=1) if m in per_user else v for m, v in one.values.items()
        }
        values["coverage@5"] = rng.random(4)
        realised = tuple({"users": rng.random(), "items": rng.random()} for _ in EPSILONS)
        found = {"values": values, "per_user": per_user, "realised": realised}
        curves.append(dataclasses.replace(one, **found, objective=str(number)))
    members = {str(n): curve for n, curve in enumerate(curves)}
    for metric in ("ndcg@5", "recall@10"):
        joint = joint_of(members, "all", metric)
        assert (joint.attack, joint.kind, joint.objective) == ("all", "joint", None)
        for n, (least, m, c) in enumerate(naive_joint(curves, metric)):
            assert joint[metric][n] == least
            # Any of equals, but all values are of that one.
            pool = [(curve, place) for place in range(n + 1) for curve in curves]
            tied = [(curve, place) for curve, place in pool if curve[metric][place] == least]
            assert (curves[c], m) in tied
            fits = [
                all(joint[name][n] == curve[name][place] for name in joint.values)
                and joint.realised[n] == curve.realised[place]
                and all((joint.per_user[x][n] == curve.per_user[x][place]).all() for x in per_user)
                for curve, place in tied
            ]
            assert sum(fits) == 1
        worst = worst_of(members, "all", cumulative=True)
        for name, values in worst.values.items():
            assert (values <= joint[name] + 1e-12).all()
    same = joint_of({"a": curves[0], "b": curves[0]}, "all", "ndcg@5")
    assert same.objective == "0"


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("side", ["both", "users", "items"])
@pytest.mark.parametrize(
    ("norm", "unit"),
    [("row", "own"), ("row", "absolute"), *((norm, "relative") for norm in BUDGETS)],
)
def test_auto_never_rises_and_each_user_alone_is_never_above_it(seed, side, norm, unit):
    """The same attack without labels never rises either; all are within the budget."""
    factors, threat, sizes = nearly_right(seed), Threat(norm, unit, side), [0.0, 0.1, 0.6]
    target = target_of(factors)
    result = measure(target, "auto", threat, sizes)
    curve = result.curve
    assert curve.threat == dataclasses.replace(threat, knowledge="labels")
    for found in (result, result.with_data):
        assert (np.diff(found.curve["ndcg@10"]) <= 0).all()
    if norm == "row":
        alone = measure(target, "personal", threat, sizes, control=False).curve
        certified = certify(target, sizes, threat=threat).curve
        assert (alone["ndcg@10"] <= curve["ndcg@10"] + 1e-12).all()
        assert (certified["ndcg@10"] <= alone["ndcg@10"] + 1e-12).all()
        assert (alone.per_user["ndcg@10"] <= curve.per_user["ndcg@10"] + 1e-12).all()
    assert result.with_data.threat == dataclasses.replace(threat, knowledge="data")
    budget = threat.budget
    for each in (curve, result.with_data.curve, result.control):
        for name, part in zip(("users", "items"), factors, strict=True):
            unit = budget.of(part).unit(part) if threat.relative else 1.0
            for size, realised in zip(sizes, each.realised, strict=True):
                most = size * unit if threat.side in ("both", name) else 0.0
                assert realised[name] <= most


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_without_labels_the_attack_on_pairs_guesses_them(seed, monkeypatch):
    """Their k shown items: who they are by numpy, and that their ranking is what is attacked."""
    factors = nearly_right(seed, torch.float64)
    target = target_of(factors)
    scores = (factors.users @ factors.items.T).numpy()
    scores[target.seen.users, target.seen.items] = -np.inf
    expected = {
        (user, item)
        for user in np.flatnonzero(target.relevant.user_degrees)
        for item in np.argsort(-scores[user], kind="stable")[:4]
        if np.isfinite(scores[user, item])
    }
    guessed = guessed_labels(target, 4)
    assert set(zip(guessed.users.tolist(), guessed.items.tolist(), strict=True)) == expected
    built = Pairwise(guessed, target.seen, 4, steps=_GUESSING_STEPS)
    by_hand = measure(target, built, epsilons=EPSILONS, ks=(4,)).curve
    for steps in ({}, {"steps": _GUESSING_STEPS}):
        found = measure(target, "pairwise", Threat(knowledge="data"), EPSILONS, (4,), **steps)
        assert found.curve.as_lists() == by_hand.as_lists()
    auto = measure(target, "auto", epsilons=EPSILONS, ks=(4,))
    falling = joint_of({"pairwise": by_hand}, "auto", "ndcg@4")  # a smaller size counts too
    assert auto.with_data.curve.as_lists() == falling.as_lists()
    assert auto.with_data.with_data is auto.with_data.control is None
    labels = auto.curve.as_lists()
    told = measure(target, "pairwise", epsilons=EPSILONS, ks=(4,), steps=STEPS["pairwise"]).curve
    assert labels == joint_of({"pairwise": told}, "auto", "ndcg@4").as_lists()
    assert labels != by_hand.as_lists()
    without = measure(target, "auto", epsilons=[0, 0.1], ks=(4,), control=False, steps=1)
    assert without.control is without.with_data is without.per_user_control is None


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("unit", ["own", "absolute"])
def test_pgd_is_reported_at_least_as_strong_as_fgm(seed, unit):
    factors = nearly_right(seed)
    relative, many = unit == "own", {"steps": 3, "restarts": 2}
    result = measure(target_of(factors), "pgd-softmax", Threat(unit=unit), EPSILONS, **many)
    curve = result.curve
    assert (curve.attack, curve.objective) == ("pgd", "softmax")
    aim = Softmax(BOARD.train)
    attacks = (FGM(aim, relative=relative), PGD(aim, relative=relative, **many))
    both = [curve_of(factors, each, EPSILONS) for each in attacks]
    check_worst_per_user(result.per_user, both)
    least = np.minimum(both[0]["ndcg@10"], both[1]["ndcg@10"])
    np.testing.assert_array_equal(curve["ndcg@10"], np.minimum.accumulate(least))
    assert (curve.kind, result.per_user.kind) == ("joint", "per user")


def check_worst_per_user(curve, alone):
    for name, values in curve.per_user.items():
        least = np.minimum.reduce([draw.per_user[name] for draw in alone])
        np.testing.assert_array_equal(values, np.minimum.accumulate(least, axis=0))


@pytest.mark.parametrize(
    ("attack", "draws"),
    [("fgm-bpr", 1), ("cutoff", 1), ("pgd-bpr", 2), ("auto", 1), ("personal", 4)],
)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_control_chooses_as_often_as_the_ensemble(attack, draws, seed):
    factors = nearly_right(seed)
    result = measure(target_of(factors), attack, epsilons=EPSILONS, seed=4, steps=2)
    assert (result.draws, result.control.attack) == (draws, "random")
    assert result.control.options == {"seed": 4, "draws": draws}
    alone = [curve_of(factors, RandomNoise(seed=4 + n), EPSILONS) for n in range(draws)]
    joint = draws > 1 and attack != "personal"
    assert (result.per_user_control is not None) == joint
    if draws == 1:
        assert result.control.as_lists() == alone[0].as_lists()
    elif joint:
        check_worst_per_user(result.per_user_control, alone)
        found = result.control
        for n, (least, m, c) in enumerate(naive_joint(alone, "ndcg@10")):
            assert found["ndcg@10"][n] == least
            chosen = alone[c].per_user["ndcg@10"][m]
            np.testing.assert_array_equal(found.per_user["ndcg@10"][n], chosen)
    else:
        assert (result.curve.kind, result.control.kind) == ("each user alone", "per user")
        check_worst_per_user(result.control, alone)
    without = measure(target_of(factors), attack, epsilons=[0], control=False)
    assert without.control is without.per_user_control is None


def test_the_attack_random_is_its_own_control(tmp_path):
    target = target_of(nearly_right(0))
    noise = measure(target, "random", epsilons=EPSILONS, seed=4)
    assert noise.control is noise.curve
    assert noise.curve.threat.knowledge == "none"
    path, _ = noise.save(tmp_path)
    before = contents(tmp_path)
    for attack in ("fgm-bpr", "cutoff"):  # attacks share one file of their control
        result = measure(target, attack, epsilons=EPSILONS, seed=4, steps=2)
        assert result.control.as_dict() == noise.curve.as_dict()
        result.save(tmp_path)
        assert before.items() <= contents(tmp_path).items()
    assert measure(target, "random", epsilons=EPSILONS, seed=5).curve.name != path.stem


def test_counts_tell_who_is_worst_for_whom():
    one = curve_of(nearly_right(0), RandomNoise(), [0, 1], (5,))
    n = len(one.users)
    low, high = np.zeros((2, n)), np.ones((2, n))
    low[1, 0] = 2.0
    members = {
        "a": dataclasses.replace(one, per_user={"ndcg@5": low}),
        "b": dataclasses.replace(one, per_user={"ndcg@5": high}),
        "c": dataclasses.replace(one, per_user={"ndcg@5": np.stack([low[0], high[1]])}),
    }
    assert worst_counts(members, "ndcg@5") == {
        "a": {"worst": [n, n - 1], "alone": [0, n - 1]},
        "b": {"worst": [0, 1], "alone": [0, 0]},
        "c": {"worst": [n, 1], "alone": [0, 0]},
    }


def test_what_does_not_compare_is_refused():
    factors = nearly_right(0)
    one = curve_of(factors, RandomNoise(), [0, 1])
    others = (
        curve_of(factors, RandomNoise(), [0, 2]),
        curve_of(factors, RandomNoise(side="users"), [0, 1]),
        curve_of(factors, RandomNoise(relative=False), [0, 1]),
        curve_of(factors, RandomNoise(), [0, 1], (5,)),
        curve_of(factors, RandomNoise(), [0, 1], part="valid"),
    )
    for members in ({}, *({"a": one, "b": other} for other in others)):
        for combine in (worst_of, lambda members, name: joint_of(members, name, "ndcg@10")):
            with pytest.raises(InputError, match="epsilons" if members else "curves"):
                combine(members, "auto")
    with pytest.raises(InputError, match="metric"):
        joint_of({"a": one}, "auto", "ndcg@7")
    with pytest.raises(InputError, match="different"):
        measure(Recommender(factors.items, factors.items, BOARD), "auto", epsilons=[0.1])
    with pytest.raises(InputError, match="ascending"):
        measure(target_of(factors), "auto", epsilons=[0.2, 0.1])
