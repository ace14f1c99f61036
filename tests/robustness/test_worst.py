"""The worst of an ensemble: a naive transcription, its laws, and what it costs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from robustcf.attacks import BUDGETS, FGM, PGD, RandomNoise, Softmax
from robustcf.attacks.objectives import ObjectiveGradient
from robustcf.training.config import TrainConfig
from robustcf.data import checkerboard
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.metrics.evaluate import evaluate
from robustcf.robustness import (
    OBJECTIVES,
    auto_curve,
    auto_members,
    objective_for,
    pgd_curve,
    random_curve,
    robustness_curve,
    worst_counts,
    worst_of,
)

BOARD = checkerboard()
EPSILONS = [0.0, 0.05, 0.2, 0.6]


def nearly_right(seed: int, dtype=torch.float32) -> Factors:
    g = torch.Generator().manual_seed(seed)
    parity = torch.eye(2)[torch.arange(30) % 2]
    return Factors(
        (parity[:20] + 0.4 * torch.randn(20, 2, generator=g)).to(dtype),
        (parity + 0.4 * torch.randn(30, 2, generator=g)).to(dtype),
    )


def objectives(factors: Factors):
    config = TrainConfig(negative_weight=20.0)
    return [objective_for(name, config, factors, BOARD.train) for name in OBJECTIVES]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_auto_is_the_least_over_members_and_smaller_sizes_for_each_user(seed):
    factors = nearly_right(seed)
    aims = objectives(factors)
    curve = auto_curve(factors, BOARD, aims, EPSILONS, (5, 10))
    assert (curve.attack, curve.objective, curve.relative) == ("auto", None, True)
    attacks = [make(aim, relative=True) for aim in aims for make in (FGM, PGD)]
    attacks += [FGM(aim, relative=True, softness=0.0) for aim in aims[1:]]
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
    factors = nearly_right(3)
    members = auto_members(
        factors, BOARD, objectives(factors), EPSILONS, budget=BUDGETS[budget](), side=side
    )
    curve = worst_of(members, "auto", carry=True)
    assert (curve.budget, curve.side) == (budget, side)
    for name, values in curve.per_user.items():
        assert (np.diff(values, axis=0) <= 0).all()
        for member in members.values():
            assert (values <= member.per_user[name]).all()
    for n in range(len(EPSILONS)):
        for key in ("users", "items"):
            assert curve.realised[n][key] == max(m.realised[n][key] for m in members.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_relative_curves_do_not_see_a_change_of_scale(dtype):
    """Bits for powers of two; for the rest a ranking may turn over a rounding error, no more."""
    factors = nearly_right(0, dtype)
    aims = objectives(factors)
    plain = auto_curve(factors, BOARD, aims, EPSILONS)
    for u, v in ((8.0, 1.0), (1.0, 0.25), (0.5, 16.0)):
        scaled = Factors(u * factors.users, v * factors.items)
        other = auto_curve(scaled, BOARD, aims, EPSILONS)
        for name, values in plain.per_user.items():
            np.testing.assert_array_equal(other.per_user[name], values)
    for u, v in ((7.0, 1.0), (1.0, 1 / 3), (7.0, 1 / 3)):
        scaled = Factors(u * factors.users, v * factors.items)
        other = auto_curve(scaled, BOARD, aims, EPSILONS)
        for name, values in plain.per_user.items():
            np.testing.assert_allclose(other.per_user[name], values, atol=1e-9)


def test_members_have_names():
    factors = nearly_right(0)
    soft = {"fgm-bpr-fitted", "fgm-softmax-fitted"}
    hard = {f"{attack}-{name}" for name in OBJECTIVES for attack in ("fgm", "pgd")}
    assert set(auto_members(factors, BOARD, objectives(factors), [0])) == hard | soft
    assert set(auto_members(factors, BOARD, objectives(factors), [0], relative=False)) == hard


def test_valid_can_be_chosen_by():
    factors = nearly_right(1)
    curve = auto_curve(factors, BOARD, [Softmax(BOARD.train)], [0, 0.3], part="valid")
    assert curve.protocol == evaluate(factors, BOARD, part="valid").protocol
    assert curve.protocol.masked == ("train",)
    one = robustness_curve(factors, BOARD, RandomNoise(), [0], part="valid", mask=())
    assert (one.protocol.part, one.protocol.masked) == ("valid", ())
    with pytest.raises(InputError, match="part must be 'valid' or 'test', got 'train'"):
        robustness_curve(factors, BOARD, RandomNoise(), [0], part="train")


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("relative", [False, True])
def test_pgd_is_reported_at_least_as_strong_as_fgm(seed, relative):
    factors = nearly_right(seed)
    aim = Softmax(BOARD.train)
    attack = PGD(aim, relative=relative, steps=3, restarts=2)
    curve = pgd_curve(factors, BOARD, attack, EPSILONS)
    assert (curve.attack, curve.objective) == ("pgd", "softmax")
    both = [
        robustness_curve(factors, BOARD, each, EPSILONS)
        for each in (FGM(aim, relative=relative), attack)
    ]
    for name, values in curve.per_user.items():
        expected = np.minimum(both[0].per_user[name], both[1].per_user[name])
        np.testing.assert_array_equal(values, expected)


class Counting:
    """A softmax that counts how often it is asked."""

    name = "counting"

    def __init__(self):
        self.inner, self.gradients, self.slopes = Softmax(BOARD.train), 0, 0

    def gradient(self, U, V) -> ObjectiveGradient:
        self.gradients += 1
        return self.inner.gradient(U, V)

    def slope(self, U, V) -> float:
        self.slopes += 1
        return self.inner.slope(U, V)


@pytest.mark.parametrize("relative", [False, True])
def test_one_gradient_serves_a_sweep(relative):
    factors, aim = nearly_right(0), Counting()
    robustness_curve(factors, BOARD, FGM(aim, relative=relative), np.linspace(0, 1, 20))
    assert aim.gradients == 1
    assert aim.slopes <= (13 if relative else 0)
    aim = Counting()
    attack = PGD(aim, relative=relative, steps=3, restarts=2)
    pgd_curve(factors, BOARD, attack, [0, 0.1, 0.2])
    assert aim.gradients == 1 + 2 * (1 + 3 + 1 + 3), "fgm's point; 3 steps; a start; 3 steps"
    other = nearly_right(1)
    attack.perturb(other, 0.1)
    assert aim.gradients == 17 + 1 + 8, "other factors have another gradient"
    aim = Counting()
    auto_members(factors, BOARD, [aim], [0, 0.1, 0.2], relative=relative)
    assert aim.gradients == 1 + 2 * 9, "fgm and pgd share the first"


def test_the_control_chooses_as_often_as_the_ensemble():
    factors = nearly_right(0)
    curve = random_curve(factors, BOARD, EPSILONS, draws=3, seed=4)
    draws = [
        robustness_curve(factors, BOARD, RandomNoise(relative=True, seed=s), EPSILONS)
        for s in (4, 5, 6)
    ]
    for name, values in curve.per_user.items():
        least = np.minimum.reduce([draw.per_user[name] for draw in draws])
        np.testing.assert_array_equal(values, np.minimum.accumulate(least, axis=0))
    single = random_curve(factors, BOARD, EPSILONS, seed=4)
    assert single.as_dict() == draws[0].as_dict()
    assert curve.attack == single.attack == "random"
    for draws in (0, True, 1.5):
        with pytest.raises(InputError, match="draws must be an integer of at least 1"):
            random_curve(factors, BOARD, EPSILONS, draws=draws)


def test_counts_tell_who_is_worst_for_whom():
    one = robustness_curve(nearly_right(0), BOARD, RandomNoise(), [0, 1], (5,))
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
    one = robustness_curve(factors, BOARD, RandomNoise(), [0, 1])
    with pytest.raises(InputError, match="the worst of no curves"):
        worst_of({}, "auto")
    for other in (
        robustness_curve(factors, BOARD, RandomNoise(), [0, 2]),
        robustness_curve(factors, BOARD, RandomNoise(side="users"), [0, 1]),
        robustness_curve(factors, BOARD, RandomNoise(), [0, 1], (5,)),
        robustness_curve(factors, BOARD, RandomNoise(), [0, 1], part="valid"),
    ):
        with pytest.raises(InputError, match="curves compare at the same epsilons.*b .* like a"):
            worst_of({"a": one, "b": other}, "auto")
    softmax = Softmax(BOARD.train)
    with pytest.raises(InputError, match="objectives of different names, at least one, got none"):
        auto_curve(factors, BOARD, [], [0])
    with pytest.raises(InputError, match="different names"):
        auto_curve(factors, BOARD, [softmax, softmax], [0])
    with pytest.raises(InputError, match="belong to different data"):
        auto_curve(Factors(factors.items, factors.items), BOARD, [softmax], [0.1])
    with pytest.raises(InputError, match="ascending"):
        auto_curve(factors, BOARD, [softmax], [0.2, 0.1])


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_refuses_factors_of_other_data(name):
    aim = objective_for(name, TrainConfig(), nearly_right(0), BOARD.train)
    with pytest.raises(InputError, match="factors are for 3 users x 30 items.*different data"):
        aim.gradient(torch.zeros(3, 2), torch.zeros(30, 2))


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
    got = objective_for("bpr", TrainConfig(), factors, BOARD.train).gradient(*factors)
    assert got.value == pytest.approx(total.item())
    torch.testing.assert_close(got.users, U.grad)
    torch.testing.assert_close(got.items, V.grad)
