"""Randomized SVD plus a sketch of what it leaves."""

from __future__ import annotations

import torch

from robustcf.estimators.estimate import NormEstimate, Ranking, Run
from robustcf.estimators.hutchpp import orthonormal
from robustcf.estimators.numerics import norm_scale, row_norms
from robustcf.estimators.operators import MatrixLike
from robustcf.estimators.probes import Seed, gaussian
from robustcf.estimators.sketch import chi2_bounds


def rsvd_sketch(
    A: MatrixLike,
    budget: int,
    *,
    verify: int | None = None,
    generator: Seed = None,
    delta: float = 0.05,
) -> NormEstimate:
    """Estimate ||A||_{2->inf} by randomized SVD, a sketch of the rest, and verification.

    Y = A G with s columns; Q = orth(A^H orth(Y)) spans most of the row space. Rows then split
    orthogonally: ||A_i||^2 = ||A_i Q||^2 + ||A_i (I - Q Q^H)||^2; the first part is exact, the
    second is estimated by a fresh sketch with t vectors projected off Q.

    Args:
        A: a matrix or operator.
        budget: products in all: 3 s + t + verify, with t = s as nearly as the budget allows.
        verify: how many of the best-ranked rows to read exactly; by default 4, or a quarter of
            the budget if that is less.
        generator: a torch generator, an integer seed, or None for fresh entropy.
        delta: the upper bound may fail with this probability.

    Returns:
        The estimate; its value is the exact norm of its row.

    Example:
        >>> A = torch.tensor([[1.0], [3.0], [2.0]]) @ torch.ones(1, 5)
        >>> rsvd_sketch(A, 5, verify=1, generator=0).row
        1
    """
    run = Run(
        A, budget, verify, generator, delta, method="rsvd_sketch", samples_cost=4, default_verify=4
    )
    return run.rank_and_verify(_rank)


def _rank(run: Run) -> Ranking:
    op, (d, n) = run.op, run.op.shape
    s = min((op.left - run.verify) // 4, d, n)
    Y = op.matmat(gaussian(n, s, op.dtype, op.device, run.generator))
    Z = op.rmatmat(orthonormal(Y / norm_scale(Y)))
    Q = orthonormal(Z / norm_scale(Z))
    B = op.matmat(Q)
    t = op.left - run.verify
    G = gaussian(n, t, op.dtype, op.device, run.generator)
    rest = row_norms(op.matmat(G - Q @ (Q.mH @ G)))
    known = row_norms(B)
    scores = torch.hypot(known, rest / t**0.5)
    # Given Q the rest is a fresh sketch of a fixed matrix, so its chi-square bound holds.
    bounds = torch.hypot(known, chi2_bounds(rest, t, B.is_complex(), run.delta))
    return Ranking(scores, bounds)
