"""The Johnson-Lindenstrauss sketch: rank rows by the norms of A G, G Gaussian."""

from __future__ import annotations

import torch
from torch import Tensor

from robustcf.estimators.estimate import NormEstimate, Ranking, Run
from robustcf.estimators.numerics import chi2_quantile, row_norms
from robustcf.estimators.operators import MatrixLike
from robustcf.estimators.probes import Seed, gaussian


def sketch(
    A: MatrixLike,
    budget: int,
    *,
    verify: int | None = None,
    generator: Seed = None,
    delta: float = 0.05,
) -> NormEstimate:
    """Estimate ||A||_{2->inf} by the row norms of Y = A G and verification of the best rows.

    ||Y_i||^2 / s is unbiased for ||A_i||^2 with relative variance 2 / s, whatever the other rows
    are. All products but the ``verify`` last ones are with A, so this is also the method for
    operators whose transpose is dear: ``verify=1`` needs one product with it. The upper bound is
    described in `chi2_bounds`.

    Args:
        A: a matrix or operator.
        budget: products in all: s = budget - verify with A, the rest with A^H.
        verify: how many of the best-ranked rows to read exactly; by default 16, or a quarter of
            the budget if that is less.
        generator: a torch generator, an integer seed, or None for fresh entropy.
        delta: the upper bound may fail with this probability.

    Returns:
        The estimate; its value is the exact norm of its row.

    Example:
        >>> A = torch.ones(100, 50, dtype=torch.float64)
        >>> A[42] *= 3
        >>> sketch(A, 20, verify=4, generator=0).row
        42
    """
    run = Run(
        A, budget, verify, generator, delta, method="sketch", samples_cost=1, default_verify=16
    )
    return run.rank_and_verify(_rank)


def _rank(run: Run) -> Ranking:
    op = run.op
    s = op.left - run.verify
    Y = op.matmat(gaussian(op.shape[1], s, op.dtype, op.device, run.generator))
    norms = row_norms(Y)
    return Ranking(norms, chi2_bounds(norms, s, Y.is_complex(), run.delta))


def chi2_bounds(norms: Tensor, s: int, is_complex: bool, delta: float) -> Tensor:
    """Upper bounds of ||A_i|| from ||(A G)_i||, G with s fresh Gaussian columns.

    ||(A G)_i||^2 / ||A_i||^2 is chi-square with s degrees of freedom (half of one with 2 s for
    circular complex Gaussians). The maximal row is fixed, if unknown: with probability 1 - delta
    its quotient is above the delta quantile, and then so is the largest bound of all above the
    norm. No union over rows is needed.
    """
    if s < 1:
        return torch.full_like(norms, torch.inf)
    quantile = chi2_quantile(delta, 2 * s) / 2 if is_complex else chi2_quantile(delta, s)
    return norms / quantile**0.5 if quantile > 0 else torch.full_like(norms, torch.inf)
