"""The leading singular vectors of a sparse matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from robustcf._distributed import Ranks, Rows

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

_EXTRA = 10  # more directions than wanted: the leading ones converge faster
_ROUNDS = 3

Matrix = npt.NDArray[np.float32]


def truncated_svd(
    matrix: csr_matrix, rank: int, rng: np.random.Generator, rows: Rows | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """A randomized SVD: left vectors (n x rank), singular values, right vectors (m x rank).

    Args:
        matrix: n x m, float32.
        rank: at most the smaller side.
        rng: draws the start.
        rows: which rows of a taller matrix these are, where each rank has some; None: all.

    Cost: eight products of the matrix with rank + 10 columns, and as many QR of tall matrices
    with as many columns. With ranks, a QR adds small matrices up, and a product with the transpose
    one of m x (rank + 10).

    Example:
        >>> from scipy.sparse import csr_matrix
        >>> diagonal = csr_matrix(np.diag([3.0, 2.0, 1.0]).astype(np.float32))
        >>> truncated_svd(diagonal, 2, np.random.default_rng(0))[1].round(decimals=3).tolist()
        [3.0, 2.0]
    """
    # The transpose as it lies, without a copy: its products add in the same order, and are faster.
    forward, transposed = matrix, matrix.T
    n, m = matrix.shape
    rows = Rows.of(n, Ranks()) if rows is None else rows

    def backward(tall: Matrix) -> Matrix:
        product: Matrix = transposed @ tall
        if not rows.whole:
            product = np.ascontiguousarray(product)
            rows.ranks.sum(torch.from_numpy(product))
        return product

    width = min(rank + _EXTRA, rows.count, m)
    start = rng.standard_normal((m, width)).astype(np.float32)
    left = forward @ start
    for _ in range(_ROUNDS):
        left = forward @ _orthonormal(backward(_orthonormal(left, rows)))
    basis = _orthonormal(left, rows)
    # Torch, not numpy, for the dense algebra: its threads are the ones the caller has set.
    projected = torch.from_numpy(np.ascontiguousarray(backward(basis)))
    right, sizes, inner = torch.linalg.svd(projected, full_matrices=False)
    return torch.from_numpy(basis) @ inner[:rank].T, sizes[:rank], right[:, :rank]


def _orthonormal(matrix: Matrix, rows: Rows | None = None) -> Matrix:
    """The Q of a QR decomposition; of a taller matrix, of which each rank has some rows.

    Then by the decompositions of the parts: their R above each other have the R of the whole.
    """
    if rows is not None and not rows.whole:
        own, small = torch.linalg.qr(torch.from_numpy(np.ascontiguousarray(matrix)))
        counts = [min(count, matrix.shape[1]) for count in rows.counts]
        at = sum(counts[: rows.ranks.rank])
        inner = torch.linalg.qr(rows.ranks.joined(small)).Q[at : at + counts[rows.ranks.rank]]
        part: Matrix = (own @ inner).numpy()
        return part
    q: Matrix = torch.linalg.qr(torch.from_numpy(np.ascontiguousarray(matrix)))[0].numpy()
    return q
