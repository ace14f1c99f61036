"""BPR: batches are the loss of their drawn items, negatives are uniform."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from robustcf.data import Interactions
from robustcf.errors import InputError
from robustcf.objectives import BPR, Batch, BatchConfig, Batches
from tests.objectives.naive import assert_autograd, batch_loss, of_epoch, pairs_of, small_case

SEEDS = [0, 1, 2]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("batching", ["rows", "pairs"])
def test_a_batch_is_the_loss_of_its_drawn_items(
    seed: int, batching: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("robustcf.objectives.bpr._COMPARISONS", 20)  # several chunks per block
    train, U, V = small_case(seed, grad=True)
    objective = BPR(train, negatives=3, sampled_items=4, dtype=torch.float64)
    batches = Batches(objective, BatchConfig(batching, block_users=5, batch_size=8), seed=seed)
    for batch in batches.epoch(2):
        got = objective.gradient(batch, U.detach(), V.detach(), value=True)
        assert_autograd(got, batch_loss("bpr", batch, U, V, train), U, V)


@pytest.mark.parametrize("seed", SEEDS)
def test_negatives_are_uniform_over_the_items_that_the_user_does_not_have(seed: int) -> None:
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
    # Other users are accepted.
    block = Batch(torch.tensor([1]), negatives=torch.tensor([0, 1]))
    assert objective.gradient(block, U, V, value=True).value == pytest.approx(np.log(2))
