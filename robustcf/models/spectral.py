"""Spectral initialization: start where the linear part of the problem is already solved."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from robustcf._distributed import Ranks, Rows
from robustcf.data.interactions import Interactions, csr_over, user_ranges
from robustcf.data.shards import Shard
from robustcf.errors import InputError

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

# The smooth start, tuned on the validation pairs of MovieLens-1M, Yelp2018 and CiteULike-a.
POPULARITY = 0.25
_EMPHASIS = 1.5
_EXTRA = 10  # more directions than wanted: the leading ones converge faster
_ROUNDS = 3

Matrix = npt.NDArray[np.float32]


def spectral_factors(
    train: Interactions | Shard,
    dim: int,
    rng: np.random.Generator,
    *,
    base_logit: float = 5.0,
    smooth: bool = False,
    popularity: float = POPULARITY,
) -> tuple[Matrix, Matrix]:
    """Return factors from an SVD of D_u^{-1/2} R D_i^{-1/2}, plus one constant direction.

    The SVD gives dim - 1 directions, its singular values shared evenly between both sides and
    scaled so that the mean row norms are 1. The last direction is +sqrt(base_logit) for users and
    -sqrt(base_logit) for items, so that every score starts near -base_logit, where the many
    negatives pull it. From small random numbers, a weighted cross-entropy would first find the
    popularity solution and stay near it for thousands of steps.

    Args:
        train: the pairs; or a shard of them, then U holds its users alone.
        dim: columns, at least 1; those beyond the smaller side of the data are 0.
        rng: draws the start of the randomized SVD.
        base_logit: see above.
        smooth: return a low-pass filter on the graph, which ranks far better before training and
            alike after it: singular values to the power of 3/2 play down directions that few pairs
            support, and item rows times a power of their degree restore part of their popularity.
        popularity: that power.

    Returns:
        U (n_users x dim) and V (n_items x dim), float32.

    Cost: that of :func:`truncated_svd` with rank dim - 1.

    Example:
        >>> from robustcf.data import checkerboard
        >>> U, V = spectral_factors(checkerboard().train, 3, np.random.default_rng(0))
        >>> round(float(U[0, 2]), 4), round(float(V[0, 2]), 4)
        (2.2361, -2.2361)
    """
    if dim < 1:
        raise InputError(f"dim must be at least 1, got {dim}")
    shard = train if isinstance(train, Shard) else Shard.of(train, Ranks())
    train, item_degrees = shard.pairs, shard.item_degrees
    U, V = (np.zeros((n, dim), dtype=np.float32) for n in (train.n_users, train.n_items))
    U[:, -1], V[:, -1] = base_logit**0.5, -(base_logit**0.5)
    rank = min(dim - 1, shard.rows.count, train.n_items)
    if rank == 0:
        return U, V

    left, sizes, right = truncated_svd(_normalized(train, item_degrees), rank, rng, shard.rows)
    roots = (sizes / sizes[0]).sqrt()  # relative, so that powers neither overflow nor vanish
    u = (left * (roots ** (2 * _EMPHASIS - 1) if smooth else roots)).numpy()
    v = (right * roots).numpy()
    if smooth:
        v *= (item_degrees.astype(np.float32) ** popularity)[:, None]
    U[:, :rank], V[:, :rank] = u / _mean_norm(u, shard.ranks), v / _mean_norm(v)
    return U, V


def _normalized(train: Interactions, item_degrees: npt.NDArray[np.int64]) -> csr_matrix:
    """Return D_u^{-1/2} R D_i^{-1/2}; it shares the item ids with the pairs."""
    weights = np.empty(len(train), dtype=np.float32)
    for start, stop in user_ranges(train.indptr):
        here = slice(int(train.indptr[start]), int(train.indptr[stop]))
        degrees = np.repeat(train.user_degrees[start:stop], train.user_degrees[start:stop])
        weights[here] = 1.0 / np.sqrt(degrees.astype(np.float64) * item_degrees[train.items[here]])
    return csr_over(weights, train.items, train.indptr, train.n_items)


def _mean_norm(rows: Matrix, ranks: Ranks | None = None) -> np.float32:
    norms = np.sqrt((rows.astype(np.float64) ** 2).sum(axis=1))
    some = norms[norms > 0]
    if ranks is not None and ranks.size > 1:
        total, count = ranks.total(float(some.sum()), len(some))
        return np.float32(total / count if count else 1.0)
    return np.float32(some.mean() if len(some) else 1.0)


def truncated_svd(
    matrix: csr_matrix, rank: int, rng: np.random.Generator, rows: Rows | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the leading left vectors, singular values and right vectors of a sparse matrix.

    By a randomized SVD (Halko, Martinsson and Tropp, 2011, arXiv:0909.4061) of a float32 matrix;
    ``rows`` tells which rows of a taller matrix it holds, where each rank has some.

    Cost: eight products of the matrix with rank + 10 columns, and as many QR decompositions of
    tall matrices with as many columns.

    Example:
        >>> from scipy.sparse import csr_matrix
        >>> diagonal = csr_matrix(np.diag([3.0, 2.0, 1.0]).astype(np.float32))
        >>> truncated_svd(diagonal, 2, np.random.default_rng(0))[1].round(decimals=3).tolist()
        [3.0, 2.0]
    """
    transposed = matrix.T  # not copied: its products add in the same order, and are faster
    n, m = matrix.shape
    rows = Rows.of(n, Ranks()) if rows is None else rows

    def backward(tall: Matrix) -> Matrix:
        product: Matrix = transposed @ tall
        if not rows.whole:
            product = np.ascontiguousarray(product)
            rows.ranks.sum(torch.from_numpy(product))
        return product

    width = min(rank + _EXTRA, rows.count, m)
    left = matrix @ rng.standard_normal((m, width)).astype(np.float32)
    for _ in range(_ROUNDS):
        left = matrix @ _orthonormal(backward(_orthonormal(left, rows)))
    basis = _orthonormal(left, rows)
    # Dense algebra by torch, since callers set its number of threads.
    projected = torch.from_numpy(np.ascontiguousarray(backward(basis)))
    right, sizes, inner = torch.linalg.svd(projected, full_matrices=False)
    return torch.from_numpy(basis) @ inner[:rank].T, sizes[:rank], right[:, :rank]


def _orthonormal(matrix: Matrix, rows: Rows | None = None) -> Matrix:
    """Return the Q of a QR decomposition, over all ranks by a QR of the parts' stacked R."""
    own, small = torch.linalg.qr(torch.from_numpy(np.ascontiguousarray(matrix)))
    if rows is not None and not rows.whole:
        counts = [min(count, matrix.shape[1]) for count in rows.counts]
        at = sum(counts[: rows.ranks.rank])
        own = own @ torch.linalg.qr(rows.ranks.joined(small)).Q[at : at + counts[rows.ranks.rank]]
    q: Matrix = own.numpy()
    return q
