"""Losses as plain functions, and their gradients over whole rows of scores.

A score s is the probability sigmoid(s); ``softplus(-s)`` is the loss of a positive, ``softplus(s)``
that of a negative. ``users`` are a block's embeddings (B x d), ``items`` those of the catalogue
(n x d); ``products`` is the type that operands of large products are rounded to (None: their own).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from robustcf.errors import InputError

# One block of scores: the bulk of the work happens on memory that stays in the cache.
BLOCK_BYTES = 16 * 2**20


def weighted_bce(scores: Tensor, positive: Tensor | float, negative: Tensor | float) -> Tensor:
    """Return the sum of ``positive * softplus(-s) + negative * softplus(s)``."""
    return (positive * softplus(-scores) + negative * softplus(scores)).sum()


def bpr(positive: Tensor, negative: Tensor) -> Tensor:
    """Sum, over positives, the mean over their negatives of ``softplus(s_neg - s_pos)``."""
    if negative.shape[:-1] != positive.shape:
        raise InputError(
            f"expected negatives of shape {tuple(positive.shape)} and one dimension more, got "
            f"{tuple(negative.shape)}"
        )
    return softplus(negative - positive[..., None]).mean(dim=-1).sum()


@dataclass(frozen=True, eq=False)
class SparseRows:
    """Weights of positives for a block of users."""

    rows: Tensor  # position of the user in the block, ascending, int64
    columns: Tensor
    weights: Tensor


@dataclass(frozen=True, eq=False)
class NegativeWeights:
    """Weights of negatives, never held as a matrix: ``w_uj = row_u * (column_j + shift_u)``."""

    row: Tensor
    column: Tensor
    shift: Tensor | None = None  # None for 0 saves a pass over the scores


#: Precisions of the products of a block with the catalogue.
PRECISIONS = ("float32", "bfloat16")


def dtype_of_products(precision: str) -> torch.dtype | None:
    """Return the type that operands of large products are rounded to, or None for their own."""
    return None if precision == "float32" else torch.bfloat16


def product(a: Tensor, b: Tensor, products: torch.dtype | None) -> Tensor:
    """Return ``a @ b``, with a and b rounded to a type first, unless it is None."""
    return a @ b if products is None else (a.to(products) @ b.to(products)).to(a)


def set_product(out: Tensor, a: Tensor, b: Tensor, products: torch.dtype | None) -> None:
    """Set ``out = a @ b``, likewise."""
    if products is None:
        torch.mm(a, b, out=out)
    else:
        out.copy_(a.to(products) @ b.to(products))


def add_product(out: Tensor, a: Tensor, b: Tensor, products: torch.dtype | None) -> None:
    """Add ``out += a @ b``, likewise; the sum itself keeps the precision of ``out``."""
    if products is None:
        out.addmm_(a, b)
    else:
        out.add_(a.to(products) @ b.to(products))


def bce_rows(
    users: Tensor,
    items: Tensor,
    positives: SparseRows,
    negatives: NegativeWeights,
    item_gradient: Tensor,
    *,
    value: bool = False,
    products: torch.dtype | None = None,
) -> tuple[Tensor, float | None]:
    """Return the gradient of a block of users (B x d) against ALL items, and the loss or None.

    The loss is, over users u of the block, the sum over sparse entries of
    ``weights * softplus(-s_uj)`` plus the sum over all items of ``w_uj * softplus(s_uj)``. The
    scores of a few users exist at a time.

    Args:
        item_gradient: n x d, to which the gradient for the items is ADDED.

    Cost: three products of B x n x d, two or three cheap passes, one read of each sparse entry.

    Example:
        >>> U, V = torch.zeros(1, 1), torch.tensor([[1.0], [2.0]])
        >>> one = torch.zeros(1, dtype=torch.int64)
        >>> sparse = SparseRows(one, one, torch.ones(1))
        >>> dense = NegativeWeights(torch.ones(1), torch.ones(2))
        >>> gradient, loss = bce_rows(U, V, sparse, dense, torch.zeros(2, 1), value=True)
        >>> gradient.tolist(), round(loss, 4)
        ([[1.0]], 2.0794)
    """
    gradient = torch.empty_like(users)
    weight_buffer: Tensor | None = None
    total = 0.0
    for block in _score_blocks(users, items, positives, products):
        scores, flat, rows, places = block.scores, block.flat, block.rows, block.places
        row = negatives.row[block.span]
        if negatives.shift is not None and weight_buffer is None:
            weight_buffer = torch.empty_like(flat)  # the first block is the largest
        if value:
            total += float((block.weights * softplus(-flat[places])).sum())
            weighted = _weighted(softplus(scores), negatives, block.span, None)
            total += float(row @ weighted.sum(dim=1))
        scores.sigmoid_()
        misses = block.weights * (1.0 - flat[places]) / row[rows]
        _weighted(scores, negatives, block.span, weight_buffer)
        flat[places] -= misses
        # Row weights go to the small factor: cheaper than scaling the scores.
        block.add_products(items, row[:, None], gradient, item_gradient)
    return gradient, total if value else None


@dataclass(frozen=True, eq=False)
class _ScoreBlock:
    """The scores of a few users over all items, and where their positives are."""

    span: slice
    users: Tensor
    scores: Tensor
    rows: Tensor  # of the positives: position in this block
    weights: Tensor
    places: Tensor  # of the positives: position in the flat scores
    products: torch.dtype | None

    @property
    def flat(self) -> Tensor:
        return self.scores.view(-1)

    def add_products(
        self, items: Tensor, factor: Tensor, gradient: Tensor, item_gradient: Tensor
    ) -> None:
        """Both gradients, from scores that hold derivatives up to a factor per user."""
        set_product(gradient[self.span], self.scores, items, self.products)
        gradient[self.span].mul_(factor)
        add_product(item_gradient, self.scores.T, self.users * factor, self.products)


def _score_blocks(
    users: Tensor, items: Tensor, positives: SparseRows, products: torch.dtype | None
) -> Iterator[_ScoreBlock]:
    """Scores block by block, in one buffer that the caller may write to."""
    n = len(items)
    size = max(1, BLOCK_BYTES // max(1, n * items.element_size()))
    buffer = items.new_empty(min(size, len(users)) * n)
    bounds = torch.searchsorted(
        positives.rows, torch.arange(0, len(users) + size, size, device=users.device)
    ).tolist()
    for part, start in enumerate(range(0, len(users), size)):
        block = users[start : start + size]
        scores = buffer[: len(block) * n].view(len(block), n)
        set_product(scores, block, items.T, products)
        entries = slice(bounds[part], bounds[part + 1])
        rows = positives.rows[entries] - start
        places = rows * n + positives.columns[entries]
        span = slice(start, start + len(block))
        weights = positives.weights[entries]
        yield _ScoreBlock(span, block, scores, rows, weights, places, products)


def softmax_rows(
    users: Tensor,
    items: Tensor,
    positives: SparseRows,
    item_gradient: Tensor,
    *,
    value: bool = False,
    offsets: Tensor | None = None,
    item_mass: Tensor | None = None,
    products: torch.dtype | None = None,
) -> tuple[Tensor, float | None]:
    """Return the gradient of a softmax over ALL items for a block, like :func:`bce_rows`.

    The loss is the sum over sparse entries (u, i) of
    ``weights * (log sum over all items j of exp(s_uj + offsets_j) - s_ui)``.

    Args:
        item_gradient: n x d, to which the gradient for the items is ADDED.
        offsets: one number per item, or None for 0.
        item_mass: one number per item, to which the softmax's weights are ADDED, or None.

    Cost: three products of B x n x d, three cheap passes, one read of each sparse entry.
    """
    gradient = torch.empty_like(users)
    mass = users.new_zeros(len(users)).index_add_(0, positives.rows, positives.weights)
    total = 0.0
    for block in _score_blocks(users, items, positives, products):
        scores, flat, rows, places = block.scores, block.flat, block.rows, block.places
        shares, weight = block.weights, mass[block.span]
        if value:
            total -= float(shares @ flat[places])
        if offsets is not None:
            scores += offsets
        top = scores.amax(dim=1)
        norm = scores.sub_(top[:, None]).exp_().sum(dim=1)
        if value:
            total += float(weight @ (norm.log() + top))
        factor = weight / norm
        if item_mass is not None:
            item_mass.addmv_(scores.T, factor)
        # exp(s) / norm * weight - shares, with the factor of a row left to the small products.
        flat[places] -= shares * (norm / weight)[rows]
        block.add_products(items, factor[:, None], gradient, item_gradient)
    return gradient, total if value else None


def bce_sampled(
    users: Tensor,
    items: Tensor,
    positives: SparseRows,
    negatives: NegativeWeights,
    drawn: Tensor,
    weights: Tensor,
    item_gradient: Tensor,
    *,
    value: bool = False,
) -> tuple[Tensor, float | None]:
    """:func:`bce_rows` with the sum over all items replaced by a weighted sum over a few.

    Unbiased when ``weights`` are one over the expected number of draws of each item.

    Args:
        drawn: item ids, m of them, repeats allowed.
        weights: one for each of ``drawn``.

    Cost: three products of B x m x d, and three passes over sparse entries x d.
    """
    some = items[drawn]
    scores = users @ some.T
    weight = negatives.column[drawn] * weights
    if negatives.shift is not None:
        weight = weight + negatives.shift[:, None] * weights
    own = sparse_scores(users, items, positives)
    total = None
    if value:
        total = float((positives.weights * softplus(-own)).sum())
        total += float(negatives.row @ (weight * softplus(scores)).sum(dim=1))
    scores.sigmoid_().mul_(weight)
    gradient = (scores @ some).mul_(negatives.row[:, None])
    item_gradient.index_add_(0, drawn, scores.T @ (users * negatives.row[:, None]))
    misses = positives.weights * torch.sigmoid(-own)
    entries = SparseRows(positives.rows, positives.columns, misses)
    add_sparse_product(gradient, entries, items, scale=-1.0)
    add_sparse_product(item_gradient, entries, users, scale=-1.0, transposed=True)
    return gradient, total


def bce_row_losses(
    users: Tensor, items: Tensor, positives: SparseRows, negatives: NegativeWeights
) -> Tensor:
    """Return the loss of :func:`bce_rows`, user by user, at the cost of its scores."""
    losses = users.new_zeros(len(users))
    for block in _score_blocks(users, items, positives, None):
        own = block.weights * softplus(-block.flat[block.places])
        mine = losses[block.span]
        mine.index_add_(0, block.rows, own)
        weighted = _weighted(softplus(block.scores), negatives, block.span, None)
        mine.addcmul_(negatives.row[block.span], weighted.sum(dim=1))
    return losses


def sparse_scores(users: Tensor, items: Tensor, entries: SparseRows) -> Tensor:
    """Return the scores of the entries only."""
    step = max(1, 2**20 // max(1, users.shape[1] * users.element_size()))
    count = len(entries.rows)
    scores = users.new_empty(count)
    # In memory that is reused: fresh memory takes longer than the products.
    left, right = (users.new_empty(min(step, count), users.shape[1]) for _ in range(2))
    for n in range(0, count, step):
        size = min(step, count - n)
        a, b = left[:size], right[:size]
        torch.index_select(users, 0, entries.rows[n : n + size], out=a)
        torch.index_select(items, 0, entries.columns[n : n + size], out=b)
        torch.sum(a.mul_(b), dim=1, out=scores[n : n + size])
    return scores


def add_sparse_product(
    out: Tensor, entries: SparseRows, dense: Tensor, *, scale: float, transposed: bool = False
) -> None:
    """Add ``out += scale * S @ dense`` (or S^T) for the sparse matrix S of the entries."""
    rows, columns = entries.rows, entries.columns
    if transposed:
        rows, columns = columns, rows
    if out.device.type == "cpu":
        # torch's index_add_ would form every product first and then add them one by one.
        from scipy.sparse import coo_matrix

        places, shape = (rows.numpy(), columns.numpy()), (len(out), len(dense))
        matrix = coo_matrix((entries.weights.numpy(), places), shape=shape).tocsr()
        out.add_(torch.from_numpy(matrix @ dense.detach().numpy()), alpha=scale)
        return
    out.index_add_(0, rows, dense[columns] * (scale * entries.weights)[:, None])


def _weighted(
    scores: Tensor, negatives: NegativeWeights, span: slice, buffer: Tensor | None
) -> Tensor:
    """Multiply scores in place by ``column_j + shift_u``."""
    if negatives.shift is None:
        return scores.mul_(negatives.column)
    shift = negatives.shift[span, None]
    if buffer is None:
        return scores.mul_(negatives.column + shift)
    weight = buffer[: scores.numel()].view_as(scores)
    torch.add(negatives.column, shift, out=weight)
    return scores.mul_(weight)
