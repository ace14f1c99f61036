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

_Vector = npt.NDArray[np.float64]
# Pairs behind the rows of the co-occurrence matrix made at a time, which bounds memory.
_BLOCK_PAIRS = 4_000_000


def user_beta(degrees: npt.NDArray[Any]) -> _Vector:
    """Return sqrt(degree + 1) / degree; 0 for a user without pairs, who never enters a sum."""
    some = degrees > 0
    values: _Vector = np.where(some, np.sqrt(degrees + 1.0) / np.where(some, degrees, 1), 0.0)
    return values


def item_beta(degrees: npt.NDArray[Any]) -> _Vector:
    """Return 1 / sqrt(degree + 1)."""
    values: _Vector = 1.0 / np.sqrt(degrees + 1.0)
    return values


def item_graph(train: Interactions, neighbours: int = 10, ranks: Ranks | None = None) -> csr_matrix:
    """Return omega: for each item its most similar items, with their weights.

    With the co-occurrence matrix G = R^T R (diagonal included, as published) and g_i the sum of
    its row i, omega_ij = G_ij * sqrt(g_i + 1) / g_i / sqrt(g_j + 1); each row keeps its largest
    ``neighbours`` entries, ties to the lower id. G is made some rows at a time.

    Args:
        ranks: processes that have the same pairs and share the items among them, or None.

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
    # g without G: row sums of R^T R are R^T (R 1), the work for each item.
    totals = np.asarray(transposed @ train.user_degrees.astype(np.float64)).ravel()
    out, into = user_beta(totals), item_beta(totals)
    ends = np.cumsum(totals)
    rows: list[npt.NDArray[Any]] = [np.zeros(0, np.int64)]
    columns: list[npt.NDArray[Any]] = [np.zeros(0, np.int64)]
    values: list[_Vector] = [np.zeros(0)]
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
            kept = largest(value[entries], block.indices[entries], neighbours)
            rows.append(np.full(len(kept), start + row))
            columns.append(block.indices[entries][kept])
            values.append(value[entries][kept])
        start = stop
    parts = [np.concatenate(part) for part in (values, rows, columns)]
    if ranks is not None:
        parts = [ranks.joined_array(part) for part in parts]
    graph = csr_matrix((parts[0], (parts[1], parts[2])), shape=(train.n_items, train.n_items))
    graph.sort_indices()
    return graph


def largest(
    values: npt.NDArray[Any], columns: npt.NDArray[Any], count: int
) -> npt.NDArray[np.intp]:
    """Return where the ``count`` largest values are, ties to the lower column; no full sort."""
    if len(values) <= count:
        return np.arange(len(values))
    limit = np.partition(values, len(values) - count)[len(values) - count]
    above = np.flatnonzero(values > limit)
    level = np.flatnonzero(values == limit)
    level = level[np.argsort(columns[level])]
    return np.concatenate((above, level[: count - len(above)]))


def check_max_share(value: float | None, name: str = "max_share") -> None:
    """Raise unless it is None or a share: more than 0, at most 1."""
    if value is not None and check_number(name, value, positive=True) > 1:
        raise InputError(f"{name} must be more than 0 and at most 1, got {value}")


def item_weights(item_degrees: npt.NDArray[Any], max_share: float | None) -> _Vector | None:
    """Return the weight of every pair of an item, which caps each user's share of the item.

    With one prior pair per item (Laplace's rule), the share of a pair of weight w in an item of
    degree d is ``w / (1 + d w)``. The largest weight, at most 1, whose share is at most s is::

        w = 1                  for d >= 1 / s - 1
        w = s / (1 - s d)      below

    Promoting an item without interactions then takes 1 / s - 1 accounts. More than 1 / s accounts
    pass the cap.

    Returns:
        A weight per item, or None if all are 1.

    Example:
        >>> item_weights(np.array([1, 5, 9, 100]), 0.1).round(3).tolist()
        [0.111, 0.2, 1.0, 1.0]
    """
    check_max_share(max_share)
    if max_share is None:
        return None
    left = 1.0 - max_share * item_degrees.astype(np.float64)
    # Where the cap does not bind, left <= max_share (up to rounding).
    binds = left > max_share * (1 + 1e-9)
    weights = np.where(binds, max_share / np.where(binds, left, 1.0), 1.0)
    return None if bool((weights == 1.0).all()) else weights
