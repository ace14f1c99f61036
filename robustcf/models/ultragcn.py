"""UltraGCN: a factorization whose loss weights stand for infinitely many graph layers."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import embedding

from robustcf.data.interactions import Interactions
from robustcf.errors import InputError
from robustcf.losses import NegativeWeights, SparseRows, bce_rows, bce_sampled, weighted_bce
from robustcf.models.base import Batch, Gradient, Model, check_integer, check_number
from robustcf.models.graph import item_beta, item_graph, user_beta

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

# Sparse weights are kept while they take less than this many entries (20 bytes each); beyond
# it every block makes its own again, so that memory does not grow with the interactions.
_KEEP_ENTRIES = 12_000_000


class UltraGCN(Model):
    """UltraGCN with its published objective.

    For a training pair (u, i), with b_ui = beta_u beta_i and N(i) the neighbours of i::

        (w1 + w2 b_ui) softplus(-s_ui)
        + negative_weight * mean over negatives j of (w3 + w4 b_uj) softplus(s_uj)
        + item_weight * sum over j in N(i) of omega_ij softplus(-s_uj)

    where negatives are uniform over the catalogue, positives not sifted out. ``batching="pairs"``
    draws ``negatives`` of them for each pair; ``"rows"`` takes their expectation, all items at
    once (or ``sampled_items`` shared by a block, weighted by their inverse probability). The
    published L2 term is a regularizer and lives with the training loop.

    Args:
        train: the pairs to learn from.
        dim: columns of U and V.
        negatives: negatives drawn for each pair (``pairs`` only).
        negative_weight: weight of their mean.
        item_weight: weight of the item-item term, 0 leaves it out (official name: lambda).
        neighbours: neighbours of an item in the graph.
        w1: constant weight of a positive.
        w2: weight of beta_u beta_i for a positive.
        w3: constant weight of a negative.
        w4: weight of beta_u beta_j for a negative.
        sampled_items: ``rows`` only: items drawn for a block instead of all; None takes all.
        **options: those of :class:`robustcf.models.base.Model`.

    Cost of a pass: ``rows``: three products of users x items x dim; ``pairs``:
    pairs x negatives x dim.

    Example:
        >>> from robustcf.data import checkerboard
        >>> UltraGCN(checkerboard().train, dim=4).factors().dim
        4
    """

    name = "ultragcn"

    def __init__(
        self,
        train: Interactions,
        dim: int = 64,
        *,
        negatives: int = 200,
        negative_weight: float = 200.0,
        item_weight: float = 1e-3,
        neighbours: int = 10,
        w1: float = 1e-7,
        w2: float = 1.0,
        w3: float = 1e-7,
        w4: float = 1.0,
        sampled_items: int | None = None,
        **options: Any,
    ) -> None:
        """Check the weights, count degrees; the graph is built when first needed."""
        check_integer("negatives", negatives, 1)
        check_integer("neighbours", neighbours, 1)
        check_number("negative_weight", negative_weight, positive=True)
        weights = {"item_weight": item_weight, "w1": w1, "w2": w2, "w3": w3, "w4": w4}
        for name, value in weights.items():
            check_number(name, value)
        if w3 == 0 and w4 == 0:
            raise InputError("w3 and w4 must not both be 0: without negatives all scores diverge")
        if sampled_items is not None:
            check_integer("sampled_items", sampled_items, 1)
        super().__init__(train, dim, **options)
        self.negatives, self.negative_weight = negatives, negative_weight
        self.item_weight, self.neighbours = item_weight, neighbours
        self.w1, self.w2, self.w3, self.w4 = w1, w2, w3, w4
        self.sampled_items = sampled_items
        self.user_beta = user_beta(train.user_degrees)
        self.item_beta = item_beta(train.item_degrees)
        self._kept: dict[int, tuple[SparseRows, NegativeWeights]] = {}
        self._looked = False
        # One tensor for all blocks: it is as long as the catalogue.
        self._column = self._tensor(self.item_beta if w4 else 0 * self.item_beta, self.dtype)
        popularity = (train.item_degrees + 1.0) / (len(train) + train.n_items)
        # Half uniform, half by popularity: popular items have the larger gradients, and no
        # item's inverse probability exceeds twice the catalogue.
        self._chances = 0.5 / train.n_items + 0.5 * popularity

    @cached_property
    def graph(self) -> csr_matrix:
        """Omega, see :func:`robustcf.models.graph.item_graph`."""
        return item_graph(self.train, self.neighbours)

    # --- rows -------------------------------------------------------------------------------

    def positive_weights(self, users: npt.NDArray[np.int64]) -> csr_matrix:
        """The weights of softplus(-s) of some users: positives and their neighbours, folded."""
        from scipy.sparse import csr_matrix

        R = self.train.csr()[users]
        beta = np.repeat(self.user_beta[users], np.diff(R.indptr)) * self.item_beta[R.indices]
        own = csr_matrix((self.w1 + self.w2 * beta, R.indices, R.indptr), shape=R.shape)
        if self.item_weight == 0:
            return own
        near = R.astype(np.float64) @ self.graph
        folded: csr_matrix = (own + self.item_weight * near).tocsr()
        folded.sort_indices()
        return folded

    def negative_weights(self, users: npt.NDArray[np.int64]) -> NegativeWeights:
        """The weights of softplus(s) of some users, over all items."""
        scale = self.train.user_degrees[users] * self.negative_weight / self.train.n_items
        if self.w4 == 0:
            shift = np.full(len(users), self.w3)
        else:
            # Users without pairs have scale 0 and no beta: any finite shift will do.
            beta = np.where(scale > 0, self.user_beta[users], 1.0)
            scale, shift = scale * self.w4 * beta, self.w3 / (self.w4 * beta)
        return NegativeWeights(
            self._tensor(scale, self.dtype),
            self._column,
            self._tensor(shift, self.dtype) if self.w3 else None,
        )

    def row_weights(self, batch: Batch) -> tuple[SparseRows, NegativeWeights]:
        """All weights of a block of users, from memory where it is kept."""
        if not self._looked:
            # All at once, before the first step: small tensors that stay, made in between large
            # ones that come and go, would leave the heap full of holes.
            self._keep()
        if batch.number in self._kept:
            return self._kept[batch.number]
        return self._make_weights(batch.users.cpu().numpy())

    def _keep(self) -> None:
        entries, self._looked = 0, True
        for number, users in enumerate(self._blocks):
            weights = self._make_weights(users)
            entries += len(weights[0].rows)
            if entries > _KEEP_ENTRIES:
                return
            self._kept[number] = weights

    def _make_weights(self, users: npt.NDArray[np.int64]) -> tuple[SparseRows, NegativeWeights]:
        Q = self.positive_weights(users)
        rows = np.repeat(np.arange(len(users)), np.diff(Q.indptr))
        positives = SparseRows(
            self._tensor(rows, torch.int64),
            self._tensor(Q.indices, torch.int64),
            self._tensor(Q.data, self.dtype),
        )
        return positives, self.negative_weights(users)

    def gradient(self, batch: Batch, U: Tensor, V: Tensor, *, value: bool = False) -> Gradient:
        """The gradient of the batch's share of the objective at (U, V)."""
        if batch.items is not None:
            return self.pairs_gradient(batch, U, V)
        positives, negatives = self.row_weights(batch)
        block = U[batch.users]
        items = torch.zeros_like(V)
        if batch.negatives is None:
            users, total = bce_rows(block, V, positives, negatives, items, value=value)
            return Gradient(users, batch.users, items, total)
        weights = 1.0 / (len(batch.negatives) * self._chances[batch.negatives.cpu().numpy()])
        users, total = bce_sampled(
            block,
            V,
            positives,
            negatives,
            batch.negatives,
            self._tensor(weights, self.dtype),
            items,
            value=value,
        )
        return Gradient(users, batch.users, items, total)

    def _shared_negatives(self, rng: np.random.Generator) -> Tensor | None:
        if self.sampled_items is None or self.sampled_items >= self.train.n_items:
            return None
        drawn = rng.choice(self.train.n_items, size=self.sampled_items, p=self._chances)
        return self._tensor(np.sort(drawn), torch.int64)

    # --- pairs ------------------------------------------------------------------------------

    def _negatives(
        self, rng: np.random.Generator, users: npt.NDArray[Any]
    ) -> npt.NDArray[np.int64]:
        return rng.integers(self.train.n_items, size=(len(users), self.negatives))

    def pairs_loss(self, batch: Batch, U: Tensor, V: Tensor) -> Tensor:
        """The published loss of a batch of pairs and their sampled negatives, differentiable."""
        if batch.items is None or batch.negatives is None:
            raise InputError(
                "pairs_loss needs a batch of pairs with negatives, got a block of rows"
            )
        users = batch.users.cpu().numpy()
        user_beta = self._tensor(self.user_beta[users], self.dtype)
        item_beta = self._tensor(self.item_beta, self.dtype)
        # embedding, not indexing: its backward adds up in a fixed order, whatever the threads.
        u = embedding(batch.users, U)
        positive = (u * embedding(batch.items, V)).sum(dim=1)
        negative = torch.bmm(embedding(batch.negatives, V), u[:, :, None])[:, :, 0]
        loss = weighted_bce(positive, self.w1 + self.w2 * user_beta * item_beta[batch.items], 0.0)
        weights = self.w3 + self.w4 * user_beta[:, None] * item_beta[batch.negatives]
        scale = self.negative_weight / batch.negatives.shape[1]
        loss = loss + weighted_bce(negative, 0.0, scale * weights)
        if self.item_weight == 0:
            return loss
        near = self.graph[batch.items.cpu().numpy()]
        pair = self._tensor(np.repeat(np.arange(len(users)), np.diff(near.indptr)), torch.int64)
        score = (embedding(pair, u) * embedding(self._tensor(near.indices, torch.int64), V)).sum(
            dim=1
        )
        return loss + weighted_bce(
            score, self.item_weight * self._tensor(near.data, self.dtype), 0.0
        )

    def _user_loss(self, items: npt.NDArray[np.int64], V: Tensor) -> Callable[[Tensor], Tensor]:
        degree = len(items)
        beta = float(user_beta(np.array([degree]))[0])
        dense = np.zeros(self.train.n_items)
        dense[items] = self.w1 + self.w2 * beta * self.item_beta[items]
        if self.item_weight:
            dense += self.item_weight * np.asarray(self.graph[items].sum(axis=0)).ravel()
        positive = self._tensor(dense, V.dtype)
        negative = self._tensor(
            degree
            * self.negative_weight
            / self.train.n_items
            * (self.w3 + self.w4 * beta * self.item_beta),
            V.dtype,
        )
        return lambda u: weighted_bce(V @ u, positive, negative)
