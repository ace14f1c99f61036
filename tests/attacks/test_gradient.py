"""FGM and PGD: the step of the paper, the objective's own scale, gradients of zero."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from robustcf.attacks import BUDGETS, FGM, PGD, Attack, RandomNoise, Softmax
from robustcf.attacks.gradient import canonical
from robustcf.data import Interactions, checkerboard
from robustcf.factors import Factors
from robustcf.objectives import OBJECTIVES, Gradient, Objective
from tests.attacks.test_base import random_factors

BOARD = checkerboard()
PARITY = torch.eye(2, dtype=torch.float64)[torch.arange(30) % 2]


def learnt(seed: int, dtype=torch.float64) -> Factors:
    """Nearly right factors with an offset, so that no loss is least at an edge."""
    g = torch.Generator().manual_seed(seed)
    parts = []
    for n, side in ((20, 1.0), (30, -0.6)):
        noise = torch.randn(n, 2, generator=g, dtype=torch.float64)
        parts.append(torch.nn.functional.pad(PARITY[:n] + 0.4 * noise, (0, 1), value=side))
    return Factors(parts[0].to(dtype), parts[1].to(dtype))


def objective(name: str, factors: Factors):
    settings = {"negative_weight": 20.0, "item_weight": 0.0} if name == "bce" else {}
    return OBJECTIVES[name](BOARD.train, dtype=factors.users.dtype, **settings)


def scaled(factors: Factors, u: float, v: float) -> Factors:
    return Factors(factors.users * u, factors.items * v)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", list(OBJECTIVES))
def test_it_is_where_the_objective_is_least(name, seed):
    factors = learnt(seed)
    aim = objective(name, factors)

    def value(octave: float) -> float:
        return aim.full_gradient(factors.users * 2.0**octave, factors.items).value

    best = minimize_scalar(value, bounds=(-9, 9), method="bounded", options={"xatol": 1e-6})
    got = canonical(factors, aim)
    assert np.log2(got.users * got.items) == pytest.approx(best.x, abs=0.01)
    torch.testing.assert_close(got.factors.users, factors.users * got.users)
    torch.testing.assert_close(got.factors.items, factors.items * got.items)
    soft = canonical(factors, aim, log2_temperature=3.0)
    assert soft.users * soft.items == pytest.approx(got.users * got.items / 8)
    assert soft.users / soft.items == pytest.approx(got.users / got.items)


@pytest.mark.parametrize("name", list(OBJECTIVES))
def test_multiples_look_alike(name):
    factors = learnt(0, torch.float32)
    aim = objective(name, factors)
    plain = canonical(factors, aim).factors
    for u, v in ((8.0, 1.0), (1.0, 0.25), (0.5, 64.0)):
        other = canonical(scaled(factors, u, v), aim).factors
        assert torch.equal(other.users, plain.users), "powers of two round nothing"
        assert torch.equal(other.items, plain.items)
    other = canonical(scaled(factors, 7.0, 1 / 3), aim).factors
    torch.testing.assert_close(other.users, plain.users, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("name", list(OBJECTIVES))
@pytest.mark.parametrize("make", [FGM, PGD])
def test_relative_attacks_follow_a_change_of_scale(make, name, budget):
    factors = learnt(1)
    aim = objective(name, factors)
    norm = BUDGETS[budget]()
    plain = make(aim, norm, relative=True).perturb(factors, 0.2).factors
    for u, v in ((7.0, 1.0), (1.0, 1 / 3), (7.0, 1 / 3)):
        got = make(aim, norm, relative=True).perturb(scaled(factors, u, v), 0.2).factors
        torch.testing.assert_close(got.users / u, plain.users, rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(got.items / v, plain.items, rtol=1e-7, atol=1e-9)
    noise = RandomNoise(norm, relative=True)
    torch.testing.assert_close(
        noise.perturb(scaled(factors, 7.0, 1 / 3), 0.2).factors.users / 7.0,
        noise.perturb(factors, 0.2).factors.users,
    )


@pytest.mark.parametrize(("name", "power"), [("bce", 0.0), ("bpr", 2.0), ("softmax", 2.0)])
def test_objectives_that_compare_are_looked_at_with_a_temperature(name, power):
    factors = learnt(2)
    aim = objective(name, factors)
    assert aim.log2_temperature == power
    attack, fitted = FGM(aim), canonical(factors, aim)
    own = attack.views.of(factors, attack).scaled
    assert own.users * own.items == pytest.approx(fitted.users * fitted.items / 2.0**power)
    attack = FGM(aim, relative=False)
    assert attack.views.of(factors, attack).scaled.factors is factors


def size(factors: Factors) -> float:
    return float((factors.users @ factors.items.T).square().mean().sqrt())


def test_where_more_is_always_better_or_worse_the_edges_are_taken():
    right = Factors(PARITY[:20].clone(), PARITY.clone())
    wrong = Factors(right.users.flip(1), right.items)
    pairs = Interactions(*np.nonzero(np.arange(20)[:, None] % 2 == np.arange(30) % 2), 20, 30)
    assert size(canonical(right, Softmax(pairs)).factors) == pytest.approx(2.0**4)
    assert size(canonical(wrong, Softmax(pairs)).factors) == pytest.approx(2.0**-6)
    assert size(canonical(learnt(0), Flat(BOARD.train)).factors) == pytest.approx(2.0**4)
    # Without scores, factors stay.
    aim = Softmax(BOARD.train)
    for users, items in (
        (torch.zeros(20, 2), torch.ones(30, 2)),
        (torch.tensor([[1.0, 0.0]]).repeat(20, 1), torch.tensor([[0.0, 1.0]]).repeat(30, 1)),
    ):
        factors = Factors(users, items)
        got = canonical(factors, aim)
        assert got.factors is factors
        assert (got.users, got.items) == (1.0, 1.0)


class Flat(Objective):
    name = "flat"

    def gradient(self, batch, U, V, *, value=False):
        return Gradient(torch.zeros_like(U), None, torch.zeros_like(V), 0.0)


@pytest.mark.parametrize("make", [FGM, PGD])
def test_a_gradient_of_zero_warns_and_does_nothing(make):
    factors = random_factors(0)
    with pytest.warns(RuntimeWarning, match="flat"):
        got = make(Flat(BOARD.train)).perturb(factors, 0.5)
    assert torch.equal(got.factors.users, factors.users)
    assert got.realised == {"users": 0.0, "items": 0.0}


class Lopsided(Objective):
    """The gradient of users is zero, and of all items but one."""

    name = "lopsided"

    def gradient(self, batch, U, V, *, value=False):
        items = torch.zeros_like(V)
        items[3, 0] = 2.0
        return Gradient(torch.zeros_like(U), None, items, float(V[3, 0]))


@pytest.mark.parametrize("make", [FGM, PGD])
@pytest.mark.parametrize("relative", [False, True])
def test_rows_without_a_gradient_stay(make, relative):
    factors = random_factors(0)
    got = make(Lopsided(BOARD.train), relative=relative).perturb(factors, 0.5).factors
    assert torch.equal(got.users, factors.users)
    moved = (got.items - factors.items).norm(dim=1)
    assert moved.nonzero().ravel().tolist() == [3]
    attack = make(Lopsided(BOARD.train), relative=relative, side="users")
    with pytest.warns(RuntimeWarning, match="lopsided"):
        same = attack.perturb(factors, 0.5).factors
    assert torch.equal(same.users, factors.users)
    attack.perturb(factors, 0.6)  # said once for these factors (a second warning would fail)


# --- the step ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_fgm_is_the_papers_step(seed):
    factors, softmax = random_factors(seed), Softmax(BOARD.train)
    gradient = softmax.full_gradient(*factors)
    got = FGM(softmax, relative=False).perturb(factors, 0.25).factors
    step = gradient.users / gradient.users.norm(dim=1, keepdim=True)
    torch.testing.assert_close(got.users, factors.users + 0.25 * step)
    whole = FGM(softmax, BUDGETS["frobenius"](), relative=False).perturb(factors, 0.25).factors
    step = gradient.items / gradient.items.norm()
    torch.testing.assert_close(whole.items, factors.items + 0.25 * step)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("epsilon", [0.05, 0.3, 1.0])
def test_pgd_is_at_least_as_strong_as_fgm_and_both_beat_chance(seed, epsilon):
    factors, objective = random_factors(seed), Softmax(BOARD.train)

    def damage(attack: Attack) -> float:
        after = attack.perturb(factors, epsilon).factors
        return objective.full_gradient(*after).value

    how = {"relative": False}
    fgm = damage(FGM(objective, **how))
    pgd = damage(PGD(objective, steps=6, restarts=2, **how))
    chance = max(damage(RandomNoise(seed=n, **how)) for n in range(5))
    assert pgd >= fgm * (1 - 1e-9)
    assert fgm > chance
