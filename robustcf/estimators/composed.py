"""Operators made of operators: transposes, products and sums."""

from __future__ import annotations

import torch
from torch import Tensor

from robustcf.errors import InputError
from robustcf.estimators.operators import Matrix, MatrixLike, Operator, as_operator


def _common(parts: tuple[Operator, ...]) -> tuple[torch.dtype, torch.device, bool]:
    devices = {part.device for part in parts}
    if len(devices) > 1:
        raise InputError(
            f"expected operators on one device, got {sorted(map(str, devices))}: move them first"
        )
    dtype = parts[0].dtype
    for part in parts[1:]:
        dtype = torch.promote_types(dtype, part.dtype)
    return dtype, devices.pop(), all(getattr(part, "numpy", False) for part in parts)


def _apply(operator: Operator, X: Tensor, adjoint: bool) -> Tensor:
    """One product in the operator's own dtype; complex vectors meet real operators in two parts."""
    product = operator.rmatmat if adjoint else operator.matmat
    if X.is_complex() and not operator.dtype.is_complex:
        parts = product(torch.cat([X.real, X.imag], dim=1).to(operator.dtype))
        return torch.complex(parts[:, : X.shape[1]], parts[:, X.shape[1] :])
    return product(X.to(operator.dtype))


class Adjoint(Matrix):
    """The conjugate transpose A^H of an operator."""

    def __init__(self, A: MatrixLike) -> None:
        """Swap the two products of ``A``."""
        self._A = as_operator(A)
        self.shape = (self._A.shape[1], self._A.shape[0])
        self.dtype, self.device = self._A.dtype, self._A.device
        self.numpy = getattr(self._A, "numpy", False)

    def matmat(self, X: Tensor, /) -> Tensor:
        """A^H X."""
        return self._A.rmatmat(X)

    def rmatmat(self, Y: Tensor, /) -> Tensor:
        """A Y."""
        return self._A.matmat(Y)

    @property
    def H(self) -> Matrix:
        """Back to A itself."""
        return self._A if isinstance(self._A, Matrix) else Adjoint(self)


class Product(Matrix):
    """A B, never formed: one product costs one with each factor."""

    def __init__(self, A: MatrixLike, B: MatrixLike) -> None:
        """Check that the inner sides agree."""
        self._A, self._B = as_operator(A), as_operator(B)
        if self._A.shape[1] != self._B.shape[0]:
            raise InputError(
                f"expected inner sides to agree, got {self._A.shape} @ {self._B.shape}: "
                "transpose one of them"
            )
        self.shape = (self._A.shape[0], self._B.shape[1])
        self.dtype, self.device, self.numpy = _common((self._A, self._B))

    def matmat(self, X: Tensor, /) -> Tensor:
        """A (B X)."""
        return _apply(self._A, _apply(self._B, X, False), False).to(self.dtype)

    def rmatmat(self, Y: Tensor, /) -> Tensor:
        """B^H (A^H Y)."""
        return _apply(self._B, _apply(self._A, Y, True), True).to(self.dtype)


class Sum(Matrix):
    """A + B, never formed."""

    def __init__(self, A: MatrixLike, B: MatrixLike) -> None:
        """Check that the shapes agree."""
        self._A, self._B = as_operator(A), as_operator(B)
        if self._A.shape != self._B.shape:
            raise InputError(
                f"expected equal shapes, got {self._A.shape} + {self._B.shape}: no broadcasting"
            )
        self.shape = self._A.shape
        self.dtype, self.device, self.numpy = _common((self._A, self._B))

    def matmat(self, X: Tensor, /) -> Tensor:
        """A X + B X."""
        return (_apply(self._A, X, False) + _apply(self._B, X, False)).to(self.dtype)

    def rmatmat(self, Y: Tensor, /) -> Tensor:
        """A^H Y + B^H Y."""
        return (_apply(self._A, Y, True) + _apply(self._B, Y, True)).to(self.dtype)
