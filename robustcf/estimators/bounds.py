"""The paper's sample-complexity statements as functions, and the quantities they speak of.

Norms and gaps are of squares, as in the paper: Delta is the difference of the largest squared row
norm and the next smaller one. Quantities of a matrix are computed exactly, in O(d^2 n) for those
that need A A^H: they are for study, not for use on large matrices.
"""

from __future__ import annotations

import math
import numbers

import torch
from torch import Tensor

from robustcf._checks import check_integer
from robustcf.errors import InputError
from robustcf.estimators.estimate import check_probability
from robustcf.estimators.exact import known_norms, norms_by_products
from robustcf.estimators.numerics import row_norms
from robustcf.estimators.operators import Counted, MatrixLike, as_operator


def gap(A: MatrixLike) -> float:
    """Delta: the largest squared row norm minus the largest smaller one; 0 if all are equal.

    Example:
        >>> gap(torch.diag(torch.tensor([3.0, 2.0, 3.0])))
        5.0
    """
    op = as_operator(A)
    norms = known_norms(op)
    squares = (norms_by_products(Counted(op)) if norms is None else norms) ** 2
    if not len(squares):
        return 0.0
    top = float(squares.max())
    smaller = squares[squares < top]
    return top - float(smaller.max()) if len(smaller) else 0.0


def hutchinson_variance(B: MatrixLike) -> Tensor:
    """Var of one Hutchinson sample of diag(B), entry by entry: sum_{j != i} B_ij^2, B real.

    Example:
        >>> hutchinson_variance(torch.tensor([[5.0, 2.0], [1.0, 7.0]])).tolist()
        [4.0, 1.0]
    """
    dense = _dense(B)
    return (dense - torch.diag(torch.diagonal(dense))).abs().pow(2).sum(dim=1)


def offdiagonal_norm(A: MatrixLike) -> float:
    """||A A^H - diag(A A^H)||_{2->inf}, what the paper's first theorem depends on.

    Example:
        >>> offdiagonal_norm(torch.tensor([[1.0, 0.0], [1.0, 1.0]]))
        1.0
    """
    dense = _dense(A)
    gram = dense @ dense.mH
    norms = row_norms(gram - torch.diag(torch.diagonal(gram)))
    return float(norms.max()) if len(norms) else 0.0


def _dense(A: MatrixLike) -> Tensor:
    op = as_operator(A)
    wide = torch.complex128 if op.dtype.is_complex else torch.float64
    with torch.no_grad():
        eye = torch.eye(op.shape[1], dtype=op.dtype, device=op.device)
        return op.matmat(eye).to(wide)


def twinest_samples(gap: float, delta: float, rows: int, offdiagonal_norm: float) -> int:
    """Least m that theorem 1 (TwINEst oracle complexity) asks for exactness w.p. 1 - delta.

    m > 8 log(2 d / delta) ||A A^H - diag||^2_{2->inf} / Delta^2. With Delta = 0 all rows are
    maximal and one sample suffices.

    Example:
        >>> twinest_samples(gap=1.0, delta=0.05, rows=100, offdiagonal_norm=0.5)
        17
    """
    if gap == 0:
        return 1
    return twinest_deviation_samples(gap, delta, rows, offdiagonal_norm)


def twinest_deviation_samples(
    epsilon: float, delta: float, rows: int, offdiagonal_norm: float
) -> int:
    """Least m that the deviation remark asks for |T^2 - norm^2| < epsilon w.p. 1 - delta.

    Example:
        >>> twinest_deviation_samples(epsilon=2.0, delta=0.05, rows=100, offdiagonal_norm=0.5)
        5
    """
    epsilon = _positive("epsilon", epsilon)
    check_probability("delta", delta)
    rows = check_integer("rows", rows, 1)
    size = _positive("offdiagonal_norm", offdiagonal_norm, zero=True)
    return math.floor(8 * math.log(2 * rows / delta) * (size / epsilon) ** 2) + 1


def twinest_failure(gap: float, samples: int, rows: int, offdiagonal_norm: float) -> float:
    """The probability of a wrong row that theorem 1 leaves after ``samples``; at most 1.

    Example:
        >>> twinest_failure(gap=1.0, samples=17, rows=100, offdiagonal_norm=0.5) < 0.05
        True
    """
    check_integer("samples", samples, 1)
    gap = _positive("gap", gap, zero=True)
    size = _positive("offdiagonal_norm", offdiagonal_norm, zero=True)
    if gap == 0 or size == 0:
        return 0.0  # nothing to mistake, or nothing random
    return min(1.0, 2 * rows * math.exp(-samples * (gap / size) ** 2 / 8))


def diagonal_deviation(samples: int, delta: float, rows: int, offdiagonal_norm: float) -> float:
    """The epsilon of the concentration lemma: no entry of D^m(B) errs by more w.p. 1 - delta.

    epsilon = sqrt(2 log(2 d / delta) / m) times the two-to-infinity norm of B off its diagonal.

    Example:
        >>> round(diagonal_deviation(100, 0.05, 100, 1.0), 4)
        0.4073
    """
    samples = check_integer("samples", samples, 1)
    check_probability("delta", delta)
    rows = check_integer("rows", rows, 1)
    size = _positive("offdiagonal_norm", offdiagonal_norm, zero=True)
    return math.sqrt(2 * math.log(2 * rows / delta) / samples) * size


def twinest_pp_samples(gap: float, delta: float, frobenius: float, constant: float = 1.0) -> int:
    """Least m of theorem 2 (TwINEst++ oracle complexity), up to its unnamed constant c.

    m > c (sqrt(log(2 / delta)) ||A||_F^2 / Delta + log(1 / delta)). The paper gives no value for
    c, so only the growth in Delta, delta and ||A||_F means anything.

    Example:
        >>> twinest_pp_samples(gap=0.1, delta=0.05, frobenius=1.0)
        23
    """
    gap = _positive("gap", gap, zero=True)
    check_probability("delta", delta)
    constant = _positive("constant", constant)
    size = _positive("frobenius", frobenius, zero=True)
    if gap == 0:
        return 1
    need = math.sqrt(math.log(2 / delta)) * size**2 / gap + math.log(1 / delta)
    return math.floor(constant * need) + 1


def _positive(name: str, value: object, zero: bool = False) -> float:
    good = isinstance(value, numbers.Real) and math.isfinite(value)
    if not good or value < 0 or (value == 0 and not zero):  # type: ignore[operator]
        kind = "non-negative" if zero else "positive"
        raise InputError(f"{name} must be a {kind} number, got {value!r}: check its sign")
    return float(value)  # type: ignore[arg-type]
