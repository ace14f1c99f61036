"""BPR: whole rows are the whole objective, pairs the drawn one, negatives are uniform."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from robustcf.data import Interactions
from robustcf.errors import InputError
from robustcf.objectives import BPR, Batch, BatchConfig, Batches
from tests.objectives.naive import (
    assert_gradient,
    batch_loss,
    bpr_naive,
    gradients,
    of_epoch,
    pairs_of,
    parameters,
)

SEEDS = [0, 1, 2]


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_over_all_items_are_the_whole_objective(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("robustcf.objectives.bpr._COMPARISONS", 40)  # several chunks a block
    rng = np.random.default_rng(seed)
    train = pairs_of(rng)
    U, V = parameters(rng, train)
    expected = bpr_naive(train, U, V)
    to_users, to_items = gradients(expected, U, V)
    objective = BPR(train, sampled_items=99, dtype=torch.float64)
    found = of_epoch(Batches(objective, BatchConfig(block_users=5)), U, V)
    assert_gradient(found, expected.item(), to_users, to_items)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("batching", ["rows", "pairs"])
def test_a_batch_is_the_loss_of_its_drawn_items(seed: int, batching: str) -> None:
    rng = np.random.default_rng(seed)
    train = pairs_of(rng)
    U, V = parameters(rng, train)
    objective = BPR(train, negatives=3, sampled_items=4, dtype=torch.float64)
    batches = Batches(objective, BatchConfig(batching, block_users=5, batch_size=8), seed=seed)
    for batch in batches.epoch(2):
        expected = batch_loss("bpr", batch, U, V, train)
        to_users, to_items = gradients(expected, U, V)
        got = objective.gradient(batch, U.detach(), V.detach(), value=True)
        assert got.value == pytest.approx(expected.item(), rel=1e-12)
        torch.testing.assert_close(got.whole(len(U)).users, to_users)
        torch.testing.assert_close(got.items, to_items)


@pytest.mark.parametrize("seed", SEEDS)
def test_negatives_are_uniform_over_what_the_user_lacks(seed: int) -> None:
    rng = np.random.default_rng(seed)
    train = pairs_of(rng)
    users = np.unique(train.users)
    drawn = BPR(train, negatives=4000).pair_negatives(rng, users)
    for user, negatives in zip(users.tolist(), drawn, strict=True):
        others = np.setdiff1d(np.arange(train.n_items), train.items_of(user))
        values, counts = np.unique(negatives, return_counts=True)
        assert np.array_equal(values, others)
        share = 1 / len(others)
        spread = np.sqrt(4000 * share * (1 - share))
        assert (np.abs(counts - 4000 * share) <= 6 * spread + 1e-9).all()


def test_a_block_draws_each_item_once_and_at_most_all() -> None:
    train = pairs_of(np.random.default_rng(0))
    rng = np.random.default_rng(0)
    for wanted, got in ((4, 4), (9, 9), (50, 9)):
        drawn = BPR(train, sampled_items=wanted).shared_negatives(rng).tolist()
        assert len(drawn) == len(set(drawn)) == got
        assert drawn == sorted(drawn)


def test_refuses_a_user_with_every_item() -> None:
    full = Interactions.from_pairs([0, 0, 1], [0, 1, 0], 2, 2)[0]
    objective, U, V = BPR(full), torch.ones(2, 2), torch.ones(2, 2)
    for batching in ("rows", "pairs"):
        with pytest.raises(InputError, match="items"):
            of_epoch(Batches(objective, BatchConfig(batching)), U, V)
    with pytest.raises(InputError, match="item"):
        objective.user_loss(np.array([0, 1]), V)
    # Others are served.
    block = Batch(torch.tensor([1]), negatives=torch.tensor([0, 1]))
    assert objective.gradient(block, U, V, value=True).value == pytest.approx(np.log(2))
