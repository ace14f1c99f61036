"""UltraGCN's cross-entropy against its official code, pair by pair."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from robustcf.data import Interactions
from robustcf.objectives import BCE, BatchConfig, Batches
from tests.objectives.naive import (
    WEIGHTS,
    assert_gradient,
    gradients,
    of_epoch,
    official_omega,
    official_pair_loss,
    pairs_of,
    parameters,
)

SEEDS = [0, 1, 2]


def bce(pairs: Interactions, **settings: Any) -> BCE:
    return BCE(pairs, dtype=torch.float64, **{"neighbours": 3, **WEIGHTS, **settings})


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("weights", [{}, {"w3": 0.0}, {"w4": 0.0}, {"item_weight": 0.0}])
def test_rows_are_the_official_objective_over_all_negatives(
    seed: int, weights: dict[str, float]
) -> None:
    rng = np.random.default_rng(seed)
    train = pairs_of(rng)
    U, V = parameters(rng, train)
    c = {**WEIGHTS, **weights, "omega": official_omega(train, 3)}
    every = list(range(train.n_items))
    S = U @ V.T
    expected = sum(
        official_pair_loss(int(u), int(i), every, S, train, c)
        for u, i in zip(train.users, train.items, strict=True)
    )
    to_users, to_items = gradients(expected, U, V)
    found = of_epoch(Batches(bce(train, **weights), BatchConfig(block_users=5)), U, V)
    assert_gradient(found, expected.item(), to_users, to_items)


@pytest.mark.parametrize("seed", SEEDS)
def test_pairs_are_the_official_loss_of_the_drawn_negatives(seed: int) -> None:
    rng = np.random.default_rng(seed)
    train = pairs_of(rng)
    U, V = parameters(rng, train)
    c = {**WEIGHTS, "omega": official_omega(train, 3)}
    objective = bce(train, negatives=4)
    batches = Batches(objective, BatchConfig("pairs", batch_size=8))
    assert sum(len(batch.users) for batch in batches.epoch(3)) == len(train)
    for batch in batches.epoch(3):
        S = U @ V.T
        expected = sum(
            official_pair_loss(int(u), int(i), js.tolist(), S, train, c)
            for u, i, js in zip(batch.users, batch.items, batch.negatives, strict=True)
        )
        to_users, to_items = gradients(expected, U, V)
        got = objective.gradient(batch, U.detach(), V.detach())
        assert got.rows is None
        assert_gradient(got, expected.item(), to_users, to_items)


def test_small_blocks_and_large_ones_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    train = pairs_of(rng)
    U, V = (part.detach() for part in parameters(rng, train))
    objective = bce(train)
    (batch,) = Batches(objective, BatchConfig(block_users=50)).epoch(0)
    whole = objective.gradient(batch, U, V, value=True)
    monkeypatch.setattr("robustcf.objectives.kernels.BLOCK_BYTES", 8 * train.n_items * 3)
    parts = objective.gradient(batch, U, V, value=True)
    torch.testing.assert_close(whole.users, parts.users)
    torch.testing.assert_close(whole.items, parts.items)
    assert whole.value == pytest.approx(parts.value)


def test_weights_are_made_again_when_they_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    train = pairs_of(rng)
    U, V = (part.detach() for part in parameters(rng, train))
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


def test_as_many_weights_are_kept_as_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    train = pairs_of(np.random.default_rng(0))
    objective = bce(train, item_weight=0.0)  # then a block has an entry for each of its pairs
    batches = Batches(objective, BatchConfig(block_users=5))
    sizes = [int(train.user_degrees[block].sum()) for block in batches.blocks]
    assert len(sizes) == 3
    monkeypatch.setattr("robustcf.objectives.batches._KEEP_ENTRIES", sizes[0] + sizes[1])
    kept = [batch.prepared is not None for batch in batches.epoch(0)]
    assert sorted(kept) == [False, True, True]


def test_sampled_loss_is_unbiased_too() -> None:
    rng = np.random.default_rng(0)
    train = pairs_of(rng)
    U, V = (part.detach() for part in parameters(rng, train))
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
    # As many as there are, or more, are simply all of them.
    assert bce(train, sampled_items=train.n_items).shared_negatives(rng) is None
    assert bce(train).shared_negatives(rng) is None
