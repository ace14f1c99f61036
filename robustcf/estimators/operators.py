"""What an operator is, and the adapters that make one out of ordinary matrices.

An operator is five things: ``shape``, ``dtype``, ``device``, ``matmat(X)`` and ``rmatmat(Y)``,
where ``rmatmat`` multiplies by the conjugate transpose. Products take and give torch tensors
with one vector a column, in the operator's dtype. Any object with these five is an operator;
the classes here add what can be had cheaper than by products (single rows, all row norms).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from robustcf.errors import InputError, RobustcfError
from robustcf.estimators.numerics import blocks, row_norms

if TYPE_CHECKING:
    from collections.abc import Callable


@runtime_checkable
class Operator(Protocol):
    """The whole protocol: a d x n matrix known by its products."""

    @property
    def shape(self) -> tuple[int, int]:
        """(d, n)."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Of the vectors taken and given."""
        ...

    @property
    def device(self) -> torch.device:
        """Where they live."""
        ...

    def matmat(self, X: Tensor, /) -> Tensor:
        """A X, one vector a column."""
        ...

    def rmatmat(self, Y: Tensor, /) -> Tensor:
        """A^H Y, one vector a column."""
        ...


MatrixLike: TypeAlias = Any
"""An operator, tensor, ndarray, scipy sparse matrix or LinearOperator: see `as_operator`."""

_HALF = (torch.float16, torch.bfloat16)


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype products are made in: halves go up to float32, integers to float64."""
    if dtype in _HALF:
        return torch.float32
    if dtype.is_floating_point or dtype in (torch.complex64, torch.complex128):
        return dtype
    if dtype.is_complex:  # complex32
        return torch.complex64
    return torch.float64


class Matrix:
    """Base of the operators here: algebra (``@``, ``+``, ``.H``) and a default for rows.

    ``numpy`` remembers that the matrix came from numpy or scipy, so that results go back there.
    """

    shape: tuple[int, int]
    dtype: torch.dtype
    device: torch.device
    numpy: bool = False

    def matmat(self, X: Tensor, /) -> Tensor:
        """A X, one vector a column."""
        raise NotImplementedError

    def rmatmat(self, Y: Tensor, /) -> Tensor:
        """A^H Y, one vector a column."""
        raise NotImplementedError

    def rows(self, index: Tensor) -> Tensor:
        """The rows named by ``index``, k x n: as dear as k products with A^H."""
        return rows_by_products(self, index)

    def row_norms(self) -> Tensor | None:
        """All row norms in float64 if they are cheaper than products would be, else None."""
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


def rows_by_products(operator: Operator, index: Tensor) -> Tensor:
    """Rows of any operator, by products of A^H with unit vectors."""
    d = operator.shape[0]
    units = torch.zeros(d, len(index), dtype=operator.dtype, device=operator.device)
    units[index, torch.arange(len(index), device=index.device)] = 1
    return operator.rmatmat(units).mH


def as_operator(A: MatrixLike) -> Operator:
    """Wrap a matrix as an operator; operators pass through.

    Returns:
        An operator on the matrix's own device. No copy of a dense matrix is made.

    Example:
        >>> as_operator(np.eye(3)).shape
        (3, 3)
    """
    from robustcf.estimators import sparse

    if isinstance(A, Matrix):
        return A
    if isinstance(A, torch.Tensor):
        return Dense(A) if A.layout is torch.strided else sparse.TorchSparse(A)
    if isinstance(A, np.ndarray):
        return Dense(A)
    # An instance of a scipy class cannot exist before scipy is loaded, so it is never loaded here.
    scipy_sparse = sys.modules.get("scipy.sparse")
    if scipy_sparse is not None and scipy_sparse.issparse(A):
        return sparse.ScipySparse(A)
    scipy_linalg = sys.modules.get("scipy.sparse.linalg")
    if scipy_linalg is not None and isinstance(A, scipy_linalg.LinearOperator):
        return sparse.ScipyLinear(A)
    if isinstance(A, Operator):
        _check_shape(A.shape)
        return A
    raise InputError(
        "expected a matrix (tensor, ndarray, scipy sparse, LinearOperator) or an object with "
        f"shape, dtype, device, matmat and rmatmat, got {type(A).__name__}: wrap two functions "
        "with FunctionOperator"
    )


def _check_shape(shape: Any) -> tuple[int, int]:
    if len(shape) != 2 or any(int(side) < 0 for side in shape):
        raise InputError(
            f"expected a matrix with two dimensions, got shape {tuple(shape)}: reshape it first"
        )
    return int(shape[0]), int(shape[1])


def tensor_of(array: Any) -> tuple[Tensor, bool]:
    """A tensor that shares the array's memory where it can, and whether it came from numpy."""
    if isinstance(array, torch.Tensor):
        return array, False
    array = np.asarray(array)
    if array.dtype.kind not in "fciub":
        raise InputError(f"expected numbers, got an array of {array.dtype}: convert it to float64")
    if array.dtype.char in "gG":  # long double: torch has none
        array = array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
    native = array.dtype.newbyteorder("=")
    usable = array.flags.writeable and all(step >= 0 for step in array.strides)
    if array.dtype.kind in "iub":
        native = np.dtype(np.float64)
    return torch.from_numpy(np.array(array, dtype=native, copy=None if usable else True)), True


class Dense(Matrix):
    """A matrix held as a tensor or ndarray.

    Half precision is multiplied in float32, block of rows by block, since sums of halves overflow
    at 65504; the matrix itself stays as it is.
    """

    def __init__(self, A: Tensor | np.ndarray[Any, Any]) -> None:
        self._A, self.numpy = tensor_of(A)
        self.shape = _check_shape(self._A.shape)
        self.dtype = working_dtype(self._A.dtype)
        self.device = self._A.device
        if self._A.dtype != self.dtype and self._A.dtype not in _HALF:
            self._A = self._A.to(self.dtype)

    def matmat(self, X: Tensor, /) -> Tensor:
        """A X."""
        if self._A.dtype == self.dtype:
            return self._A @ X
        return torch.cat([block.to(self.dtype) @ X for block in blocks(self._A, 4096)])

    def rmatmat(self, Y: Tensor, /) -> Tensor:
        """A^H Y."""
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
        """Rows, read off."""
        return self._A[index].to(self.dtype)

    def row_norms(self) -> Tensor:
        """All row norms, block by block in float64."""
        if not self.shape[0]:
            return torch.zeros(0, dtype=torch.float64, device=self.device)
        step = max(1, 2**22 // max(1, self.shape[1]))
        return torch.cat([row_norms(block) for block in blocks(self._A, step)])


class FunctionOperator(Matrix):
    """An operator made of two functions, X -> A X and Y -> A^H Y.

    Args:
        shape: (d, n).
        matmat: multiplies a matrix with n rows.
        rmatmat: multiplies a matrix with d rows by the conjugate transpose.
        dtype: a torch dtype (the functions see tensors) or a numpy dtype (they see ndarrays).
        device: where the tensors live; ndarrays live on the CPU.

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
        self.shape = _check_shape(shape)
        self.device = torch.device(device)
        self.numpy = not isinstance(dtype, torch.dtype)
        if isinstance(dtype, torch.dtype):
            self.dtype = dtype
        else:
            self.dtype = torch.from_numpy(np.empty(0, dtype=dtype)).dtype
        if not (self.dtype.is_floating_point or self.dtype.is_complex):
            raise InputError(f"dtype must be real or complex floating point, got {dtype}")
        self._matmat, self._rmatmat = matmat, rmatmat

    def _call(self, function: Callable[[Any], Any], X: Tensor, rows: int, name: str) -> Tensor:
        result = function(X.detach().numpy() if self.numpy else X)
        out = torch.from_numpy(np.ascontiguousarray(result)) if self.numpy else result
        if not isinstance(out, torch.Tensor) or tuple(out.shape) != (rows, X.shape[1]):
            got = tuple(out.shape) if isinstance(out, torch.Tensor) else type(out).__name__
            raise InputError(
                f"{name} must return a matrix of shape {(rows, X.shape[1])}, got {got}: "
                "it takes and gives one vector a column"
            )
        return out.to(self.dtype)

    def matmat(self, X: Tensor, /) -> Tensor:
        """A X, by the first function."""
        return self._call(self._matmat, X, self.shape[0], "matmat")

    def rmatmat(self, Y: Tensor, /) -> Tensor:
        """A^H Y, by the second function."""
        return self._call(self._rmatmat, Y, self.shape[1], "rmatmat")


class BudgetExceededError(RobustcfError, RuntimeError):
    """A method asked for more products than it was given: a defect of the method."""


class Counted:
    """An operator that counts its products, refuses those over budget, and rejects NaN and inf.

    Every vector multiplied by A or by A^H counts one, a row read off counts as one with A^H.

    Example:
        >>> A = Counted(torch.eye(4), budget=5)
        >>> _ = A.matmat(torch.ones(4, 3)), A.rmatmat(torch.ones(4, 2))
        >>> A.products, A.rproducts, A.left
        (3, 2, 0)
    """

    def __init__(self, A: MatrixLike, budget: int | None = None) -> None:
        self.operator: Operator = as_operator(A)
        self.shape = self.operator.shape
        self.dtype = self.operator.dtype
        self.device = torch.device(self.operator.device)
        self.numpy: bool = getattr(self.operator, "numpy", False)
        self.budget = budget
        self.products = 0
        self.rproducts = 0

    @property
    def left(self) -> int:
        """Products that may still be made; a very large number without a budget."""
        spent = self.products + self.rproducts
        return 2**62 if self.budget is None else self.budget - spent

    def _charge(self, number: int) -> None:
        if number > self.left:
            raise BudgetExceededError(
                f"{number} products wanted, {self.left} left: a bug, report it"
            )

    def matmat(self, X: Tensor, /) -> Tensor:
        """A X, counted; a non-finite row of the result is named in the error."""
        self._charge(X.shape[1])
        self.products += X.shape[1]
        result = self.operator.matmat(X)
        if not bool(torch.isfinite(result).all()):
            bad = torch.nonzero(~torch.isfinite(result.detach()).all(dim=1)).flatten()
            raise self._bad_rows(bad)
        return result

    def rmatmat(self, Y: Tensor, /) -> Tensor:
        """A^H Y, counted; a bad row spoils every such product, so it is searched for and named."""
        self._charge(Y.shape[1])
        self.rproducts += Y.shape[1]
        result = self.operator.rmatmat(Y)
        if not bool(torch.isfinite(result).all()):
            raise self._find_bad_rows()
        return result

    def rows(self, index: Tensor) -> Tensor:
        """Rows of A, k x n, for k products with A^H."""
        self._charge(len(index))
        self.rproducts += len(index)
        read = getattr(self.operator, "rows", None)
        result: Tensor = read(index) if read else rows_by_products(self.operator, index)
        if not bool(torch.isfinite(result).all()):
            raise self._find_bad_rows()
        return result

    def _find_bad_rows(self) -> InputError:
        # 0 * NaN and 0 * inf are NaN, so A 0 is NaN exactly in the rows at fault.
        zero = torch.zeros(self.shape[1], 1, dtype=self.dtype, device=self.device)
        with torch.no_grad():
            image = self.operator.matmat(zero)
        return self._bad_rows(torch.nonzero(~torch.isfinite(image[:, 0])).flatten())

    def _bad_rows(self, bad: Tensor) -> InputError:
        return bad_rows_error(bad, self.shape[0], self.dtype)


def bad_rows_error(bad: Tensor, rows: int, dtype: torch.dtype) -> InputError:
    """The error that names rows holding NaN or inf."""
    if len(bad) == 0:
        return InputError(
            f"a product overflowed {dtype} though no row holds NaN or inf: "
            "rescale the matrix or use a wider dtype"
        )
    named = ", ".join(str(int(i)) for i in bad[:5]) + (", ..." if len(bad) > 5 else "")
    many = "row" if len(bad) == 1 else "rows"
    return InputError(
        f"expected finite entries, got NaN or inf (or an overflow of {dtype}) in {many} {named} "
        f"of {rows}: repair or drop {'it' if len(bad) == 1 else 'them'}"
    )
