"""XRowNorm: row norms by a leave-one-out projection, after Epperly's thesis."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from robustcf.estimators.estimate import NormEstimate, Ranking, Run
from robustcf.estimators.numerics import norm_scale, row_norms
from robustcf.estimators.operators import MatrixLike
from robustcf.estimators.probes import Seed, gaussian
from robustcf.estimators.sketch import chi2_bounds


def xrownorm(
    A: MatrixLike,
    budget: int,
    *,
    verify: int | None = None,
    generator: Seed = None,
    delta: float = 0.05,
) -> NormEstimate:
    """Estimate ||A||_{2->inf} by XRowNorm and verification of the best rows.

    With m Gaussian vectors w_k and Q_k an orthonormal basis of A^H A times all of them but the
    k-th, every ||A_i Q_k||^2 + |A_i (I - Q_k Q_k^H) w_k|^2 is unbiased for ||A_i||^2; their mean
    ranks the rows. Exact as soon as A has rank below m. Three products per vector.

    Args:
        A: a matrix or operator.
        budget: products in all: m = (budget - verify) // 3.
        verify: how many of the best-ranked rows to read exactly; by default 4, or a quarter of
            the budget if that is less.
        generator: a torch generator, an integer seed, or None for fresh entropy.
        delta: the upper bound (that of the plain sketch A w) may fail with this probability.

    Returns:
        The estimate; its value is the exact norm of its row.

    Example:
        >>> A = torch.tensor([[1.0], [3.0], [2.0]]) @ torch.ones(1, 5)
        >>> xrownorm(A, 7, verify=1, generator=0).row
        1
    """
    run = Run(
        A, budget, verify, generator, delta, method="xrownorm", samples_cost=3, default_verify=4
    )
    return run.rank_and_verify(_rank)


def _rank(run: Run) -> Ranking:
    op = run.op
    m = (op.left - run.verify) // 3
    omega = gaussian(op.shape[1], m, op.dtype, op.device, run.generator)
    Y = op.matmat(omega)
    bounds = chi2_bounds(row_norms(Y), m, Y.is_complex(), run.delta)
    scores = leave_one_out_row_norms(op.rmatmat(Y / norm_scale(Y)), omega, Y, op.matmat)
    return Ranking(scores, bounds)


def leave_one_out_row_norms(
    Z: Tensor, omega: Tensor, Y: Tensor, matmat: Callable[[Tensor], Tensor]
) -> Tensor:
    """Squared row norms of A, up to a common factor, by the mean over left-out vectors.

    Args:
        Z: A^H A omega up to scale, n x m.
        omega: the test vectors, n x m.
        Y: A omega.
        matmat: multiplies by A; called once, with an orthonormal basis of Z.
    """
    Q, drop, full = leave_one_out_basis(Z)
    B = matmat(Q)
    scale = max(norm_scale(Y), norm_scale(B))
    Y, B = (Y / scale), (B / scale)
    everything = row_norms(B).square()
    if not full:
        # Z has lost rank, so its range is the whole row space (almost surely): nothing is left.
        return everything
    coefficients = Q.mH @ omega
    # Q_k Q_k^H = Q (I - t_k t_k^H) Q^H with t_k the k-th column of drop.
    inner = (drop.conj() * coefficients).sum(dim=0)
    rest = Y - B @ (coefficients - drop * inner)
    lost = B @ drop
    squares = rest.abs().to(torch.float64) ** 2 - lost.abs().to(torch.float64) ** 2
    scores: Tensor = everything + squares.mean(dim=1)
    return scores


def leave_one_out_basis(Z: Tensor) -> tuple[Tensor, Tensor, bool]:
    """An orthonormal basis Q of Z and, per column k, the direction only that column supplies.

    Returns:
        Q; T, whose k-th column t_k makes Q t_k the unit vector of range(Z) orthogonal to all
        other columns of Z; and whether Z has full numerical column rank. If it has not, T is
        empty and Q spans the numerical range only.
    """
    left, values, right = torch.linalg.svd(Z / norm_scale(Z), full_matrices=False)
    if not values.numel():
        return Z, Z.new_zeros(Z.shape[1], 0), False
    floor = values[0] * torch.finfo(Z.dtype).eps * max(Z.shape) ** 0.5 * 4
    rank = int((values > floor).sum())
    if rank < Z.shape[1]:
        return left[:, :rank], left.new_zeros(rank, 0), False
    # Rows of the pseudo-inverse of Z are orthogonal to the other columns; in Q's coordinates
    # they are the columns of (S V^H)^-H.
    directions = right / values.unsqueeze(1).to(right.dtype)
    return left, directions / torch.linalg.vector_norm(directions, dim=0), True
