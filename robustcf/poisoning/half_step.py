"""Closed-form half-steps of ALS that gradients go through: profiles in, item rows out.

The surrogate of an attack. With all genuine rows held fixed, a fake user's row is the solution of
one linear system, and so is the row of an item that fake users have::

    p(x) = (a V'V + sum_i x_i v_i v_i' + r (|x| + a n_items) I)^-1 sum_i x_i v_i
    v    = (a (U'U + P'P) + sum_u u u' + sum_f p_f p_f' + r (degree + a n_users) I)^-1
           (sum_u u + sum_f p_f)          over its genuine users u and its fake users f

with a the weight of what is unobserved and r the ridge, as in :class:`robustcf.models.als.ALS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from robustcf.data.interactions import Interactions
from robustcf.factors import Factors
from robustcf.models.als import ALS, ALSConfig
from robustcf.poisoning.threat import ItemIds

_RANK, _SWEEPS = 64, 5
# The surrogate's own, whatever the victim's are, so that profiles stay what they were.
_UNOBSERVED, _RIDGE = 0.1, 0.01
# Systems solved at a time, and entries of their matrices.
_ENTRIES = 2**22


def fit_surrogate(pairs: Interactions, seed: int) -> Factors:
    """ALS of rank 64, a few sweeps from the spectral start.

    Cost: some fifty products of pairs x 64.
    """
    dim = min(_RANK, max(1, min(pairs.n_users, pairs.n_items) - 1))
    config = ALSConfig(dim=dim, unobserved=_UNOBSERVED, ridge=_RIDGE, sweeps=_SWEEPS)
    return ALS(pairs, config, seed=seed).factors()


@dataclass(frozen=True, eq=False)
class HalfSteps:
    """The systems of a fitted surrogate that fake users change.

    Args:
        factors: of the surrogate, genuine users alone.
        pairs: the known pairs.
        pushed: ids of the items whose rows follow the fake users.

    Example:
        >>> from robustcf.data import checkerboard
        >>> train = checkerboard().train
        >>> factors = fit_surrogate(train, seed=0)
        >>> steps = HalfSteps(factors, train, np.array([0, 1]))
        >>> rows = steps.fake_rows(torch.ones(3, 5), torch.arange(5))
        >>> steps.item_rows(rows, torch.ones(3)).shape == (2, factors.dim)
        True
    """

    factors: Factors
    pairs: Interactions
    pushed: ItemIds

    def fake_rows(self, weights: Tensor, fillers: Tensor) -> Tensor:
        """Rows of fake users who have the pushed items and, in parts, the fillers.

        Args:
            weights: fakes x fillers, in [0, 1].
            fillers: ids.

        Cost: fakes x fillers x dim^2, some fakes at a time.
        """
        _, V = self.factors
        a, ridge = _UNOBSERVED, _RIDGE
        always = V[torch.from_numpy(self.pushed)]
        Y = V[fillers]
        gram = a * (V.T @ V) + always.T @ always
        eye = torch.eye(V.shape[1], dtype=V.dtype)
        products = (Y[:, :, None] * Y[:, None, :]).flatten(1)
        degrees = weights.sum(dim=1) + len(self.pushed)
        size = max(1, _ENTRIES // V.shape[1] ** 2)
        rows = []
        for start in range(0, len(weights), size):
            part = weights[start : start + size]
            own = (part @ products).view(-1, *gram.shape)
            shift = ridge * (degrees[start : start + size] + a * len(V))
            right = part @ Y + always.sum(dim=0)
            rows.append(torch.linalg.solve(gram + own + shift[:, None, None] * eye, right))
        return torch.cat(rows)

    def item_rows(self, fakes: Tensor, counts: Tensor) -> Tensor:
        """Rows of the pushed items once fake users with these rows have them.

        Args:
            fakes: a row for each kind of fake user.
            counts: how many there are of each kind.
        """
        U, _ = self.factors
        a, ridge = _UNOBSERVED, _RIDGE
        weighted = fakes * counts[:, None]
        spread, pull, number = fakes.T @ weighted, weighted.sum(dim=0), counts.sum()
        eye = torch.eye(U.shape[1], dtype=U.dtype)
        rows = []
        for gram, total, degree in self._genuine:
            shift = ridge * (degree + number + a * (len(U) + number))
            rows.append(torch.linalg.solve(gram + (1 + a) * spread + shift * eye, total + pull))
        return torch.stack(rows)

    @cached_property
    def _genuine(self) -> list[tuple[Tensor, Tensor, int]]:
        """What the genuine users bring to each pushed item: Gram matrix, sum of rows, number."""
        U, _ = self.factors
        shared = _UNOBSERVED * (U.T @ U)
        found = []
        for item in self.pushed:
            owners = self.pairs.users[self.pairs.items == item].astype(np.int64)
            mine = U[torch.from_numpy(owners)]
            found.append((shared + mine.T @ mine, mine.sum(dim=0), len(owners)))
        return found
