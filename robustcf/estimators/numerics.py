"""Sums of squares that neither overflow nor vanish, and the tail quantiles the bounds need."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

_ROWS = 65536


def blocks(X: Tensor, size: int) -> list[Tensor]:
    """Consecutive blocks of at most ``size`` rows (views)."""
    return [X[start : start + size] for start in range(0, len(X), size)]


def row_norms(X: Tensor) -> Tensor:
    """Euclidean norm of every row, in float64; differentiable, with gradient 0 at a zero row.

    Each row is divided by its largest entry first, so squares stay in range for all entries that
    are in range themselves. A NaN or infinite entry gives a NaN or infinite norm.

    Example:
        >>> row_norms(torch.tensor([[3.0, 4.0], [0.0, 0.0]])).tolist()
        [5.0, 0.0]
    """
    if X.shape[1] == 0:
        return torch.zeros(X.shape[0], dtype=torch.float64, device=X.device)
    if len(X) > _ROWS and not X.requires_grad:  # bound the float64 copy
        return torch.cat([row_norms(block) for block in blocks(X, _ROWS)])
    wide = X.to(torch.complex128 if X.is_complex() else torch.float64)
    largest = wide.detach().abs().amax(dim=1, keepdim=True)
    # A power of two just below, so that dividing by it rounds nothing.
    scale = torch.ldexp(torch.ones_like(largest), torch.frexp(largest).exponent - 1)
    scale = torch.where((largest > 0) & torch.isfinite(largest), scale, torch.ones_like(scale))
    norms: Tensor = torch.linalg.vector_norm(wide / scale, dim=1) * scale.squeeze(1)
    return norms


def norm_scale(X: Tensor) -> float:
    """A power of two near the largest entry's modulus; 1 for zero or empty X.

    Dividing by it is exact, and makes the squares of everything that matters representable.
    """
    largest = float(X.detach().abs().max()) if X.numel() else 0.0
    if not (0 < largest < math.inf):
        return 1.0
    return 2.0 ** max(-1000, min(1000, math.frexp(largest)[1]))


@functools.lru_cache(maxsize=4096)
def chi2_quantile(probability: float, dof: int) -> float:
    """The x with P(chi-square with ``dof`` degrees of freedom <= x) = probability.

    Bisection on the regularised incomplete gamma function, so that scipy need not be loaded.

    Example:
        >>> round(chi2_quantile(0.05, 16), 6)
        7.961646
    """

    def below(x: float) -> float:
        half = torch.tensor([dof / 2, x / 2], dtype=torch.float64)
        return float(torch.special.gammainc(half[0], half[1]))

    low, high = 0.0, float(dof)
    while below(high) < probability:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if below(middle) < probability:
            low = middle
        else:
            high = middle
    # The lower end: a bound divided by it errs on the safe side.
    return low


def sign_test_groups(delta: float) -> int:
    """Least g with 2^-g <= delta: so many symmetric errors are rarely all negative."""
    return max(1, math.ceil(-math.log2(delta) - 1e-12))
