"""Row norms by sketches of A: plain, after a randomized SVD, and with leave-one-out projections."""

from __future__ import annotations

import torch
from torch import Tensor

from robustcf.errors import InputError
from robustcf.estimators.estimate import Ranking, Run, ranking_method
from robustcf.estimators.numerics import chi2_quantile, norm_scale, orthonormal, row_norms
from robustcf.estimators.twinest import gram_bounds


@ranking_method(cost=1, verify=16)
def sketch(run: Run) -> Ranking:
    """Estimate ||A||_{2->inf} by the row norms of Y = A G, G Gaussian, and the best rows read.

    ||Y_i||^2 / s is unbiased for ||A_i||^2 with relative variance 2 / s, regardless of the other
    rows (Johnson and Lindenstrauss 1984). The upper bound is described in `chi2_bounds`.

    Cost: s = budget - verify products with A. Only the rows read (by default 16, at most a quarter
    of the budget) need products with A^H: the method for operators with an expensive transpose.

    Example:
        >>> A = torch.ones(100, 50, dtype=torch.float64)
        >>> A[42] *= 3
        >>> sketch(A, 20, verify=4, generator=0).row
        42
    """
    s = run.op.left - run.verify
    Y = run.op.matmat(run.normals(s))
    norms = row_norms(Y)
    return Ranking(norms, chi2_bounds(norms, s, Y.is_complex(), run.delta))


def chi2_bounds(norms: Tensor, s: int, is_complex: bool, delta: float) -> Tensor:
    """Return upper bounds of ||A_i|| from ||(A G)_i||, G with s fresh Gaussian columns.

    ||(A G)_i||^2 / ||A_i||^2 is chi-square with s degrees of freedom (half of one with 2 s for
    circular complex Gaussians). The maximal row is fixed, if unknown: with probability 1 - delta
    its quotient is above the delta quantile, and its bound above the norm. So is the largest bound
    of all then; no union over rows is needed.
    """
    if s < 1:
        return torch.full_like(norms, torch.inf)
    quantile = chi2_quantile(delta, 2 * s) / 2 if is_complex else chi2_quantile(delta, s)
    return norms / quantile**0.5 if quantile > 0 else torch.full_like(norms, torch.inf)


@ranking_method(cost=4, verify=4)
def rsvd_sketch(run: Run) -> Ranking:
    """Estimate ||A||_{2->inf} by randomized SVD, a sketch of the rest, and the best rows read.

    Y = A G with s columns; Q = orth(A^H orth(Y)) spans most of the row space (Halko, Martinsson and
    Tropp 2011, arXiv:0909.4061). Rows then split orthogonally: ||A_i||^2 = ||A_i Q||^2 +
    ||A_i (I - Q Q^H)||^2. The first part is exact, the second sketched with t fresh vectors.

    Cost: 3 s + t + verify products, with t = s as nearly as the budget allows.

    Example:
        >>> A = torch.tensor([[1.0], [3.0], [2.0]]) @ torch.ones(1, 5)
        >>> rsvd_sketch(A, 5, verify=1, generator=0).row
        1
    """
    op = run.op
    s = min((op.left - run.verify) // 4, *op.shape)
    Y = op.matmat(run.normals(s))
    Q = run.row_basis(orthonormal(Y / norm_scale(Y)))
    known = row_norms(op.matmat(Q))
    t = op.left - run.verify
    rest = run.sketch_off(Q, t)
    # Given Q the rest is a fresh sketch of a fixed matrix, so its chi-square bound holds.
    bounds = torch.hypot(known, chi2_bounds(rest, t, Y.is_complex(), run.delta))
    return Ranking(torch.hypot(known, rest / t**0.5), bounds)


@ranking_method(cost=3, verify=4)
def xrownorm(run: Run) -> Ranking:
    """Estimate ||A||_{2->inf} by XRowNorm (Epperly's thesis, 2025) and the best rows read.

    With m Gaussian vectors w_k and Q_k an orthonormal basis of A^H A times all of them but the
    k-th, every ||A_i Q_k||^2 + |A_i (I - Q_k Q_k^H) w_k|^2 is unbiased for ||A_i||^2; their mean
    ranks the rows. Exact as soon as A has rank below m. The upper bound is the plain sketch's.

    Cost: three products per vector.

    Example:
        >>> A = torch.tensor([[1.0], [3.0], [2.0]]) @ torch.ones(1, 5)
        >>> xrownorm(A, 7, verify=1, generator=0).row
        1
    """
    return _by_leaving_out(run, normal=False)


@ranking_method(cost=2, verify=4)
def xsymrownorm(run: Run) -> Ranking:
    """Estimate ||A||_{2->inf} of a normal A by XSymRowNorm (Epperly's thesis, 2025).

    For symmetric and other normal matrices the basis is that of A times the vectors, not of A^H A:
    a third of the products is saved, at a lower accuracy per vector. For other matrices the ranking
    is poor, though bounds and value stay true. See `xrownorm`; arXiv:2512.15929.

    Cost: two products per vector, none with A^H but for the rows read.

    Example:
        >>> A = torch.diag(0.5 ** torch.arange(40.0)).roll((7, 7), (0, 1))
        >>> xsymrownorm(A, 20, generator=0).row
        7
    """
    d, n = run.op.shape
    if d != n:
        raise InputError(f"xsymrownorm needs a normal matrix, got {d} x {n}: use xrownorm")
    return _by_leaving_out(run, normal=True)


def _by_leaving_out(run: Run, normal: bool) -> Ranking:
    op = run.op
    m = (op.left - run.verify) // (2 if normal else 3)
    omega = run.normals(m)
    Y = op.matmat(omega)
    bounds = chi2_bounds(row_norms(Y), m, Y.is_complex(), run.delta)
    unit = Y / norm_scale(Y)
    Q, drop, full = _leave_one_out_basis(unit if normal else op.rmatmat(unit))
    B = op.matmat(Q)
    scale = max(norm_scale(Y), norm_scale(B))
    Y, B = Y / scale, B / scale
    everything = row_norms(B).square()
    if not full:
        # The range of A^H A omega is the whole row space (almost surely).
        return Ranking(everything, bounds)
    coefficients = Q.mH @ omega
    # Q_k Q_k^H = Q (I - t_k t_k^H) Q^H with t_k the k-th column of drop.
    inner = (drop.conj() * coefficients).sum(dim=0)
    rest = Y - B @ (coefficients - drop * inner)
    lost = B @ drop
    squares = rest.abs().to(torch.float64) ** 2 - lost.abs().to(torch.float64) ** 2
    return Ranking(everything + squares.mean(dim=1), bounds)


@ranking_method(cost=2, verify=4)
def xnysdiag(run: Run) -> Ranking:
    """Estimate ||A||_{2->inf} by the XNysDiag estimate of diag(A A^H) and the best rows read.

    With m sign vectors X and W = A^H X, the Nystrom approximation of A A^H is A P A^H, P the
    projector onto range(W). Leaving x_k out of it, the rest is estimated by Hutchinson's sample
    x_k * (A (I - P_k) A^H x_k), and the m results are averaged. Exact once A has rank below m.
    The upper bound is the sign test's on plain samples. Epperly, Tropp and Webber 2024,
    arXiv:2301.07825.

    Cost: two products per vector.

    Example:
        >>> A = torch.tensor([[1.0], [3.0], [2.0]]) @ torch.ones(1, 5)
        >>> xnysdiag(A, 5, verify=1, generator=0).row
        1
    """
    op = run.op
    X = run.signs((op.left - run.verify) // 2)
    W = op.rmatmat(X)
    scale = norm_scale(W)
    W = W / scale
    Y = op.matmat(W)
    bounds = gram_bounds((X.conj() * Y).real.to(torch.float64), scale, run.delta)
    Q, drop, full = _leave_one_out_basis(W)
    # A Q from Y without a product: W = Q M, so Q = W M^-1, the pseudo-inverse for lost rank.
    M = Q.mH @ W
    B = Y @ torch.linalg.pinv(M)
    unit = norm_scale(B)
    everything = row_norms(B / unit).square()
    if not full:
        return Ranking(everything, bounds)
    # Dropping x_k replaces Q Q^H by Q (I - t_k t_k^H) Q^H; w_k is Q times the k-th column of M,
    # so what the others miss of it is Q t_k (t_k^H M_k), with the image (A Q t_k) (t_k^H M_k).
    lost = (B / unit) @ drop
    missed = (drop.conj() * M).sum(dim=0)
    # Y is A A^H X / scale; the sample is x_k * A (w_k - P_k w_k) on the scale of B B^H.
    samples = (X.conj() * lost * missed).real.to(torch.float64) * (scale / unit)
    squares = samples - lost.abs().to(torch.float64) ** 2
    return Ranking(everything + squares.mean(dim=1), bounds)


def _leave_one_out_basis(Z: Tensor) -> tuple[Tensor, Tensor, bool]:
    """An orthonormal basis Q of Z; T, with Q t_k the unit vector orthogonal to all columns but k.

    The third value says whether Z has full column rank; if not, T is empty.
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
