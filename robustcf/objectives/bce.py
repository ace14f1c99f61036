"""UltraGCN's weighted cross-entropy, whose weights stand for infinitely many graph layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import embedding

from robustcf._checks import check_choice, check_number, check_numbers
from robustcf.data.interactions import Interactions
from robustcf.errors import InputError
from robustcf.objectives.base import Batch, Gradient, Ids, Objective, ObjectiveConfig
from robustcf.objectives.kernels import (
    PRECISIONS,
    NegativeWeights,
    SparseRows,
    bce_row_losses,
    bce_rows,
    bce_sampled,
    dtype_of_products,
    weighted_bce,
)
from robustcf.objectives.weights import (
    check_max_share,
    item_beta,
    item_graph,
    item_weights,
    user_beta,
)

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

Prepared = tuple[SparseRows, NegativeWeights]


@dataclass(frozen=True)
class BCEConfig(ObjectiveConfig):
    """Weights of the cross-entropy; the defaults are UltraGCN's on MovieLens-1M.

    Args:
        negatives: negatives drawn for each pair (``pairs`` batches only).
        negative_weight: weight of their mean.
        item_weight: weight of the item-item term, 0 leaves it out (official name: lambda).
        neighbours: neighbours of an item in the graph.
        w1: constant weight of a positive.
        w2: weight of beta_u beta_i for a positive.
        w3: constant weight of a negative.
        w4: weight of beta_u beta_j for a negative.
        sampled_items: ``rows`` batches only: items drawn for a block; None takes all.
        max_share: the largest share of one user in the training of an item, see
            :func:`robustcf.objectives.weights.item_weights`; None for no cap.
        precision: precision of the products with the catalogue, in training by ``rows`` over all
            items: ``float32`` or ``bfloat16``.
    """

    negatives: int = 200
    negative_weight: float = 200.0
    item_weight: float = 1e-3
    neighbours: int = 10
    w1: float = 1e-7
    w2: float = 1.0
    w3: float = 1e-7
    w4: float = 1.0
    sampled_items: int | None = None
    max_share: float | None = None
    precision: str = "float32"

    def __post_init__(self) -> None:
        check_numbers(self)
        check_max_share(self.max_share)
        check_choice("precision", self.precision, PRECISIONS)
        check_number("negative_weight", self.negative_weight, positive=True)
        if self.w3 == 0 and self.w4 == 0:
            raise InputError("w3 and w4 must not both be 0: scores diverge without negatives")


class BCE(Objective[BCEConfig]):
    """Weighted binary cross-entropy, as UltraGCN has it (Mao et al. 2021, arXiv:2110.15114).

    For a training pair (u, i), with b_ui = beta_u beta_i and N(i) the neighbours of i::

        (w1 + w2 b_ui) softplus(-s_ui)
        + negative_weight * mean over negatives j of (w3 + w4 b_uj) softplus(s_uj)
        + item_weight * sum over j in N(i) of omega_ij softplus(-s_uj)

    where negatives are uniform over the catalogue, positives included. ``pairs`` batches draw
    ``negatives`` per pair; ``rows`` batches take their expectation over all items (or
    ``sampled_items`` shared by a block, weighted by inverse probability). ``max_share`` weighs all
    three terms of a pair. The published L2 term belongs to the training loop.

    Cost of an epoch: ``rows``: three products of users x items x dim; ``pairs``:
    pairs x negatives x dim.

    Example:
        >>> from robustcf.data import checkerboard
        >>> objective = BCE(checkerboard().train, item_weight=0.0)
        >>> objective.full_gradient(torch.zeros(20, 2), torch.zeros(30, 2)).value > 0
        True
    """

    name = "bce"
    Config = BCEConfig

    def __init__(
        self, pairs: Interactions, config: BCEConfig | None = None, **options: Any
    ) -> None:
        super().__init__(pairs, config, **options)
        self.user_beta = user_beta(pairs.user_degrees)
        self.item_beta = item_beta(self.shard.item_degrees)
        self._item_weights = item_weights(self.shard.item_degrees, self.config.max_share)
        # The weight of all pairs of a user.
        self._mass = pairs.user_degrees
        if self._item_weights is not None:
            self._mass = pairs.csr().astype(np.float64) @ self._item_weights
        # One tensor for all blocks: it is as long as the catalogue.
        self._column = self.tensor(self.item_beta if self.config.w4 else 0 * self.item_beta)
        popularity = (self.shard.item_degrees + 1.0) / (self.shard.n_pairs + pairs.n_items)
        # Half uniform, half by popularity: popular items have the larger gradients, and inverse
        # probabilities are at most twice the catalogue.
        self._chances = 0.5 / pairs.n_items + 0.5 * popularity
        if self.config.item_weight and not self.shard.rows.whole:
            _ = self.graph  # ranks build it together, so all of them now

    @cached_property
    def graph(self) -> csr_matrix:
        """Omega, see :func:`robustcf.objectives.weights.item_graph`."""
        return item_graph(self.shard.everything, self.config.neighbours, self.shard.ranks)

    def positive_weights(self, users: Ids) -> csr_matrix:
        """Return the weights of softplus(-s) of some users: positives and their neighbours."""
        from scipy.sparse import csr_matrix

        c, R = self.config, self.pairs.csr_of(users)
        beta = np.repeat(self.user_beta[users], np.diff(R.indptr)) * self.item_beta[R.indices]
        values, R = c.w1 + c.w2 * beta, R.astype(np.float64)
        if self._item_weights is not None:
            R.data = self._item_weights[R.indices]
            values = values * R.data
        own = csr_matrix((values, R.indices, R.indptr), shape=R.shape)
        if c.item_weight == 0:
            return own
        near = R @ self.graph
        folded: csr_matrix = (own + c.item_weight * near).tocsr()
        folded.sort_indices()
        return folded

    def negative_weights(self, users: Ids) -> NegativeWeights:
        """Return the weights of softplus(s) of some users, over all items."""
        c = self.config
        scale = self._mass[users] * c.negative_weight / self.pairs.n_items
        if c.w4 == 0:
            shift = np.full(len(users), c.w3)
        else:
            # Users without pairs have scale 0 and no beta: any finite shift will do.
            beta = np.where(scale > 0, self.user_beta[users], 1.0)
            scale, shift = scale * c.w4 * beta, c.w3 / (c.w4 * beta)
        return NegativeWeights(
            self.tensor(scale), self._column, self.tensor(shift) if c.w3 else None
        )

    def prepare(self, users: Ids) -> tuple[Prepared, int]:
        """Return all weights of a block of users."""
        Q = self.positive_weights(users)
        rows = np.repeat(np.arange(len(users)), np.diff(Q.indptr))
        owners, columns = (self.tensor(ids, torch.int64) for ids in (rows, Q.indices))
        positives = SparseRows(owners, columns, self.tensor(Q.data))
        return (positives, self.negative_weights(users)), len(rows)

    def gradient(self, batch: Batch, U: Tensor, V: Tensor, *, value: bool = False) -> Gradient:
        """Return the gradient of the batch's share of the objective at (U, V)."""
        if batch.items is not None:
            return self.pairs_gradient(batch, U, V)
        prepared: Prepared = batch.prepared or self.prepare(batch.users.cpu().numpy())[0]
        block, items, drawn = U[batch.users], torch.zeros_like(V), batch.negatives
        if drawn is None:
            products = dtype_of_products(self.config.precision)
            users, total = bce_rows(block, V, *prepared, items, value=value, products=products)
        else:
            weights = self.tensor(1.0 / (len(drawn) * self._chances[drawn.cpu().numpy()]))
            users, total = bce_sampled(block, V, *prepared, drawn, weights, items, value=value)
        return Gradient(users, batch.users, items, total)

    def shared_negatives(self, rng: np.random.Generator) -> Tensor | None:
        """Draw a sample of the catalogue, half uniform, half by popularity; None: all of it."""
        count = self.config.sampled_items
        if count is None or count >= self.pairs.n_items:
            return None
        drawn = rng.choice(self.pairs.n_items, size=count, p=self._chances)
        return self.tensor(np.sort(drawn), torch.int64)

    def pair_negatives(self, rng: np.random.Generator, users: npt.NDArray[Any]) -> Ids:
        """Draw items uniformly from the catalogue."""
        return rng.integers(self.pairs.n_items, size=(len(users), self.config.negatives))

    def pairs_loss(self, batch: Batch, U: Tensor, V: Tensor) -> Tensor:
        """Return the published loss of pairs and their sampled negatives, differentiable."""
        if batch.items is None or batch.negatives is None:
            raise InputError("pairs_loss needs pairs with negatives, got a block of rows")
        c, users = self.config, batch.users.cpu().numpy()
        user_beta = self.tensor(self.user_beta[users])
        item_beta = self.tensor(self.item_beta)
        # embedding, not indexing: its backward adds up in a fixed order for any number of threads.
        u = embedding(batch.users, U)
        positive = (u * embedding(batch.items, V)).sum(dim=1)
        negative = torch.bmm(embedding(batch.negatives, V), u[:, :, None])[:, :, 0]
        own = c.w1 + c.w2 * user_beta * item_beta[batch.items]
        weights = c.w3 + c.w4 * user_beta[:, None] * item_beta[batch.negatives]
        if self._item_weights is not None:
            by_pair = self.tensor(self._item_weights[batch.items.cpu().numpy()])
            own, weights = own * by_pair, weights * by_pair[:, None]
        loss = weighted_bce(positive, own, 0.0)
        scale = c.negative_weight / batch.negatives.shape[1]
        loss = loss + weighted_bce(negative, 0.0, scale * weights)
        if c.item_weight == 0:
            return loss
        near = self.graph[batch.items.cpu().numpy()]
        pair = self.tensor(np.repeat(np.arange(len(users)), np.diff(near.indptr)), torch.int64)
        neighbour = self.tensor(near.indices, torch.int64)
        score = (embedding(pair, u) * embedding(neighbour, V)).sum(dim=1)
        omega = c.item_weight * self.tensor(near.data)
        if self._item_weights is not None:
            omega = omega * by_pair[pair]
        return loss + weighted_bce(score, omega, 0.0)

    def user_losses(self, batch: Batch, U: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`Objective.user_losses`; over all negatives, drawn items or not."""
        users = batch.users if batch.items is None else torch.unique(batch.users)
        ids = users.cpu().numpy()
        prepared: Prepared = batch.prepared or self.prepare(ids)[0]
        losses = bce_row_losses(U[users], V, *prepared)
        return users, losses / self.tensor(self.pairs.user_degrees[ids])

    def user_loss(self, items: Ids, V: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the objective of a new user with these items, over all negatives."""
        c, degree = self.config, len(items)
        beta = float(user_beta(np.array([degree]))[0])
        dense = np.zeros(self.pairs.n_items)
        dense[items] = c.w1 + c.w2 * beta * self.item_beta[items]
        if c.item_weight:
            dense += c.item_weight * np.asarray(self.graph[items].sum(axis=0)).ravel()
        positive = self.tensor(dense, V.dtype)
        scale = degree * c.negative_weight / self.pairs.n_items
        negative = self.tensor(scale * (c.w3 + c.w4 * beta * self.item_beta), V.dtype)
        return lambda u: weighted_bce(V @ u, positive, negative)
