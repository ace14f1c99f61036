"""Rademacher averaging: TwINEst without its last, exact step."""

from __future__ import annotations

from robustcf.estimators.estimate import NormEstimate, Run
from robustcf.estimators.operators import MatrixLike
from robustcf.estimators.probes import Seed
from robustcf.estimators.twinest import rank_by_samples


def rademacher_averaging(
    A: MatrixLike,
    budget: int,
    *,
    verify: int = 0,
    generator: Seed = None,
    delta: float = 0.05,
) -> NormEstimate:
    """Estimate ||A||_{2->inf} as sqrt(max_i D_i), D Hutchinson's diagonal of A A^H.

    The value is NOT the norm of the row and no bound: the largest of many noisy entries is biased
    upwards. The estimate says so by ``witness = False``; its ``lower`` is a true bound all the
    same. With ``verify`` > 0 it is TwINEst with that many rows read. Not differentiable.

    Args:
        A: a matrix or operator.
        budget: products in all, two per sign vector.
        verify: how many of the best-ranked rows to read exactly.
        generator: a torch generator, an integer seed, or None for fresh entropy.
        delta: the upper bound may fail with this probability.

    Returns:
        The estimate; its value is not the norm of its row unless rows were verified.

    Example:
        >>> import torch
        >>> A = torch.diag(torch.tensor([1.0, 3.0, 2.0]))
        >>> round(float(rademacher_averaging(A, 2, generator=0)), 6)
        3.0
    """
    run = Run(
        A,
        budget,
        verify,
        generator,
        delta,
        method="rademacher_averaging",
        samples_cost=2,
        least_verify=0,
    )
    return run.rank_and_verify(rank_by_samples)
