"""How epochs are cut: every user or pair once, by the seed and the number of the epoch alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from robustcf.errors import InputError
from robustcf.objectives import BATCHINGS, BCE, BPR, BatchConfig, Batches, Softmax
from tests.objectives.naive import pairs_of

SEEDS = [0, 1, 2]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("size", [1, 4, 12, 500])
def test_an_epoch_of_rows_visits_every_user_with_pairs_once(seed: int, size: int) -> None:
    pairs = pairs_of(np.random.default_rng(seed), 40, 12)
    batches = Batches(Softmax(pairs), BatchConfig(block_users=size), seed=seed)
    warm = np.flatnonzero(pairs.user_degrees)
    for epoch in (0, 1):
        blocks = [batch.users.tolist() for batch in batches.epoch(epoch)]
        assert len(blocks) == batches.n_steps == -(-len(warm) // size)
        assert max(map(len, blocks)) <= size
        assert max(map(len, blocks)) - min(map(len, blocks)) <= 1, "blocks of even size"
        assert all(block == sorted(block) for block in blocks)
        assert sorted(user for block in blocks for user in block) == warm.tolist()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("size", [1, 7, 500])
def test_an_epoch_of_pairs_visits_every_pair_once(seed: int, size: int) -> None:
    pairs = pairs_of(np.random.default_rng(seed), 40, 12)
    batches = Batches(BPR(pairs, negatives=2), BatchConfig("pairs", batch_size=size), seed=seed)
    seen = list(batches.epoch(0))
    assert len(seen) == batches.n_steps == -(-len(pairs) // size)
    assert all(len(batch.users) == size for batch in seen[:-1])
    users, items = (
        torch.cat([getattr(batch, name) for batch in seen]).tolist() for name in ("users", "items")
    )
    expected = list(zip(pairs.users.tolist(), pairs.items.tolist(), strict=True))
    assert sorted(zip(users, items, strict=True)) == expected
    for batch in seen:
        assert batch.negatives.shape == (len(batch.users), 2)
        for user, negatives in zip(batch.users.tolist(), batch.negatives.tolist(), strict=True):
            assert not set(negatives) & set(pairs.items_of(user).tolist())


def order_of(batches: Batches, epoch: int) -> list[Any]:
    return [(batch.users.tolist(), batch.negatives) for batch in batches.epoch(epoch)]


def same(left: list[Any], right: list[Any]) -> bool:
    if [users for users, _ in left] != [users for users, _ in right]:
        return False
    return all(torch.equal(a, b) for (_, a), (_, b) in zip(left, right, strict=True))


@pytest.mark.parametrize("kind", BATCHINGS)
def test_the_order_depends_on_seed_and_epoch_alone(kind: str) -> None:
    pairs = pairs_of(np.random.default_rng(0), 40, 12)
    how = BatchConfig(kind, block_users=4, batch_size=10)
    batches = Batches(BPR(pairs, sampled_items=5), how, seed=1)
    later = order_of(batches, 3)
    assert same(later, order_of(Batches(BPR(pairs, sampled_items=5), how, seed=1), 3))
    assert not same(later, order_of(batches, 4))
    assert not same(later, order_of(Batches(BPR(pairs, sampled_items=5), how, seed=2), 3))


@pytest.mark.parametrize("kind", BATCHINGS)
def test_objectives_of_one_seed_visit_the_same_in_the_same_order(kind: str) -> None:
    """The negatives drawn, and their number, do not matter."""
    pairs = pairs_of(np.random.default_rng(0), 40, 12)
    how = BatchConfig(kind, block_users=4, batch_size=10)
    orders = [
        [batch.users.tolist() for batch in Batches(objective, how, seed=5).epoch(2)]
        for objective in (BCE(pairs), BCE(pairs, sampled_items=3), BPR(pairs), Softmax(pairs))
    ]
    assert len(orders[0]) > 5
    assert all(order == orders[0] for order in orders)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "cells"}, "batching must be one of rows, pairs, got 'cells'"),
        ({"batch_size": 0}, "batch_size must be an integer of at least 1, got 0"),
        ({"block_users": 0}, "block_users must be an integer of at least 1, got 0"),
        ({"block_users": 2.5}, "block_users must be an integer of at least 1, got 2.5"),
    ],
)
def test_refuses_sizes(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        BatchConfig(**settings)


@pytest.mark.parametrize("seed", [-1, 1.5, True])
def test_refuses_seeds(seed: Any) -> None:
    with pytest.raises(InputError, match="seed"):
        Batches(Softmax(pairs_of(np.random.default_rng(0))), seed=seed)
