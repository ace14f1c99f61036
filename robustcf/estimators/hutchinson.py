"""Hutchinson's diagonal estimator, for square matrices and for A A^H."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from robustcf._checks import check_integer
from robustcf.errors import InputError
from robustcf.estimators.counting import Counted
from robustcf.estimators.numerics import norm_scale
from robustcf.estimators.operators import MatrixLike
from robustcf.estimators.probes import Seed, as_generator, rademacher


def square(B: MatrixLike) -> Counted:
    """``B`` as a counted operator, or an error if it is not square."""
    op = Counted(B)
    if op.shape[0] != op.shape[1]:
        raise InputError(
            f"a diagonal needs a square matrix, got shape {op.shape}: pass A @ A.H, say"
        )
    return op


def hutchinson_diagonal(B: MatrixLike, samples: int, *, generator: Seed = None) -> Any:
    """Estimate diag(B) as the mean of x * (B x) over random sign vectors x.

    Unbiased. One sample has variance sum_{j != i} B_ij^2 in entry i (B real), so m of them a
    standard error of sqrt(that / m).

    Args:
        B: a square matrix or operator.
        samples: m, the number of sign vectors; each costs one product with B.
        generator: a torch generator, an integer seed, or None for fresh entropy.

    Returns:
        The estimate, a tensor (an ndarray if B came from numpy). It is complex if B is.

    Example:
        >>> hutchinson_diagonal(torch.diag(torch.tensor([1.0, 2.0])), 1, generator=0).tolist()
        [1.0, 2.0]
    """
    op = square(B)
    samples = check_integer("samples", samples, 1)
    X = rademacher(op.shape[0], samples, op.dtype, op.device, as_generator(generator))
    diagonal = (X * op.matmat(X)).mean(dim=1)
    return diagonal.detach().numpy() if op.numpy else diagonal


class GramProbe(NamedTuple):
    """Samples x_i (A A^H P x)_i / scale for every row i, one column a sign vector x."""

    samples: Tensor
    scale: float
    lower: float


def gram_samples(op: Counted, X: Tensor, P: Tensor | None = None) -> GramProbe:
    """One Hutchinson sample of diag(A A^H (I - P P^H)) a column of ``X``; two products each.

    ``scale`` keeps A A^H in range when A's squares are not. ``lower`` comes for free:
    ||A w||_inf / ||w||_2 is at most the norm for every w, here w = A^H x.
    """
    Z = X if P is None else X - P @ (P.mH @ X)
    W = op.rmatmat(Z)
    scale = norm_scale(W)
    W = W / scale
    image = op.matmat(W)
    norms = torch.linalg.vector_norm(W.to(_wide(W)), dim=0)
    peaks = image.abs().amax(dim=0).to(torch.float64) / torch.where(norms > 0, norms, 1.0)
    samples = (X.conj() * image).real.to(torch.float64)
    # A hair below: the bound must survive the rounding of the products it is made of.
    slack = 1 - 8 * len(W) ** 0.5 * torch.finfo(W.dtype).eps
    return GramProbe(samples, scale, float(peaks.max()) * max(0.0, slack))


def _wide(X: Tensor) -> torch.dtype:
    return torch.complex128 if X.is_complex() else torch.float64
