"""The worst of an ensemble: a naive transcription, its laws, and what it costs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from robustcf.attacks import BUDGETS, FGM, PGD, Cutoff, RandomNoise, Softmax
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.metrics.evaluate import evaluate
from robustcf.objectives import BCE, BPR, BCEConfig
from robustcf.recommender import Recommender
from robustcf.robustness import Threat, measure, worst_counts, worst_of
from robustcf.robustness.table import _GUESSING_STEPS, STEPS, guessed_labels
from robustcf.robustness.worst import joint_of
from tests.robustness.helpers import BOARD, curve_of, nearly_right

EPSILONS = [0.0, 0.05, 0.2, 0.6]
WEIGHTS = BCEConfig(negative_weight=20.0)
ABSOLUTE = Threat(unit="absolute")


def target_of(factors: Factors, **options) -> Recommender:
    return Recommender(*factors, BOARD, bce=WEIGHTS, **options)


def members_of(factors: Factors, steps: int, k: int):
    """The attacks that auto is made of, built by hand for somebody who knows the labels."""
    place = {"dtype": factors.users.dtype}
    bce = BCE(BOARD.test, dataclasses.replace(WEIGHTS, item_weight=0.0), **place)
    aims = {"softmax": Softmax(BOARD.test, **place), "bpr": BPR(BOARD.test, **place), "bce": bce}
    cutoff = Cutoff(BOARD.test, BOARD.train_full, k, steps=steps)
    return {"cutoff": cutoff, **{f"fgm-{name}": FGM(aim) for name, aim in aims.items()}}


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_auto_is_the_worst_of_its_members_joint_and_per_user(seed):
    """By hand: one of all attacks of a size and of smaller ones, or one for each user."""
    factors = nearly_right(seed)
    result = measure(target_of(factors), "auto", epsilons=EPSILONS, ks=(5, 10), steps=4)
    joint, per_user = result.curve, result.per_user
    for curve, kind in ((joint, "joint"), (per_user, "per user")):
        assert (curve.attack, curve.objective, curve.kind) == ("auto", None, kind)
        assert curve.threat == Threat(knowledge="labels")
    attacks = members_of(factors, 4, 5)
    reports = {
        name: [evaluate(each.perturb(factors, size).factors, BOARD, (5, 10)) for size in EPSILONS]
        for name, each in attacks.items()
    }
    assert set(result.members) == set(reports)
    for name, found in reports.items():
        for n, report in enumerate(found):
            assert result.members[name]["ndcg@5"][n] == report["ndcg@5"]
    for n in range(len(EPSILONS)):
        pool = [found[m] for m in range(n + 1) for found in reports.values()]
        chosen = min(report["ndcg@5"] for report in pool)
        assert joint["ndcg@5"][n] == chosen
        same = [report for report in pool if report["ndcg@5"] == chosen]
        assert any(
            all(joint[name][n] == value for name, value in report.values.items())
            and all(np.array_equal(joint.per_user[m][n], v) for m, v in report.per_user.items())
            for report in same
        ), "all metrics and users are of one perturbation"
        for name in ("ndcg@5", "mrr@10", "recall@10", "map@5"):
            expected = [
                min(report.per_user[name][user] for report in pool)
                for user in range(len(per_user.users))
            ]
            np.testing.assert_array_equal(per_user.per_user[name][n], expected)
            assert per_user[name][n] == pytest.approx(np.mean(expected), rel=1e-12)
        assert per_user["coverage@5"][n] == min(report["coverage@5"] for report in pool)
    assert joint["ndcg@10"][0] == evaluate(factors, BOARD)["ndcg@10"], "clean, to the bit"
    assert joint["ndcg@5"][-1] < joint["ndcg@5"][0]
    assert per_user["ndcg@5"][-1] < joint["ndcg@5"][-1], "two numbers"


def naive_joint(curves, metric):
    """(member, size) at each size: the first of those that leave least, and none that leaves more.

    Written down apart from the package: all choices of this size and of smaller ones.
    """
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
        curves.append(
            dataclasses.replace(
                one, values=values, per_user=per_user, realised=realised, objective=str(number)
            )
        )
    members = {str(n): curve for n, curve in enumerate(curves)}
    for metric in ("ndcg@5", "recall@10"):
        joint = joint_of(members, "all", metric)
        assert (joint.attack, joint.kind, joint.objective) == ("all", "joint", None)
        for n, (least, m, c) in enumerate(naive_joint(curves, metric)):
            assert joint[metric][n] == least
            # Of equals, any; but all that is told is told of that one.
            tied = [
                (curve, place)
                for place in range(n + 1)
                for curve in curves
                if curve[metric][place] == least
            ]
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
def test_auto_never_rises_and_is_never_above_a_member(seed, side, norm, unit):
    """Joint, then per user; the same attack without labels; all within the budget."""
    factors, threat = nearly_right(seed), Threat(norm, unit, side)
    result = measure(target_of(factors), "auto", threat, EPSILONS, steps=3)
    curve, members = result.curve, result.members
    assert curve.threat == dataclasses.replace(threat, knowledge="labels")
    worst = worst_of(members, "auto", cumulative=True)
    assert worst.as_lists() == result.per_user.as_lists()
    assert joint_of(members, "auto", "ndcg@10").as_lists() == curve.as_lists()
    for found in (result, result.with_data):
        joint, per_user = found.curve, found.per_user
        assert (np.diff(joint["ndcg@10"]) <= 0).all()
        for name, values in per_user.per_user.items():
            assert (np.diff(values, axis=0) <= 0).all()
            assert (values <= joint.per_user[name]).all()
            for member in found.members.values():
                assert (values <= member.per_user[name]).all()
        for name, values in per_user.values.items():
            assert (values <= joint[name] + 1e-12).all(), name
        for member in found.members.values():
            assert (joint["ndcg@10"] <= member["ndcg@10"] + 1e-12).all()
    assert result.with_data.threat == dataclasses.replace(threat, knowledge="data")
    assert (result.per_user_control["ndcg@10"] <= result.control["ndcg@10"] + 1e-12).all()
    budget = threat.budget
    for each in (curve, result.per_user, result.with_data.curve, result.control):
        for name, part in zip(("users", "items"), factors, strict=True):
            unit = budget.of(part).unit(part) if threat.relative else 1.0
            for size, realised in zip(EPSILONS, each.realised, strict=True):
                most = size * unit if threat.side in ("both", name) else 0.0
                assert realised[name] <= most


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_without_labels_the_attack_at_the_cutoff_guesses_them(seed, monkeypatch):
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
    built = Cutoff(guessed, target.seen, 4, steps=_GUESSING_STEPS)
    by_hand = measure(target, built, epsilons=EPSILONS, ks=(4,)).curve
    for steps in ({}, {"steps": _GUESSING_STEPS}):
        found = measure(target, "cutoff", Threat(knowledge="data"), EPSILONS, (4,), **steps)
        assert found.curve.as_lists() == by_hand.as_lists()
    auto = measure(target, "auto", epsilons=EPSILONS, ks=(4,))
    assert auto.with_data.members["cutoff"].as_lists() == by_hand.as_lists()
    assert auto.with_data.with_data is auto.with_data.control is None
    labels = auto.members["cutoff"].as_lists()
    told = measure(target, "cutoff", epsilons=EPSILONS, ks=(4,), steps=STEPS["cutoff"]).curve
    assert labels == told.as_lists()
    assert labels != by_hand.as_lists()
    without = measure(target, "auto", epsilons=[0, 0.1], ks=(4,), control=False, steps=1)
    assert without.control is without.with_data is without.per_user_control is None


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("unit", ["relative", "absolute"])
def test_pgd_is_reported_at_least_as_strong_as_fgm(seed, unit):
    factors = nearly_right(seed)
    relative, many = unit == "relative", {"steps": 3, "restarts": 2}
    result = measure(target_of(factors), "pgd-softmax", Threat(unit=unit), EPSILONS, **many)
    curve = result.curve
    assert (curve.attack, curve.objective) == ("pgd", "softmax")
    aim = Softmax(BOARD.train)
    both = [
        curve_of(factors, each, EPSILONS)
        for each in (FGM(aim, relative=relative), PGD(aim, relative=relative, **many))
    ]
    for name, values in result.per_user.per_user.items():
        expected = np.minimum(both[0].per_user[name], both[1].per_user[name])
        np.testing.assert_array_equal(values, np.minimum.accumulate(expected, axis=0))
    least = np.minimum(both[0]["ndcg@10"], both[1]["ndcg@10"])
    np.testing.assert_array_equal(curve["ndcg@10"], np.minimum.accumulate(least))
    assert (curve.kind, result.per_user.kind) == ("joint", "per user")


@pytest.fixture
def counts(monkeypatch):
    """How often a softmax is asked for its gradient, and for its slope."""
    found = {"gradients": 0, "slopes": 0}
    gradient, slope = Softmax.full_gradient, Softmax.slope

    def counted_gradient(self, U, V):
        found["gradients"] += 1
        return gradient(self, U, V)

    def counted_slope(self, U, V):
        found["slopes"] += 1
        before = found["gradients"]
        value = slope(self, U, V)
        found["gradients"] = before  # a slope is made of a gradient of some users
        return value

    monkeypatch.setattr(Softmax, "full_gradient", counted_gradient)
    monkeypatch.setattr(Softmax, "slope", counted_slope)
    return found


@pytest.mark.parametrize("threat", [ABSOLUTE, Threat()], ids=lambda threat: threat.unit)
def test_one_gradient_serves_a_sweep(counts, threat):
    relative = threat.relative
    target = target_of(nearly_right(0))
    measure(target, "fgm-softmax", threat, np.linspace(0, 1, 20))
    assert counts["gradients"] == 1
    assert 0 < counts["slopes"] <= 13 if relative else counts["slopes"] == 0
    counts["gradients"] = 0
    measure(target, "pgd-softmax", threat, [0, 0.1, 0.2], steps=3, restarts=2)
    assert counts["gradients"] == 1 + 2 * (1 + 3 + 1 + 3), "fgm's point; 3 steps; a start; 3 steps"
    counts["gradients"] = 0
    measure(target, "auto", threat, [0, 0.1, 0.2], steps=2)
    assert counts["gradients"] == 2, "once with labels and once without"


@pytest.mark.parametrize(
    ("attack", "draws"), [("fgm-bpr", 1), ("cutoff", 1), ("pgd-bpr", 2), ("auto", 4)]
)
def test_the_control_chooses_as_often_as_the_ensemble(attack, draws):
    factors = nearly_right(0)
    result = measure(target_of(factors), attack, epsilons=EPSILONS, seed=4, steps=2)
    assert (result.draws, result.control.attack) == (draws, "random")
    alone = [curve_of(factors, RandomNoise(seed=4 + n), EPSILONS) for n in range(draws)]
    assert (result.per_user_control is None) == (draws == 1)
    if draws > 1:
        for name, values in result.per_user_control.per_user.items():
            least = np.minimum.reduce([draw.per_user[name] for draw in alone])
            np.testing.assert_array_equal(values, np.minimum.accumulate(least, axis=0))
    if draws == 1:  # nothing to choose from, as the attack has not
        assert result.control.as_lists() == alone[0].as_lists()
        assert result.control.options == {"seed": 4, "draws": 1}
    for n, (least, m, c) in enumerate(naive_joint(alone, "ndcg@10") if draws > 1 else ()):
        assert result.control["ndcg@10"][n] == least
        np.testing.assert_array_equal(
            result.control.per_user["ndcg@10"][n], alone[c].per_user["ndcg@10"][m]
        )
    without = measure(target_of(factors), attack, epsilons=[0], control=False)
    assert without.control is without.per_user_control is None


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_control_of_an_attack_on_each_user_alone_chooses_for_each_user(seed):
    factors = nearly_right(seed)
    result = measure(target_of(factors), "personal", epsilons=EPSILONS, seed=2)
    assert (result.draws, result.control.kind) == (4, "per user")
    assert result.curve.kind == "each user alone"
    alone = [curve_of(factors, RandomNoise(seed=2 + n), EPSILONS) for n in range(4)]
    for name, values in result.control.per_user.items():
        least = np.minimum.reduce([draw.per_user[name] for draw in alone])
        np.testing.assert_array_equal(values, np.minimum.accumulate(least, axis=0))
    assert result.control.options == {"seed": 2, "draws": 4}


def test_the_attack_random_is_its_own_control():
    target = target_of(nearly_right(0))
    noise = measure(target, "random", epsilons=EPSILONS, seed=4)
    assert noise.control is noise.curve
    assert noise.curve.threat.knowledge == "none"
    control = measure(target, "fgm-bpr", epsilons=EPSILONS, seed=4).control
    assert control.as_dict() == noise.curve.as_dict()


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
    with pytest.raises(InputError, match="curves"):
        worst_of({}, "auto")
    with pytest.raises(InputError, match="curves"):
        joint_of({}, "auto", "ndcg@10")
    with pytest.raises(InputError, match="metric"):
        joint_of({"a": one}, "auto", "ndcg@7")
    for other in (
        curve_of(factors, RandomNoise(), [0, 2]),
        curve_of(factors, RandomNoise(side="users"), [0, 1]),
        curve_of(factors, RandomNoise(relative=False), [0, 1]),
        curve_of(factors, RandomNoise(), [0, 1], (5,)),
        curve_of(factors, RandomNoise(), [0, 1], part="valid"),
    ):
        with pytest.raises(InputError, match="epsilons"):
            worst_of({"a": one, "b": other}, "auto")
        with pytest.raises(InputError, match="epsilons"):
            joint_of({"a": one, "b": other}, "auto", "ndcg@10")
    with pytest.raises(InputError, match="different"):
        measure(Recommender(factors.items, factors.items, BOARD), "auto", epsilons=[0.1])
    with pytest.raises(InputError, match="ascending"):
        measure(target_of(factors), "auto", epsilons=[0.2, 0.1])
