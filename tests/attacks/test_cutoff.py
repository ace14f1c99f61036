"""The attack at the cutoff: its formula by autograd, its best steps, its budget."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from robustcf.attacks import BUDGETS, FGM, Cutoff, OwnRowBudget, Softmax
from robustcf.attacks.cutoff import HeadOfRanking
from robustcf.data import Interactions, checkerboard
from robustcf.errors import InputError
from robustcf.factors import Factors
from tests.robustness.helpers import random_world

# Two seeds while developing, the third before a release.
SEEDS = [0, 1, pytest.param(2, marks=pytest.mark.slow)]
ALL_BUDGETS = [*BUDGETS.values(), OwnRowBudget]


def pairs_of(dense: np.ndarray) -> Interactions:
    return Interactions.from_pairs(*np.nonzero(dense), *dense.shape)[0]


def world(seed: int, dtype=torch.float64, **sizes: int):
    """Factors, train and test; some user has no relevant items."""
    U, V, train, test = random_world(seed, **{"n_users": 12, "n_items": 25, "dim": 4, **sizes})
    factors = Factors(torch.from_numpy(U).to(dtype), torch.from_numpy(V).to(dtype))
    return factors, pairs_of(train), pairs_of(test)


def naive_heads(U, V, train, k: int) -> list[list[int]]:
    """For each user, the first 3 k candidates, by sorting the whole catalogue."""
    scores = (U.double() @ V.double().T).numpy()
    heads = []
    for user, row in enumerate(scores):
        hidden = set() if train is None else set(train.items_of(user).tolist())
        candidates = [item for item in range(len(row)) if item not in hidden]
        heads.append(sorted(candidates, key=lambda item: (-row[item], item))[: 3 * k])
    return heads


def naive_ndcg(U, V, train, test, k: int) -> list[float]:
    """Of the users with relevant items."""
    found = []
    for user, head in enumerate(naive_heads(U, V, train, k)):
        own = set(test.items_of(user).tolist())
        if own:
            gained = sum(1 / math.log2(n + 2) for n, item in enumerate(head[:k]) if item in own)
            best = sum(1 / math.log2(n + 2) for n in range(min(k, len(own))))
            found.append(gained / best)
    return found


def naive_smooth(U, V, train, test, k: int, temperatures) -> torch.Tensor:
    """The formula of the module, one user and one item after the other; one value per user."""
    heads = naive_heads(U.detach(), V.detach(), train, k)
    values, users = [], [u for u in range(len(U)) if len(test.items_of(u))]
    for user, t in zip(users, temperatures, strict=True):
        head, own = heads[user], test.items_of(user).tolist()
        value = U.new_zeros(())
        for i in (item for item in head if item in own):
            rank = 1 + sum(
                torch.sigmoid((U[user] @ V[j] - U[user] @ V[i]) / t) for j in head if j != i
            )
            rank = torch.as_tensor(rank, dtype=U.dtype)
            value = value + torch.sigmoid(k + 0.5 - rank) / torch.log2(1 + rank)
        values.append(value / sum(1 / math.log2(n + 2) for n in range(min(k, len(own)))))
    return torch.stack(values)


def temperatures_of(head: HeadOfRanking, seed: int, size: float = 1.0) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return size * (0.2 + torch.rand(len(head.users), generator=g, dtype=torch.float64))


# --- the formula ------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("k", "sizes", "masked"),
    [
        (2, {}, True),
        (5, {}, False),  # 15 places, and the training pairs are candidates
        (7, {}, True),  # 21 places and 20 candidates: lists end
        (40, {}, True),  # more than there are items
        (3, {"n_items": 11, "dim": 1}, True),  # 9 places and 6 candidates
    ],
)
@pytest.mark.parametrize("block", [2**16, 3])
def test_the_gradient_is_autograds(seed, k, sizes, masked, block, monkeypatch):
    monkeypatch.setattr("robustcf.attacks.cutoff._BLOCK", block)
    (U, V), train, test = world(seed, **sizes)
    seen = train if masked else None
    head = HeadOfRanking(test, seen, k)
    temperatures = temperatures_of(head, seed)
    U.requires_grad_(), V.requires_grad_()
    naive_smooth(U, V, seen, test, k, temperatures).sum().backward()
    with torch.no_grad():
        got = head.gradient(head.at(U, V), U, V, temperatures)
    assert V.grad.abs().max() > 1e-3
    torch.testing.assert_close(got[0], -U.grad)
    torch.testing.assert_close(got[1], -V.grad)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("k", [1, 4, 12])
def test_without_temperature_it_is_the_metric_but_for_the_soft_end(seed, k):
    """Each hit counts by its place, and by a logistic in how far it is from the last place."""
    (U, V), train, test = world(seed)
    head = HeadOfRanking(test, train, k)
    cold = naive_smooth(U, V, train, test, k, temperatures_of(head, seed, 1e-9))
    expected = []
    for user in head.users:
        places = naive_heads(U, V, train, k)[user]
        own = test.items_of(user).tolist()
        gains = [
            1 / math.log2(n + 2) / (1 + math.exp(n + 0.5 - k))
            for n, item in enumerate(places)
            if item in own
        ]
        expected.append(sum(gains) / sum(1 / math.log2(n + 2) for n in range(min(k, len(own)))))
    np.testing.assert_allclose(cold.numpy(), expected, rtol=1e-6)
    values = head.at(U, V).values
    np.testing.assert_allclose(values, naive_ndcg(U, V, train, test, k), rtol=1e-12)
    # Half a place inside the list counts sigmoid(1/2), and half a place outside the rest of it.
    inside = sum(math.log2(n + 2) ** -1 / (1 + math.exp(k - n - 0.5)) for n in range(k))
    outside = sum(math.log2(n + 2) ** -1 / (1 + math.exp(n + 0.5 - k)) for n in range(k, 3 * k))
    assert (cold.numpy() >= values - inside / head.best - 1e-9).all()
    assert (cold.numpy() <= values + outside / head.best + 1e-9).all()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("k", [2, 9, 60])
def test_heads_are_the_rankings(seed, k):
    (U, V), train, test = world(seed)
    head = HeadOfRanking(test, train, k)
    heads = head.at(U, V)
    assert heads.items.shape == (len(head.users), min(3 * k, len(V)))
    for row, user in enumerate(head.users):
        expected = naive_heads(U, V, train, k)[user]
        assert heads.items[row][heads.there[row]].tolist() == expected
        own = test.items_of(user).tolist()
        assert heads.hits[row].tolist()[: len(expected)] == [i in own for i in expected]
        assert not heads.hits[row][~heads.there[row]].any()
    assert head.users.tolist() == np.flatnonzero(test.user_degrees).tolist()


def test_a_user_with_one_candidate_left():
    """It is the relevant one: no item can pass it, and no gradient is NaN."""
    dense = np.zeros((2, 6), dtype=bool)
    dense[0, 2] = dense[1, [0, 3]] = True
    seen = np.zeros((2, 6), dtype=bool)
    seen[0, [0, 1, 3, 4, 5]] = True
    g = torch.Generator().manual_seed(0)
    factors = Factors(torch.randn(2, 3, generator=g), torch.randn(6, 3, generator=g))
    head = HeadOfRanking(pairs_of(dense), pairs_of(seen), 2)
    users, items = head.gradient(head.at(*factors), *factors, torch.full((2,), 0.1))
    assert torch.isfinite(users).all()
    assert torch.isfinite(items).all()
    assert not users[0].any()
    attacked = Cutoff(pairs_of(dense), pairs_of(seen), 2, steps=5).perturb(factors, 0.5).factors
    assert head.at(*attacked).values[0] == 1.0


# --- the best step ----------------------------------------------------------------------------


class Spy:
    """Records the factors and values of all steps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[torch.Tensor, torch.Tensor, np.ndarray]] = []
        at = HeadOfRanking.at

        def spied(head: HeadOfRanking, U, V, **options):
            heads = at(head, U, V, **options)
            self.seen.append((U.clone(), V.clone(), heads.values))
            return heads

        monkeypatch.setattr(HeadOfRanking, "at", spied)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("side", ["both", "items"])
@pytest.mark.parametrize("budget", ALL_BUDGETS)
@pytest.mark.parametrize("fixed", [(), (1, 3)])
def test_the_best_of_all_steps_by_the_metric_comes_back(seed, side, budget, fixed, monkeypatch):
    factors, train, test = world(seed)
    spy = Spy(monkeypatch)
    options = {"side": side, "fixed": fixed, "steps": 6, "restarts": 2, "seed": seed}
    attacked = Cutoff(test, train, 5, budget(), **options).perturb(factors, 0.4)
    means = [values.mean() for *_, values in spy.seen]
    # The factors as they are, then after every step, of each start.
    assert len(means) == 2 * 7
    left = np.mean(naive_ndcg(*attacked.factors, train, test, 5))
    clean = np.mean(naive_ndcg(*factors, train, test, 5))
    assert left == pytest.approx(min(means), abs=1e-12)
    assert left < clean
    assert means[0] == pytest.approx(clean, abs=1e-12)
    for before, after in zip(factors, attacked.factors, strict=True):
        assert torch.equal(before[:, list(fixed)], after[:, list(fixed)])
    assert not torch.equal(attacked.factors.items, factors.items)
    assert torch.equal(attacked.factors.users, factors.users) == (side == "items")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("budget", ALL_BUDGETS)
@pytest.mark.parametrize("fixed", [(), (1, 3)])
def test_if_items_stay_users_with_own_budgets_keep_their_best(seed, budget, fixed, monkeypatch):
    """With a common budget, rows of several steps do not fit in: the best single step counts."""
    factors, train, test = world(seed, n_users=40)
    # Steps that jump to and fro: the last one is not the best for all users.
    monkeypatch.setattr("robustcf.attacks.cutoff._SHARES", (2.0, 2.0))
    monkeypatch.setattr("robustcf.attacks.cutoff._MOMENTUM", 0.0)
    spy = Spy(monkeypatch)
    attack = Cutoff(test, train, 5, budget(), side="users", steps=8, fixed=fixed)
    attacked = attack.perturb(factors, 0.6)
    assert attacked.factors.items is factors.items
    moved = (attacked.factors.users != factors.users).any(dim=0)
    assert moved.tolist() == [n not in fixed for n in range(4)]
    left = naive_ndcg(*attacked.factors, train, test, 5)
    least = np.minimum.reduce([values for *_, values in spy.seen])
    best = min(values.mean() for *_, values in spy.seen)
    assert least.mean() < best, "from several steps: the test can fail"
    if budget.by_row:
        np.testing.assert_allclose(left, least, atol=1e-12)
    else:
        assert np.mean(left) == pytest.approx(best, abs=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_metric_of_0_is_not_attacked(seed):
    factors, train, test = world(seed)
    scores = (factors.users @ factors.items.T).numpy()
    last = np.zeros(scores.shape, dtype=bool)
    np.put_along_axis(last, scores.argmin(axis=1)[:, None], True, axis=1)
    attacked = Cutoff(pairs_of(last), None, 2, steps=4).perturb(factors, 0.1)
    assert torch.equal(attacked.factors.users, factors.users)
    assert torch.equal(attacked.factors.items, factors.items)


# --- one function of its arguments ------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_is_deterministic_and_the_seed_is_of_the_second_start(dtype, monkeypatch):
    factors, train, test = world(0, dtype)

    def points(**options):
        with monkeypatch.context() as patch:
            spy = Spy(patch)
            Cutoff(test, train, 5, steps=3, **options).perturb(factors, 0.3)
        return [U for U, *_ in spy.seen]

    def same(one, two):
        return all(map(torch.equal, one, two))

    once, twice = points(), points()
    assert same(once, twice)
    assert same(once, points(seed=1)), "nothing is drawn with one start"
    more = points(restarts=2, seed=1)
    assert same(more[: len(once)], once), "the first start is the same"
    assert not same(more, points(restarts=2, seed=2))
    assert same(more, points(restarts=2, seed=1))


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("budget", ALL_BUDGETS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_relative_attacks_follow_a_change_of_scale_to_the_bit(seed, budget, dtype):
    factors, train, test = world(seed, dtype)

    def perturbed(u: float, v: float) -> Factors:
        scaled = Factors(u * factors.users, v * factors.items)
        found = Cutoff(test, train, 5, budget(), steps=5).perturb(scaled, 0.2).factors
        return Factors(found.users / u, found.items / v)

    plain = perturbed(1.0, 1.0)
    for u, v in ((8.0, 1.0), (1.0, 0.25), (0.5, 64.0)):
        other = perturbed(u, v)
        if budget is BUDGETS["spectral"]:  # LAPACK's decomposition
            torch.testing.assert_close(other.users, plain.users)
            torch.testing.assert_close(other.items, plain.items)
        else:
            assert torch.equal(other.users, plain.users)
            assert torch.equal(other.items, plain.items)


# --- strength and errors ----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("side", ["both", "users", "items"])
def test_it_does_more_harm_than_one_step_on_a_loss(seed, side):
    factors, train, test = world(seed, torch.float32, n_users=60, n_items=80, dim=8)
    for size in (0.05, 0.1, 0.2):
        cutoff, fgm, clean = (
            np.mean(naive_ndcg(*found, train, test, 10))
            for found in (
                Cutoff(test, train, 10, side=side, steps=30).perturb(factors, size).factors,
                FGM(Softmax(test), side=side).perturb(factors, size).factors,
                factors,
            )
        )
        assert cutoff < fgm < clean
        assert clean - cutoff > 1.1 * (clean - fgm)


@pytest.mark.parametrize("seed", SEEDS)
def test_more_steps_and_more_starts_leave_no_more(seed):
    factors, train, test = world(seed, n_users=30)

    def left(**options) -> float:
        attacked = Cutoff(test, train, 5, **options).perturb(factors, 0.15).factors
        return float(np.mean(naive_ndcg(*attacked, train, test, 5)))

    assert left(steps=10, restarts=3) <= left(steps=10)
    assert left(steps=40) < left(steps=1)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"steps": 0}, "steps"),
        ({"steps": 1.5}, "steps"),
        ({"restarts": 0}, "restarts"),
        ({"k": 0}, "k must be"),
        ({"relevant": pairs_of(np.zeros((20, 30)))}, "relevant"),
        ({"side": "left"}, "side"),
    ],
)
def test_bad_input(options, word):
    split = checkerboard()
    with pytest.raises(InputError, match=word):
        Cutoff(**{"relevant": split.test, "seen": split.train, **options})
    with pytest.raises(InputError, match="different data"):
        Cutoff(split.test, split.train).perturb(Factors(torch.ones(20, 2), torch.ones(9, 2)), 0.1)
