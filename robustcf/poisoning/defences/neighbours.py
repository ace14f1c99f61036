"""Similarities of users' profiles: cosines, items weighted by how rare they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from robustcf.data.interactions import Interactions

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

# Similarities held at a time, at most: 64 MB, and about four times that with what sorts them.
_ENTRIES = 16_000_000


def unit_profiles(train: Interactions, rarity: float) -> csr_matrix:
    """Profiles of length 1, items weighted by ``log(users / degree) ** rarity``.

    Users are those with pairs. 0 gives plain profiles; the larger it is, the more rare items
    count. An item that everybody has weighs nothing, unless rarity is 0.

    Example:
        >>> train = Interactions(np.array([0, 0, 1]), np.array([0, 1, 0]), 2, 2)
        >>> (unit_profiles(train, 0.0).toarray() ** 2).tolist()[1]
        [1.0, 0.0]
    """
    from scipy.sparse import diags

    users = max(1, int((train.user_degrees > 0).sum()))
    weights = np.log(users / np.maximum(train.item_degrees, 1.0)) ** rarity
    R = (train.csr().astype(np.float32) @ diags(weights.astype(np.float32))).tocsr()
    norms = np.sqrt(np.asarray(R.multiply(R).sum(axis=1)).ravel())
    unit: csr_matrix = (diags(1.0 / np.where(norms > 0, norms, 1.0)) @ R).tocsr()
    return unit.astype(np.float32)


def nearest(
    profiles: csr_matrix, count: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """The cosines of each row with its nearest other rows, descending, and which rows they are.

    Args:
        profiles: rows of length 1 (or 0).
        count: neighbours of each row, at most all the others.

    Returns:
        Two arrays, rows x count.

    Cost: the product of the matrix with its transpose; about 256 MB at a time.

    Example:
        >>> from scipy.sparse import csr_matrix
        >>> found, who = nearest(csr_matrix(np.eye(3)[[0, 0, 1]]), 1)
        >>> found.ravel().tolist(), who.ravel()[:2].tolist()
        ([1.0, 1.0, 0.0], [1, 0])
    """
    n = profiles.shape[0]
    count = min(count, max(n - 1, 0))
    values = np.zeros((n, count), dtype=np.float32)
    who = np.zeros((n, count), dtype=np.int64)
    if count == 0:
        return values, who
    back: Any = profiles.T.tocsr()
    step = max(1, _ENTRIES // n)
    for start in range(0, n, step):
        block = (profiles[start : start + step] @ back).toarray()
        rows = np.arange(len(block))
        block[rows, start + rows] = -1.0  # nobody is their own neighbour
        best = np.argpartition(-block, count - 1, axis=1)[:, :count]
        found = np.take_along_axis(block, best, axis=1)
        order = np.lexsort((best, -found), axis=1)
        values[start : start + step] = np.take_along_axis(found, order, axis=1)
        who[start : start + step] = np.take_along_axis(best, order, axis=1)
    return values, who
