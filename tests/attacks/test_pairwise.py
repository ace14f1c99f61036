"""The pairwise attack: its formula pair by pair, its last steps, its strength."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from robustcf.attacks import Cutoff, FrobeniusBudget, OwnRowBudget, Pairwise, RowBudget
from robustcf.attacks.pairwise import PairsOfRanking
from robustcf.metrics.topk import near_the_top, top_items
from tests.attacks.test_cutoff import SEEDS, naive_ndcg, pairs_of, temperatures_of, world


def naive_order(U, V, train, user: int) -> list[int]:
    scores = (V.double() @ U[user].double()).tolist()
    hidden = set() if train is None else set(train.items_of(user).tolist())
    return sorted((j for j in range(len(V)) if j not in hidden), key=lambda j: (-scores[j], j))


def naive_gradient(U, V, train, test, k: int, temperatures) -> tuple[torch.Tensor, torch.Tensor]:
    """What moves each pair apart, one after the other, as the module's text says."""
    to_users, to_items = torch.zeros_like(U), torch.zeros_like(V)
    users = [user for user in range(len(U)) if len(test.items_of(user))]
    for user, t in zip(users, temperatures.tolist(), strict=True):
        own = set(test.items_of(user).tolist())
        ideal = sum(1 / math.log2(n + 2) for n in range(min(k, len(own))))
        head = naive_order(U, V, train, user)[: math.ceil(2.4 * k)]
        discounts = [(1.0 if n < k else 0.05) / math.log2(n + 2) for n in range(len(head))]
        for a, i in enumerate(head):
            for b, j in enumerate(head):
                if i not in own or j in own:
                    continue
                g = float(U[user] @ (V[i] - V[j])) / t
                move = abs(discounts[a] - discounts[b]) / ideal / t / (1 + math.exp(-g))
                move *= (1 / (1 + math.exp(g))) * (0.1 if b < a else 1.0)
                to_users[user] += move * (V[j] - V[i])
                to_items[j] += move * U[user]
                to_items[i] -= move * U[user]
    return to_users, to_items


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("k", "sizes", "masked"),
    [
        (2, {}, True),
        (5, {}, False),  # 12 places, and the training pairs are candidates
        (9, {}, True),  # 22 places and 20 candidates: lists end
        (40, {}, True),  # more than there are items
        (3, {"n_items": 11, "dim": 1}, True),
    ],
)
@pytest.mark.parametrize("places", [2**22, 50])
def test_the_gradient_is_that_of_all_pairs(seed, k, sizes, masked, places, monkeypatch):
    monkeypatch.setattr("robustcf.attacks.cutoff._PLACES", places)
    (U, V), train, test = world(seed, **sizes)
    seen = train if masked else None
    head = PairsOfRanking(test, seen, k)
    temperatures = temperatures_of(head, seed)
    got = head.gradient(head.at(U, V), U, V, temperatures)
    expected = naive_gradient(U, V, seen, test, k, temperatures)
    assert expected[1].abs().max() > 1e-3
    torch.testing.assert_close(got[0], expected[0])
    torch.testing.assert_close(got[1], expected[1])


@pytest.mark.parametrize("seed", SEEDS)
def test_between_full_rankings_the_last_lists_are_ranked(seed):
    """By the new factors; and users whose list holds no relevant item are left out."""
    (U, V), train, _ = world(seed, n_users=40, n_items=90)
    g = torch.Generator().manual_seed(seed)
    own = np.random.default_rng(seed).random((40, 90)) < 0.04
    test = pairs_of(own & (train.csr().toarray() == 0))
    head = PairsOfRanking(test, train, 2)
    head.at(U, V)
    moved = U + 0.5 * torch.randn(U.shape, generator=g, dtype=U.dtype)
    heads = head.at(moved, V, anew=False)
    assert 0 < len(heads.rows) < len(head.users)
    for row, place in enumerate(heads.rows.tolist()):
        user = int(head.users[place])
        own = set(test.items_of(user).tolist())
        near = naive_order(U, V, train, user)[: 2 * 5]
        expected = [item for item in naive_order(moved, V, train, user) if item in near][:5]
        assert heads.items[row].tolist() == expected
        assert heads.hits[row].tolist() == [item in own for item in expected]
        gained = sum(1 / math.log2(n + 2) for n, item in enumerate(expected[:2]) if item in own)
        assert heads.values[place] == pytest.approx(gained / head.best[place])
    others = np.setdiff1d(np.arange(len(head.users)), heads.rows.numpy())
    assert not heads.values[others].any()
    # Where all candidates are on the list, nothing is lost.
    short = PairsOfRanking(test, train, 30)
    short.at(U, V)
    np.testing.assert_allclose(
        short.at(moved, V, anew=False).values, naive_ndcg(moved, V, train, test, 30)
    )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("budget", [RowBudget, OwnRowBudget, FrobeniusBudget])
def test_the_last_steps_move_users_alone_and_no_user_keeps_more(seed, budget, monkeypatch):
    factors, train, test = world(seed, n_users=60, n_items=60)

    def attacked():
        return Pairwise(test, train, 5, budget(), steps=12).perturb(factors, 0.3).factors

    after = attacked()
    monkeypatch.setattr(Pairwise, "polished", 0)
    before = attacked()
    assert torch.equal(after.items, before.items)
    values = [np.array(naive_ndcg(*found, train, test, 5)) for found in (before, after)]
    if budget is FrobeniusBudget:  # rows share one budget
        assert torch.equal(after.users, before.users)
    else:
        assert (values[1] <= values[0] + 1e-12).all()
        assert values[1].mean() <= values[0].mean()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("side", ["users", "items"])
def test_one_side_has_no_last_steps(seed, side, monkeypatch):
    factors, train, test = world(seed)
    attack = Pairwise(test, train, 5, OwnRowBudget(), side=side, steps=12)
    found = attack.perturb(factors, 0.3).factors
    monkeypatch.setattr(Pairwise, "polished", 0)
    alone = attack.perturb(factors, 0.3).factors
    assert torch.equal(found.users, alone.users)
    assert torch.equal(found.items, alone.items)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_it_is_stronger_than_the_smooth_metric(seed, dtype):
    factors, train, test = world(seed, dtype, n_users=80, n_items=120, dim=8)
    pairwise, cutoff, clean = (
        np.mean(naive_ndcg(*found, train, test, 10))
        for found in (
            Pairwise(test, train, 10, OwnRowBudget()).perturb(factors, 0.1).factors,
            Cutoff(test, train, 10, OwnRowBudget()).perturb(factors, 0.1).factors,
            factors,
        )
    )
    assert pairwise < cutoff < clean


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("block", [None, 3])
def test_items_near_the_top(seed, block, monkeypatch):
    """With scores that are far apart, they are the first of the exact ranking."""
    if block:
        monkeypatch.setattr("robustcf.metrics.topk._MOST_USERS", block)
    factors, train, _ = world(seed, n_users=20, n_items=60)
    users = np.array([3, 0, 7, 19, 4])
    for length in (4, 70):
        expected = top_items(factors, users, length, train)
        np.testing.assert_array_equal(near_the_top(factors, users, length, train), expected)
    assert near_the_top(factors, users[:0], 4, train).shape == (0, 4)
