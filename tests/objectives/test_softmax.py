"""The softmax as an objective to train with: both batchings are shares of one and the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from robustcf.data import Interactions
from robustcf.objectives import Batch, BatchConfig, Batches, Softmax
from tests.objectives.naive import (
    batch_loss,
    gradients,
    of_epoch,
    pairs_of,
    parameters,
    softmax_naive,
)

SEEDS = [0, 1, 2]
BATCHINGS = ["rows", "pairs"]


def uneven(seed: int) -> Interactions:
    """Some users have nearly everything, one has nothing, one has all."""
    dense = np.random.default_rng(seed).random((11, 8)) < np.linspace(0.1, 0.9, 11)[:, None]
    dense[3], dense[7], dense[0, 0] = False, True, True
    return Interactions(*np.nonzero(dense), 11, 8)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("batching", BATCHINGS)
def test_batches_add_up_to_the_whole(batching: str, seed: int) -> None:
    pairs = uneven(seed)
    U, V = (part.detach() for part in parameters(np.random.default_rng(seed), pairs, 3))
    objective = Softmax(pairs)
    batches = Batches(objective, BatchConfig(batching, block_users=3, batch_size=5), seed=seed)
    assert batches.n_steps > 3
    found, whole = of_epoch(batches, U, V), objective.full_gradient(U, V)
    torch.testing.assert_close(found.users, whole.users)
    torch.testing.assert_close(found.items, whole.items)
    assert found.value == pytest.approx(whole.value, rel=1e-12)
    assert bool((whole.users[3] == 0).all()), "a user without pairs does not count"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("batching", BATCHINGS)
def test_a_batch_has_the_gradient_of_autograd(batching: str, seed: int) -> None:
    pairs = uneven(seed)
    U, V = parameters(np.random.default_rng(seed), pairs, 3)
    objective = Softmax(pairs)
    for batch in Batches(objective, BatchConfig(batching, 3, 7), seed=seed).epoch(1):
        expected = batch_loss("softmax", batch, U, V, pairs)
        to_users, to_items = gradients(expected, U, V)
        got = objective.gradient(batch, U.detach(), V.detach(), value=True)
        assert got.value == pytest.approx(expected.item(), rel=1e-12)
        assert got.rows is not None
        assert len(got.rows) == len(set(got.rows.tolist()))
        torch.testing.assert_close(got.whole(len(U)).users, to_users)
        torch.testing.assert_close(got.items, to_items)
        assert objective.gradient(batch, U.detach(), V.detach()).value is None


def test_every_user_counts_once_whatever_the_number_of_their_pairs() -> None:
    pairs = uneven(0)
    users = np.unique(pairs.users)
    value = Softmax(pairs).full_gradient(torch.zeros(11, 2), torch.ones(8, 2)).value
    assert value == pytest.approx(len(users) * np.log(8))


@pytest.mark.parametrize("seed", SEEDS)
def test_it_is_blind_to_a_constant_added_to_a_users_scores(seed: int) -> None:
    pairs = uneven(seed)
    U, V = (part.detach() for part in parameters(np.random.default_rng(seed), pairs, 3))
    objective, shift = Softmax(pairs), torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    here, there = objective.full_gradient(U, V), objective.full_gradient(U, V + shift)
    assert here.value == pytest.approx(there.value)
    torch.testing.assert_close(here.users, there.users)


def test_huge_scores_do_not_overflow() -> None:
    pairs = Interactions.from_pairs([0, 1], [0, 1], 2, 3)[0]
    U, V = torch.full((2, 1), 100.0), torch.tensor([[1.0], [50.0], [-100.0]])
    found = Softmax(pairs).full_gradient(U, V)
    # The first user's item lies 4900 behind the best, the second's is the best.
    assert found.value == pytest.approx(4900.0)
    assert bool(torch.isfinite(found.users).all())
    assert found.users[:, 0].tolist() == pytest.approx([49.0, 0.0])


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_it_works_in_the_precision_of_the_factors(kind: torch.dtype) -> None:
    pairs = pairs_of(np.random.default_rng(0))
    U, V = (part.detach() for part in parameters(np.random.default_rng(0), pairs))
    found = Softmax(pairs).full_gradient(U.to(kind), V.to(kind))
    assert found.users.dtype == found.items.dtype == kind
    expected = softmax_naive(pairs, U, V)
    assert found.value == pytest.approx(float(expected), rel=1e-5)
    batch = Batch(torch.tensor([0, 2]))
    assert Softmax(pairs).gradient(batch, U.to(kind), V.to(kind)).users.dtype == kind


def test_small_blocks_and_large_ones_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = uneven(0)
    U, V = (part.detach() for part in parameters(np.random.default_rng(0), pairs, 3))
    whole = Softmax(pairs).full_gradient(U, V)
    monkeypatch.setattr("robustcf.objectives.kernels.BLOCK_BYTES", 8 * pairs.n_items * 3)
    parts = Softmax(pairs).full_gradient(U, V)
    torch.testing.assert_close(whole.users, parts.users)
    torch.testing.assert_close(whole.items, parts.items)
    assert whole.value == pytest.approx(parts.value)
