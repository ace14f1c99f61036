"""TwINEst: rank rows by Hutchinson's diagonal of A A^H, return the leader's exact norm."""

from __future__ import annotations

import torch
from torch import Tensor

from robustcf.estimators.estimate import NormEstimate, Ranking, Run
from robustcf.estimators.hutchinson import gram_samples
from robustcf.estimators.numerics import sign_test_groups
from robustcf.estimators.operators import MatrixLike
from robustcf.estimators.probes import Seed, rademacher


def twinest(
    A: MatrixLike,
    budget: int,
    *,
    verify: int = 1,
    generator: Seed = None,
    delta: float = 0.05,
) -> NormEstimate:
    """Estimate ||A||_{2->inf} by TwINEst, the paper's first algorithm.

    D = mean of x * (A A^H x) over m sign vectors, j = argmax D, value = ||A^H e_j||. One sample of
    D_i has variance sum_{j != i} <A_i, A_j>^2: fine when rows are nearly orthogonal, poor when they
    are correlated. The upper bound is the sign test's, see `gram_bounds`.

    Args:
        A: a matrix or operator.
        budget: products in all: m = (budget - verify) // 2 sign vectors at two products each.
        verify: how many of the best-ranked rows to read exactly; the paper's algorithm reads one.
        generator: a torch generator, an integer seed, or None for fresh entropy.
        delta: the upper bound may fail with this probability.

    Returns:
        The estimate; its value is the exact norm of its row.

    Example:
        >>> twinest(torch.diag(torch.tensor([1.0, 3.0, 2.0])), 3, generator=0).row
        1
    """
    run = Run(A, budget, verify, generator, delta, method="twinest", samples_cost=2)
    return run.rank_and_verify(rank_by_samples)


def rank_by_samples(run: Run) -> Ranking:
    """Rank by D, Hutchinson's diagonal of A A^H; where no row is read the value is sqrt(max D)."""
    op = run.op
    m = (op.left - run.verify) // 2
    probe = gram_samples(op, rademacher(op.shape[0], m, op.dtype, op.device, run.generator))
    scores = probe.samples.mean(dim=1)
    bounds = gram_bounds(probe.samples, probe.scale, run.delta)
    value = scores.max().clamp_min(0).sqrt() * probe.scale**0.5
    return Ranking(scores, bounds, probe.lower, value)


def gram_bounds(samples: Tensor, scale: float, delta: float, exact: Tensor | None = None) -> Tensor:
    """Upper bounds of the row norms from Hutchinson samples of diag(A A^H), by a sign test.

    A sample for row i is ||A_i||^2 plus x_i times something independent of the sign x_i: its error
    is symmetric, whatever the other rows are. So is the error of a mean of samples; of g group
    means all fall short of ||A_i||^2 with probability at most 2^-g <= delta. Only the maximal row
    has to be covered, so the largest group mean of any row bounds the norm: no union over rows.

    Args:
        samples: d x m, divided by ``scale``.
        scale: what A A^H was divided by.
        delta: failure probability; with fewer than log2(1/delta) samples there is no bound.
        exact: a part of the squared norm that is known, divided by ``scale`` too.
    """
    groups = sign_test_groups(delta)
    m = samples.shape[1]
    if m < groups:
        return torch.full((len(samples),), torch.inf, dtype=torch.float64, device=samples.device)
    means = torch.stack([part.mean(dim=1) for part in samples.tensor_split(groups, dim=1)])
    square = means.amax(dim=0) + (0.0 if exact is None else exact)
    norms: Tensor = square.clamp_min(0).sqrt() * scale**0.5
    return norms
