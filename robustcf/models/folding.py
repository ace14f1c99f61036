"""Fold-in: embeddings of users by their histories, the items' embeddings held fixed.

One new user by the user's own part of the objective, by least squares for ALS, by the mean for
popularity (:class:`FoldIn`); or all users by one linear map (:class:`Histories`), so that no user
is stored.
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
        ridge: see :func:`fold_in`, as for ``offset`` and ``unit``; the default only bounds the row.

    Example:
        >>> FoldIn().objective
        'softmax'
    """

    objective: str = "softmax"
    settings: Mapping[str, Any] = field(default_factory=dict)
    ridge: float = 1e-2
    offset: bool = False
    unit: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", MappingProxyType(dict(self.settings)))
        # JSON has integers of any length, torch does not.
        object.__setattr__(self, "ridge", float(self.ridge))

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return {**vars(self), "settings": dict(self.settings)}

    @property
    def outside(self) -> bool:
        """Whether the objective is code from outside of the package."""
        return self.objective not in (*OBJECTIVES, LEAST_SQUARES, MEAN)

    def config(self) -> Any:
        """Return the checked configuration of its objective; the settings may be a file's."""
        kind = OBJECTIVES[self.objective].Config
        check_known(kind, self.settings)
        return kind(**self.settings)

    def embed(
        self, factors: Factors, items: Ids, pairs: Interactions, fixed: Sequence[int]
    ) -> Tensor:
        """Return the embedding of a new user who has these items, ascending, each once.

        ``pairs``: see :meth:`robustcf.models.scorer.Scorer.top_for_history`.
        """
        dtype = factors.users.dtype
        if self.objective == MEAN:
            return factors.users.double().mean(dim=0).to(dtype)
        if self.objective == LEAST_SQUARES:
            check_known(LeastSquares, self.settings)
            for name, value in self.settings.items():
                check_number(name, value)
            return LeastSquares(**self.settings).solve(factors.items.double(), items).to(dtype)
        objective = OBJECTIVES[self.objective](pairs, self.config())
        how: Any = {"ridge": self.ridge, "offset": self.offset, "unit": self.unit}
        return fold_in(objective, factors, items, fixed=fixed, **how)


@dataclass(frozen=True)
class LeastSquares:
    """The weights of a row's least squares, as in alternating least squares.

    The row u solves ``(unobserved V^T V + curvature sum v v^T + (ridge + n ridge_per_pair) I) u =
    pull sum v``, where sums are over the rows v of the user's n items.
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
        matrix = self.unobserved * (V.T @ V) + self.curvature * (own.T @ own)
        matrix.diagonal().add_(self.ridge + self.ridge_per_pair * len(items))
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
        objective: of the training of the factors.
        factors: trained embeddings.
        items: ids of the user's items, at least one, each once.
        ridge: weight of the squared norm of the row.
        steps: largest number of L-BFGS iterations, from the mean of the users.
        offset: add one free number to all scores of the user, for items in a gauge that removed it,
            see :mod:`robustcf.models.gauge`.
        unit: return a row of length 1, for models that score such rows.
        fixed: columns that stay at the mean of the users: biases and their constants.

    Cost: a few products of n_items x dim per step.

    Example:
        >>> from robustcf.data import checkerboard
        >>> from robustcf.models import BPRMF
        >>> from robustcf.objectives import BPR
        >>> train = checkerboard().train
        >>> fold_in(BPR(train), BPRMF(train, factors=4).factors(), [0, 2]).shape
        torch.Size([4])
    """
    n_items, dim = factors.n_items, factors.dim
    ids = np.asarray(items)
    if ids.ndim != 1 or len(ids) == 0 or ids.dtype.kind not in "iu":
        raise InputError(f"fold-in needs a list of item ids, at least one, got {items!r}")
    if ids.min() < 0 or ids.max() >= n_items or len(np.unique(ids)) != len(ids):
        raise InputError(f"item ids must be in [0, {n_items}) and differ, got {ids.tolist()}")
    check_number("ridge", ridge)
    # float64, since the line search compares losses that differ by little.
    V = factors.items.detach().double()
    mean = factors.users.detach().double().mean(dim=0)
    if offset:
        V, mean = torch.cat([V, V.new_ones(len(V), 1)], 1), torch.cat([mean, V.new_zeros(1)])
    loss = objective.user_loss(ids.astype(np.int64), V)
    held = torch.tensor(list(fixed), dtype=torch.int64, device=V.device)
    row = mean.clone().requires_grad_()
    optimizer = torch.optim.LBFGS(
        [row], max_iter=steps, tolerance_grad=1e-7, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        own = row[:dim].index_fill(0, held, 0.0)
        scored = row.index_copy(0, held, mean[held])
        if unit:
            scored = torch.cat((own / own.norm(), row[dim:]))
        value = loss(scored) + ridge * (own @ own if not unit else (own.norm() - 1) ** 2)
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    own = row.detach()[:dim]
    return (own / own.norm() if unit else own).to(factors.users.dtype)


class Histories:
    """Users computed from their items by a linear map, which is held with the model.

    With r_u, the 0/1 history of a user with n_u items, and the rows P, c and z of the map
    (dim + 2 rows)::

        u = n_u^-damping (r_u V P + n_u c)    with a history
        u = z                                 without one

    The damping scales a user and changes no ranking; it weighs users in :meth:`fitted`. A row
    depends on its own history alone, to the last bit.

    Args:
        pairs: the histories: the pairs that the model was fit on.
        damping: 0.5 for unit length of ``r_u / sqrt(n_u)``; 1 for means.

    Example:
        >>> pairs = Interactions.from_pairs([0, 0], [0, 1], 2, 2)[0]
        >>> arrays = Factors(torch.tensor([[2.0], [0.0], [9.0]]), torch.tensor([[1.0], [3.0]]))
        >>> Histories(pairs, damping=1.0).factors(arrays).users.tolist()
        [[4.0], [9.0]]
    """

    def __init__(self, pairs: Interactions, damping: float = 0.5) -> None:
        self.pairs, self.damping = pairs, check_number("damping", damping)
        degrees = torch.from_numpy(pairs.user_degrees.astype(np.float64))
        self.cold = degrees == 0
        self._scales = torch.where(self.cold, 0.0, degrees.clamp_min(1) ** -damping)
        self.lengths = self._scales * degrees

    def sums(self, rows: Tensor) -> Tensor:
        """Return the weighted sum of a history's rows (items x any) per user, in float64."""
        wide = np.ascontiguousarray(rows.detach().cpu().double().numpy())
        return torch.from_numpy(self.pairs.csr() @ wide).mul_(self._scales[:, None])

    def spread(self, rows: Tensor) -> Tensor:
        """Return the transposed product: rows of users, added up per item, in float64."""
        wide = (rows.detach().cpu().double() * self._scales[:, None]).numpy()
        return torch.from_numpy(self.pairs.csr().T @ np.ascontiguousarray(wide))

    def factors(self, arrays: Factors) -> Factors:
        """Return U and V of stored arrays: the map, and V."""
        table, V = (part.detach().cpu().double() for part in arrays)
        users = self.sums(V @ table[:-2]).addcmul_(self.lengths[:, None], table[-2])
        users[self.cold] = table[-1]
        return Factors(users.to(arrays.items), arrays.items)

    def pull(self, arrays: Factors, users: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradient for the map and V, by that for U and V.

        Cost: one sparse product with the histories.
        """
        table, V = (part.detach().cpu().double() for part in arrays)
        wide = users.detach().cpu().double()
        spread = self.spread(wide)
        own = torch.cat((V.T @ spread, (self.lengths @ wide)[None], wide[self.cold].sum(0)[None]))
        return own.to(users), items + (spread @ table[:-2].T).to(items)

    def fitted(self, factors: Factors) -> Tensor:
        """Return the map by least squares of trained users on their histories.

        Users without a history are served by the mean of the others.

        Cost: one sparse product, and products of users x dim x dim.
        """
        U, V = (part.detach().cpu().double() for part in factors)
        warm = ~self.cold
        inputs = torch.cat((self.sums(V), self.lengths[:, None]), dim=1)
        target = torch.where(warm[:, None], U, 0.0)
        gram, right = inputs.T @ inputs, inputs.T @ target
        # In units of each input: the small ones are not lost in the rounding of the large.
        units = gram.diagonal().sqrt().clamp_min(1e-150)
        gram, right = gram / units[:, None] / units, right / units[:, None]
        found = torch.linalg.lstsq(gram, right, driver="gelsd").solution / units[:, None]
        mean = U[warm].mean(dim=0) if bool(warm.any()) else U.mean(dim=0)
        return torch.cat((found, mean[None])).to(factors.users)
