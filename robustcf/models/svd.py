"""The leading singular vectors of a sparse matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

_EXTRA = 10  # more directions than wanted: the leading ones converge faster
_ROUNDS = 3

Matrix = npt.NDArray[np.float32]


def truncated_svd(
    matrix: csr_matrix, rank: int, rng: np.random.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """A randomized SVD: left vectors (n x rank), singular values, right vectors (m x rank).

    Args:
        matrix: n x m, float32.
        rank: at most the smaller side.
        rng: draws the start.

    Cost: eight products of the matrix with rank + 10 columns, and as many QR of tall matrices
    with as many columns.

    Example:
        >>> from scipy.sparse import csr_matrix
        >>> diagonal = csr_matrix(np.diag([3.0, 2.0, 1.0]).astype(np.float32))
        >>> truncated_svd(diagonal, 2, np.random.default_rng(0))[1].round(decimals=3).tolist()
        [3.0, 2.0]
    """
    # The transpose as it lies, without a copy: its products add in the same order, and are faster.
    forward, backward = matrix, matrix.T
    n, m = matrix.shape
    width = min(rank + _EXTRA, n, m)
    start = rng.standard_normal((m, width)).astype(np.float32)
    left = forward @ start
    for _ in range(_ROUNDS):
        left = forward @ _orthonormal(backward @ _orthonormal(left))
    basis = _orthonormal(left)
    # Torch, not numpy, for the dense algebra: its threads are the ones the caller has set.
    projected = torch.from_numpy(np.ascontiguousarray(backward @ basis))
    right, sizes, inner = torch.linalg.svd(projected, full_matrices=False)
    return torch.from_numpy(basis) @ inner[:rank].T, sizes[:rank], right[:, :rank]


def _orthonormal(matrix: Matrix) -> Matrix:
    q: Matrix = torch.linalg.qr(torch.from_numpy(np.ascontiguousarray(matrix)))[0].numpy()
    return q
