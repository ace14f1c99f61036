"""UltraGCN's cross-entropy against its official code, pair by pair, and its weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from robustcf.data import Interactions
from robustcf.objectives import BCE, BatchConfig, Batches
from robustcf.objectives.weights import item_beta, item_graph, user_beta
from tests.objectives.naive import (
    WEIGHTS,
    assert_autograd,
    bce_naive,
    of_epoch,
    official_omega,
    official_pair_loss,
    pairs_of,
    small_case,
)

SEEDS = [0, 1, 2]


def bce(pairs: Interactions, **settings: Any) -> BCE:
    return BCE(pairs, dtype=torch.float64, **{"neighbours": 3, **WEIGHTS, **settings})


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("weights", [{}, {"w3": 0.0}, {"w4": 0.0}, {"item_weight": 0.0}])
def test_rows_are_the_official_objective_over_all_negatives(
    seed: int, weights: dict[str, float]
) -> None:
    train, U, V = small_case(seed, grad=True)
    found = of_epoch(Batches(bce(train, **weights), BatchConfig(block_users=5)), U, V)
    assert_autograd(found, bce_naive(train, U, V, **weights), U, V)


@pytest.mark.parametrize("seed", SEEDS)
def test_pairs_are_the_official_loss_of_the_drawn_negatives(seed: int) -> None:
    train, U, V = small_case(seed, grad=True)
    c = {**WEIGHTS, "omega": official_omega(train, 3)}
    objective = bce(train, negatives=4)
    for batch in Batches(objective, BatchConfig("pairs", batch_size=8)).epoch(3):
        S = U @ V.T
        expected = sum(
            official_pair_loss(int(u), int(i), js.tolist(), S, train, c)
            for u, i, js in zip(batch.users, batch.items, batch.negatives, strict=True)
        )
        got = objective.gradient(batch, U.detach(), V.detach())
        assert got.rows is None
        assert_autograd(got, expected, U, V)


def test_weights_are_made_again_when_they_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    train, U, V = small_case(0)
    objective = bce(train)
    kept, made = (Batches(objective, BatchConfig(block_users=5)) for _ in range(2))
    batches = list(kept.epoch(1))
    assert all(batch.prepared is not None for batch in batches)
    first = [objective.gradient(batch, U, V) for batch in batches]
    monkeypatch.setattr("robustcf.objectives.batches._KEEP_ENTRIES", 0)
    for a, batch in zip(first, made.epoch(1), strict=True):
        assert batch.prepared is None
        b = objective.gradient(batch, U, V)
        assert torch.equal(a.users, b.users)
        assert torch.equal(a.items, b.items)


def test_weights_are_kept_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    train = pairs_of(np.random.default_rng(0))
    objective = bce(train, item_weight=0.0)  # then a block has an entry for each of its pairs
    batches = Batches(objective, BatchConfig(block_users=5))
    sizes = [int(train.user_degrees[block].sum()) for block in batches.blocks]
    assert len(sizes) == 3
    monkeypatch.setattr("robustcf.objectives.batches._KEEP_ENTRIES", sizes[0] + sizes[1])
    kept = [batch.prepared is not None for batch in batches.epoch(0)]
    assert sorted(kept) == [False, True, True]


def test_the_sampled_loss_is_unbiased() -> None:
    train, U, V = small_case(0)
    exact = bce(train).full_gradient(U, V).value
    some = Batches(bce(train, sampled_items=4), BatchConfig(block_users=50))
    values = [of_epoch(some, U, V, epoch).value for epoch in range(200)]
    assert np.std(values) > 0
    assert abs(np.mean(values) - exact) <= 6 * np.std(values) / 200**0.5


def test_items_are_sampled_half_uniformly_and_half_by_popularity() -> None:
    train = pairs_of(np.random.default_rng(0))
    objective = bce(train, sampled_items=8)
    rng = np.random.default_rng(1)
    draws = torch.cat([objective.shared_negatives(rng) for _ in range(3000)])
    counts = np.bincount(draws.numpy(), minlength=train.n_items)
    popularity = (train.item_degrees + 1) / (train.item_degrees + 1).sum()
    chances = (1 / train.n_items + popularity) / 2
    spread = np.sqrt(24_000 * chances * (1 - chances))
    assert (np.abs(counts - 24_000 * chances) <= 6 * spread).all()
    for count in (train.n_items, None):
        assert bce(train, sampled_items=count).shared_negatives(rng) is None


@pytest.mark.parametrize("seed", SEEDS)
def test_the_item_graph_is_the_published_one(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("robustcf.objectives.weights._BLOCK_PAIRS", 30)  # several blocks
    train = pairs_of(np.random.default_rng(seed), 30, 20)
    graph = item_graph(train, 4)
    for i, expected in enumerate(official_omega(train, 4)):
        got = dict(zip(graph[i].indices.tolist(), graph[i].data.tolist(), strict=True))
        assert got == pytest.approx(dict(expected))


def test_betas_of_degree_zero_are_finite() -> None:
    assert user_beta(np.array([0, 1])).tolist() == [0.0, pytest.approx(2**0.5)]
    assert item_beta(np.array([0, 1])).tolist() == [1.0, pytest.approx(2**-0.5)]
