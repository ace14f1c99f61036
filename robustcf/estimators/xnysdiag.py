"""XNysDiag on A A^H: a Nystrom diagonal corrected by leave-one-out, after Epperly and others."""

from __future__ import annotations

import torch
from torch import Tensor

from robustcf.estimators.estimate import NormEstimate, Ranking, Run
from robustcf.estimators.numerics import norm_scale, row_norms
from robustcf.estimators.operators import MatrixLike
from robustcf.estimators.probes import Seed, rademacher
from robustcf.estimators.twinest import gram_bounds
from robustcf.estimators.xrownorm import leave_one_out_basis


def xnysdiag(
    A: MatrixLike,
    budget: int,
    *,
    verify: int | None = None,
    generator: Seed = None,
    delta: float = 0.05,
) -> NormEstimate:
    """Estimate ||A||_{2->inf} by the XNysDiag estimate of diag(A A^H) and verification.

    With m sign vectors X and W = A^H X, the Nystrom approximation of A A^H is A P A^H, P the
    projector onto range(W). Leaving x_k out of it, the rest is estimated by Hutchinson's sample
    x_k * (A (I - P_k) A^H x_k), and the m results are averaged. Exact once A has rank below m.
    Two products per vector.

    Args:
        A: a matrix or operator.
        budget: products in all: m = (budget - verify) // 2.
        verify: how many of the best-ranked rows to read exactly; by default 4, or a quarter of
            the budget if that is less.
        generator: a torch generator, an integer seed, or None for fresh entropy.
        delta: the upper bound (the sign test on plain samples) may fail with this probability.

    Returns:
        The estimate; its value is the exact norm of its row.

    Example:
        >>> A = torch.tensor([[1.0], [3.0], [2.0]]) @ torch.ones(1, 5)
        >>> xnysdiag(A, 5, verify=1, generator=0).row
        1
    """
    run = Run(
        A, budget, verify, generator, delta, method="xnysdiag", samples_cost=2, default_verify=4
    )
    return run.rank_and_verify(_rank)


def _rank(run: Run) -> Ranking:
    op = run.op
    m = (op.left - run.verify) // 2
    X = rademacher(op.shape[0], m, op.dtype, op.device, run.generator)
    W = op.rmatmat(X)
    scale = norm_scale(W)
    W = W / scale
    Y = op.matmat(W)
    bounds = gram_bounds((X.conj() * Y).real.to(torch.float64), scale, run.delta)
    return Ranking(leave_one_out_diagonal(X, W, Y, scale), bounds)


def leave_one_out_diagonal(X: Tensor, W: Tensor, Y: Tensor, scale: float) -> Tensor:
    """diag(A A^H), from W = A^H X / scale and Y = A W, up to a common factor.

    With W = Q M, M = S V^H square, A Q = Y M^-1. Dropping x_k replaces Q Q^H by
    Q (I - t_k t_k^H) Q^H; since w_k is Q times the k-th column of M, what the others miss of it is
    Q t_k (t_k^H M_k), and its image is (A Q t_k) (t_k^H M_k).
    """
    Q, drop, full = leave_one_out_basis(W)
    # A Q from Y without a product: Q = W M^-1, and for lost rank M^-1 is the pseudo-inverse.
    M = Q.mH @ W
    B = Y @ torch.linalg.pinv(M)
    unit = norm_scale(B)
    everything = row_norms(B / unit).square()
    if not full:
        return everything
    lost = (B / unit) @ drop
    missed = (drop.conj() * M).sum(dim=0)
    # Y is A A^H X / scale; the sample is x_k * A (w_k - P_k w_k) on the scale of B B^H.
    samples = (X.conj() * lost * missed).real.to(torch.float64) * (scale / unit)
    squares = samples - lost.abs().to(torch.float64) ** 2
    scores: Tensor = everything + squares.mean(dim=1)
    return scores
