"""The wrapper that counts: no estimator can spend a product that is not on its bill."""

from __future__ import annotations

import torch
from torch import Tensor

from robustcf.errors import InputError, RobustcfError
from robustcf.estimators.operators import MatrixLike, Operator, as_operator, rows_by_products


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
