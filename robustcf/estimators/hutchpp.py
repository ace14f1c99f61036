"""The Hutch++ diagonal estimator: an exact low-rank part, Hutchinson on the rest."""

from __future__ import annotations

import math
import numbers
from typing import Any

import torch
from torch import Tensor

from robustcf._checks import check_integer
from robustcf.errors import InputError
from robustcf.estimators.hutchinson import square
from robustcf.estimators.operators import MatrixLike
from robustcf.estimators.probes import Seed, as_generator, rademacher


def split_samples(samples: int, p: float) -> tuple[int, int]:
    """(r, m - 2 r) with r = floor(p m): columns of the low-rank part, sign vectors for the rest.

    Example:
        >>> split_samples(9, 1 / 3), split_samples(10, 1 / 3), split_samples(2, 1 / 3)
        ((3, 3), (3, 4), (0, 2))
    """
    if isinstance(p, bool) or not isinstance(p, numbers.Real) or not 0 <= p <= 0.5:
        raise InputError(f"p must lie in [0, 1/2], got {p!r}: the paper takes 1/3")
    r = math.floor(float(p) * samples + 1e-9)  # 0.29 * 100 must give 29
    return r, samples - 2 * r


def orthonormal(Y: Tensor) -> Tensor:
    """An orthonormal basis whose span contains Y's (columns may exceed rows)."""
    Q: Tensor = torch.linalg.qr(Y).Q
    return Q


def hutchpp_diagonal(
    B: MatrixLike, samples: int, *, p: float = 1 / 3, generator: Seed = None
) -> Any:
    """Estimate diag(B) as diag(B Q Q^H) + Hutchinson on B (I - Q Q^H), Q a basis of B S.

    Unbiased for every square B, since the sign vectors are independent of Q; the variance is
    Hutchinson's for the deflated matrix, small when B is close to low rank and symmetric.

    Args:
        B: a square matrix or operator.
        samples: m, the number of products with B: r = floor(p m) for B S, r for B Q and
            m - 2 r for the rest.
        p: the share of m that goes to each half of the low-rank part, at most 1/2.
        generator: a torch generator, an integer seed, or None for fresh entropy.

    Returns:
        The estimate, a tensor (an ndarray if B came from numpy). It is complex if B is.

    Example:
        >>> B = torch.ones(3, 3, dtype=torch.float64)
        >>> torch.round(hutchpp_diagonal(B, 3, generator=0), decimals=9).tolist()
        [1.0, 1.0, 1.0]
    """
    op = square(B)
    r, rest = split_samples(check_integer("samples", samples, 1), p)
    source = as_generator(generator)
    d = op.shape[0]
    diagonal = torch.zeros(d, dtype=op.dtype, device=op.device)
    Q = torch.zeros(d, 0, dtype=op.dtype, device=op.device)
    if r:
        Q = orthonormal(op.matmat(rademacher(d, r, op.dtype, op.device, source)))
        diagonal = diagonal + (op.matmat(Q) * Q.conj()).sum(dim=1)
    if rest:
        X = rademacher(d, rest, op.dtype, op.device, source)
        diagonal = diagonal + (X * op.matmat(X - Q @ (Q.mH @ X))).mean(dim=1)
    return diagonal.detach().numpy() if op.numpy else diagonal
