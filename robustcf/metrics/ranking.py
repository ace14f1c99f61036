"""Pure functions on ranked lists: hits in, one value per user out, in one pass over the hits.

``hits`` is users x ranks, True where the item at that rank is relevant, best rank first, padded
with False. ``relevant`` is the number of relevant items per user, at least 1: the caller leaves
other users out. A cutoff beyond the length of the lists counts the missing ranks as misses.

Example:
    >>> hits, relevant = np.array([[False, True, True]]), np.array([4])
    >>> metrics = ndcg, reciprocal_rank, recall, precision, hit_rate, average_precision
    >>> [round(float(metric(hits, relevant, 2)[0]), 4) for metric in metrics]
    [0.3869, 0.5, 0.25, 0.5, 1.0, 0.125]
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from robustcf._checks import check_integer
from robustcf.errors import InputError

_Hits = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.integer[Any]]
PerUser = npt.NDArray[np.float64]


def _checked(hits: _Hits, relevant: Counts, k: int) -> _Hits:
    check_integer("k", k)
    if hits.ndim != 2 or hits.dtype != np.bool_:
        raise InputError(
            f"hits must be a boolean array, users x ranks, got {hits.dtype} of shape {hits.shape}"
        )
    if relevant.shape != (len(hits),):
        raise InputError(f"expected one count per user ({len(hits)}), got shape {relevant.shape}")
    if len(relevant) and relevant.min() < 1:
        row = int(relevant.argmin())
        raise InputError(f"user number {row} has no relevant item: leave such users out")
    return hits[:, :k]


def _discounts(length: int) -> PerUser:
    return np.asarray(1.0 / np.log2(np.arange(2, length + 2)))


def ndcg(hits: _Hits, relevant: Counts, k: int) -> PerUser:
    """Return NDCG@k: the sum of 1 / log2(rank + 1) over hits, divided by its best value.

    The best value has min(k, relevant) hits first.
    """
    first = _checked(hits, relevant, k)
    discounts = _discounts(first.shape[1])
    ideal = np.cumsum(_discounts(max(1, min(k, int(relevant.max(initial=1))))))
    gained: PerUser = (first * discounts).sum(axis=1)
    return np.asarray(gained / ideal[np.minimum(relevant, k) - 1])


def reciprocal_rank(hits: _Hits, relevant: Counts, k: int) -> PerUser:
    """Return RR@k: one over the rank of the first hit, else 0. The mean over users is MRR@k."""
    first = _checked(hits, relevant, k)
    if first.shape[1] == 0:
        return np.zeros(len(first))
    return np.asarray(np.where(first.any(axis=1), 1.0 / (first.argmax(axis=1) + 1.0), 0.0))


def recall(hits: _Hits, relevant: Counts, k: int) -> PerUser:
    """Return Recall@k: hits in the first k ranks, divided by the number of relevant items."""
    return np.asarray(_checked(hits, relevant, k).sum(axis=1) / relevant)


def precision(hits: _Hits, relevant: Counts, k: int) -> PerUser:
    """Return Precision@k: hits in the first k ranks, divided by k, even if fewer are left."""
    return np.asarray(_checked(hits, relevant, k).sum(axis=1) / float(k))


def hit_rate(hits: _Hits, relevant: Counts, k: int) -> PerUser:
    """Return HitRate@k: 1 if the first k ranks hold a hit, else 0."""
    return np.asarray(np.any(_checked(hits, relevant, k), axis=1).astype(np.float64))


def average_precision(hits: _Hits, relevant: Counts, k: int) -> PerUser:
    """Return AP@k: precision at each hit of the first k ranks, summed, over the relevant items.

    The number of relevant items may exceed k (as in trec_eval's ``map_cut``). The mean over users
    is MAP@k.
    """
    first = _checked(hits, relevant, k)
    ranks = np.arange(1, first.shape[1] + 1)
    return np.asarray((first * (first.cumsum(axis=1) / ranks)).sum(axis=1) / relevant)


def coverage(top: npt.NDArray[np.integer[Any]], n_items: int, k: int) -> float:
    """Return Coverage@k: the share of the catalogue in the first k ranks of any user.

    Args:
        top: users x ranks, item ids, best first; -1 where a list has ended.

    Example:
        >>> coverage(np.array([[0, 1], [0, 2]]), 4, 2)
        0.75
    """
    shown = shown_items(top, n_items, k)
    return float(shown.sum() / n_items) if n_items else 0.0


def shown_items(top: npt.NDArray[np.integer[Any]], n_items: int, k: int) -> npt.NDArray[np.bool_]:
    """Return whether each item is in the first k ranks of any user; see :func:`coverage`."""
    check_integer("k", k)
    if top.ndim != 2:
        raise InputError(f"top must be users x ranks, got shape {top.shape}")
    if top.size and (top.max() >= n_items or top.min() < -1):
        raise InputError(
            f"item ids must be below n_items = {n_items} (or -1), got {top.min()} to {top.max()}"
        )
    shown = np.zeros(n_items + 1, dtype=bool)
    shown[top[:, :k].ravel()] = True  # the padding -1 lands in the spare last place
    return shown[:-1]


def worst_hits(overtakers: Counts, rows: Counts, n_users: int, length: int) -> _Hits:
    """Return hits at the worst places of relevant items, given how many others may overtake each.

    **Theorem.** Of a user's relevant items, let at most n_i others be able to stand ahead of item
    i, and let n_(1) <= n_(2) <= ... be these numbers in order. Then the r-th relevant item of the
    ranking is at place n_(r) + r or better.

    *Proof.* Of the r relevant items with the smallest n_i, let i* be the one that is ranked last.
    At least r relevant items are at or before it, so the r-th relevant item is at or before it too,
    and the irrelevant ones ahead of it are among those ahead of i*: at most n_{i*} <= n_(r). Ahead
    of it are r - 1 relevant items and no others. []

    Every metric of this module but the coverage rises when relevant items move up, so its value at
    these places is a lower bound.

    Args:
        overtakers: n_i of each relevant item; numbers from ``length`` on are all the same.
        rows: the user of each of these items, ascending.

    Example:
        >>> worst_hits(np.array([2, 0, 9]), np.array([0, 0, 1]), 2, 4).astype(int).tolist()
        [[1, 0, 0, 1], [0, 0, 0, 0]]
    """
    order = np.lexsort((overtakers, rows))
    first = np.searchsorted(rows, rows)  # ascending: the order keeps every user's range
    places = overtakers[order] + np.arange(len(rows)) - first
    hits = np.zeros((n_users, length), dtype=bool)
    kept = places < length
    hits[rows[kept], places[kept]] = True
    return hits
