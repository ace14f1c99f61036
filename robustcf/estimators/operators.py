"""Operators, matrices known by their products, and adapters for ordinary matrices.

Products take and give torch tensors with one vector per column, in the operator's dtype. Any object
with the five names of :class:`Operator` is one; the classes here add cheap rows and row norms.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from robustcf.errors import InputError, RobustcfError
from robustcf.estimators.numerics import blocks, row_norms, wide_dtype

if TYPE_CHECKING:
    from collections.abc import Callable


@runtime_checkable
class Operator(Protocol):
    """The whole protocol: a d x n matrix known by its products."""

    @property
    def shape(self) -> tuple[int, int]:
        """(d, n)."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of vectors."""

    @property
    def device(self) -> torch.device:
        """The device of vectors."""

    def matmat(self, X: Tensor, /) -> Tensor:
        """Return A X."""

    def rmatmat(self, Y: Tensor, /) -> Tensor:
        """Return A^H Y, the product with the conjugate transpose."""


MatrixLike: TypeAlias = Any
"""An operator, tensor, ndarray, scipy sparse matrix or LinearOperator: see `as_operator`."""

_HALF = (torch.float16, torch.bfloat16)


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of products: halves go up to float32, integers to float64."""
    if dtype in _HALF:
        return torch.float32
    if dtype is torch.complex32:
        return torch.complex64
    return dtype if dtype.is_floating_point or dtype.is_complex else torch.float64


class Matrix:
    """Base of the operators here: algebra (``@``, ``+``, ``.H``) and a default for rows.

    ``numpy`` is True for matrices from numpy or scipy, whose results are Python floats.
    """

    shape: tuple[int, int]
    dtype: torch.dtype
    device: torch.device
    numpy: bool = False

    def matmat(self, X: Tensor, /) -> Tensor:
        """Return A X."""
        raise NotImplementedError

    def rmatmat(self, Y: Tensor, /) -> Tensor:
        """Return A^H Y."""
        raise NotImplementedError

    def rows(self, index: Tensor) -> Tensor:
        """Return the rows named by ``index``, k x n, for k products with A^H."""
        return rows_by_products(self, index)

    def row_norms(self) -> Tensor | None:
        """Return all row norms in float64 if they need no products, else None."""
        return None

    @property
    def H(self) -> Matrix:
        """The conjugate transpose, as an operator."""
        return Adjoint(self)

    def __matmul__(self, other: MatrixLike) -> Matrix:
        return Product(self, other)

    def __add__(self, other: MatrixLike) -> Matrix:
        return Sum(self, other)


class Adjoint(Matrix):
    """The conjugate transpose A^H of an operator."""

    def __init__(self, A: MatrixLike) -> None:
        self._A = as_operator(A)
        self.shape = (self._A.shape[1], self._A.shape[0])
        self.dtype, self.device = self._A.dtype, self._A.device
        self.numpy = getattr(self._A, "numpy", False)

    def matmat(self, X: Tensor, /) -> Tensor:
        """Return A^H X."""
        return self._A.rmatmat(X)

    def rmatmat(self, Y: Tensor, /) -> Tensor:
        """Return A Y."""
        return self._A.matmat(Y)

    @property
    def H(self) -> Matrix:
        """A itself."""
        return self._A if isinstance(self._A, Matrix) else Adjoint(self)


class _Pair(Matrix):
    """Two operators on one device, multiplied in their common dtype."""

    def __init__(self, A: MatrixLike, B: MatrixLike) -> None:
        A, B = self._A, self._B = as_operator(A), as_operator(B)
        if A.device != B.device:
            raise InputError(f"expected operators on one device, got {A.device} and {B.device}")
        self.device, self.dtype = A.device, torch.promote_types(A.dtype, B.dtype)
        self.numpy = getattr(A, "numpy", False) and getattr(B, "numpy", False)


class Product(_Pair):
    """A B, never formed: one product costs one with each factor."""

    def __init__(self, A: MatrixLike, B: MatrixLike) -> None:
        super().__init__(A, B)
        (d, inner), (other, n) = self._A.shape, self._B.shape
        if inner != other:
            raise InputError(f"expected equal inner sides, got {d} x {inner} and {other} x {n}")
        self.shape = (d, n)

    def matmat(self, X: Tensor, /) -> Tensor:
        """Return A (B X)."""
        return _apply(self._A, _apply(self._B, X, False), False).to(self.dtype)

    def rmatmat(self, Y: Tensor, /) -> Tensor:
        """Return B^H (A^H Y)."""
        return _apply(self._B, _apply(self._A, Y, True), True).to(self.dtype)


class Sum(_Pair):
    """A + B, never formed."""

    def __init__(self, A: MatrixLike, B: MatrixLike) -> None:
        super().__init__(A, B)
        if self._A.shape != self._B.shape:
            raise InputError(f"expected equal shapes, got {self._A.shape} and {self._B.shape}")
        self.shape = self._A.shape

    def matmat(self, X: Tensor, /) -> Tensor:
        """Return A X + B X."""
        return (_apply(self._A, X, False) + _apply(self._B, X, False)).to(self.dtype)

    def rmatmat(self, Y: Tensor, /) -> Tensor:
        """Return A^H Y + B^H Y."""
        return (_apply(self._A, Y, True) + _apply(self._B, Y, True)).to(self.dtype)


def _apply(operator: Operator, X: Tensor, adjoint: bool) -> Tensor:
    """One product in the operator's own dtype; complex vectors meet real operators in two parts."""
    product = operator.rmatmat if adjoint else operator.matmat
    if X.is_complex() and not operator.dtype.is_complex:
        parts = product(torch.cat([X.real, X.imag], dim=1).to(operator.dtype))
        return torch.complex(parts[:, : X.shape[1]], parts[:, X.shape[1] :])
    return product(X.to(operator.dtype))


def unit_vectors(operator: Operator | Counted, side: int, index: Tensor) -> Tensor:
    """Return the unit vectors e_i, i in ``index``, of length ``side``, as columns."""
    units = torch.zeros(side, len(index), dtype=operator.dtype, device=operator.device)
    units[index, torch.arange(len(index), device=index.device)] = 1
    return units


def rows_by_products(operator: Operator, index: Tensor) -> Tensor:
    """Return rows of any operator, by products of A^H with unit vectors."""
    return operator.rmatmat(unit_vectors(operator, operator.shape[0], index)).mH


def as_operator(A: MatrixLike) -> Operator:
    """Wrap a matrix as an operator on its own device; operators pass through.

    No copy of a dense matrix is made.

    Example:
        >>> as_operator(np.eye(3)).shape
        (3, 3)
    """
    from robustcf.estimators import sparse

    if isinstance(A, Matrix):
        return A
    if isinstance(A, torch.Tensor) and A.layout is not torch.strided:
        return sparse.TorchSparse(A)
    if isinstance(A, torch.Tensor | np.ndarray):
        return Dense(A)
    # An instance of a scipy class cannot exist before scipy is loaded, so it is never loaded here.
    scipy_sparse = sys.modules.get("scipy.sparse")
    if scipy_sparse is not None and scipy_sparse.issparse(A):
        return sparse.ScipySparse(A)
    scipy_linalg = sys.modules.get("scipy.sparse.linalg")
    if scipy_linalg is not None and isinstance(A, scipy_linalg.LinearOperator):
        kind = np.dtype(A.dtype if A.dtype is not None else np.float64)
        if kind not in (np.float32, np.float64, np.complex64, np.complex128):
            kind = np.dtype(np.complex128 if kind.kind == "c" else np.float64)
        return FunctionOperator(A.shape, A.matmat, A.rmatmat, kind)
    if isinstance(A, Operator):
        check_shape(A.shape)
        return A
    raise InputError(
        "expected a tensor, ndarray, scipy sparse matrix, LinearOperator or operator, got "
        f"{type(A).__name__}; wrap two products with FunctionOperator, a network that scores users "
        "and items with Scores"
    )


def check_shape(shape: Any) -> tuple[int, int]:
    """Return a shape as two integers, or raise."""
    if len(shape) != 2 or any(int(side) < 0 for side in shape):
        raise InputError(f"expected a matrix with two dimensions, got shape {tuple(shape)}")
    return int(shape[0]), int(shape[1])


def tensor_of(array: Any) -> tuple[Tensor, bool]:
    """Return a tensor, sharing the array's memory if possible, and whether it came from numpy."""
    if isinstance(array, torch.Tensor):
        return array, False
    array = np.asarray(array)
    if array.dtype.kind not in "fciub":
        raise InputError(f"expected numbers, got an array of {array.dtype}: convert it to float64")
    native = array.dtype.newbyteorder("=")
    if array.dtype.kind in "iub" or array.dtype.char in "gG":  # torch has no long double
        native = np.dtype(np.complex128 if array.dtype.kind == "c" else np.float64)
    usable = array.flags.writeable and all(step >= 0 for step in array.strides)
    return torch.from_numpy(np.array(array, dtype=native, copy=None if usable else True)), True


class Dense(Matrix):
    """A matrix held as a tensor or ndarray.

    Half precision is multiplied in float32, by blocks of rows: sums of halves overflow at 65504.
    """

    def __init__(self, A: Tensor | np.ndarray[Any, Any]) -> None:
        self._A, self.numpy = tensor_of(A)
        self.shape = check_shape(self._A.shape)
        self.dtype = working_dtype(self._A.dtype)
        self.device = self._A.device
        if self._A.dtype not in _HALF:
            self._A = self._A.to(self.dtype)

    def matmat(self, X: Tensor, /) -> Tensor:
        """Return A X."""
        if self._A.dtype == self.dtype:
            return self._A @ X
        return torch.cat([block.to(self.dtype) @ X for block in blocks(self._A, 4096)])

    def rmatmat(self, Y: Tensor, /) -> Tensor:
        """Return A^H Y."""
        if self._A.dtype == self.dtype:
            return self._A.mH @ Y
        out = torch.zeros(self.shape[1], Y.shape[1], dtype=self.dtype, device=self.device)
        for block, part in zip(blocks(self._A, 4096), blocks(Y, 4096), strict=True):
            out = out + block.to(self.dtype).mH @ part
        return out

    @property
    def H(self) -> Matrix:
        """The conjugate transpose, a view of the same numbers."""
        adjoint = Dense(self._A.mH)
        adjoint.numpy = self.numpy
        return adjoint

    def rows(self, index: Tensor) -> Tensor:
        """Return rows."""
        return self._A[index].to(self.dtype)

    def row_norms(self) -> Tensor:
        """Return all row norms, by blocks."""
        step = max(1, 2**22 // max(1, self.shape[1]))
        none = torch.zeros(0, dtype=torch.float64, device=self.device)
        return torch.cat([none, *(row_norms(block) for block in blocks(self._A, step))])


class FunctionOperator(Matrix):
    """An operator made of two functions, X -> A X and Y -> A^H Y.

    Args:
        shape: (d, n).
        matmat: multiplies a matrix with n rows.
        rmatmat: multiplies a matrix with d rows by the conjugate transpose.
        dtype: a torch dtype (the functions see tensors) or a numpy dtype (they see ndarrays).

    Example:
        >>> shift = FunctionOperator((3, 3), lambda X: X.roll(1, 0), lambda Y: Y.roll(-1, 0))
        >>> shift.matmat(torch.eye(3, dtype=torch.float64))[0].tolist()
        [0.0, 0.0, 1.0]
    """

    def __init__(
        self,
        shape: tuple[int, int],
        matmat: Callable[[Any], Any],
        rmatmat: Callable[[Any], Any],
        dtype: torch.dtype | np.dtype[Any] | type = torch.float64,
        device: torch.device | str = "cpu",
    ) -> None:
        self.shape = check_shape(shape)
        self.device = torch.device(device)
        self.numpy = not isinstance(dtype, torch.dtype)
        self.dtype = dtype if isinstance(dtype, torch.dtype) else torch_dtype(dtype)
        if not (self.dtype.is_floating_point or self.dtype.is_complex):
            raise InputError(f"dtype must be real or complex floating point, got {dtype}")
        self._matmat, self._rmatmat = matmat, rmatmat

    def _call(self, function: Callable[[Any], Any], X: Tensor, rows: int, name: str) -> Tensor:
        out = function(X.detach().resolve_conj().numpy() if self.numpy else X)
        if self.numpy:
            out = torch.from_numpy(np.ascontiguousarray(out))
        if not isinstance(out, torch.Tensor) or tuple(out.shape) != (rows, X.shape[1]):
            got = tuple(out.shape) if isinstance(out, torch.Tensor) else type(out).__name__
            raise InputError(f"{name} must return shape {(rows, X.shape[1])}, got {got}")
        return out.to(self.dtype)

    def matmat(self, X: Tensor, /) -> Tensor:
        """Return A X, by the first function."""
        return self._call(self._matmat, X, self.shape[0], "matmat")

    def rmatmat(self, Y: Tensor, /) -> Tensor:
        """Return A^H Y, by the second function."""
        return self._call(self._rmatmat, Y, self.shape[1], "rmatmat")


def torch_dtype(dtype: Any) -> torch.dtype:
    """Return the torch dtype of a numpy dtype."""
    return torch.from_numpy(np.empty(0, dtype=dtype)).dtype


class BudgetExceededError(RobustcfError, RuntimeError):
    """A method asked for more products than it was given: a defect of the method."""


class Counted:
    """An operator that counts its products, refuses those over budget, and rejects NaN and inf.

    Every vector multiplied by A or A^H counts one; a row that is read counts as one with A^H.
    """

    def __init__(self, A: MatrixLike, budget: int | None = None) -> None:
        self.operator: Operator = as_operator(A)
        self.shape, self.dtype = self.operator.shape, self.operator.dtype
        self.wide = wide_dtype(self.dtype)
        self.device = torch.device(self.operator.device)
        self.numpy: bool = getattr(self.operator, "numpy", False)
        self.budget = budget
        self.products = self.rproducts = 0

    @property
    def left(self) -> int:
        """Products that may still be made; a very large number without a budget."""
        spent = self.products + self.rproducts
        return 2**62 if self.budget is None else self.budget - spent

    def _charge(self, products: int = 0, rproducts: int = 0) -> None:
        wanted = products + rproducts
        if wanted > self.left:
            raise BudgetExceededError(
                f"{wanted} products wanted, {self.left} left: report this bug"
            )
        self.products += products
        self.rproducts += rproducts

    def matmat(self, X: Tensor, /) -> Tensor:
        """Return A X, counted; the error for a non-finite result names its rows."""
        self._charge(products=X.shape[1])
        return self._finite_rows(self.operator.matmat(X))

    def rmatmat(self, Y: Tensor, /) -> Tensor:
        """Return A^H Y, counted; a bad row spoils every such product and is searched for."""
        self._charge(rproducts=Y.shape[1])
        return self._finite(self.operator.rmatmat(Y))

    def rows(self, index: Tensor) -> Tensor:
        """Return rows of A, k x n, for k products with A^H."""
        self._charge(rproducts=len(index))
        read = getattr(self.operator, "rows", None)
        return self._finite(read(index) if read else rows_by_products(self.operator, index))

    def columns(self, index: Tensor) -> Tensor:
        """Return columns of A, d x k, for k products with A."""
        self._charge(products=len(index))
        A = self.operator
        return self._finite_rows((A.H if isinstance(A, Matrix) else Adjoint(A)).rows(index).mH)

    def _finite_rows(self, result: Tensor) -> Tensor:
        if not bool(torch.isfinite(result).all()):
            raise bad_rows_error(result.detach(), self.dtype)
        return result

    def _finite(self, result: Tensor) -> Tensor:
        if bool(torch.isfinite(result).all()):
            return result
        # 0 * NaN and 0 * inf are NaN, so A 0 is NaN exactly in the rows at fault.
        zero = torch.zeros(self.shape[1], 1, dtype=self.dtype, device=self.device)
        raise bad_rows_error(self.operator.matmat(zero).detach(), self.dtype)


def bad_rows_error(values: Tensor, dtype: torch.dtype) -> InputError:
    """Return the error that names rows with NaN or inf, given a column or more of values."""
    bad = torch.nonzero(~torch.isfinite(values).all(dim=1)).flatten().tolist()
    if not bad:
        return InputError(f"a product overflowed {dtype}: rescale the matrix or use a wider dtype")
    named = ", ".join(map(str, bad[:5])) + (", ..." if len(bad) > 5 else "")
    return InputError(
        f"expected finite entries, got NaN or inf (or an overflow of {dtype}) in "
        f"{'row' if len(bad) == 1 else 'rows'} {named} of {len(values)}"
    )
