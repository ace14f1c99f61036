"""Budgets of attacks: norms with their projections.

There is no tolerance. Adding a perturbation to a factor rounds, and the factor may move further;
:meth:`Budget.apply` shrinks the perturbation until the rounded factor moves by at most epsilon.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from robustcf.errors import InputError
from robustcf.factors import Factors

LEAST = 2.0**-960  # shorter lengths count as 0: such norms lose digits, in float64 too
_HEADROOM = 2.0**-32  # scores of attacked factors stay below this share of the dtype's range
_ATTEMPTS = 64  # after so many halvings a perturbation is lost in rounding


class Budget(ABC):
    """A norm on perturbations of one factor, as a ball of radius epsilon."""

    name: str = ""
    by_row: bool = False  # whether every row has a budget of its own

    @abstractmethod
    def measure(self, delta: Tensor) -> float:
        """Return the size of a perturbation."""

    @abstractmethod
    def project(self, delta: Tensor, epsilon: float) -> Tensor:
        """Return the nearest perturbation (in the Frobenius norm) within the budget."""

    @abstractmethod
    def scale(self, direction: Tensor, epsilon: float) -> Tensor:
        """Return ``epsilon * G / ||G||`` in this norm; zero directions (or rows) stay zero."""

    @abstractmethod
    def unit(self, factor: Tensor) -> float:
        """Return the absolute size of a relative epsilon of 1."""

    def of(self, factor: Tensor) -> Budget:
        """Return the budget for one factor: itself, unless it depends on the factor."""
        return self

    def apply(self, factor: Tensor, delta: Tensor, epsilon: float) -> Tensor:
        """Return ``factor + delta``, with delta shrunk until the move is within the budget.

        The move is the difference of the rounded sum and the factor, measured in float64, and is
        within epsilon by any order of summation.

        Cost: one pass over the factor, and another for each time it has to be shrunk.
        """
        strict = _strictly(epsilon, factor.numel())
        for attempt in range(_ATTEMPTS):
            moved = factor + delta
            over = self.measure(moved.double() - factor.double()) / strict - 1
            if not over > 0:
                return moved
            delta = delta * max(0.5, 1 - 2**attempt * over)
        return factor.clone()

    def reach(self, factor: Tensor, epsilon: float) -> float:
        """Return the greatest length that a row of the factor may reach."""
        return RowBudget().measure(factor) + epsilon

    def row_sizes(self, factor: Tensor, epsilon: float) -> Tensor:
        """Return how far each row may move; an estimate if rows share one budget."""
        moves = self.scale(torch.ones_like(factor), epsilon)
        sizes: Tensor = torch.linalg.vector_norm(moves, dim=1)
        return sizes


class RowBudget(Budget):
    """Every row at most epsilon in the Euclidean norm; a relative epsilon of 1 is the median row.

    The setting of He et al. (2018, arXiv:1808.03908).

    Example:
        >>> delta = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
        >>> RowBudget().measure(delta), RowBudget().project(delta, 1.0).tolist()[0]
        (5.0, [0.6000000238418579, 0.800000011920929])
    """

    name = "row"
    by_row = True

    def measure(self, delta: Tensor) -> float:
        """Return the largest row norm."""
        return float(row_norms(delta).max()) if len(delta) else 0.0

    def project(self, delta: Tensor, epsilon: float) -> Tensor:
        """Shorten rows that are too long."""
        norms, most = row_norms(delta), self._most(delta, epsilon)
        return delta * torch.where(norms > most, most / norms, 1.0).to(delta.dtype)[:, None]

    def scale(self, direction: Tensor, epsilon: float) -> Tensor:
        """Scale each row to its budget; rows of length about 0 have no direction."""
        ratios = self._most(direction, epsilon) / row_norms(direction)
        ratios = torch.where(torch.isfinite(ratios), ratios, 0.0)
        return (direction.double() * ratios[:, None]).to(direction.dtype)

    def apply(self, factor: Tensor, delta: Tensor, epsilon: float) -> Tensor:
        """Return ``factor + delta``, each row of delta shrunk until its move is within budget."""
        moved = factor + delta
        strict = _strictly(self._most(factor, epsilon), factor.shape[1])
        rows = torch.arange(len(factor), device=factor.device)
        for attempt in range(_ATTEMPTS + 1):
            norms = row_norms(moved[rows].double() - factor[rows].double())
            too_far = norms > strict[rows]
            over = norms[too_far] / strict[rows][too_far] - 1
            rows = rows[too_far]
            if len(rows) == 0:
                break
            kept = torch.clamp(1 - 2**attempt * over, 0.5, 1.0)
            kept = kept if attempt < _ATTEMPTS else torch.zeros_like(kept)
            delta = delta.clone() if attempt == 0 else delta
            delta[rows] = (delta[rows].double() * kept[:, None]).to(delta.dtype)
            moved[rows] = factor[rows] + delta[rows]
        return moved

    def _most(self, rows: Tensor, epsilon: float) -> Tensor:
        """How far each row may move, in float64."""
        return torch.full((len(rows),), epsilon, dtype=torch.float64, device=rows.device)

    def unit(self, factor: Tensor) -> float:
        """Return the median row norm."""
        return float(row_norms(factor).median()) if len(factor) else 0.0


class OwnRowBudget(RowBudget):
    """Every row at most epsilon times its own length.

    The median row norm is small for long rows, which rank first: relative to it, factors with a
    long tail look more robust than they are. Rows of length 0 may not move.

    Args:
        lengths: row norms of the factor in float64, set by :meth:`of`.

    Example:
        >>> factor = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
        >>> budget = OwnRowBudget().of(factor)
        >>> round(budget.measure(torch.tensor([[1.0, 0.0], [0.0, 0.2]])), 6)
        0.4
    """

    name = "own row"

    def __init__(self, lengths: Tensor | None = None) -> None:
        self.lengths = lengths

    def of(self, factor: Tensor) -> OwnRowBudget:
        """Return the budget for this factor."""
        lengths = row_norms(factor)
        return OwnRowBudget(torch.where(lengths < LEAST, 0.0, lengths))

    def _own(self, rows: Tensor) -> Tensor:
        if self.lengths is None or len(self.lengths) != len(rows):
            known = "no factor" if self.lengths is None else f"{len(self.lengths)} rows"
            raise InputError(
                f"a budget of own row lengths was made for {known}, got {len(rows)} rows: use "
                "budget.of(factor)"
            )
        return self.lengths.to(rows.device)

    def measure(self, delta: Tensor) -> float:
        """Return the largest row norm, in lengths of the row; infinite where a zero row moved."""
        norms, lengths = row_norms(delta), self._own(delta)
        shares = torch.where(norms == 0, 0.0, norms / lengths)
        return float(shares.max()) if len(shares) else 0.0

    def reach(self, factor: Tensor, epsilon: float) -> float:
        """Return the greatest length that a row of the factor may reach."""
        return super().measure(factor) * (1 + epsilon)

    def _most(self, rows: Tensor, epsilon: float) -> Tensor:
        return epsilon * self._own(rows)

    def unit(self, factor: Tensor) -> float:
        """Return 1: sizes are in row lengths already."""
        return 1.0


class _WholeBudget(Budget):
    """One budget for all rows; a relative epsilon of 1 is the norm of the factor itself."""

    def scale(self, direction: Tensor, epsilon: float) -> Tensor:
        """Scale to norm epsilon."""
        size = self.measure(direction)
        return torch.zeros_like(direction) if size == 0 else _times(direction, epsilon / size)

    def unit(self, factor: Tensor) -> float:
        """Return the norm of the factor."""
        return self.measure(factor)


class FrobeniusBudget(_WholeBudget):
    """The whole perturbation at most epsilon in the Frobenius norm."""

    name = "frobenius"

    def measure(self, delta: Tensor) -> float:
        """Return the square root of the sum of squares."""
        unit = _power_of_two(delta)
        return float((delta.double() / unit).norm()) * unit

    def project(self, delta: Tensor, epsilon: float) -> Tensor:
        """Shrink to norm epsilon if larger."""
        size = self.measure(delta)
        return delta if size <= epsilon else delta * (epsilon / size)


class SpectralBudget(_WholeBudget):
    """The largest singular value at most epsilon: the literal reading of a matrix 2-norm.

    Cost: one Gram matrix of dim x dim, never a decomposition of the tall factor.

    Example:
        >>> round(SpectralBudget().measure(torch.tensor([[3.0, 0.0], [0.0, 4.0]])), 6)
        4.0
    """

    name = "spectral"

    def measure(self, delta: Tensor) -> float:
        """Return the largest singular value."""
        values, _ = _gram_eigen(delta)
        return float(values[-1]) if len(values) else 0.0

    def project(self, delta: Tensor, epsilon: float) -> Tensor:
        """Clip the singular values."""
        values, vectors = _gram_eigen(delta)
        shrink = torch.where(values > epsilon, epsilon / values, 1.0)
        clipped: Tensor = delta.double() @ (vectors * shrink) @ vectors.mT
        return clipped.to(delta.dtype)


def unevenness(factor: Tensor) -> float | None:
    """Return the root mean square of the row norms over their median; None where that is 0.

    It is 1 for rows of equal length. If it is far above, a relative epsilon of the row budget is
    small for the long rows, which rank first: compare such factors by the Frobenius budget.

    Example:
        >>> unevenness(torch.tensor([[1.0], [1.0], [7.0]]))
        4.123105625617661
    """
    middle = RowBudget().unit(factor)
    return float(row_norms(factor).square().mean().sqrt()) / middle if middle > 0 else None


def check_reach(factors: Factors, reaches: tuple[float, float], epsilon: float) -> None:
    """Raise if scores of rows as long as ``reaches`` (see :meth:`Budget.reach`) may overflow."""
    own = torch.finfo(factors.users.dtype)
    # Half precision is widened before scores are computed.
    wide = own if own.bits >= 32 else torch.finfo(torch.float32)
    if max(reaches) >= own.max or reaches[0] * reaches[1] >= wide.max * _HEADROOM:
        raise InputError(
            f"an attack of size {epsilon:g} makes embeddings or scores larger than "
            f"{str(factors.users.dtype).removeprefix('torch.')} can hold: use smaller sizes"
        )


def _strictly(epsilon: Any, terms: int) -> Any:
    """Epsilon less the rounding error of a norm of so many terms, in any order."""
    return epsilon * (1 - (terms + 16) * 2.0**-52)


def _times(direction: Tensor, ratio: float) -> Tensor:
    """The product, in float64 if the ratio overflows the dtype."""
    if ratio < torch.finfo(direction.dtype).max:
        return direction * ratio
    return (direction.double() * min(ratio, sys.float_info.max)).to(direction.dtype)


def _power_of_two(matrix: Tensor) -> float:
    """1, or a power of two near the largest entry if squares leave the range of float64."""
    largest = float(matrix.abs().max()) if matrix.numel() else 0.0
    if largest == 0 or not math.isfinite(largest) or 1e-130 < largest < 1e130:
        return 1.0
    return 2.0 ** max(-1020, math.frexp(largest)[1] - 1)


def row_norms(matrix: Tensor) -> Tensor:
    """Return the row norms in float64, without overflow or underflow."""
    unit = _power_of_two(matrix)
    norms: Tensor = torch.linalg.vector_norm(matrix.double() / unit, dim=1) * unit
    return norms


def _gram_eigen(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Singular values, ascending, and right singular vectors, by the small Gram matrix."""
    unit = _power_of_two(matrix)
    wide = matrix.double() / unit
    gram = wide.mT @ wide
    if not bool(torch.isfinite(gram).all()):  # the attack raises the error
        return torch.full_like(gram[0], torch.nan), gram
    values, vectors = torch.linalg.eigh(gram)
    return values.clamp_min(0).sqrt() * unit, vectors


BUDGETS: dict[str, type[Budget]] = {
    "row": RowBudget,
    "frobenius": FrobeniusBudget,
    "spectral": SpectralBudget,
}
