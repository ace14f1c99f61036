"""What an attack may spend: each budget owns its measure AND its projection.

So no attack can report one size and use another: the base class measures what it returns with
the very budget that it was projected on.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from robustcf.errors import InputError


class Budget(ABC):
    """A norm on perturbations of one factor, as a ball of radius epsilon."""

    name: str = ""
    # Whether every row has a budget of its own: then rows of several perturbations mix freely.
    by_row: bool = False

    @abstractmethod
    def measure(self, delta: Tensor) -> float:
        """The size of a perturbation: it is within the budget when this is at most epsilon."""

    @abstractmethod
    def project(self, delta: Tensor, epsilon: float) -> Tensor:
        """The nearest perturbation (in the Frobenius norm) within the budget."""

    @abstractmethod
    def scale(self, direction: Tensor, epsilon: float) -> Tensor:
        """``epsilon * G / ||G||`` in this norm: a direction taken to the edge of the ball.

        Zero directions (for the row budget: zero rows) stay zero.
        """

    @abstractmethod
    def unit(self, factor: Tensor) -> float:
        """What a relative epsilon of 1 is for a factor."""

    def of(self, factor: Tensor) -> Budget:
        """The budget for one factor: itself, unless what may be spent depends on the factor."""
        return self

    def rounding(self, factor: Tensor) -> float:
        """How far adding a small perturbation to a factor may miss, at worst, in this norm."""
        largest = float(factor.abs().max()) if factor.numel() else 0.0
        return largest * torch.finfo(factor.dtype).eps * math.sqrt(factor.numel() or 1)

    def row_sizes(self, factor: Tensor, epsilon: float) -> Tensor:
        """How far each row may move, or about does where one budget is shared by all rows."""
        shared = torch.linalg.vector_norm(self.scale(torch.ones_like(factor), epsilon), dim=1)
        sizes: Tensor = shared
        return sizes


class RowBudget(Budget):
    """Every row at most epsilon in the Euclidean norm: one budget for each user and item.

    This is the setting of He et al. (2018), and the default. A relative epsilon of 1 is the
    median row norm.

    Example:
        >>> delta = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
        >>> RowBudget().measure(delta), RowBudget().project(delta, 1.0).tolist()[0]
        (5.0, [0.6000000238418579, 0.800000011920929])
    """

    name = "row"
    by_row = True

    def measure(self, delta: Tensor) -> float:
        """The largest row norm."""
        return float(_row_norms(delta).max()) if len(delta) else 0.0

    def project(self, delta: Tensor, epsilon: float) -> Tensor:
        """Shorten the rows that are too long."""
        norms = _row_norms(delta)
        return delta * torch.where(norms > epsilon, epsilon / norms, 1.0).to(delta.dtype)[:, None]

    def scale(self, direction: Tensor, epsilon: float) -> Tensor:
        """Each row to length epsilon."""
        norms = _row_norms(direction)
        factor = torch.where(norms > 0, epsilon / norms, 0.0)
        return (direction.double() * factor[:, None]).to(direction.dtype)

    def unit(self, factor: Tensor) -> float:
        """The median row norm."""
        return float(_row_norms(factor).median()) if len(factor) else 0.0


class OwnRowBudget(RowBudget):
    """Every row at most epsilon times its own length.

    The median row norm is small for long rows, which rank first: relative to it, factors with a
    long tail look more robust than they are. Here every row has a share of its own, and scaling
    single users changes nothing. Rows of length 0 may not move.

    Args:
        lengths: of the rows of the factor; None until :meth:`of` has been asked.

    Example:
        >>> factor = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
        >>> budget = OwnRowBudget().of(factor)
        >>> round(budget.measure(torch.tensor([[1.0, 0.0], [0.0, 0.2]])), 6)
        0.4
    """

    name = "own row"

    def __init__(self, lengths: Tensor | None = None) -> None:
        """Keep the lengths, in float64."""
        self.lengths = lengths

    def of(self, factor: Tensor) -> OwnRowBudget:
        """The budget for this factor."""
        return OwnRowBudget(_row_norms(factor))

    def _own(self, rows: Tensor) -> Tensor:
        if self.lengths is None or len(self.lengths) != len(rows):
            known = "no factor yet" if self.lengths is None else f"{len(self.lengths)} rows"
            raise InputError(
                f"a budget relative to each row's own length knows {known}, and was asked about "
                f"{len(rows)}: use budget.of(factor)"
            )
        return self.lengths.to(rows.device)

    def measure(self, delta: Tensor) -> float:
        """The largest row norm, each in lengths of its row; infinite where a zero row moved."""
        norms, lengths = _row_norms(delta), self._own(delta)
        shares = torch.where(norms == 0, 0.0, norms / lengths)
        return float(shares.max()) if len(shares) else 0.0

    def project(self, delta: Tensor, epsilon: float) -> Tensor:
        """Shorten the rows that are too long."""
        norms, most = _row_norms(delta), epsilon * self._own(delta)
        return delta * torch.where(norms > most, most / norms, 1.0).to(delta.dtype)[:, None]

    def scale(self, direction: Tensor, epsilon: float) -> Tensor:
        """Each row to epsilon times its own length."""
        norms, most = _row_norms(direction), epsilon * self._own(direction)
        factor = torch.where(norms > 0, most / norms, 0.0)
        return (direction.double() * factor[:, None]).to(direction.dtype)

    def rounding(self, factor: Tensor) -> float:
        """The same in lengths of a row, whose entries are no larger than that."""
        return torch.finfo(factor.dtype).eps * math.sqrt(factor.shape[1])

    def unit(self, factor: Tensor) -> float:
        """1: what a row may spend is in its own length already."""
        return 1.0


class FrobeniusBudget(Budget):
    """The whole perturbation at most epsilon in the Frobenius norm: one budget for all rows.

    A relative epsilon of 1 is the norm of the factor.

    Example:
        >>> FrobeniusBudget().measure(torch.tensor([[3.0], [4.0]]))
        5.0
    """

    name = "frobenius"

    def measure(self, delta: Tensor) -> float:
        """The square root of the sum of squares."""
        return float(delta.double().norm())

    def project(self, delta: Tensor, epsilon: float) -> Tensor:
        """Shrink all of it if it is too large."""
        size = self.measure(delta)
        return delta if size <= epsilon else delta * (epsilon / size)

    def scale(self, direction: Tensor, epsilon: float) -> Tensor:
        """All of it to norm epsilon."""
        size = self.measure(direction)
        return direction * (epsilon / size) if size > 0 else torch.zeros_like(direction)

    def unit(self, factor: Tensor) -> float:
        """The norm of the factor."""
        return self.measure(factor)


class SpectralBudget(Budget):
    """The largest singular value at most epsilon: the literal reading of a matrix 2-norm.

    A relative epsilon of 1 is the largest singular value of the factor.

    Cost: one Gram matrix of dim x dim, never a decomposition of the tall factor.

    Example:
        >>> round(SpectralBudget().measure(torch.tensor([[3.0, 0.0], [0.0, 4.0]])), 6)
        4.0
    """

    name = "spectral"

    def measure(self, delta: Tensor) -> float:
        """The largest singular value."""
        values, _ = _gram_eigen(delta)
        return float(values[-1]) if len(values) else 0.0

    def project(self, delta: Tensor, epsilon: float) -> Tensor:
        """Clip the singular values."""
        values, vectors = _gram_eigen(delta)
        shrink = torch.where(values > epsilon, epsilon / values, 1.0)
        clipped: Tensor = delta.double() @ (vectors * shrink) @ vectors.mT
        return clipped.to(delta.dtype)

    def scale(self, direction: Tensor, epsilon: float) -> Tensor:
        """All of it to spectral norm epsilon."""
        size = self.measure(direction)
        return direction * (epsilon / size) if size > 0 else torch.zeros_like(direction)

    def unit(self, factor: Tensor) -> float:
        """The largest singular value of the factor."""
        return self.measure(factor)


def unevenness(factor: Tensor) -> float | None:
    """How far the median row norm is from standing for all rows: root mean square over median.

    It is 1 where all rows are equally long. Far above, a relative epsilon of the row budget is
    small for the long rows, which rank first, and a curve looks better than it is: compare such
    factors by the Frobenius budget, whose unit counts every row. None where the median is 0.

    Example:
        >>> unevenness(torch.tensor([[1.0], [1.0], [7.0]]))
        4.123105625617661
    """
    norms = _row_norms(factor)
    middle = float(norms.median()) if len(norms) else 0.0
    return float(norms.square().mean().sqrt()) / middle if middle > 0 else None


def _row_norms(matrix: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(matrix.double(), dim=1)
    return norms


def _gram_eigen(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Singular values, ascending, and right singular vectors, by the small Gram matrix."""
    wide = matrix.double()
    values, vectors = torch.linalg.eigh(wide.mT @ wide)
    return values.clamp_min(0).sqrt(), vectors


BUDGETS: dict[str, type[Budget]] = {
    budget.name: budget for budget in (RowBudget, FrobeniusBudget, SpectralBudget)
}
