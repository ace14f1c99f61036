"""Attacks: they keep their budget, they do harm, and they are what they say."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from robustcf.attacks import BUDGETS, FGM, PGD, Attack, RandomNoise, Softmax
from robustcf.attacks.base import SIDES, BudgetError
from robustcf.data import Interactions, checkerboard
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.objectives import BCE, BPR, BatchConfig, Batches, Gradient, Objective

BOARD = checkerboard()


def random_factors(seed: int, n_users=20, n_items=30, dim=4, dtype=torch.float64) -> Factors:
    g = torch.Generator().manual_seed(seed)
    return Factors(
        torch.randn(n_users, dim, generator=g, dtype=dtype),
        torch.randn(n_items, dim, generator=g, dtype=dtype),
    )


def naive_softmax(U: torch.Tensor, V: torch.Tensor, pairs: Interactions) -> torch.Tensor:
    total = U.new_zeros(())
    for user in range(len(U)):
        own = pairs.items_of(user).tolist()
        if own:
            scores = V @ U[user]
            total = total + scores.exp().sum().log() - scores[own].mean()
    return total


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("block", [1, 700, 2**24])
def test_softmax_is_its_definition_with_autograds_gradient(seed, block, monkeypatch):
    monkeypatch.setattr("robustcf.objectives.kernels.BLOCK_BYTES", block)
    rng = np.random.default_rng(seed)
    dense = rng.random((9, 7)) < 0.3
    dense[0] = False  # a user without items does not count
    dense[1, 0] = True
    pairs = Interactions(*np.nonzero(dense), 9, 7)
    U, V = (part.requires_grad_() for part in random_factors(seed, 9, 7, 3))
    value = naive_softmax(U, V, pairs)
    value.backward()
    got = Softmax(pairs).full_gradient(U.detach(), V.detach())
    assert got.value == pytest.approx(value.item())
    torch.testing.assert_close(got.users, U.grad)
    torch.testing.assert_close(got.items, V.grad)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_bce_is_the_full_cross_entropy(seed):
    factors = random_factors(seed)
    U, V = (part.clone().requires_grad_() for part in factors)
    train = BOARD.train
    degrees_u = torch.tensor(train.user_degrees, dtype=torch.float64)
    degrees_i = torch.tensor(train.item_degrees, dtype=torch.float64)
    beta_u, beta_i = (degrees_u + 1).sqrt() / degrees_u, 1 / (degrees_i + 1).sqrt()
    R = torch.tensor(train.csr().toarray(), dtype=torch.float64)
    weight = 1e-7 + beta_u[:, None] * beta_i
    scores, soft = U @ V.T, torch.nn.functional.softplus
    # The definition, with all items at once: positives, and deg(u) times the mean negative.
    value = (R * weight * soft(-scores)).sum()
    value = value + (degrees_u[:, None] * 200 / 30 * weight * soft(scores)).sum()
    value.backward()
    objective = BCE(train, item_weight=0.0, dtype=torch.float64)
    got = objective.full_gradient(*factors)
    assert got.value == pytest.approx(value.item())
    torch.testing.assert_close(got.users, U.grad)
    torch.testing.assert_close(got.items, V.grad)
    # Cut into blocks it is the same.
    total = Gradient(torch.zeros_like(U), None, torch.zeros_like(V), None)
    for batch in Batches(objective, BatchConfig(block_users=7)).epoch(0):
        assert len(batch.users) < 20
        total.add(objective.gradient(batch, *factors))
    torch.testing.assert_close(total.users, U.grad)
    torch.testing.assert_close(total.items, V.grad)


def test_what_an_objective_draws_is_drawn_once():
    factors = random_factors(0, dtype=torch.float32)
    objective = BPR(BOARD.train, sampled_items=5)
    first, second = (objective.full_gradient(*factors) for _ in range(2))
    assert first.value == second.value > 0
    assert torch.equal(first.items, second.items)
    assert first.users.shape == factors.users.shape
    assert first.value != BPR(BOARD.train).full_gradient(*factors).value, "it is a sample"


ATTACKS = {
    "fgm": lambda **o: FGM(Softmax(BOARD.train), **o),
    "pgd": lambda **o: PGD(Softmax(BOARD.train), steps=3, restarts=2, **o),
    "random": lambda **o: RandomNoise(**o),
}


@pytest.mark.parametrize(("attack", "budget"), list(itertools.product(ATTACKS, BUDGETS)))
@given(seed=st.integers(0, 1000), epsilon=st.floats(1e-3, 3.0), relative=st.booleans())
@settings(max_examples=6, deadline=None)
def test_no_attack_exceeds_its_budget(attack, budget, seed, epsilon, relative):
    factors = random_factors(seed)
    norm = BUDGETS[budget]()
    got = ATTACKS[attack](budget=norm, relative=relative).perturb(factors, epsilon)
    for name, before, after in (
        ("users", factors.users, got.factors.users),
        ("items", factors.items, got.factors.items),
    ):
        room = epsilon * (norm.unit(before) if relative else 1.0)
        assert got.allowed[name] == pytest.approx(room)
        spent = norm.measure(after - before)
        assert spent == pytest.approx(got.realised[name])
        assert spent <= room
        assert spent >= room * 0.5, "the budget is used"


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(("attack", "budget"), list(itertools.product(ATTACKS, BUDGETS)))
def test_the_contract_of_every_attack(attack, budget, side, relative):
    factors = random_factors(1)
    before = [part.clone() for part in factors]
    make = ATTACKS[attack]
    norm = BUDGETS[budget]()
    one = make(budget=norm, side=side, relative=relative)
    clean = one.perturb(factors, 0.0)
    assert clean.factors is factors, "no budget: the very same factors"
    assert clean.realised == {"users": 0.0, "items": 0.0}
    got = one.perturb(factors, 0.3)
    again = make(budget=norm, side=side, relative=relative).perturb(factors, 0.3)
    for n, name in enumerate(("users", "items")):
        after = getattr(got.factors, name)
        assert torch.equal(getattr(factors, name), before[n]), "the factors given stay"
        assert torch.equal(after, getattr(again.factors, name)), "the same again"
        if side not in ("both", name):
            assert after is getattr(factors, name)
            assert got.realised[name] == got.allowed[name] == 0.0
            continue
        room = 0.3 * (norm.unit(before[n]) if relative else 1.0)
        assert got.allowed[name] == pytest.approx(room)
        assert 0.5 * room <= norm.measure(after - before[n]) <= room


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_fgm_is_the_papers_step(seed):
    factors = random_factors(seed)
    U, V = (part.clone().requires_grad_() for part in factors)
    naive_softmax(U, V, BOARD.train).backward()
    got = ATTACKS["fgm"](relative=False).perturb(factors, 0.25).factors
    expected = factors.users + 0.25 * U.grad / U.grad.norm(dim=1, keepdim=True)
    torch.testing.assert_close(got.users, expected)
    whole = ATTACKS["fgm"](budget=BUDGETS["frobenius"](), relative=False)
    whole = whole.perturb(factors, 0.25).factors
    torch.testing.assert_close(whole.items, factors.items + 0.25 * V.grad / V.grad.norm())


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


def test_random_directions_are_the_same_for_every_epsilon_and_differ_by_seed():
    factors = random_factors(3)
    one, two = (RandomNoise(seed=5).perturb(factors, e).factors.users for e in (0.1, 0.2))
    torch.testing.assert_close((two - factors.users), 2 * (one - factors.users))
    other = RandomNoise(seed=6).perturb(factors, 0.1).factors.users
    assert not torch.equal(one, other)


def test_relative_sizes_follow_the_factors_and_are_the_default():
    factors = random_factors(2)
    scaled = Factors(3.0 * factors.users, 3.0 * factors.items)
    small = RandomNoise(relative=True).perturb(factors, 0.2).factors
    large = RandomNoise().perturb(scaled, 0.2).factors
    torch.testing.assert_close(large.users, 3.0 * small.users)
    torch.testing.assert_close(large.items, 3.0 * small.items)


class Flat(Objective):
    name = "flat"

    def gradient(self, batch, U, V, *, value=False):
        return Gradient(torch.zeros_like(U), None, torch.zeros_like(V), 0.0)


@pytest.mark.parametrize("make", [FGM, PGD])
def test_a_gradient_of_nothing_is_said_and_does_nothing(make):
    factors = random_factors(0)
    with pytest.warns(RuntimeWarning, match="the gradient of flat is zero everywhere"):
        got = make(Flat(BOARD.train)).perturb(factors, 0.5)
    assert torch.equal(got.factors.users, factors.users)
    assert got.realised == {"users": 0.0, "items": 0.0}


class Lopsided(Objective):
    """Nothing to gain from users, and from one item only."""

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
    with pytest.warns(RuntimeWarning, match="the gradient of lopsided is zero everywhere"):
        same = attack.perturb(factors, 0.5).factors
    assert torch.equal(same.users, factors.users)
    attack.perturb(factors, 0.6)  # said once for these factors (a second warning would fail)


def test_an_attack_that_cheats_is_found_out(monkeypatch):
    noise, factors = RandomNoise(relative=False), random_factors(0)
    monkeypatch.setattr(noise.budget, "project", lambda delta, epsilon: 2 * delta)
    assert max(noise.perturb(factors, 0.1).realised.values()) <= 0.1, "shrunk all the same"
    monkeypatch.setattr(noise.budget, "apply", lambda factor, delta, epsilon: factor + delta)
    with pytest.raises(BudgetError, match="random spent .* of 0.1 on the users: a bug"):
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


def in_place(factors, allowed):
    factors.users.mul_(-1)
    return ones(factors)


def through_numpy(factors, allowed):
    factors.items.numpy()[:] *= -1
    return ones(factors)


def through_data(factors, allowed):
    factors.items.data.neg_()
    return ones(factors)


def half_way(factors, allowed):
    factors.users.zero_()
    raise ZeroDivisionError("half way")


@pytest.mark.parametrize("cheat", [in_place, through_numpy, through_data, half_way])
def test_an_attack_cannot_change_the_factors_in_place(cheat):
    users, items = np.ones((4, 2)), np.ones((3, 2))
    message = "attack Own changed the factors that it was given: propose must|half way"
    with pytest.raises((InputError, ZeroDivisionError), match=message):
        Own(cheat).perturb(Factors(users, items), 0.1)
    assert (users == 1).all(), "the user's own arrays are as they were"
    assert (items == 1).all()


def test_an_objective_cannot_change_the_factors_in_place():
    class Zeroing(Softmax):
        def full_gradient(self, U, V):
            found = super().full_gradient(U, V)
            U.zero_()
            return found

    factors = random_factors(0)
    with pytest.raises(InputError, match="attack fgm changed the factors"):
        FGM(Zeroing(BOARD.train, dtype=torch.float64), relative=False).perturb(factors, 0.1)
    assert factors.users.all()


def test_an_attack_cannot_raise_its_own_budget():
    def greedy(factors, allowed):
        allowed["users"] = allowed["items"] = 1e6
        return tuple(1e6 * part for part in ones(factors))

    got = Own(greedy, relative=False).perturb(random_factors(0), 0.1)
    assert got.allowed == {"users": 0.1, "items": 0.1}
    assert got.realised["users"] == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("proposed", "got"),
    [
        (None, "None"),
        (torch.ones(20, 4), r"a tensor of shape \(20, 4\)"),
        ((torch.ones(20, 4), None), r"a tensor of shape \(20, 4\) and None"),
        ((torch.ones(30, 4), torch.ones(20, 4)), r"a tensor of shape \(30, 4\) and a"),
        ((torch.ones(20, 4), np.ones((30, 4))), ".* and a ndarray"),
        ((torch.ones(20, 4), torch.ones(30, 4, dtype=torch.complex64)), ".* and a complex tensor"),
        ((torch.ones(20, 4),) * 3, "a tensor .* and a tensor .* and a tensor"),
        (3.0, "a float"),
    ],
)
def test_a_proposal_must_be_two_tensors_like_the_factors(proposed, got):
    expected = (
        r"Own: propose must return two tensors shaped like U and V, \(20, 4\) and \(30, 4\), got "
    )
    with pytest.raises(InputError, match=expected + got):
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

    message = f"attack Own proposed values that are not finite for the {side}: look"
    with pytest.raises(InputError, match=message):
        Own(spoilt, budget=budget()).perturb(random_factors(0), 0.1)
    # What is not asked for is not looked at.
    other = {"users": "items", "items": "users"}[side]
    Own(spoilt, budget=budget(), side=other).perturb(random_factors(0), 0.1)


def test_a_gradient_that_is_not_finite_is_told():
    class Spoilt(Softmax):
        def full_gradient(self, U, V):
            found = super().full_gradient(U, V)
            found.items[0, 0] = float("nan")
            return found

    with pytest.raises(
        InputError, match="attack fgm proposed values that are not finite for the i"
    ):
        FGM(Spoilt(BOARD.train, dtype=torch.float64)).perturb(random_factors(0), 0.1)


def test_values_that_are_not_finite_are_a_bug_of_attacks_of_the_package_alone(monkeypatch):
    noise = RandomNoise()
    monkeypatch.setattr(noise.budget, "scale", lambda direction, epsilon: direction / 0)
    with pytest.raises(BudgetError, match="random proposed values .* the users: a bug, report it"):
        noise.perturb(random_factors(0), 0.1)


def test_bad_input():
    factors = random_factors(0)
    for epsilon in (-0.1, float("nan"), float("inf")):
        with pytest.raises(InputError, match="epsilons must be finite and not negative, got"):
            RandomNoise().perturb(factors, epsilon)
    spoilt = Factors(factors.users.clone(), factors.items)
    spoilt.users[3, 0] = float("nan")
    with pytest.raises(InputError, match="users must be finite, got nan in row 3"):
        RandomNoise().perturb(spoilt, 0.1)
    with pytest.raises(InputError, match="side must be one of both, users, items"):
        RandomNoise(side="neither")
    with pytest.raises(InputError, match="steps must be an integer of at least 1, got 0"):
        PGD(Flat(BOARD.train), steps=0)
    with pytest.raises(InputError, match="restarts must be"):
        PGD(Flat(BOARD.train), restarts=True)
    with pytest.raises(InputError, match="step_size must be a finite number and positive"):
        PGD(Flat(BOARD.train), step_size=0.0)
    with pytest.raises(InputError, match="softmax needs pairs, got none"):
        Softmax(Interactions(np.array([], int), np.array([], int), 2, 2))
    with pytest.raises(InputError, match="belong to different data"):
        Softmax(BOARD.train).full_gradient(torch.zeros(3, 2), torch.zeros(30, 2))
