"""Sums of squares that stay in range, tail quantiles, and random test matrices.

Nothing here reads or writes a global random state. Draws are made on the generator's own device
and then moved, so one seed gives one stream wherever the operator lives.
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


def orthonormal(Y: Tensor) -> Tensor:
    """An orthonormal basis whose span contains Y's (columns may exceed rows)."""
    Q: Tensor = torch.linalg.qr(Y).Q
    return Q


def as_generator(generator: Seed) -> torch.Generator:
    """Turn a generator, an integer seed, or None (fresh entropy) into a generator.

    Example:
        >>> a, b = as_generator(7), as_generator(7)
        >>> bool(torch.equal(torch.rand(3, generator=a), torch.rand(3, generator=b)))
        True
    """
    if isinstance(generator, torch.Generator):
        return generator
    if generator is None:
        fresh = torch.Generator()
        fresh.seed()
        return fresh
    if isinstance(generator, numbers.Integral) and not isinstance(generator, bool):
        if not -(2**63) <= int(generator) < 2**64:
            raise InputError(f"a seed must fit in 64 bits, got {generator}: use a smaller one")
        return torch.Generator().manual_seed(int(generator))
    raise InputError(
        "generator must be a torch.Generator, an integer seed or None, "
        f"got {type(generator).__name__}: pass torch.Generator().manual_seed(0), say"
    )


def rademacher(
    rows: int, columns: int, dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> Tensor:
    """Independent signs: each entry is +1 or -1 with probability 1/2, real for complex dtypes too.

    Real signs suffice for Hermitian matrices: the off-diagonal noise they leave in a diagonal
    estimate is the real part of what complex ones would leave.
    """
    bits = torch.randint(0, 2, (rows, columns), generator=generator, device=generator.device)
    return bits.mul_(2).sub_(1).to(device=device, dtype=dtype)


def gaussian(
    rows: int, columns: int, dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> Tensor:
    """Independent standard Gaussians; circular (variance 1/2 a part) for complex dtypes."""
    draw = torch.randn(rows, columns, generator=generator, device=generator.device, dtype=dtype)
    return draw.to(device)
