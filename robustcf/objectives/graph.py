"""UltraGCN's weights: beta of users and items, and the item-item graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from robustcf._distributed import Ranks
from robustcf.data.interactions import Interactions

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

Vector = npt.NDArray[np.float64]
# Rows of the co-occurrence matrix made at a time: bounds memory by what they hold.
_BLOCK_PAIRS = 4_000_000


def user_beta(degrees: npt.NDArray[Any]) -> Vector:
    """sqrt(degree + 1) / degree; 0 for a user without pairs, who never enters a sum.

    Example:
        >>> user_beta(np.array([0, 3])).round(4).tolist()
        [0.0, 0.6667]
    """
    some = degrees > 0
    values: Vector = np.where(some, np.sqrt(degrees + 1.0) / np.where(some, degrees, 1), 0.0)
    return values


def item_beta(degrees: npt.NDArray[Any]) -> Vector:
    """1 / sqrt(degree + 1).

    Example:
        >>> item_beta(np.array([0, 3])).tolist()
        [1.0, 0.5]
    """
    values: Vector = 1.0 / np.sqrt(degrees + 1.0)
    return values


def item_graph(train: Interactions, neighbours: int = 10, ranks: Ranks | None = None) -> csr_matrix:
    """Omega: for each item its most similar items, with their weights.

    With the co-occurrence matrix G = R^T R (its diagonal, an item with itself, included, as
    published) and g_i the sum of its row i, omega_ij = G_ij * sqrt(g_i + 1) / g_i /
    sqrt(g_j + 1); each row keeps its largest ``neighbours`` entries, ties to the lower id.

    Args:
        neighbours: entries a row keeps; rows with fewer keep what they have.
        ranks: processes that have the same pairs and share the items among them, or None.

    Returns:
        n_items x n_items, float64. G itself is never whole: it is made some rows at a time.

    Cost: the sum over users of the squared number of their items.

    Example:
        >>> pairs = Interactions.from_pairs([0, 0, 1], [0, 1, 0], 2, 2)[0]
        >>> item_graph(pairs, 1).toarray().round(4)
        array([[0.6667, 0.    ],
               [0.    , 0.5   ]])
    """
    from scipy.sparse import csr_matrix

    R = train.csr()
    transposed = R.T.tocsr()
    transposed.sort_indices()
    # g without G: row sums of R^T R are R^T (R 1).
    totals = np.asarray(transposed @ train.user_degrees.astype(np.float64)).ravel()
    out, into = user_beta(totals), item_beta(totals)
    # Work for an item: the degrees of its users; cut so that a block stays small.
    ends = np.cumsum(totals)
    rows: list[npt.NDArray[Any]] = []
    columns: list[npt.NDArray[Any]] = []
    values: list[Vector] = []
    mine = slice(0, train.n_items) if ranks is None else ranks.share(train.n_items)
    start = mine.start
    while start < mine.stop:
        limit = (ends[start - 1] if start else 0.0) + _BLOCK_PAIRS
        stop = min(mine.stop, max(start + 1, int(np.searchsorted(ends, limit))))
        block = (transposed[start:stop] @ R).tocsr()
        lengths = np.diff(block.indptr)
        value = block.data * np.repeat(out[start:stop], lengths) * into[block.indices]
        for row in range(stop - start):
            entries = slice(block.indptr[row], block.indptr[row + 1])
            kept = _largest(value[entries], block.indices[entries], neighbours)
            rows.append(np.full(len(kept), start + row))
            columns.append(block.indices[entries][kept])
            values.append(value[entries][kept])
        start = stop
    parts = [np.concatenate([np.zeros(0, kind), *part]) for part, kind in (
        (values, np.float64), (rows, np.int64), (columns, np.int64),
    )]  # fmt: skip
    if ranks is not None:
        parts = [ranks.joined_array(part) for part in parts]
    graph = csr_matrix((parts[0], (parts[1], parts[2])), shape=(train.n_items, train.n_items))
    graph.sort_indices()
    return graph


def _largest(values: Vector, columns: npt.NDArray[Any], count: int) -> npt.NDArray[np.intp]:
    """Where the ``count`` largest values are, ties to the lower column; no full sort."""
    if len(values) <= count:
        return np.arange(len(values))
    limit = np.partition(values, len(values) - count)[len(values) - count]
    above = np.flatnonzero(values > limit)
    level = np.flatnonzero(values == limit)
    level = level[np.argsort(columns[level])]
    return np.concatenate((above, level[: count - len(above)]))
