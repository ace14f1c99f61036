"""The paper's sample-complexity statements as functions, and their quantities.

Delta is the difference of the largest squared row norm and the next smaller one. Quantities of a
matrix are computed exactly, in O(d^2 n) if they need A A^H: for study, not for large matrices.

Example:
    >>> A = torch.tensor([[3.0, 4.0], [0.0, 1.0]])
    >>> gap(A), offdiagonal_norm(A), hutchinson_variance(A).tolist()
    (24.0, 4.0, [16.0, 0.0])
    >>> twinest_samples(gap=1.0, delta=0.05, rows=100, offdiagonal_norm=0.5)
    17
    >>> twinest_failure(gap=1.0, samples=17, rows=100, offdiagonal_norm=0.5) < 0.05
    True
    >>> twinest_deviation_samples(epsilon=2.0, delta=0.05, rows=100, offdiagonal_norm=0.5)
    5
    >>> twinest_pp_samples(gap=0.1, delta=0.05, frobenius=1.0)
    23
    >>> round(diagonal_deviation(100, 0.05, rows=100, offdiagonal_norm=1.0), 4)
    0.4073
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from robustcf._checks import check_integer, check_number
from robustcf.estimators.estimate import check_probability
from robustcf.estimators.exact import known_norms, norms_by_products
from robustcf.estimators.numerics import row_norms, wide_dtype
from robustcf.estimators.operators import Counted, MatrixLike, as_operator


def gap(A: MatrixLike) -> float:
    """Return Delta, the largest squared row norm minus the next smaller one; 0 if all are equal."""
    op = as_operator(A)
    norms = known_norms(op)
    squares = (norms_by_products(Counted(op)) if norms is None else norms) ** 2
    if not len(squares):
        return 0.0
    top = float(squares.max())
    smaller = squares[squares < top]
    return top - float(smaller.max()) if len(smaller) else 0.0


def hutchinson_variance(B: MatrixLike) -> Tensor:
    """Return the variances of one Hutchinson sample of diag(B), sum_{j != i} B_ij^2, B real."""
    dense = _dense(B)
    return (dense - torch.diag(torch.diagonal(dense))).abs().pow(2).sum(dim=1)


def offdiagonal_norm(A: MatrixLike) -> float:
    """Return ||A A^H - diag(A A^H)||_{2->inf}, on which the paper's first theorem depends."""
    dense = _dense(A)
    gram = dense @ dense.mH
    norms = row_norms(gram - torch.diag(torch.diagonal(gram)))
    return float(norms.max()) if len(norms) else 0.0


def _dense(A: MatrixLike) -> Tensor:
    op = as_operator(A)
    with torch.no_grad():
        eye = torch.eye(op.shape[1], dtype=op.dtype, device=op.device)
        return op.matmat(eye).to(wide_dtype(op.dtype))


def twinest_samples(gap: float, delta: float, rows: int, offdiagonal_norm: float) -> int:
    """Return the least m of theorem 1 (TwINEst oracle complexity) for exactness w.p. 1 - delta.

    m > 8 log(2 d / delta) ||A A^H - diag||^2_{2->inf} / Delta^2; 1 if Delta = 0.
    """
    if gap == 0:
        return 1
    return twinest_deviation_samples(gap, delta, rows, offdiagonal_norm)


def twinest_deviation_samples(
    epsilon: float, delta: float, rows: int, offdiagonal_norm: float
) -> int:
    """Return the least m of the deviation remark, for |T^2 - norm^2| < epsilon w.p. 1 - delta."""
    epsilon = check_number("epsilon", epsilon, positive=True)
    check_probability("delta", delta)
    rows = check_integer("rows", rows, 1)
    size = check_number("offdiagonal_norm", offdiagonal_norm)
    return math.floor(8 * math.log(2 * rows / delta) * (size / epsilon) ** 2) + 1


def twinest_failure(gap: float, samples: int, rows: int, offdiagonal_norm: float) -> float:
    """Return theorem 1's bound on the probability of a wrong row after ``samples``."""
    check_integer("samples", samples, 1)
    gap = check_number("gap", gap)
    size = check_number("offdiagonal_norm", offdiagonal_norm)
    if gap == 0 or size == 0:
        return 0.0
    return min(1.0, 2 * rows * math.exp(-samples * (gap / size) ** 2 / 8))


def diagonal_deviation(samples: int, delta: float, rows: int, offdiagonal_norm: float) -> float:
    """Return the epsilon of the concentration lemma: the error of D^m(B) w.p. 1 - delta.

    epsilon = sqrt(2 log(2 d / delta) / m) times the two-to-infinity norm of B off its diagonal.
    """
    samples = check_integer("samples", samples, 1)
    check_probability("delta", delta)
    rows = check_integer("rows", rows, 1)
    size = check_number("offdiagonal_norm", offdiagonal_norm)
    return math.sqrt(2 * math.log(2 * rows / delta) / samples) * size


def twinest_pp_samples(gap: float, delta: float, frobenius: float, constant: float = 1.0) -> int:
    """Return the least m of theorem 2 (TwINEst++ oracle complexity), up to its constant c.

    m > c (sqrt(log(2 / delta)) ||A||_F^2 / Delta + log(1 / delta)). The paper gives no value for c:
    only the growth in Delta, delta and ||A||_F is meaningful.
    """
    gap = check_number("gap", gap)
    check_probability("delta", delta)
    constant = check_number("constant", constant, positive=True)
    size = check_number("frobenius", frobenius)
    if gap == 0:
        return 1
    need = math.sqrt(math.log(2 / delta)) * size**2 / gap + math.log(1 / delta)
    return math.floor(constant * need) + 1
