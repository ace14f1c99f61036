"""The largest singular value between two bounds, from products."""

from __future__ import annotations

import math

import torch

from robustcf._checks import check_integer
from robustcf.estimators.estimate import NormEstimate, check_probability
from robustcf.estimators.numerics import (
    Seed,
    as_generator,
    chi2_quantile,
    gaussian,
    norm_scale,
)
from robustcf.estimators.operators import Counted, MatrixLike, unit_vectors

_COLUMNS = 2


def spectral_norm(
    A: MatrixLike, budget: int = 50, *, generator: Seed = None, delta: float = 0.05
) -> NormEstimate:
    """Bound ||A||_2 from below, always, and from above, with probability 1 - delta.

    Block power iteration from a Gaussian X with two columns. With B_p = A X, A^H A X, A A^H A X,
    ..., and v the first right singular vector, ||A||_2^p ||v^H X|| <= ||B_p||_2, and ||v^H X||^2 is
    chi-square with two degrees of freedom (q its delta quantile): so ||A||_2 <= (||B_p||_2 /
    q^(1/2))^(1/p), for all p at once. The lower bound is the norm of A on a block. Dixon 1983
    (doi:10.1137/0720053) has one column; see also the Counterbalance estimator, arXiv:2506.15660.

    With a budget of the smaller side of A it is exact.

    Args:
        A: a matrix or operator.
        budget: products with A and A^H in all, at least two.
        generator: a torch generator, an integer seed, or None for fresh entropy.
        delta: the upper bound may fail with this probability.

    Example:
        >>> answer = spectral_norm(torch.diag(torch.arange(1.0, 101.0)), 60, generator=0)
        >>> 98 < answer.lower <= 100.001, 100 <= answer.upper < 107
        (True, True)
    """
    op = Counted(A, check_integer("budget", budget, 2))
    d, n = op.shape
    check_probability("delta", delta)
    with torch.no_grad():
        if min(d, n) <= budget:
            product, side = (op.matmat, n) if n <= d else (op.rmatmat, d)
            dense = product(unit_vectors(op, side, torch.arange(side, device=op.device)))
            top = float(torch.linalg.svdvals(dense.to(op.wide))[0]) if dense.numel() else 0.0
            return _answer(op, top, top)
        X = gaussian(n, _COLUMNS, op.dtype, op.device, as_generator(generator)).to(op.wide)
        factor = 2 if op.dtype.is_complex else 1
        quantile = chi2_quantile(delta, factor * _COLUMNS) / factor
        basis, R = torch.linalg.qr(X)
        lower, upper, log_scale = 0.0, math.inf, 0.0
        for power in range(1, budget // _COLUMNS + 1):
            product = op.matmat if power % 2 else op.rmatmat
            image = product(basis.to(op.dtype)).to(op.wide)
            lower = max(lower, float(torch.linalg.matrix_norm(image, 2)))
            basis, T = torch.linalg.qr(image)
            R = T @ R
            scale = norm_scale(R)
            R, log_scale = R / scale, log_scale + math.log(scale)
            size = float(torch.linalg.matrix_norm(R, 2))
            if size == 0:
                return _answer(op, 0.0, 0.0)
            upper = min(upper, math.exp((math.log(size / quantile**0.5) + log_scale) / power))
        slack = 8 * max(d, n) ** 0.5 * torch.finfo(op.dtype).eps
        lower, upper = lower * (1 - slack), upper * (1 + slack)
        return _answer(op, lower, max(lower, upper))


def _answer(op: Counted, lower: float, upper: float) -> NormEstimate:
    value = lower if op.numpy else torch.tensor(lower, dtype=torch.float64, device=op.device)
    spent, exact = (op.products, op.rproducts), lower == upper
    enough = None if exact else min(op.shape)
    return NormEstimate(value, None, lower, upper, *spent, exact, "spectral", False, enough)
