"""Fold-in: the embedding of a new user, the items' embeddings held fixed.

By the user's own part of the objective; by least squares for ALS; by the mean for popularity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from robustcf._checks import check_known, check_number
from robustcf._registry import OBJECTIVES
from robustcf.data.interactions import Interactions
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.objectives.base import Objective

Ids = npt.NDArray[np.int64]
#: Ways to fold in that are not objectives: the normal equations of ALS, and the mean of the users.
LEAST_SQUARES, MEAN = "least-squares", "mean"


@dataclass(frozen=True)
class FoldIn:
    """How the embedding of a new user is found.

    Args:
        objective: a name of :data:`robustcf._registry.OBJECTIVES`, ``module:Class``,
            ``least-squares`` (see :class:`LeastSquares`) or ``mean``.
        settings: of the objective, or of the least squares.
        ridge: see :func:`fold_in`, as for ``offset`` and ``unit``.
        offset: see there.
        unit: see there.

    Example:
        >>> FoldIn().objective
        'softmax'
    """

    objective: str = "softmax"
    settings: Mapping[str, Any] = field(default_factory=dict)
    # Keeps the row bounded; too small to matter otherwise.
    ridge: float = 1e-2
    offset: bool = False
    unit: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", MappingProxyType(dict(self.settings)))
        # JSON has whole numbers of any length, torch has not.
        object.__setattr__(self, "ridge", float(self.ridge))

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return {**vars(self), "settings": dict(self.settings)}

    @property
    def outside(self) -> bool:
        """Whether the objective is code from outside of the package."""
        return self.objective not in (*OBJECTIVES, LEAST_SQUARES, MEAN)

    def embed(
        self, factors: Factors, items: Ids, pairs: Interactions, fixed: Sequence[int]
    ) -> Tensor:
        """Return the embedding of a new user who has these items, ascending, each once.

        ``pairs`` are those the factors were trained on, or a stand-in with as many pairs per item.
        """
        dtype = factors.users.dtype
        if self.objective == MEAN:
            return factors.users.double().mean(dim=0).to(dtype)
        if self.objective == LEAST_SQUARES:
            check_known(LeastSquares, self.settings)
            for name, value in self.settings.items():
                check_number(name, value)
            return LeastSquares(**self.settings).solve(factors.items.double(), items).to(dtype)
        kind = OBJECTIVES[self.objective]
        check_known(kind.Config, self.settings)
        objective = kind(pairs, kind.Config(**self.settings))
        how: Any = {"ridge": self.ridge, "offset": self.offset, "unit": self.unit}
        return fold_in(objective, factors, items, fixed=fixed, **how)


@dataclass(frozen=True)
class LeastSquares:
    """The weights of a row's least squares, as alternating least squares has them.

    The row u solves ``(unobserved V^T V + curvature sum v v^T + ridge I) u = pull sum v``, where
    sums are over the items v that the user has.

    Args:
        unobserved: weight of every pair.
        curvature: additional weight of an observed pair in the matrix.
        pull: weight of an observed pair on the right.
        ridge: weight of the squared norm of the row.
        ridge_per_pair: added to the ridge for each item of the user.
    """

    unobserved: float
    curvature: float = 1.0
    pull: float = 1.0
    ridge: float = 0.0
    ridge_per_pair: float = 0.0

    def solve(self, V: Tensor, items: Ids) -> Tensor:
        """Return the row, in float64.

        Example:
            >>> V = torch.eye(2, dtype=torch.float64)
            >>> LeastSquares(1.0, ridge=1.0).solve(V, np.array([0])).tolist()
            [0.3333333333333333, 0.0]
        """
        own = V[torch.from_numpy(items)]
        ridge = self.ridge + self.ridge_per_pair * len(items)
        matrix = self.unobserved * (V.T @ V) + self.curvature * (own.T @ own)
        matrix.diagonal().add_(ridge)
        found: Tensor = torch.linalg.lstsq(matrix, self.pull * own.sum(dim=0)[:, None]).solution
        return found[:, 0]


def fold_in(
    objective: Objective[Any],
    factors: Factors,
    items: npt.ArrayLike,
    *,
    ridge: float = 0.0,
    steps: int = 60,
    offset: bool = False,
    unit: bool = False,
    fixed: Sequence[int] = (),
) -> Tensor:
    """Return the row of a new user that minimizes the user's own, convex part of an objective.

    Args:
        objective: what the factors were trained with.
        factors: trained embeddings.
        items: ids of the user's items, at least one, each once.
        ridge: weight of the squared norm of the row.
        steps: iterations of L-BFGS at most, from the mean of the users.
        offset: whether one number, free and then forgotten, is added to all scores of the user:
            for items in a gauge that has taken it from them, see :mod:`robustcf.models.gauge`.
        unit: whether the row has length 1: for models that score such rows.
        fixed: columns that stay at the mean of the users: a bias, and the constant it is multiplied
            with.

    Cost: a few products of n_items x dim for each step.

    Example:
        >>> from robustcf.data import checkerboard
        >>> from robustcf.models import BPRMF
        >>> from robustcf.objectives import BPR
        >>> train = checkerboard().train
        >>> fold_in(BPR(train), BPRMF(train, dim=4).factors(), [0, 2]).shape
        torch.Size([4])
    """
    n_items = factors.n_items
    ids = np.asarray(items)
    if ids.ndim != 1 or len(ids) == 0 or ids.dtype.kind not in "iu":
        raise InputError(f"fold-in needs a list of item ids, at least one, got {items!r}")
    if ids.min() < 0 or ids.max() >= n_items or len(np.unique(ids)) != len(ids):
        raise InputError(f"item ids must be in [0, {n_items}) and differ, got {ids.tolist()}")
    check_number("ridge", ridge)
    # float64: the line search compares losses that differ by little.
    V = factors.items.detach().double()
    start = factors.users.detach().double().mean(dim=0)
    if offset:
        V, start = torch.cat([V, V.new_ones(len(V), 1)], 1), torch.cat([start, V.new_zeros(1)])
    loss = objective.user_loss(ids.astype(np.int64), V)
    held, mean = list(fixed), start.clone()
    row = start.requires_grad_()
    optimizer = torch.optim.LBFGS(
        [row], max_iter=steps, tolerance_grad=1e-7, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        own, scored = row[: factors.dim], row
        if held:
            own = own.index_fill(0, torch.tensor(held), 0.0)
            scored = row.index_copy(0, torch.tensor(held), mean[held])
        if unit:
            scored = torch.cat((own / own.norm(), row[factors.dim :]))
        value = loss(scored) + ridge * (own @ own if not unit else (own.norm() - 1) ** 2)
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    own = row.detach()[: factors.dim]
    return (own / own.norm() if unit else own).to(factors.users.dtype)
