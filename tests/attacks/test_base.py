"""The contract of attacks: budgets, factors that stay, checked proposals."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from robustcf.attacks import BUDGETS, FGM, PGD, Attack, RandomNoise, Softmax
from robustcf.attacks.base import SIDES, BudgetError
from robustcf.data import checkerboard
from robustcf.errors import InputError
from robustcf.factors import Factors

BOARD = checkerboard()


def random_factors(seed: int, n_users=20, n_items=30, dim=4, dtype=torch.float64) -> Factors:
    g = torch.Generator().manual_seed(seed)
    return Factors(
        torch.randn(n_users, dim, generator=g, dtype=dtype),
        torch.randn(n_items, dim, generator=g, dtype=dtype),
    )


ATTACKS = {
    "fgm": lambda **o: FGM(Softmax(BOARD.train), **o),
    "pgd": lambda **o: PGD(Softmax(BOARD.train), steps=3, restarts=2, **o),
    "random": lambda **o: RandomNoise(**o),
}


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(("attack", "budget"), list(itertools.product(ATTACKS, BUDGETS)))
def test_the_contract_of_every_attack(attack, budget, side, relative):
    norm, make = BUDGETS[budget](), ATTACKS[attack]
    one = make(budget=norm, side=side, relative=relative)
    for seed, epsilon in ((0, 1e-3), (1, 0.3), (2, 3.0)):
        factors = random_factors(seed)
        before = [part.clone() for part in factors]
        clean = one.perturb(factors, 0.0)
        assert clean.factors is factors, "no budget: the very same factors"
        assert clean.realised == {"users": 0.0, "items": 0.0}
        got = one.perturb(factors, epsilon)
        again = make(budget=norm, side=side, relative=relative).perturb(factors, epsilon)
        for n, name in enumerate(("users", "items")):
            after = getattr(got.factors, name)
            assert torch.equal(getattr(factors, name), before[n]), "the factors given stay"
            assert torch.equal(after, getattr(again.factors, name)), "the same again"
            if side not in ("both", name):
                assert after is getattr(factors, name)
                assert got.realised[name] == got.allowed[name] == 0.0
                continue
            room = epsilon * (norm.unit(before[n]) if relative else 1.0)
            spent = norm.measure(after - before[n])
            assert got.allowed[name] == pytest.approx(room)
            assert got.realised[name] == pytest.approx(spent)
            assert 0.5 * room <= spent <= room, "kept, and used"


def test_random_directions_are_the_same_for_every_epsilon_and_differ_by_seed():
    factors = random_factors(3)
    one, two = (RandomNoise(seed=5).perturb(factors, e).factors.users for e in (0.1, 0.2))
    torch.testing.assert_close((two - factors.users), 2 * (one - factors.users))
    other = RandomNoise(seed=6).perturb(factors, 0.1).factors.users
    assert not torch.equal(one, other)


def test_an_attack_that_cheats_is_found_out(monkeypatch):
    noise, factors = RandomNoise(relative=False), random_factors(0)
    monkeypatch.setattr(noise.budget, "project", lambda delta, epsilon: 2 * delta)
    assert max(noise.perturb(factors, 0.1).realised.values()) <= 0.1, "shrunk all the same"
    monkeypatch.setattr(noise.budget, "apply", lambda factor, delta, epsilon: factor + delta)
    with pytest.raises(BudgetError, match="spent"):
        noise.perturb(factors, 0.1)
    monkeypatch.setattr(noise.budget, "scale", lambda direction, epsilon: direction / 0)
    with pytest.raises(BudgetError, match="not finite"):
        noise.perturb(factors, 0.1)


class Own(Attack):
    """An attack of the user's own that does what it is told."""

    def __init__(self, does, **options):
        super().__init__(**options)
        self.does = does

    def propose(self, factors, allowed):
        return self.does(factors, allowed)


def ones(factors, allowed=None):
    return tuple(torch.ones_like(part) for part in factors)


@pytest.mark.parametrize(
    ("cheat", "error"),
    [
        (lambda factors: factors.users.mul_(-1), InputError),
        (lambda factors: factors.items.numpy().fill(-1), InputError),
        (lambda factors: factors.items.data.neg_(), InputError),
        (lambda factors: factors.users.zero_().numpy().reshape(7), ValueError),  # and fails
    ],
)
def test_an_attack_cannot_change_the_factors_in_place(cheat, error):
    users, items = np.ones((4, 2)), np.ones((3, 2))
    with pytest.raises(error, match="changed|reshape"):
        Own(lambda factors, allowed: (cheat(factors), ones(factors))[1]).perturb(
            Factors(users, items), 0.1
        )
    assert (users == 1).all(), "the user's own arrays are as they were"
    assert (items == 1).all()


class Spoiling(Softmax):
    """An objective of the user's own that spoils its factors or its gradient."""

    spoil = None

    def full_gradient(self, U, V):
        found = super().full_gradient(U, V)
        type(self).spoil(U, found)
        return found


def test_an_objective_cannot_change_the_factors_or_give_a_gradient_that_is_not_finite(monkeypatch):
    factors, aim = random_factors(0), Spoiling(BOARD.train, dtype=torch.float64)
    monkeypatch.setattr(Spoiling, "spoil", lambda U, found: U.zero_())
    with pytest.raises(InputError, match="changed"):
        FGM(aim, relative=False).perturb(factors, 0.1)
    assert factors.users.all()
    monkeypatch.setattr(Spoiling, "spoil", lambda U, found: found.items[:1, :1].fill_(torch.nan))
    with pytest.raises(InputError, match="not finite"):
        FGM(aim).perturb(factors, 0.1)


def test_an_attack_cannot_raise_its_own_budget():
    def greedy(factors, allowed):
        allowed["users"] = allowed["items"] = 1e6
        return tuple(1e6 * part for part in ones(factors))

    got = Own(greedy, relative=False).perturb(random_factors(0), 0.1)
    assert got.allowed == {"users": 0.1, "items": 0.1}
    assert got.realised["users"] == pytest.approx(0.1)


@pytest.mark.parametrize(
    "proposed",
    [
        None,
        3.0,
        torch.ones(20, 4),
        (torch.ones(20, 4), None),
        (torch.ones(30, 4), torch.ones(20, 4)),
        (torch.ones(20, 4), np.ones((30, 4))),
        (torch.ones(20, 4), torch.ones(30, 4, dtype=torch.complex64)),
        (torch.ones(20, 4),) * 3,
    ],
)
def test_a_proposal_must_be_two_tensors_like_the_factors(proposed):
    with pytest.raises(InputError, match="Own: propose"):
        Own(lambda factors, allowed: proposed).perturb(random_factors(0), 0.1)


def test_a_proposal_of_another_precision_is_converted():
    for dtype in (torch.float32, torch.float64, torch.int64):
        own = Own(lambda factors, allowed, d=dtype: [part.to(d) for part in ones(factors)])
        got = own.perturb(random_factors(0, dtype=torch.float32), 0.1)
        assert got.factors.users.dtype == got.factors.items.dtype == torch.float32


@pytest.mark.parametrize("budget", BUDGETS.values())
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("side", ["users", "items"])
def test_a_proposal_that_is_not_finite_is_told(budget, value, side):
    def spoilt(factors, allowed):
        proposed = dict(zip(("users", "items"), ones(factors), strict=True))
        proposed[side][2, 1] = value
        return proposed["users"], proposed["items"]

    with pytest.raises(InputError, match=f"not finite for the {side}"):
        Own(spoilt, budget=budget()).perturb(random_factors(0), 0.1)
    # A side that is not attacked is not checked.
    other = {"users": "items", "items": "users"}[side]
    Own(spoilt, budget=budget(), side=other).perturb(random_factors(0), 0.1)


def spoilt_row(rows, row):
    return rows.index_fill(0, torch.tensor([row]), torch.nan)


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda factors: RandomNoise().perturb(factors, -0.1), "negative"),
        (lambda factors: RandomNoise().perturb(factors, float("nan")), "finite"),
        (lambda factors: RandomNoise().perturb(factors, float("inf")), "finite"),
        (lambda factors: RandomNoise(fixed=(4,)).perturb(factors, 0.1), "fixed"),
        (lambda factors: RandomNoise(side="neither"), "side"),
        (lambda f: RandomNoise().perturb(Factors(spoilt_row(f.users, 3), f.items), 0.1), "row 3"),
        (lambda factors: PGD(Softmax(BOARD.train), steps=0), "steps"),
        (lambda factors: PGD(Softmax(BOARD.train), restarts=True), "restarts"),
        (lambda factors: PGD(Softmax(BOARD.train), step_size=0.0), "step_size"),
    ],
)
def test_bad_input(call, word):
    with pytest.raises(InputError, match=word):
        call(random_factors(0))
