"""The softmax's two halves: the sum over the catalogue, and a user's own items."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from robustcf.objectives.kernels import (
    SparseRows,
    add_product,
    add_sparse_product,
    product,
    set_product,
)

# exp of a float32 overflows beyond 88; a catalogue of millions of items still fits below this.
_EXP_LIMIT = 60.0
# Its one pass over the scores costs little next to its products, which are faster on large blocks.
_PARTITION_BYTES = 64 * 2**20
# Rows of the scores begin at multiples of this many numbers, which halves the time of products
# that write them. Blocks have any size where ranks share them.
_ALIGNED = 16

Ids = npt.NDArray[np.integer[Any]]
#: Scores of own items, their users and their entries -> the value, and its derivative by scores.
_Term = Callable[[Tensor, slice, slice], tuple[float, Tensor]]


class Scratch:
    """Memory that is kept between steps; the system clears fresh memory first."""

    _kept: Tensor | None = None

    def like(self, tensor: Tensor, size: int) -> Tensor:
        """Return a flat tensor of at least ``size`` numbers, of another's device and type."""
        kept = self._kept
        wanted = (tensor.device, tensor.dtype)
        if kept is None or len(kept) < size or (kept.device, kept.dtype) != wanted:
            kept = self._kept = tensor.new_empty(size)
        return kept


def log_partition_rows(
    users: Tensor,
    items: Tensor,
    mass: Tensor,
    item_gradient: Tensor,
    *,
    value: bool = False,
    pull: tuple[OwnItems, _Term] | None = None,
    scratch: Scratch | None = None,
    products: torch.dtype | None = None,
) -> tuple[Tensor, float | None]:
    """Return the gradient of ``sum over users of mass * log sum over items of exp(s)``.

    Where the rows are so short that no score can overflow, the largest score is not looked for,
    and the sums come out of the product that the users' gradient needs anyway: the scores are
    written once, exponentiated once and read twice.

    Args:
        mass: one weight per user, positive where the user has own items.
        item_gradient: n x d, to which the gradient for the items is ADDED.
        pull: a term of own items that is subtracted inside the same products, for users who have
            many of the items; the sums then take a pass of their own.

    Cost: three products of B x n x d and one pass over the scores, two with ``pull``.

    Example:
        >>> U, V = torch.zeros(1, 1), torch.ones(2, 1)
        >>> _, loss = log_partition_rows(U, V, torch.ones(1), torch.zeros(2, 1), value=True)
        >>> round(loss, 4)
        0.6931
    """
    longest = [float(torch.linalg.vector_norm(rows, dim=1).amax()) for rows in (users, items)]
    bounded = longest[0] * longest[1] <= _EXP_LIMIT
    in_product = products is None and pull is None
    right = torch.cat((items, items.new_ones(len(items), 1)), dim=1) if in_product else items
    gradient = torch.empty_like(users)
    total = 0.0
    n = len(items)
    size = max(1, _PARTITION_BYTES // max(1, n * items.element_size()))
    width = -(-min(size, len(users)) // _ALIGNED) * _ALIGNED
    buffer = (scratch or Scratch()).like(items, width * n)
    for start in range(0, len(users), size):
        span = slice(start, min(start + size, len(users)))
        block, weight = users[span], mass[span]
        # Items by users: all three products are faster this way round.
        width = -(-len(block) // _ALIGNED) * _ALIGNED
        flat = buffer[: width * n]
        scores = flat.view(n, width)[:, : len(block)]
        set_product(scores, items, block.T, products)
        if pull is not None:
            own, term = pull
            entries = own.entries_of(span)
            rows, columns = (ids[entries].to(flat.device) for ids in (own.rows, own.columns))
            places = columns * width + (rows - start)
            taken, slopes = term(flat.index_select(0, places), span, entries)
            total -= taken
        top = None
        if not bounded:
            top = scores.amax(dim=0)
            scores.sub_(top)
        scores.exp_()
        if in_product:
            sums = scores.T @ right
            norm, sums = sums[:, -1], sums[:, :-1]
        else:
            # In full precision, and before anything is subtracted.
            norm = scores.sum(dim=0)
        if value:
            total += float(weight @ (norm.log() if top is None else norm.log() + top))
        if pull is not None:
            slopes = slopes * (norm / weight)[rows - start]
            flat.index_add_(0, places, slopes, alpha=-1)
        factor = (weight / norm)[:, None]
        if not in_product:
            sums = product(scores.T, items, products)
        torch.mul(sums, factor, out=gradient[span])
        add_product(item_gradient, scores, block * factor, products)
    return gradient, total if value else None


@dataclass(frozen=True, eq=False)
class OwnItems:
    """The items of the users of a block, ready for products with weights that change."""

    rows: Tensor  # position of the user in the block, ascending, int64
    columns: Tensor
    degrees: Tensor  # items of each user of the block, int64
    n_items: int

    @classmethod
    def of(cls, block: Any) -> OwnItems:
        """Return those of a scipy CSR matrix, users of the block x items."""
        degrees = torch.from_numpy(np.diff(block.indptr).astype(np.int64))
        rows = torch.repeat_interleave(degrees)
        columns = torch.from_numpy(block.indices.astype(np.int64))
        return cls(rows, columns, degrees, block.shape[1])

    def entries(self, weights: Tensor) -> SparseRows:
        """Return the entries with weights, on the device of the weights."""
        rows, columns = self.rows.to(weights.device), self.columns.to(weights.device)
        return SparseRows(rows, columns, weights)

    def entries_of(self, users: slice) -> slice:
        """Return which entries belong to consecutive users of the block."""
        return slice(int(self._ends[users.start]), int(self._ends[users.stop]))

    def subtract_products(
        self, weights: Tensor, users: Tensor, items: Tensor, to_users: Tensor, to_items: Tensor
    ) -> None:
        """Do ``to_users -= S items`` and ``to_items -= S^T users``, S the matrix of the weights."""
        if weights.device.type != "cpu":
            entries = self.entries(weights)
            add_sparse_product(to_users, entries, items, scale=-1.0)
            add_sparse_product(to_items, entries, users, scale=-1.0, transposed=True)
            return
        from scipy.sparse import csr_matrix

        # From the known structure: building it from entries would sort them.
        (columns, ends), (rows, item_ends) = self._structure
        shape = (len(self.degrees), self.n_items)
        forward = csr_matrix((weights.numpy(), columns, ends), shape=shape)
        to_users.sub_(torch.from_numpy(forward @ items.detach().numpy()))
        back = csr_matrix((weights[self._order].numpy(), rows, item_ends), shape=shape[::-1])
        to_items.sub_(torch.from_numpy(back @ users.numpy()))

    @cached_property
    def _order(self) -> Tensor:
        """The entries sorted by item, then by user."""
        return self.columns.argsort(stable=True)

    @cached_property
    def _ends(self) -> Ids:
        """Where the entries of each user end, after a 0."""
        return _running(self.degrees.numpy())

    @cached_property
    def _structure(self) -> tuple[tuple[Ids, Ids], tuple[Ids, Ids]]:
        """Columns and ends of the rows, and of those of the transposed matrix."""
        columns, rows = self.columns.numpy(), self.rows[self._order].numpy()
        counts = np.bincount(columns, minlength=self.n_items)
        # In scipy's index type, or each product would check and convert them.
        most = max(len(rows), len(self.degrees), self.n_items)
        kind: Any = np.int32 if most <= np.iinfo(np.int32).max else np.int64
        by_row, by_item = self._ends.astype(kind), _running(counts).astype(kind)
        return (columns.astype(kind), by_row), (rows.astype(kind), by_item)


def _running(counts: Ids) -> Ids:
    """Running sums, after a 0."""
    return np.concatenate(([0], np.cumsum(counts)))
