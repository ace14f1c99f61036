"""The losses and their gradients over rows of scores, against dense formulas and autograd."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import softplus

from robustcf.errors import InputError
from robustcf.objectives.kernels import (
    NegativeWeights,
    SparseRows,
    add_sparse_product,
    bce_rows,
    bce_sampled,
    bpr,
    softmax_rows,
    sparse_scores,
    weighted_bce,
)

SEEDS = [0, 1, 2]
USERS, ITEMS, DIM = 7, 11, 3


def small_case(seed: int) -> tuple[Tensor, Tensor, SparseRows, Tensor]:
    """Users, items, sparse positives, and these as a dense matrix; user 2 has none."""
    rng = np.random.default_rng(seed)
    dense = np.where(rng.random((USERS, ITEMS)) < 0.3, rng.random((USERS, ITEMS)), 0.0)
    dense[2], dense[0, 0] = 0.0, 0.5
    rows, columns = np.nonzero(dense)
    positives = SparseRows(
        torch.tensor(rows), torch.tensor(columns), torch.tensor(dense[rows, columns])
    )
    U = torch.tensor(rng.standard_normal((USERS, DIM)), requires_grad=True)
    V = torch.tensor(rng.standard_normal((ITEMS, DIM)), requires_grad=True)
    return U, V, positives, torch.tensor(dense)


def negatives_of(seed: int, *, shift: bool) -> tuple[NegativeWeights, Tensor]:
    g = torch.Generator().manual_seed(seed)
    row = torch.rand(USERS, generator=g, dtype=torch.float64) + 0.1
    column = torch.rand(ITEMS, generator=g, dtype=torch.float64)
    moved = torch.rand(USERS, generator=g, dtype=torch.float64) if shift else None
    dense = row[:, None] * (column + (0.0 if moved is None else moved[:, None]))
    return NegativeWeights(row, column, moved), dense


def blocks(monkeypatch: pytest.MonkeyPatch, users: int) -> None:
    """That many users' scores at a time."""
    monkeypatch.setattr("robustcf.objectives.kernels.BLOCK_BYTES", users * ITEMS * 8)


def test_weighted_bce_takes_single_weights_and_dense_ones() -> None:
    s = torch.tensor([[-1.0, 0.5], [3.0, -40.0]], dtype=torch.float64)
    positive, negative = torch.rand(2, 2).double(), torch.rand(2, 2).double()
    p = torch.sigmoid(s)
    expected = -(positive * p.log() + negative * (1 - p).log()).sum()
    torch.testing.assert_close(weighted_bce(s, positive, negative), expected)
    torch.testing.assert_close(weighted_bce(s, 1.0, 0.0), -p.log().sum())


def test_bpr_is_the_mean_over_negatives_summed_over_positives() -> None:
    own = torch.tensor([1.0, -2.0], dtype=torch.float64)
    others = torch.tensor([[0.0, 1.0, 2.0], [3.0, -3.0, 0.0]], dtype=torch.float64)
    expected = sum(
        sum(-torch.sigmoid(own[n] - other).log() for other in others[n]) / 3 for n in range(2)
    )
    torch.testing.assert_close(bpr(own, others), expected)


@pytest.mark.parametrize("shape", [(3, 2), (2,), (3, 2, 2)])
def test_bpr_checks_shapes(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="dimension"):
        bpr(torch.ones(2), torch.ones(*shape))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_bce_rows_is_the_dense_loss(
    seed: int, shift: bool, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks(monkeypatch, at_once)
    U, V, positives, dense = small_case(seed)
    negatives, weights = negatives_of(seed, shift=shift)
    S = U @ V.T
    expected = (dense * softplus(-S) + weights * softplus(S)).sum()
    to_users, to_items = torch.autograd.grad(expected, (U, V))
    items = torch.ones_like(V)
    users, value = bce_rows(U.detach(), V.detach(), positives, negatives, items, value=True)
    assert value == pytest.approx(expected.item())
    torch.testing.assert_close(users, to_users)
    torch.testing.assert_close(items, to_items + 1.0, msg="it is added to what is there")
    assert bce_rows(U.detach(), V.detach(), positives, negatives, items)[1] is None


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("shift", [False, True])
def test_bce_sampled_is_the_weighted_sum_over_the_drawn(seed: int, shift: bool) -> None:
    U, V, positives, dense = small_case(seed)
    negatives, weights = negatives_of(seed, shift=shift)
    items_drawn = torch.tensor([0, 3, 3, 10])
    each = torch.tensor([0.5, 2.0, 3.0, 1.0], dtype=torch.float64)
    S = U @ V.T
    some = S[:, items_drawn]
    expected = (dense * softplus(-S)).sum()
    expected = expected + (weights[:, items_drawn] * each * softplus(some)).sum()
    to_users, to_items = torch.autograd.grad(expected, (U, V))
    items = torch.ones_like(V)
    users, value = bce_sampled(
        U.detach(), V.detach(), positives, negatives, items_drawn, each, items, value=True
    )
    assert value == pytest.approx(expected.item())
    torch.testing.assert_close(users, to_users)
    torch.testing.assert_close(items, to_items + 1.0)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("with_offsets", [False, True])
@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_softmax_rows_is_the_dense_loss(
    seed: int, with_offsets: bool, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks(monkeypatch, at_once)
    U, V, positives, dense = small_case(seed)
    offsets = torch.rand(ITEMS, dtype=torch.float64, requires_grad=True)
    S = U @ V.T
    lifted = S + offsets if with_offsets else S
    top = (dense.sum(dim=1) * lifted.exp().sum(dim=1).log()).sum()
    expected = top - (dense * S).sum()
    to_users, to_items = torch.autograd.grad(expected, (U, V), retain_graph=True)
    items, mass = torch.ones_like(V), torch.ones(ITEMS, dtype=torch.float64)
    users, value = softmax_rows(
        U.detach(), V.detach(), positives, items, value=True,
        offsets=offsets.detach() if with_offsets else None, item_mass=mass,
    )  # fmt: skip
    assert value == pytest.approx(expected.item())
    torch.testing.assert_close(users, to_users)
    torch.testing.assert_close(items, to_items + 1.0)
    assert bool((users[2] == 0).all()), "without positives there is no loss"
    # The softmax's weights are the derivative for a number added to an item's scores.
    weights = torch.softmax(lifted, dim=1) * dense.sum(dim=1, keepdim=True)
    torch.testing.assert_close(mass, 1.0 + weights.detach().sum(dim=0))
    if with_offsets:
        torch.testing.assert_close(mass - 1.0, torch.autograd.grad(top, offsets)[0])


@pytest.mark.parametrize("seed", SEEDS)
def test_sparse_products_are_dense_ones(seed: int) -> None:
    U, V, entries, dense = (part if isinstance(part, SparseRows) else part.detach()
                            for part in small_case(seed))  # fmt: skip
    rows, columns = entries.rows, entries.columns
    torch.testing.assert_close(sparse_scores(U, V, entries), (U @ V.T)[rows, columns])
    out = torch.ones_like(U)
    add_sparse_product(out, entries, V, scale=-2.0)
    torch.testing.assert_close(out, 1.0 - 2.0 * dense @ V)
    back = torch.ones_like(V)
    add_sparse_product(back, entries, U, scale=0.5, transposed=True)
    torch.testing.assert_close(back, 1.0 + 0.5 * dense.T @ U)
