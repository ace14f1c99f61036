"""The worst of an ensemble: a naive transcription, its laws, and what it costs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from robustcf.attacks import BUDGETS, FGM, PGD, RandomNoise, Softmax
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.metrics.evaluate import evaluate
from robustcf.objectives import BCE, BPR, OBJECTIVES, BCEConfig
from robustcf.robustness import Target, Threat, measure, worst_counts, worst_of
from tests.robustness.helpers import BOARD, curve_of, nearly_right

EPSILONS = [0.0, 0.05, 0.2, 0.6]
WEIGHTS = BCEConfig(negative_weight=20.0)
ABSOLUTE = Threat(unit="absolute")


def target_of(factors: Factors, **options) -> Target:
    return Target(*factors, BOARD, bce=WEIGHTS, **options)


def objectives(factors: Factors):
    place = {"dtype": factors.users.dtype}
    bce = BCE(BOARD.train, dataclasses.replace(WEIGHTS, item_weight=0.0), **place)
    return [bce, BPR(BOARD.train, **place), Softmax(BOARD.train, **place)]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_auto_is_the_least_over_members_and_smaller_sizes_for_each_user(seed):
    factors = nearly_right(seed)
    aims = objectives(factors)
    result = measure(target_of(factors), "auto", epsilons=EPSILONS, ks=(5, 10))
    curve = result.curve
    assert (curve.attack, curve.objective, curve.threat) == ("auto", None, Threat())
    attacks = [make(aim, relative=True) for aim in aims for make in (FGM, PGD)]
    attacks += [FGM(aim, relative=True, log2_temperature=0.0) for aim in aims[1:]]
    reports = [
        [evaluate(attack.perturb(factors, size).factors, BOARD, (5, 10)) for attack in attacks]
        for size in EPSILONS
    ]
    for name in ("ndcg@5", "mrr@10", "recall@10", "map@5"):
        for n in range(len(EPSILONS)):
            expected = [
                min(r.per_user[name][user] for m in range(n + 1) for r in reports[m])
                for user in range(len(curve.users))
            ]
            np.testing.assert_array_equal(curve.per_user[name][n], expected)
            assert curve[name][n] == pytest.approx(np.mean(expected), rel=1e-12)
    covered = [min(r["coverage@5"] for m in range(n + 1) for r in reports[m]) for n in range(4)]
    np.testing.assert_array_equal(curve["coverage@5"], covered)
    assert curve["ndcg@10"][0] == evaluate(factors, BOARD)["ndcg@10"], "clean, to the bit"
    assert curve["ndcg@10"][-1] < curve["ndcg@10"][0]


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("side", ["both", "users", "items"])
def test_auto_never_rises_and_is_never_above_a_member(budget, side):
    threat = Threat(norm=budget, side=side)
    result = measure(target_of(nearly_right(3)), "auto", threat, EPSILONS)
    curve, members = result.curve, result.members
    assert curve.threat == threat
    assert worst_of(members, "auto", cumulative=True).as_dict() == curve.as_dict()
    for name, values in curve.per_user.items():
        assert (np.diff(values, axis=0) <= 0).all()
        for member in members.values():
            assert (values <= member.per_user[name]).all()
    for n in range(len(EPSILONS)):
        for key in ("users", "items"):
            assert curve.realised[n][key] == max(m.realised[n][key] for m in members.values())


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["auto", "fgm-bce", "pgd-softmax", "random", "certificate"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_relative_curves_do_not_see_a_change_of_scale(dtype, attack):
    """Bits for powers of two; for the rest a ranking may turn over a rounding error, no more."""
    factors = nearly_right(0, dtype)

    def curve(u: float, v: float):
        scaled = Factors(u * factors.users, v * factors.items)
        return measure(target_of(scaled), attack, epsilons=EPSILONS, control=False).curve

    plain = curve(1.0, 1.0)
    for u, v in ((8.0, 1.0), (1.0, 0.25), (0.5, 16.0)):
        other = curve(u, v)
        for name, values in plain.per_user.items():
            np.testing.assert_array_equal(other.per_user[name], values)
    for u, v in ((7.0, 1.0), (1.0, 1 / 3), (7.0, 1 / 3)):
        other = curve(u, v)
        for name, values in plain.per_user.items():
            np.testing.assert_allclose(other.per_user[name], values, atol=1e-9)


def test_members_have_names():
    target = target_of(nearly_right(0))
    soft = {"fgm-bpr-fitted", "fgm-softmax-fitted"}
    hard = {f"{attack}-{name}" for name in OBJECTIVES for attack in ("fgm", "pgd")}
    relative = measure(target, "auto", epsilons=[0])
    assert (set(relative.members), relative.draws) == (hard | soft, 8)
    absolute = measure(target, "auto", ABSOLUTE, [0])
    assert (set(absolute.members), absolute.draws) == (hard, 6)
    assert measure(target, "pgd-bce", epsilons=[0]).members is None, "an ensemble by construction"


def test_valid_can_be_chosen_by():
    factors = nearly_right(1)
    curve = measure(target_of(factors, part="valid"), "auto", epsilons=[0, 0.3]).curve
    assert curve.protocol == evaluate(factors, BOARD, part="valid").protocol
    assert curve.protocol.masked == ("train",)
    one = curve_of(factors, RandomNoise(), [0], part="valid", mask=())
    assert (one.protocol.part, one.protocol.masked) == ("valid", ())


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
    for name, values in curve.per_user.items():
        expected = np.minimum(both[0].per_user[name], both[1].per_user[name])
        np.testing.assert_array_equal(values, expected)


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
    measure(target, "auto", threat, [0, 0.1, 0.2])
    views = 2 if relative else 1
    assert counts["gradients"] == views + 2 * 9, "fgm and pgd share the first"


def test_other_factors_have_another_gradient(counts):
    attack = PGD(Softmax(BOARD.train), relative=False, steps=3, restarts=2)
    attack.perturb(nearly_right(0), 0.1)
    assert counts["gradients"] == 1 + 8
    attack.perturb(nearly_right(1), 0.1)
    assert counts["gradients"] == 2 * (1 + 8)


@pytest.mark.parametrize(
    ("attack", "draws", "cumulative"),
    [("fgm-bpr", 1, False), ("pgd-bpr", 2, False), ("auto", 8, True)],
)
def test_the_control_chooses_as_often_as_the_ensemble(attack, draws, cumulative):
    factors = nearly_right(0)
    result = measure(target_of(factors), attack, epsilons=EPSILONS, seed=4)
    assert (result.draws, result.control.attack) == (draws, "random")
    alone = [curve_of(factors, RandomNoise(seed=4 + n), EPSILONS) for n in range(draws)]
    for name, values in result.control.per_user.items():
        least = np.minimum.reduce([draw.per_user[name] for draw in alone])
        expected = np.minimum.accumulate(least, axis=0) if cumulative else least
        np.testing.assert_array_equal(values, expected)
    assert measure(target_of(factors), attack, epsilons=[0], control=False).control is None


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
    with pytest.raises(InputError, match="the worst of no curves"):
        worst_of({}, "auto")
    for other in (
        curve_of(factors, RandomNoise(), [0, 2]),
        curve_of(factors, RandomNoise(side="users"), [0, 1]),
        curve_of(factors, RandomNoise(relative=False), [0, 1]),
        curve_of(factors, RandomNoise(), [0, 1], (5,)),
        curve_of(factors, RandomNoise(), [0, 1], part="valid"),
    ):
        with pytest.raises(InputError, match="curves compare at the same epsilons.*b .* like a"):
            worst_of({"a": one, "b": other}, "auto")
    with pytest.raises(InputError, match="belong to different data"):
        measure(Target(factors.items, factors.items, BOARD), "auto", epsilons=[0.1])
    with pytest.raises(InputError, match="ascending"):
        measure(target_of(factors), "auto", epsilons=[0.2, 0.1])


@pytest.mark.parametrize("name", list(OBJECTIVES))
def test_every_objective_refuses_factors_of_other_data(name):
    aim = OBJECTIVES[name](BOARD.train)
    for ask in (aim.full_gradient, aim.slope) if name != "softmax" else (aim.full_gradient,):
        with pytest.raises(InputError, match="factors are for 3 users x 30 items.*different data"):
            ask(torch.zeros(3, 2), torch.zeros(30, 2))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_bpr_is_its_definition_with_autograds_gradient(seed):
    """With fewer items than it would draw, all of them are compared: no sampling is left."""
    factors = nearly_right(seed, torch.float64)
    U, V = (part.clone().requires_grad_() for part in factors)
    total = U.new_zeros(())
    for user in range(20):
        own = BOARD.train.items_of(user).tolist()
        others = [item for item in range(30) if item not in own]
        scores = V @ U[user]
        for item in own:
            gaps = scores[others] - scores[item]
            total = total + torch.log1p(gaps.exp()).mean()
    total.backward()
    got = BPR(BOARD.train, dtype=torch.float64).full_gradient(*factors)
    assert got.value == pytest.approx(total.item())
    torch.testing.assert_close(got.users, U.grad)
    torch.testing.assert_close(got.items, V.grad)
