"""The paper's methods by the diagonal of A A^H, TwINEst and TwINEst++, and their baselines."""

from __future__ import annotations

import math
import numbers
from typing import Any, NamedTuple

import torch
from torch import Tensor

from robustcf._checks import check_integer
from robustcf.errors import InputError
from robustcf.estimators.estimate import Ranking, Run, ranking_method
from robustcf.estimators.numerics import (
    Seed,
    as_generator,
    norm_scale,
    orthonormal,
    rademacher,
    row_norms,
    sign_test_groups,
)
from robustcf.estimators.operators import Counted, MatrixLike


@ranking_method(cost=2, verify=1)
def twinest(run: Run) -> Ranking:
    """Estimate ||A||_{2->inf} by TwINEst, the paper's first algorithm.

    D = mean of x * (A A^H x) over m sign vectors, j = argmax D, value = ||A^H e_j||. One sample of
    D_i has variance sum_{j != i} <A_i, A_j>^2: fine when rows are nearly orthogonal, poor when they
    are correlated. The upper bound is the sign test's, see `gram_bounds`.

    Cost: m = (budget - verify) // 2 sign vectors at two products each.

    Example:
        >>> twinest(torch.diag(torch.tensor([1.0, 3.0, 2.0])), 3, generator=0).row
        1
    """
    return _rank_by_diagonal(run)


@ranking_method(cost=2, verify=0, least_verify=0)
def rademacher_averaging(run: Run) -> Ranking:
    """Estimate ||A||_{2->inf} as sqrt(max_i D_i): TwINEst without its last, exact step.

    The value is NOT the norm of the row and not a bound: the largest of many noisy entries is
    biased upwards. The estimate says so by ``witness = False``; its ``lower`` is a true bound. With
    ``verify`` > 0 it is TwINEst with that many rows read. Not differentiable.

    Example:
        >>> A = torch.diag(torch.tensor([1.0, 3.0, 2.0]))
        >>> round(float(rademacher_averaging(A, 2, generator=0)), 6)
        3.0
    """
    return _rank_by_diagonal(run)


@ranking_method(cost=2, verify=1)
def twinest_pp(run: Run, *, p: float = 1 / 3) -> Ranking:
    """Estimate ||A||_{2->inf} by TwINEst++, the paper's second algorithm.

    With m products by A A^H and r = floor(p m): Q = orth(A A^H S) for r sign vectors S, then
    D = diag(A A^H Q Q^H) + Hutchinson on A A^H (I - Q Q^H) with m - 2 r sign vectors, j = argmax D,
    value = ||A^H e_j||. p = 0 is TwINEst; the paper takes 1/3.

    Cost: m = (budget - verify) // 2, two products for each by A A^H.

    Example:
        >>> A = torch.tensor([[1.0], [3.0], [2.0]]) @ torch.ones(1, 5)
        >>> twinest_pp(A, 7, generator=0).row
        1
    """
    return _rank_by_diagonal(run, p)


def _rank_by_diagonal(run: Run, p: float | None = None) -> Ranking:
    """Rank by TwINEst++ with this share p, or by TwINEst."""
    op = run.op
    m = max(1, (op.left - run.verify) // 2)
    r, rest = (0, m) if p is None else split_samples(m, p)
    scores, Q, scale, lower = run.zeros(), None, 1.0, 0.0
    if r:
        W = op.rmatmat(run.signs(r))
        Y = op.matmat(W / norm_scale(W))
        Q = orthonormal(Y / norm_scale(Y))
        V = op.rmatmat(Q)
        scale = norm_scale(V)
        scores += (op.matmat(V / scale) * Q.conj()).real.sum(dim=1)
    bounds = torch.full_like(scores, torch.inf)
    if rest:
        probe = gram_samples(op, run.signs(rest), Q)
        lower, scale = probe.lower, scale if r else probe.scale
        samples = probe.samples if p is None else probe.samples * (probe.scale / scale)
        bounds = gram_bounds(samples, scale, run.delta, exact=scores)
        scores = scores + samples.mean(dim=1)
    value = scores.max().clamp_min(0).sqrt() * scale**0.5
    return Ranking(scores, bounds, lower, value)


@ranking_method(cost=1, verify=0, least_verify=0)
def adaptive_power(run: Run) -> Ranking:
    """Estimate ||A||_{2->inf} by m rounds of y = dual_inf(A x), x = dual_2(A^H y): a baseline.

    The value ||A x||_inf with ||x||_2 = 1 is a true lower bound but need not be the norm of the
    row (``witness = False``), and more rounds need not help: on diag(2, 1) it ends at 1 with
    probability (2 / pi) atan(1 / 2) = 0.2952. Roth, Kilcher and Hofmann 2020, arXiv:1906.01527.

    Cost: two products per round and one; even budgets leave one unused.

    Example:
        >>> float(adaptive_power(torch.ones(3, 4, dtype=torch.float64), 5, generator=0))
        2.0
    """
    op = run.op
    x = _dual_two(run.normals(1))
    image = op.matmat(x)
    for _ in range((op.left - run.verify) // 2):
        x = _dual_two(op.rmatmat(_dual_inf(image)))
        image = op.matmat(x)
    size = image[:, 0].abs().to(torch.float64)
    # The same slack as for every bound made of one rounded product.
    slack = 1 - 8 * op.shape[1] ** 0.5 * torch.finfo(op.dtype).eps
    lower = float(size.max()) * max(0.0, slack)
    return Ranking(size, torch.inf, lower, size.max())


def _dual_inf(x: Tensor) -> Tensor:
    """The signs of the entries of largest modulus, divided by their number; 0 elsewhere."""
    largest = x.abs() == x.abs().max()
    return torch.where(largest, torch.sgn(x), 0) / largest.sum()


def _dual_two(x: Tensor) -> Tensor:
    """Divide by the Euclidean norm; 0 stays 0."""
    norm = row_norms(x.mT)[0]
    return (x / torch.where(norm > 0, norm, 1.0)).to(x.dtype)


class GramProbe(NamedTuple):
    """Samples x_i (A A^H P x)_i / scale for every row i, one column per sign vector x."""

    samples: Tensor
    scale: float
    lower: float


def gram_samples(op: Counted, X: Tensor, P: Tensor | None = None) -> GramProbe:
    """Draw one Hutchinson sample of diag(A A^H (I - P P^H)) per column of ``X``, two products each.

    ``scale`` keeps A A^H in range when A's squares are not. ``lower`` is ||A w||_inf / ||w||_2, at
    most the norm for every w, here w = A^H x.
    """
    Z = X if P is None else X - P @ (P.mH @ X)
    W = op.rmatmat(Z)
    scale = norm_scale(W)
    W = W / scale
    image = op.matmat(W)
    norms = torch.linalg.vector_norm(W.to(op.wide), dim=0)
    peaks = image.abs().amax(dim=0).to(torch.float64) / torch.where(norms > 0, norms, 1.0)
    samples = (X.conj() * image).real.to(torch.float64)
    # A hair below: the bound must survive the rounding of the products it is made of.
    slack = 1 - 8 * len(W) ** 0.5 * torch.finfo(W.dtype).eps
    return GramProbe(samples, scale, float(peaks.max()) * max(0.0, slack))


def gram_bounds(samples: Tensor, scale: float, delta: float, exact: Tensor | None = None) -> Tensor:
    """Return upper bounds of the row norms from Hutchinson samples of diag(A A^H), by a sign test.

    A sample for row i is ||A_i||^2 plus x_i times a number independent of the sign x_i, so its
    error is symmetric. So is the error of a mean of samples; of g group means all fall short of
    ||A_i||^2 with probability at most 2^-g <= delta. Only the maximal row has to be covered, so the
    largest group mean of any row bounds the norm: no union over rows. With fewer than
    log2(1/delta) samples bounds are infinite. ``exact`` is a known part of the squared norms; it
    and the samples, d x m, are divided by ``scale``.
    """
    groups = sign_test_groups(delta)
    if samples.shape[1] < groups:
        return torch.full((len(samples),), torch.inf, dtype=torch.float64, device=samples.device)
    means = torch.stack([part.mean(dim=1) for part in samples.tensor_split(groups, dim=1)])
    square = means.amax(dim=0) + (0.0 if exact is None else exact)
    norms: Tensor = square.clamp_min(0).sqrt() * scale**0.5
    return norms


def hutchinson_diagonal(B: MatrixLike, samples: int, *, generator: Seed = None) -> Any:
    """Estimate diag(B) of a square matrix as the mean of x * (B x) over random sign vectors x.

    Unbiased. One sample has variance sum_{j != i} B_ij^2 in entry i (B real). Bekas, Kokiopoulou
    and Saad 2007, doi:10.1016/j.apnum.2007.01.003.

    Cost: one product with B per sample.

    Example:
        >>> hutchinson_diagonal(torch.diag(torch.tensor([1.0, 2.0])), 1, generator=0).tolist()
        [1.0, 2.0]
    """
    return hutchpp_diagonal(B, samples, p=0, generator=generator)


def hutchpp_diagonal(
    B: MatrixLike, samples: int, *, p: float = 1 / 3, generator: Seed = None
) -> Any:
    """Estimate diag(B) as diag(B Q Q^H) + Hutchinson on B (I - Q Q^H), Q a basis of B S.

    Unbiased for every square B, since the sign vectors are independent of Q; the variance is
    Hutchinson's for the deflated matrix, small when B is close to low rank and symmetric. Meyer,
    Musco, Musco and Woodruff 2021, arXiv:2010.09649, for traces.

    Cost: ``samples`` products with B: r = floor(p * samples) for B S, r for B Q, the rest for
    Hutchinson.

    Example:
        >>> B = torch.ones(3, 3, dtype=torch.float64)
        >>> torch.round(hutchpp_diagonal(B, 3, generator=0), decimals=9).tolist()
        [1.0, 1.0, 1.0]
    """
    op = Counted(B)
    d = op.shape[0]
    if d != op.shape[1]:
        raise InputError(f"expected a square matrix, got shape {op.shape}")
    r, rest = split_samples(check_integer("samples", samples, 1), p)
    source = as_generator(generator)
    diagonal = torch.zeros(d, dtype=op.dtype, device=op.device)
    Q = torch.zeros(d, 0, dtype=op.dtype, device=op.device)
    if r:
        Q = orthonormal(op.matmat(rademacher(d, r, op.dtype, op.device, source)))
        diagonal = diagonal + (op.matmat(Q) * Q.conj()).sum(dim=1)
    if rest:
        X = rademacher(d, rest, op.dtype, op.device, source)
        Z = X - Q @ (Q.mH @ X) if r else X
        diagonal = diagonal + (X * op.matmat(Z)).mean(dim=1)
    return diagonal.detach().numpy() if op.numpy else diagonal


def split_samples(samples: int, p: float) -> tuple[int, int]:
    """Return r = floor(p m), columns of the low-rank part, and m - 2 r, the other samples."""
    if isinstance(p, bool) or not isinstance(p, numbers.Real) or not 0 <= p <= 0.5:
        raise InputError(f"p must lie in [0, 1/2], got {p!r}: the paper takes 1/3")
    r = math.floor(float(p) * samples + 1e-9)  # 0.29 * 100 must give 29
    return r, samples - 2 * r
