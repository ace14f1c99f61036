"""BPR-MF: a factorization that learns to put a user's items above the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import embedding, softplus

from robustcf.data.interactions import Interactions
from robustcf.errors import InputError
from robustcf.losses import SparseRows, add_sparse_product, bpr, sparse_scores
from robustcf.models.base import Batch, Gradient, Model, check_integer

# Comparisons (positives x drawn items) held at a time: 1 MB, which stays in the cache.
_COMPARISONS = 2**18


class BPRMF(Model):
    """Matrix factorization with Bayesian personalized ranking.

    For a training pair (u, i) the loss is the mean of softplus(s_uj - s_ui) over negatives j,
    uniform over the items that u does not have. ``batching="pairs"`` draws ``negatives`` of them
    for each pair; ``"rows"`` draws ``sampled_items`` once for a block of users, leaves out of
    them, user by user, the user's own items, and weighs the rest so that the expected gradient
    is the same.

    Args:
        train: the pairs to learn from.
        dim: columns of U and V.
        negatives: negatives drawn for each pair (``pairs`` only).
        sampled_items: items drawn for a block (``rows`` only), at most all of them.
        **options: those of :class:`robustcf.models.base.Model`.

    Cost of a pass: ``rows``: pairs x sampled_items comparisons and a product of users x
    sampled_items x dim; ``pairs``: pairs x negatives x dim.

    Example:
        >>> from robustcf.data import checkerboard
        >>> BPRMF(checkerboard().train, dim=4).factors().dim
        4
    """

    name = "bpr-mf"

    def __init__(
        self,
        train: Interactions,
        dim: int = 64,
        *,
        negatives: int = 1,
        sampled_items: int = 64,
        **options: Any,
    ) -> None:
        """Check the sizes and find where each user's other items lie."""
        check_integer("negatives", negatives, 1)
        check_integer("sampled_items", sampled_items, 1)
        super().__init__(train, dim, **options)
        self.negatives, self.sampled_items = negatives, sampled_items
        within = np.arange(len(train)) - np.repeat(train.indptr[:-1], train.user_degrees)
        # The r-th item a user does not have is r plus the number of own items i with
        # i - (own items before i) <= r: one sorted list of keys answers it for all users.
        self._gaps = train.users.astype(np.int64) * (train.n_items + 1) + (train.items - within)

    def _check_complement(self, users: npt.NDArray[Any]) -> None:
        full = self.train.user_degrees[users] >= self.train.n_items
        if full.any():
            user = int(users[int(full.argmax())])
            raise InputError(
                f"user {user} has all {self.train.n_items} items: there is no negative to compare "
                "with; drop such users"
            )

    def _negatives(
        self, rng: np.random.Generator, users: npt.NDArray[Any]
    ) -> npt.NDArray[np.int64]:
        self._check_complement(users)
        others = self.train.n_items - self.train.user_degrees[users]
        draw = (rng.random((len(users), self.negatives)) * others[:, None]).astype(np.int64)
        keys = users.astype(np.int64)[:, None] * (self.train.n_items + 1) + draw
        before = np.searchsorted(self._gaps, keys.ravel(), side="right").reshape(keys.shape)
        items: npt.NDArray[np.int64] = draw + before - self.train.indptr[users][:, None]
        return items

    def _shared_negatives(self, rng: np.random.Generator) -> Tensor | None:
        size = min(self.sampled_items, self.train.n_items)
        drawn = rng.choice(self.train.n_items, size=size, replace=False)
        return self._tensor(np.sort(drawn), torch.int64)

    def pairs_loss(
        self, batch: Batch, U: Tensor, V: Tensor, *, room: tuple[float, float] | None = None
    ) -> Tensor:
        """The loss of a batch of pairs and their sampled negatives, differentiable.

        With ``room``, an upper bound of the loss under attack, see :meth:`gradient`.
        """
        if batch.items is None or batch.negatives is None:
            raise InputError(
                "pairs_loss needs a batch of pairs with negatives, got a block of rows"
            )
        u, own, others = (
            embedding(batch.users, U), embedding(batch.items, V), embedding(batch.negatives, V)
        )  # fmt: skip
        negative = torch.bmm(others, u[:, :, None])[:, :, 0]
        if room is not None:
            apart = torch.linalg.vector_norm(others - own[:, None], dim=2)
            reach = 2 * room[1] * (torch.linalg.vector_norm(u, dim=1) + room[0])
            negative = negative + room[0] * apart + reach[:, None]
        return bpr((u * own).sum(dim=1), negative)

    def gradient(
        self,
        batch: Batch,
        U: Tensor,
        V: Tensor,
        *,
        value: bool = False,
        room: tuple[float, float] | None = None,
    ) -> Gradient:
        """The gradient of the batch's share of the objective at (U, V).

        Args:
            batch: what it is about.
            U: users.
            V: items.
            value: whether to compute the loss too.
            room: how far an attack may move the rows of U and of V, (a, b). Every comparison is
                then charged with the most that it can lose: ``s_ui - s_uj`` falls by at most
                ``a ||v_i - v_j|| + 2 b ||u|| + 2 a b``. The loss is so an upper bound of the
                plain one at every point within the room.
        """
        if batch.items is not None:
            return self.pairs_gradient(batch, U, V, room=room)
        drawn = batch.negatives
        if drawn is None:
            raise InputError("BPR-MF compares with drawn items, got a block without negatives")
        users = batch.users.cpu().numpy()
        self._check_complement(users)
        R = self.train.csr()[users]
        rows = self._tensor(np.repeat(np.arange(len(users)), np.diff(R.indptr)), torch.int64)
        columns = self._tensor(R.indices, torch.int64)
        ones = SparseRows(rows, columns, U.new_ones(len(rows)))
        block, some = U[batch.users], V[drawn]
        own = sparse_scores(block, V, ones)
        scores = block @ some.T
        charge = None if room is None else _Charge(block, V, some, *room)
        if charge is not None:
            scores += charge.reach[:, None]
        # The weight of a drawn item for a user: 0 for the user's own, the others weigh as if
        # drawn from the user's complement, 1 / (m * (n - degree) / n) each.
        n, degrees = self.train.n_items, self.train.user_degrees[users]
        weight = self._tensor(n / ((n - degrees) * float(len(drawn))), self.dtype)
        mine = self._tensor(R[:, drawn.cpu().numpy()].toarray() > 0, torch.bool)
        scores.masked_fill_(mine, -torch.inf)

        own_gradient = torch.empty_like(own)
        drawn_gradient = torch.zeros_like(scores)
        total = 0.0
        for part in _chunks(np.diff(R.indptr), max(1, _COMPARISONS // len(drawn))):
            pairs = slice(int(R.indptr[part.start]), int(R.indptr[part.stop]))
            local = rows[pairs] - part.start
            gap = scores[part].index_select(0, local).sub_(own[pairs, None])
            if charge is not None:
                gap.add_(charge.apart.index_select(0, columns[pairs]), alpha=charge.a)
            if value:
                total += float(weight[part][local] @ softplus(gap).sum(dim=1))
            gap.sigmoid_()
            own_gradient[pairs] = gap.sum(dim=1) * weight[part][local]
            lengths = self._tensor(np.diff(R.indptr[part.start : part.stop + 1]), torch.int64)
            summed = torch.segment_reduce(gap, "sum", lengths=lengths, axis=0)
            drawn_gradient[part] = summed * weight[part, None]
            if charge is not None:
                charge.count(columns[pairs], gap.mul_(weight[part][local][:, None]))
        users_gradient = drawn_gradient @ some
        items = torch.zeros_like(V)
        items.index_add_(0, drawn, drawn_gradient.T @ block)
        entries = SparseRows(rows, columns, own_gradient)
        add_sparse_product(users_gradient, entries, V, scale=-1.0)
        add_sparse_product(items, entries, block, scale=-1.0, transposed=True)
        if charge is not None:
            charge.add_gradient(drawn, drawn_gradient.sum(dim=1), users_gradient, items)
        return Gradient(users_gradient, batch.users, items, total if value else None)

    def _user_loss(self, items: npt.NDArray[np.int64], V: Tensor) -> Callable[[Tensor], Tensor]:
        if len(items) >= self.train.n_items:
            raise InputError("fold-in needs an item that the new user does not have")
        other = np.setdiff1d(np.arange(self.train.n_items), items)
        mine, others = V[self._tensor(items, torch.int64)], V[self._tensor(other, torch.int64)]
        return lambda u: bpr(mine @ u, (others @ u).expand(len(mine), -1))


class _Charge:
    """What attacks within a room may take from comparisons of a block with drawn items."""

    def __init__(self, block: Tensor, V: Tensor, some: Tensor, a: float, b: float) -> None:
        """Lengths of the users' rows, and distances of all items from the drawn ones."""
        self.block, self.V, self.some, self.a, self.b = block, V, some, a, b
        self.lengths = torch.linalg.vector_norm(block, dim=1)
        self.reach = 2 * b * (self.lengths + a)
        self.apart = torch.cdist(V, some, compute_mode="use_mm_for_euclid_dist")
        self.counts = torch.zeros_like(self.apart)

    def count(self, items: Tensor, weights: Tensor) -> None:
        """Comparisons of these items with the drawn ones had these weights in the gradient."""
        self.counts.index_add_(0, items, weights)

    def add_gradient(self, drawn: Tensor, by_user: Tensor, users: Tensor, items: Tensor) -> None:
        """Add the charges' gradient: for the block's rows, and for all items."""
        outward = self.block / self.lengths.clamp_min(torch.finfo(users.dtype).tiny)[:, None]
        users.add_(outward * by_user[:, None], alpha=2 * self.b)
        # Distances by way of squares: this much is but rounding, and has no direction.
        lengths = [torch.linalg.vector_norm(part, dim=1) for part in (self.V, self.some)]
        rounding = 3 * torch.finfo(users.dtype).eps ** 0.5
        level = rounding * torch.maximum(lengths[0][:, None], lengths[1])
        pull = torch.where(self.apart > level, self.counts / self.apart, 0.0)
        items.add_(pull.sum(dim=1)[:, None] * self.V - pull @ self.some, alpha=self.a)
        back = pull.sum(dim=0)[:, None] * self.some - pull.T @ self.V
        items.index_add_(0, drawn, back, alpha=self.a)


def _chunks(sizes: npt.NDArray[Any], limit: int) -> list[slice]:
    """Cut a list of sizes into runs that add up to at most ``limit`` (one alone may exceed it)."""
    ends = np.cumsum(sizes)
    cuts, start = [], 0
    while start < len(sizes):
        before = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + limit, side="right")))
        cuts.append(slice(start, stop))
        start = stop
    return cuts
