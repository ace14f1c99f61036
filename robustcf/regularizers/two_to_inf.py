"""The paper's penalty on the largest row of the scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from robustcf._checks import check_choice, check_integer
from robustcf._distributed import Ranks, Rows
from robustcf.errors import InputError
from robustcf.estimators.api import METHODS
from robustcf.estimators.lowrank import LowRank, gram_root
from robustcf.estimators.operators import (
    Adjoint,
    FunctionOperator,
    Matrix,
    MatrixLike,
    as_operator,
)
from robustcf.regularizers.base import Accumulator, Regularizer, RegularizerConfig

Estimator = Callable[..., Any]
Side = Literal["users", "items"]

_POOL = 32

#: Names for :class:`TwoToInf`: all methods of :mod:`robustcf.estimators`.
ESTIMATORS = tuple(METHODS)


@dataclass(frozen=True)
class TwoToInfConfig(RegularizerConfig):
    """Settings of :class:`TwoToInf` in training.

    Args:
        estimator: how two_to_inf finds the longest row (default exact).
        budget: products the estimator may use.
        top: number of longest rows that the penalty averages over.
        side: penalize rows (users) or columns (items) of the scores.
        every: apply the penalty every N steps.
        refresh: actions between two searches of all rows.
    """

    estimator: str = "exact"
    budget: int = 33
    top: int = 1
    side: str = "users"
    every: int = 1
    refresh: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("reg_side", self.side, ("users", "items"))
        TwoToInf.configured(self)  # checks the other options


class TwoToInf(Regularizer):
    """||U V^T||_{2->inf}^2, the largest squared row norm of the scores: max_u sum_i s_ui^2.

    ``reg(U, V)`` is of factors, ``reg(A)`` of any operator, as :class:`robustcf.estimators.Scores`
    for a network. The row is found without gradients, then its squared norm is taken with them: a
    wrong row gives the gradient of that row.

    Args:
        estimator: how to find the row: a name out of :data:`ESTIMATORS` or any function of
            :mod:`robustcf.estimators`. ``twinest`` is the paper's.
        budget: products the estimator may use (ignored by ``exact``); 33 are 16 TwINEst samples and
            the reading of one row. For a function of users and items ``sampled`` is the cheap one:
            a product is a column or row of scores.
        top: mean of the squared norms of this many largest rows; more than 1 needs ``exact``.
        side: ``users``: rows of U V^T; ``items``: rows of V U^T, the one-to-two norm of the scores.
        every: act in every n-th call only, with n times the value (in training mode).
        refresh: ``exact`` in training mode: search all rows in every n-th call only; in between
            take the largest of the 32 (or 4 * top) leading rows, by their current norms.
        seed: of the estimator; every call draws anew.

    Cost: ``exact``: (n_users + n_items) * dim^2 to find the rows, by ||(U V^T)_u||^2 =
    u^T (V^T V) u, then top * n_items * dim.

    Example:
        >>> reg = TwoToInf()
        >>> float(reg(torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [4.0]])))
        100.0
    """

    name = "two_to_inf"
    Config = TwoToInfConfig
    calls: Tensor
    row_numbers = ("leaders",)
    leaders: Tensor

    def __init__(
        self,
        estimator: str | Estimator = "exact",
        *,
        budget: int = 33,
        top: int = 1,
        side: Side = "users",
        every: int = 1,
        refresh: int = 1,
        seed: int = 0,
    ) -> None:
        super().__init__()
        counts = {"budget": budget, "top": top, "every": every, "refresh": refresh}
        for option, value in counts.items():
            check_integer(option, value)
        check_choice("side", side, ("users", "items"))
        self.estimator_name, self._estimate = _resolve(estimator)
        if top > 1 and self.estimator_name != "exact":
            raise InputError(f"top > 1 needs estimator='exact', got {self.estimator_name!r}")
        self.budget, self.top, self.side, self.every, self.seed = budget, top, side, every, seed
        self.refresh = refresh
        # Buffers, so that state_dict() carries them into a resumed run.
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("leaders", torch.zeros(0, dtype=torch.int64))

    @classmethod
    def configured(cls, config: TwoToInfConfig, seed: int = 0) -> TwoToInf:
        """Return the regularizer that a config describes."""
        options = asdict(config)
        options.pop("weight")
        return cls(**options, seed=seed)

    def forward(self, U: MatrixLike, V: Tensor | None = None) -> Tensor:
        """Return the penalty (0 in the calls that ``every`` skips) of factors, or of an operator.

        An operator, such as :class:`robustcf.estimators.Scores`, stands for the whole matrix: its
        row is found by the estimator, and that row alone is differentiated.
        """
        factor = self._count()
        if V is None:
            return factor * self._of_operator(U, factor)
        if factor == 0 or 0 in U.shape or 0 in V.shape:
            return V.new_zeros(())
        left, right = (U, V) if self.side == "users" else (V, U)
        rows = self.select(left, right)
        return factor * (right @ left[rows].T).square().sum() / len(rows)

    def _of_operator(self, A: MatrixLike, factor: float) -> Tensor:
        operator = as_operator(A)
        if self.top > 1 or self.refresh > 1:
            raise InputError("top and refresh need factors U and V, got an operator: leave them 1")
        if factor == 0 or 0 in operator.shape:
            return torch.zeros((), device=operator.device)
        matrix = Adjoint(operator).H
        matrix = matrix if self.side == "users" else matrix.H
        with torch.no_grad():
            row = self._estimated(matrix)
        return matrix.rows(row).abs().square().sum()

    def select(self, left: Tensor, right: Tensor) -> Tensor:
        """Return the rows of left @ right.T that are penalized, largest first."""
        with torch.no_grad():
            matrix = LowRank(left.detach(), right.detach())
            if self.estimator_name == "exact":
                return self._largest(matrix, Rows.of(len(left), Ranks()))
            return self._estimated(matrix)

    def _select(self, U: Tensor, V: Tensor, shared: Rows) -> Tensor:
        """:meth:`select` by ``side``, if each of several ranks has some rows of U."""
        if shared.whole:
            return self.select(*((U, V) if self.side == "users" else (V, U)))
        by_users = self.side == "users"
        with torch.no_grad():
            if self.estimator_name == "exact":
                if by_users:
                    return self._largest(LowRank(U, V), shared)
                # Norms of rows of V U^T need no more of U than U^T U = L L^T: those of V L.
                root = gram_root(shared.ranks.sum((U.mT @ U).double())).to(V.dtype)
                return self._largest(LowRank(V, root.mT), Rows.of(len(V), Ranks()))
            scores = _shared_scores(U, V, shared)
            return self._estimated(scores if by_users else scores.H)

    def _estimated(self, matrix: Matrix) -> Tensor:
        seed = (self.seed * 1_000_003 + int(self.calls)) % 2**63
        budget = None if self.estimator_name == "exact" else self.budget
        found = self._estimate(matrix, budget, generator=seed)
        if found.row is None:
            raise InputError(f"estimator {self.estimator_name!r} returned no row: use another")
        return torch.tensor([found.row], device=matrix.device)

    def _largest(self, matrix: LowRank, rows: Rows) -> Tensor:
        """Numbers of the largest rows; the matrix has those in ``rows``."""
        pooled = self.training and self.refresh > 1
        acted = (int(self.calls) - 1) // self.every  # in training mode this call is counted
        if pooled and acted % self.refresh and len(self.leaders):
            # Few rows: their entries are cheaper than the Gram matrix of the other factor.
            leaders = rows.fetch(matrix.U, self.leaders) @ matrix.V.mT
            norms = leaders.square().sum(dim=1)
            return self.leaders[norms.topk(min(self.top, len(norms))).indices]
        # Whether it is safe depends on the rows, and ranks must do the same.
        scores = matrix.quick_scores() if rows.whole else None
        if scores is None:
            scores = matrix.row_norms()
        if pooled:
            self.leaders = rows.leaders(scores, min(rows.count, max(_POOL, 4 * self.top)))
            return self.leaders[: self.top]
        if self.top == 1 and rows.whole:
            return scores.argmax().reshape(1)
        return rows.leaders(scores, min(self.top, rows.count))

    def _count(self) -> float:
        """The factor of this call, which is counted in training mode."""
        if not self.training:
            return 1.0
        acts = int(self.calls) % self.every == 0
        self.calls += 1
        return float(self.every) if acts else 0.0

    def add_gradient(self, U: Tensor, V: Tensor, into: Accumulator) -> float:
        """Add the gradient in closed form, without a gradient of U's size.

        Traffic between ranks: the few rows that may be largest, or a matrix of dim x dim; with an
        estimator, one number per user and product.
        """
        shared, rows = into.owner(U), into.rows
        factor = self._count()
        if factor == 0 or shared.count == 0 or U.shape[1] == 0 or 0 in V.shape:
            return 0.0
        chosen = self._select(U, V, shared)
        scale = 2.0 * into.weight * factor / len(chosen)
        if self.side == "users":
            some = shared.fetch(U, chosen)
            product = V @ some.T
            into.items.addmm_(product, some, alpha=scale)
            here, mine = shared.own(chosen)
            if rows is not None:
                kept = torch.isin(mine, rows)
                here, mine = here[kept], torch.searchsorted(rows, mine[kept])
            if len(mine):
                to_rows = product.T[here] @ V
                into.users.index_add_(0, mine, to_rows, alpha=scale * into.row_scale)
            return float(factor * product.square().sum() / len(chosen))
        some = V[chosen]
        product = U @ some.T
        own = product if rows is None else product[rows]
        into.users.addmm_(own, some, alpha=scale * into.row_scale)
        to_items = shared.ranks.sum(product.T @ U)
        into.items.index_add_(0, chosen, to_items, alpha=scale)
        square = shared.ranks.sum(product.square().sum())
        return float(factor * square / len(chosen))

    def extra_repr(self) -> str:
        """Return the settings that ``print`` shows."""
        return f"estimator={self.estimator_name}, top={self.top}, side={self.side}"


def _shared_scores(U: Tensor, V: Tensor, shared: Rows) -> FunctionOperator:
    """U V^T of all ranks, each of which has some rows of U; vectors are the same on all."""
    mine = slice(shared.start, shared.stop)
    return FunctionOperator(
        (shared.count, len(V)),
        lambda X: shared.ranks.joined(U @ (V.mT @ X)),
        lambda Y: V @ shared.ranks.sum(U.mT @ Y[mine]),
        U.dtype,
        U.device,
    )


def _resolve(estimator: str | Estimator) -> tuple[str, Estimator]:
    if callable(estimator):
        return getattr(estimator, "__name__", "custom"), estimator
    if estimator not in METHODS:
        raise InputError(f"estimator must be one of {', '.join(METHODS)}, got {estimator!r}")
    return estimator, METHODS[estimator]
