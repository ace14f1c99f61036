"""The adaptive power method, the paper's baseline: it may settle on the wrong row for good."""

from __future__ import annotations

import torch
from torch import Tensor

from robustcf.estimators.estimate import NormEstimate, Ranking, Run
from robustcf.estimators.numerics import row_norms
from robustcf.estimators.operators import MatrixLike
from robustcf.estimators.probes import Seed, gaussian


def dual_inf(x: Tensor) -> Tensor:
    """The signs of the entries of largest modulus, divided by their number; 0 elsewhere."""
    size = x.abs()
    largest = size == size.max()
    return torch.where(largest, torch.sgn(x), torch.zeros_like(x)) / largest.sum()


def dual_two(x: Tensor) -> Tensor:
    """Divide by the Euclidean norm; 0 stays 0."""
    norm = row_norms(x.reshape(1, -1))[0]
    return (x / torch.where(norm > 0, norm, torch.ones_like(norm))).to(x.dtype)


def adaptive_power(
    A: MatrixLike,
    budget: int,
    *,
    verify: int = 0,
    generator: Seed = None,
    delta: float = 0.05,
) -> NormEstimate:
    """Estimate ||A||_{2->inf} by m rounds of y = dual_inf(A x), x = dual_2(A^H y).

    The value ||A x||_inf with ||x||_2 = 1 is a true lower bound but need not be the norm of the
    row, and more rounds need not help: on diag(2, 1) it ends at 1 with probability
    (2 / pi) atan(1 / 2) = 0.2952. The estimate says so by ``witness = False``. No upper bound.

    Args:
        A: a matrix or operator.
        budget: products in all, one more than two a round; even budgets leave one unused.
        verify: how many rows with the largest entries of A x to read exactly.
        generator: a torch generator, an integer seed, or None for fresh entropy.
        delta: unused (there is no upper bound); accepted so that all methods are called alike.

    Returns:
        The estimate; its value is not the norm of its row unless rows were verified.

    Example:
        >>> float(adaptive_power(torch.ones(3, 4, dtype=torch.float64), 5, generator=0))
        2.0
    """
    run = Run(
        A, budget, verify, generator, delta, method="adaptive_power", samples_cost=1, least_verify=0
    )
    return run.rank_and_verify(_rank)


def _rank(run: Run) -> Ranking:
    op = run.op
    x = dual_two(gaussian(op.shape[1], 1, op.dtype, op.device, run.generator))
    image = op.matmat(x)
    for _ in range((op.left - run.verify) // 2):
        x = dual_two(op.rmatmat(dual_inf(image)))
        image = op.matmat(x)
    size = image[:, 0].abs().to(torch.float64)
    # The same slack as for every bound made of one rounded product.
    slack = 1 - 8 * op.shape[1] ** 0.5 * torch.finfo(op.dtype).eps
    lower = float(size.max()) * max(0.0, slack)
    return Ranking(size, torch.inf, lower, size.max())
