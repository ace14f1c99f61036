"""The surrogate of an attack: ALS, and its differentiable half-steps.

With all genuine rows held fixed, the rows of fake users and of their items solve linear systems::

    p(x) = (a V'V + sum_i x_i v_i v_i' + r (|x| + a n_items) I)^-1 sum_i x_i v_i
    v    = (a (U'U + P'P) + sum_u u u' + sum_f p_f p_f' + r (degree + a n_users) I)^-1
           (sum_u u + sum_f p_f)          over its genuine users u and its fake users f

with a the weight of unobserved pairs against 1 of observed ones, and r the regularization by
frequency, see :class:`robustcf.models.als.ALS`, whose alpha is 1 + 1 / a.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from robustcf.data.interactions import Interactions
from robustcf.factors import Factors
from robustcf.metrics.topk import TopItems, top_items
from robustcf.models.als import ALS, ALSConfig
from robustcf.poisoning.threat import ItemIds

_RANK, _ITERATIONS = 64, 5
# Independent of the victim's settings, so that profiles do not change with them.
_UNOBSERVED, _RIDGE = 0.1, 0.01
# Matrix entries of the systems that are solved at a time.
_ENTRIES = 2**22
# Longer than usual lists, so that near misses count; at most a quarter of the catalogue.
_CUTOFF, _QUARTER = 50, 4
_MOST_USERS = 20_000


def fit_als(
    pairs: Interactions, seed: int, n_users: int | None = None, max_share: float | None = None
) -> Factors:
    """Return the factors of ALS with rank 64 after a few iterations, for the first users."""
    dim = min(_RANK, max(1, min(pairs.n_users, pairs.n_items) - 1))
    share = 1.0 + _UNOBSERVED
    config = ALSConfig(
        factors=dim, alpha=share / _UNOBSERVED, regularization=_RIDGE * share,
        iterations=_ITERATIONS,
        by_frequency=True, max_share=max_share,
    )  # fmt: skip
    U, V = ALS(pairs, config, seed=seed).factors()
    # Back to the scale of observed pairs of weight 1.
    return Factors(U[:n_users] * share**-0.5, V * share**-0.5)


@dataclass(frozen=True, eq=False)
class HalfSteps:
    """The systems of a surrogate of the known pairs that fake users change."""

    factors: Factors  # of the genuine users alone
    pairs: Interactions
    pushed: ItemIds  # items whose rows depend on the fake users

    def fake_rows(self, weights: Tensor, fillers: Tensor) -> Tensor:
        """Return rows of fakes with the pushed items, and fillers by weights in [0, 1].

        Cost: fakes x fillers x dim^2, some fakes at a time.
        """
        V = self.factors.items
        always = V[torch.from_numpy(self.pushed)]
        Y = V[fillers]
        gram = _UNOBSERVED * (V.T @ V) + always.T @ always
        eye = torch.eye(V.shape[1], dtype=V.dtype)
        products = (Y[:, :, None] * Y[:, None, :]).flatten(1)
        size = max(1, _ENTRIES // V.shape[1] ** 2)
        rows = []
        for part in torch.split(weights, size):
            own = (part @ products).view(-1, *gram.shape)
            degrees = part.sum(dim=1) + len(self.pushed)
            shift = _RIDGE * (degrees + _UNOBSERVED * len(V))
            right = part @ Y + always.sum(dim=0)
            rows.append(torch.linalg.solve(gram + own + shift[:, None, None] * eye, right))
        return torch.cat(rows)

    def item_rows(self, fakes: Tensor, counts: Tensor) -> Tensor:
        """Return rows of the pushed items, given the rows of fakes and how many have each."""
        U = self.factors.users
        weighted = fakes * counts[:, None]
        spread, pull, number = fakes.T @ weighted, weighted.sum(dim=0), counts.sum()
        eye = torch.eye(U.shape[1], dtype=U.dtype)
        rows = []
        for gram, total, degree in self._genuine:
            shift = _RIDGE * (degree + number + _UNOBSERVED * (len(U) + number))
            system = gram + (1 + _UNOBSERVED) * spread + shift * eye
            rows.append(torch.linalg.solve(system, total + pull))
        return torch.stack(rows)

    @cached_property
    def _genuine(self) -> list[tuple[Tensor, Tensor, int]]:
        """Gram matrix, sum of rows and number of the genuine users per pushed item."""
        U = self.factors.users
        shared = _UNOBSERVED * (U.T @ U)
        found = []
        for item in self.pushed:
            owners = self.pairs.users[self.pairs.items == item].astype(np.int64)
            mine = U[torch.from_numpy(owners)]
            found.append((shared + mine.T @ mine, mine.sum(dim=0), len(owners)))
        return found


def cutoff_of(n_items: int) -> int:
    """Return the cutoff of a surrogate's lists: 50, less for small catalogues."""
    return max(1, min(_CUTOFF, n_items // _QUARTER))


def active(pairs: Interactions) -> npt.NDArray[np.int64]:
    """Return the users with pairs, or 20,000 evenly spaced ones of them."""
    users = np.flatnonzero(pairs.user_degrees)
    if len(users) > _MOST_USERS:
        users = users[np.linspace(0, len(users) - 1, _MOST_USERS).astype(np.int64)]
    return users


def bars(
    factors: Factors, pairs: Interactions, users: npt.NDArray[np.int64]
) -> tuple[Tensor, TopItems]:
    """Return the score to enter each user's list (infinite if all items are in it), and the lists.

    The lists have twice the length.
    """
    U, V = factors
    cutoff = cutoff_of(pairs.n_items)
    top = top_items(factors, users, 2 * cutoff, pairs)
    last = top[:, cutoff - 1]
    scores = (U[torch.from_numpy(users)] * V[torch.from_numpy(np.maximum(last, 0))]).sum(dim=1)
    return torch.where(torch.from_numpy(last >= 0), scores, torch.inf), top


def has(pairs: Interactions, users: npt.NDArray[np.int64], items: ItemIds) -> Tensor:
    """Return users x items: whether the user has the item."""
    return torch.from_numpy(pairs.csr()[users][:, items].toarray() > 0)


def highest(
    factors: Factors, pairs: Interactions, users: npt.NDArray[np.int64], items: ItemIds
) -> Tensor:
    """Return each user's highest score among the items that they lack."""
    U, V = factors
    scores = U[torch.from_numpy(users)] @ V[torch.from_numpy(items)].T
    scores[has(pairs, users, items)] = -torch.inf
    return scores.max(dim=1).values
