"""Random test matrices, and where their randomness comes from.

Nothing here reads or writes a global random state. Draws are made on the generator's own device
and then moved, so one seed gives one stream wherever the operator lives.
"""

from __future__ import annotations

import numbers

import torch
from torch import Tensor

from robustcf.errors import InputError

Seed = torch.Generator | int | None


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
