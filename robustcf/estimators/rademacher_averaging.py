"""Rademacher averaging: TwINEst without its last, exact step."""

from __future__ import annotations

import torch

from robustcf.estimators.estimate import NormEstimate, Run
from robustcf.estimators.hutchinson import gram_samples
from robustcf.estimators.operators import MatrixLike
from robustcf.estimators.probes import Seed, rademacher
from robustcf.estimators.twinest import gram_bounds


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
        budget: products in all, two a sign vector.
        verify: how many of the best-ranked rows to read exactly.
        generator: a torch generator, an integer seed, or None for fresh entropy.
        delta: the upper bound may fail with this probability.

    Returns:
        The estimate; its value is not the norm of its row unless rows were verified.

    Example:
        >>> A = torch.diag(torch.tensor([1.0, 3.0, 2.0]))
        >>> round(float(rademacher_averaging(A, 2, generator=0)), 6)
        3.0
    """
    run = Run(
        A,
        budget,
        method="rademacher_averaging",
        generator=generator,
        delta=delta,
        verify=verify,
        least_verify=0,
        samples_cost=2,
    )
    if run.trivial:
        return run.conclude_trivial()
    with torch.no_grad():
        m = (run.op.left - run.verify) // 2
        X = rademacher(run.op.shape[0], m, run.op.dtype, run.op.device, run.generator)
        probe = gram_samples(run.op, X)
        scores = probe.samples.mean(dim=1)
        bounds = gram_bounds(probe.samples, probe.scale, delta)
    if run.verify:
        run.read_best(scores, run.verify)
        return run.conclude(bounds, lower=probe.lower)
    value = scores.max().clamp_min(0).sqrt() * probe.scale**0.5
    return run.conclude(bounds, value=value, row=int(scores.argmax()), lower=probe.lower)
