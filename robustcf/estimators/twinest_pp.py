"""TwINEst++: TwINEst with the variance-reduced diagonal of Hutch++."""

from __future__ import annotations

import torch

from robustcf.estimators.estimate import NormEstimate, Ranking, Run
from robustcf.estimators.hutchinson import gram_samples
from robustcf.estimators.hutchpp import orthonormal, split_samples
from robustcf.estimators.numerics import norm_scale
from robustcf.estimators.operators import MatrixLike
from robustcf.estimators.probes import Seed, rademacher
from robustcf.estimators.twinest import gram_bounds


def twinest_pp(
    A: MatrixLike,
    budget: int,
    *,
    p: float = 1 / 3,
    verify: int = 1,
    generator: Seed = None,
    delta: float = 0.05,
) -> NormEstimate:
    """Estimate ||A||_{2->inf} by TwINEst++, the paper's second algorithm.

    With m products by A A^H and r = floor(p m): Q = orth(A A^H S) for r sign vectors S, then
    D = diag(A A^H Q Q^H) + Hutchinson on A A^H (I - Q Q^H) with m - 2 r sign vectors, j = argmax D,
    value = ||A^H e_j||. p = 0 is TwINEst.

    Args:
        A: a matrix or operator.
        budget: products in all: m = (budget - verify) // 2, two for each product by A A^H.
        p: the share of m for each half of the low-rank part; the paper takes 1/3.
        verify: how many of the best-ranked rows to read exactly; the paper's algorithm reads one.
        generator: a torch generator, an integer seed, or None for fresh entropy.
        delta: the upper bound may fail with this probability.

    Returns:
        The estimate; its value is the exact norm of its row.

    Example:
        >>> A = torch.tensor([[1.0], [3.0], [2.0]]) @ torch.ones(1, 5)
        >>> twinest_pp(A, 7, generator=0).row
        1
    """
    run = Run(A, budget, verify, generator, delta, method="twinest_pp", samples_cost=2)
    # Split here, not in the ranking: an empty matrix must not hide a bad p.
    r, rest = split_samples(max(1, (run.op.left - run.verify) // 2), p)
    return run.rank_and_verify(lambda run: _rank(run, r, rest))


def _rank(run: Run, r: int, rest: int) -> Ranking:
    op, d = run.op, run.op.shape[0]
    scores = torch.zeros(d, dtype=torch.float64, device=op.device)
    Q, scale, lower = None, 1.0, 0.0
    if r:
        W = op.rmatmat(rademacher(d, r, op.dtype, op.device, run.generator))
        W = W / norm_scale(W)
        Y = op.matmat(W)
        Q = orthonormal(Y / norm_scale(Y))
        V = op.rmatmat(Q)
        scale = norm_scale(V)
        scores += (op.matmat(V / scale) * Q.conj()).real.sum(dim=1)
    bounds = torch.full((d,), torch.inf, dtype=torch.float64, device=op.device)
    if rest:
        X = rademacher(d, rest, op.dtype, op.device, run.generator)
        probe = gram_samples(op, X, Q)
        lower = probe.lower
        if r == 0:
            scale = probe.scale
        samples = probe.samples * (probe.scale / scale)
        bounds = gram_bounds(samples, scale, run.delta, exact=scores)
        scores = scores + samples.mean(dim=1)
    return Ranking(scores, bounds, lower)
