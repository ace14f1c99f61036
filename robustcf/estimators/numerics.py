"""Sums of squares that stay in range, tail quantiles, and random test matrices.

Draws are made on the generator's own device and then moved: a seed gives the same numbers on every
device. The global random state is neither read nor changed.
"""

from __future__ import annotations

import functools
import math
import numbers

import torch
from torch import Tensor

from robustcf.errors import InputError

Seed = torch.Generator | int | None

_ROWS = 65536


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the double precision dtype, real or complex."""
    return torch.complex128 if dtype.is_complex else torch.float64


def blocks(X: Tensor, size: int) -> list[Tensor]:
    """Return consecutive blocks of at most ``size`` rows (views)."""
    return [X[start : start + size] for start in range(0, len(X), size)]


def row_norms(X: Tensor) -> Tensor:
    """Return the Euclidean norm of every row in float64; the gradient at a zero row is 0.

    Rows are scaled by their largest entry, so squares stay in range. NaN and inf propagate.
    """
    if X.shape[1] == 0:
        return torch.zeros(X.shape[0], dtype=torch.float64, device=X.device)
    if len(X) > _ROWS and not X.requires_grad:  # bound the float64 copy
        return torch.cat([row_norms(block) for block in blocks(X, _ROWS)])
    wide = X.to(wide_dtype(X.dtype))
    largest = wide.detach().abs().amax(dim=1, keepdim=True)
    # A power of two just below, so that dividing by it rounds nothing.
    scale = torch.ldexp(torch.ones_like(largest), torch.frexp(largest).exponent - 1)
    scale = torch.where((largest > 0) & torch.isfinite(largest), scale, torch.ones_like(scale))
    norms: Tensor = torch.linalg.vector_norm(wide / scale, dim=1) * scale.squeeze(1)
    return norms


def norm_scale(X: Tensor) -> float:
    """Return a power of two near the largest modulus (1 for zero or empty X): divides exactly."""
    largest = float(X.detach().abs().max()) if X.numel() else 0.0
    if not (0 < largest < math.inf):
        return 1.0
    return 2.0 ** max(-1000, min(1000, math.frexp(largest)[1]))


@functools.lru_cache(maxsize=4096)
def chi2_quantile(probability: float, dof: int) -> float:
    """Return the chi-square quantile, by bisection on the incomplete gamma function (no scipy)."""

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
        low, high = (middle, high) if below(middle) < probability else (low, middle)
    return low  # the lower end: a bound divided by it errs on the safe side


def sign_test_groups(delta: float) -> int:
    """Return the least g with 2^-g <= delta."""
    return max(1, math.ceil(-math.log2(delta) - 1e-12))


def orthonormal(Y: Tensor) -> Tensor:
    """Return an orthonormal basis whose span contains Y's (columns may exceed rows)."""
    Q: Tensor = torch.linalg.qr(Y).Q
    return Q


def as_generator(generator: Seed) -> torch.Generator:
    """Turn a generator, an integer seed, or None (fresh entropy) into a generator."""
    if isinstance(generator, torch.Generator):
        return generator
    if generator is None:
        fresh = torch.Generator()
        fresh.seed()
        return fresh
    if isinstance(generator, numbers.Integral) and not isinstance(generator, bool):
        if not -(2**63) <= int(generator) < 2**64:
            raise InputError(f"a seed must fit in 64 bits, got {generator}")
        return torch.Generator().manual_seed(int(generator))
    raise InputError(
        f"generator must be a torch.Generator, an integer or None, got {type(generator).__name__}"
    )


def rademacher(
    rows: int, columns: int, dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> Tensor:
    """Draw independent signs +1 and -1; real for complex dtypes too, enough for A A^H."""
    bits = torch.randint(0, 2, (rows, columns), generator=generator, device=generator.device)
    return bits.mul_(2).sub_(1).to(device=device, dtype=dtype)


def gaussian(
    rows: int, columns: int, dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> Tensor:
    """Draw standard Gaussians; circular (variance 1/2 per part) for complex dtypes."""
    draw = torch.randn(rows, columns, generator=generator, device=generator.device, dtype=dtype)
    return draw.to(device)
