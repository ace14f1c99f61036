"""Bayesian personalized ranking: a user's items above those the user does not have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import embedding, softplus

from robustcf._checks import check_numbers
from robustcf.data.interactions import Interactions
from robustcf.errors import InputError
from robustcf.objectives.base import Batch, ComparingObjective, Gradient, Ids, ObjectiveConfig
from robustcf.objectives.kernels import SparseRows, add_sparse_product, bpr, sparse_scores
from robustcf.objectives.margin import DrawnMargin
from robustcf.objectives.weights import check_max_share, item_weights

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

# Comparisons (positives x drawn items) held at a time: 1 MB, which stays in the cache.
_COMPARISONS = 2**18


@dataclass(frozen=True)
class BPRConfig(ObjectiveConfig):
    """The number of items that a user's own ones are compared with.

    Args:
        negatives: negatives drawn for each pair (``pairs`` batches only).
        sampled_items: items drawn for a block (``rows`` batches only), at most all of them.
        max_share: the largest share of one user in the training of an item, see
            :func:`robustcf.objectives.weights.item_weights`; None for no cap.
    """

    negatives: int = 1
    sampled_items: int = 64
    max_share: float | None = None

    def __post_init__(self) -> None:
        check_numbers(self)
        check_max_share(self.max_share)


class BPR(ComparingObjective[BPRConfig]):
    """Bayesian personalized ranking (Rendle et al. 2009, arXiv:1205.2618).

    For a training pair (u, i) the loss is the mean of softplus(s_uj - s_ui) over negatives j,
    uniform over the items that u does not have. ``pairs`` batches draw ``negatives`` per pair;
    ``rows`` batches draw ``sampled_items`` once for a block of users, without each user's own, and
    weigh them so that the expected gradient is the same. ``max_share`` weighs the pairs.

    Cost of an epoch: ``rows``: pairs x sampled_items comparisons and a product of users x
    sampled_items x dim; ``pairs``: pairs x negatives x dim.

    Example:
        >>> from robustcf.data import checkerboard
        >>> objective = BPR(checkerboard().train)
        >>> zero = objective.full_gradient(torch.zeros(20, 2), torch.zeros(30, 2))
        >>> round(zero.value / len(objective.pairs), 4)
        0.6931
    """

    name = "bpr"
    Config = BPRConfig
    # Chosen like softmax's, see robustcf.objectives.softmax.
    log2_temperature = 2.0

    def __init__(
        self, pairs: Interactions, config: BPRConfig | None = None, **options: Any
    ) -> None:
        super().__init__(pairs, config, **options)
        by_item = item_weights(self.shard.item_degrees, self.config.max_share)
        self._item_weights = None if by_item is None else self.tensor(by_item)
        within = np.arange(len(pairs)) - np.repeat(pairs.indptr[:-1], pairs.user_degrees)
        # The r-th item a user does not have is r plus the number of own items i with
        # i - (own items before i) <= r: one sorted list of keys answers it for all users.
        self._gaps = pairs.users.astype(np.int64) * (pairs.n_items + 1) + (pairs.items - within)

    def _check_complement(self, users: npt.NDArray[Any]) -> None:
        full = self.pairs.user_degrees[users] >= self.pairs.n_items
        if full.any():
            user = int(users[int(full.argmax())])
            raise InputError(
                f"user {user} has all {self.pairs.n_items} items and no negative: drop such users"
            )

    def pair_negatives(self, rng: np.random.Generator, users: npt.NDArray[Any]) -> Ids:
        """Draw items uniformly from those that the user does not have."""
        self._check_complement(users)
        others = self.pairs.n_items - self.pairs.user_degrees[users]
        size = (len(users), self.config.negatives)
        draw = (rng.random(size) * others[:, None]).astype(np.int64)
        keys = users.astype(np.int64)[:, None] * (self.pairs.n_items + 1) + draw
        before = np.searchsorted(self._gaps, keys.ravel(), side="right").reshape(keys.shape)
        items: Ids = draw + before - self.pairs.indptr[users][:, None]
        return items

    def shared_negatives(self, rng: np.random.Generator) -> Tensor | None:
        """Draw some items, each once."""
        size = min(self.config.sampled_items, self.pairs.n_items)
        drawn = rng.choice(self.pairs.n_items, size=size, replace=False)
        return self.tensor(np.sort(drawn), torch.int64)

    def pairs_loss(
        self, batch: Batch, U: Tensor, V: Tensor, *, slack: tuple[float, float] | None = None
    ) -> Tensor:
        """Return the loss of pairs and their sampled negatives, differentiable.

        With ``slack``, an upper bound of the loss under attack, see :meth:`margin_gradient`.
        """
        if batch.items is None or batch.negatives is None:
            raise InputError("pairs_loss needs pairs with negatives, got a block of rows")
        u, own, others = (
            embedding(batch.users, U), embedding(batch.items, V), embedding(batch.negatives, V)
        )  # fmt: skip
        negative = torch.bmm(others, u[:, :, None])[:, :, 0]
        if slack is not None:
            distance = torch.linalg.vector_norm(others - own[:, None], dim=2)
            by_user = 2 * slack[1] * (torch.linalg.vector_norm(u, dim=1) + slack[0])
            negative = negative + slack[0] * distance + by_user[:, None]
        positive = (u * own).sum(dim=1)
        if self._item_weights is None:
            return bpr(positive, negative)
        losses = softplus(negative - positive[:, None]).mean(dim=1)
        return (self._item_weights[batch.items] * losses).sum()

    def gradient(self, batch: Batch, U: Tensor, V: Tensor, *, value: bool = False) -> Gradient:
        """Return the gradient of the batch's share of the objective at (U, V)."""
        return self._gradient(batch, U, V, None, value=value)

    def margin_gradient(
        self, batch: Batch, U: Tensor, V: Tensor, slack: tuple[float, float], *, value: bool = False
    ) -> Gradient:
        """See :meth:`robustcf.objectives.base.ComparingObjective.margin_gradient`; tight."""
        return self._gradient(batch, U, V, slack, value=value)

    def _gradient(
        self, batch: Batch, U: Tensor, V: Tensor, slack: tuple[float, float] | None, *, value: bool
    ) -> Gradient:
        if batch.items is not None:
            return self.pairs_gradient(batch, U, V, slack=slack)
        drawn = self._drawn(batch)
        block, some = U[batch.users], V[drawn]
        scores = block @ some.T
        margin = None if slack is None else DrawnMargin(block, V, some, *slack)
        if margin is not None:
            scores += margin.by_user[:, None]
        R, rows, columns, own = self._compared(batch.users, drawn, block, V, scores)
        # Drawn items weigh as if drawn from the items that the user does not have.
        n, degrees = self.pairs.n_items, np.diff(R.indptr)
        weight = self.tensor(n / ((n - degrees) * float(len(drawn))))
        own_gradient = torch.empty_like(own)
        drawn_gradient = torch.zeros_like(scores)
        total = 0.0
        for part in _chunks(np.diff(R.indptr), max(1, _COMPARISONS // len(drawn))):
            pairs = slice(int(R.indptr[part.start]), int(R.indptr[part.stop]))
            local = rows[pairs] - part.start
            gap = scores[part].index_select(0, local).sub_(own[pairs, None])
            if margin is not None:
                gap.add_(margin.distance.index_select(0, columns[pairs]), alpha=margin.a)
            by_pair = None if self._item_weights is None else self._item_weights[columns[pairs]]
            if value:
                lost = softplus(gap).sum(dim=1)
                total += float(weight[part][local] @ (lost if by_pair is None else lost * by_pair))
            gap.sigmoid_()
            if by_pair is not None:
                gap.mul_(by_pair[:, None])
            own_gradient[pairs] = gap.sum(dim=1) * weight[part][local]
            lengths = self.tensor(np.diff(R.indptr[part.start : part.stop + 1]), torch.int64)
            summed = torch.segment_reduce(gap, "sum", lengths=lengths, axis=0)
            drawn_gradient[part] = summed * weight[part, None]
            if margin is not None:
                margin.counts.index_add_(0, columns[pairs], gap.mul_(weight[part][local][:, None]))
        users_gradient = drawn_gradient @ some
        items = torch.zeros_like(V)
        items.index_add_(0, drawn, drawn_gradient.T @ block)
        entries = SparseRows(rows, columns, own_gradient)
        add_sparse_product(users_gradient, entries, V, scale=-1.0)
        add_sparse_product(items, entries, block, scale=-1.0, transposed=True)
        if margin is not None:
            margin.add_gradient(drawn, drawn_gradient.sum(dim=1), users_gradient, items)
        return Gradient(users_gradient, batch.users, items, total if value else None)

    def _drawn(self, batch: Batch) -> Tensor:
        if batch.negatives is None:
            raise InputError("BPR compares with drawn items, got a batch without negatives")
        return batch.negatives

    def _compared(
        self, users: Tensor, drawn: Tensor, block: Tensor, V: Tensor, scores: Tensor
    ) -> tuple[csr_matrix, Tensor, Tensor, Tensor]:
        """The pairs of a block: matrix, rows, columns, scores; masks own items among the drawn."""
        ids = users.cpu().numpy()
        self._check_complement(ids)
        R = self.pairs.csr_of(ids)
        rows = self.tensor(np.repeat(np.arange(len(ids)), np.diff(R.indptr)), torch.int64)
        columns = self.tensor(R.indices, torch.int64)
        mine = self.tensor(R[:, drawn.cpu().numpy()].toarray() > 0, torch.bool)
        scores.masked_fill_(mine, -torch.inf)
        entries = SparseRows(rows, columns, block.new_ones(len(rows)))
        return R, rows, columns, sparse_scores(block, V, entries)

    def user_losses(self, batch: Batch, U: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`Objective.user_losses`; against the drawn items, as the gradient."""
        drawn = self._drawn(batch)
        if batch.items is not None:
            users, rows = torch.unique(batch.users, return_inverse=True)
            u = U[batch.users]
            others = torch.bmm(V[drawn], u[:, :, None])[:, :, 0]
            gaps = others - (u * V[batch.items]).sum(dim=1)[:, None]
            losses, counts = softplus(gaps).mean(dim=1), torch.bincount(rows)
        else:
            users, block = batch.users, U[batch.users]
            others = block @ V[drawn].T
            R, rows, _, own = self._compared(users, drawn, block, V, others)
            counts = self.tensor(np.diff(R.indptr), torch.int64)
            losses = torch.empty_like(own)
            step = max(1, _COMPARISONS // len(drawn))
            for start in range(0, len(rows), step):
                part = slice(start, start + step)
                losses[part] = softplus(others[rows[part]] - own[part, None]).sum(dim=1)
            n = self.pairs.n_items
            losses *= (n / ((n - counts) * float(len(drawn)))).to(losses.dtype)[rows]
        sums = losses.new_zeros(len(users)).index_add_(0, rows, losses)
        return users, sums / counts

    def user_loss(self, items: Ids, V: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the objective of a new user with these items, over all other items."""
        if len(items) >= self.pairs.n_items:
            raise InputError("fold-in needs an item that the new user does not have")
        other = np.setdiff1d(np.arange(self.pairs.n_items), items)
        mine, others = V[self.tensor(items, torch.int64)], V[self.tensor(other, torch.int64)]
        return lambda u: bpr(mine @ u, (others @ u).expand(len(mine), -1))


def _chunks(sizes: npt.NDArray[Any], limit: int) -> list[slice]:
    """Cut sizes into runs that add up to at most ``limit`` (a single one may exceed it)."""
    ends = np.cumsum(sizes)
    cuts, start = [], 0
    while start < len(sizes):
        before = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + limit, side="right")))
        cuts.append(slice(start, stop))
        start = stop
    return cuts
