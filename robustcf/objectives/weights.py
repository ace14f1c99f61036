"""Weights of training pairs: UltraGCN's beta and item-item graph, and a cap on one user's share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from robustcf._checks import check_number
from robustcf._distributed import Ranks
from robustcf.data.interactions import Interactions
from robustcf.errors import InputError

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


def check_max_share(value: float | None, name: str = "max_share") -> None:
    """Raise unless it is None or a share: more than 0, at most 1.

    Example:
        >>> check_max_share(1.5)
        Traceback (most recent call last):
        robustcf.errors.InputError: max_share must be more than 0 and at most 1, got 1.5
    """
    if value is not None and check_number(name, value, positive=True) > 1:
        raise InputError(f"{name} must be more than 0 and at most 1, got {value}")


def item_weights(
    item_degrees: npt.NDArray[Any], max_share: float | None
) -> npt.NDArray[np.float64] | None:
    """The weight of every pair of an item, so that no user's share of the item exceeds a cap.

    What an item learns is a sum over its pairs. Give it one pair's worth of doubt, so that an item
    with a single pair is not decided by it alone (Laplace's rule); the share of a pair of weight w
    in an item of degree d is then ``w / (1 + d w)``. The largest weight, at most 1, whose share is
    at most s is::

        w = 1                  for d >= 1 / s - 1
        w = s / (1 - s d)      below

    So an item is believed in full once 1 / s - 1 users stand behind it, and nearly not at all while
    a few do: whoever promotes an item that nobody has needs that many accounts for it. All pairs of
    an item weigh the same: without knowing who is fake there is no reason to tell them apart. More
    than 1 / s accounts pass the cap, which is what it does not promise.

    Cost: one pass over the items.

    Example:
        >>> item_weights(np.array([1, 5, 9, 100]), 0.1).round(3).tolist()
        [0.111, 0.2, 1.0, 1.0]
    """
    check_max_share(max_share)
    if max_share is None:
        return None
    degrees = item_degrees.astype(np.float64)
    left = 1.0 - max_share * degrees
    # Where the cap does not bind, left <= max_share (up to rounding): no quotient is needed.
    binds = left > max_share * (1 + 1e-9)
    weights = np.where(binds, max_share / np.where(binds, left, 1.0), 1.0)
    return None if bool((weights == 1.0).all()) else weights
