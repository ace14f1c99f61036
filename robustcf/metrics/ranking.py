"""Pure functions on ranked lists: hits in, one value per user out.

Everywhere, ``hits`` is users x length, True where the item at that rank is relevant, best rank
first (a list that ran out of items is padded with False), and ``relevant`` is the number of
relevant items of each user, at least 1: users without any are no part of the population, the
caller leaves them out. A cutoff beyond the length of the lists counts the missing ranks as
misses. Cost: one pass over the hits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from robustcf._checks import check_integer
from robustcf.errors import InputError

Hits = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.integer[Any]]
PerUser = npt.NDArray[np.float64]


def _checked(hits: Hits, relevant: Counts, k: int) -> Hits:
    check_integer("k", k)
    if hits.ndim != 2 or hits.dtype != np.bool_:
        raise InputError(
            f"hits must be a boolean array, users x ranks, got {hits.dtype} of shape {hits.shape}"
        )
    if relevant.shape != (len(hits),):
        raise InputError(
            f"relevant must hold one count per user ({len(hits)}), got shape {relevant.shape}"
        )
    if len(relevant) and relevant.min() < 1:
        raise InputError(
            f"every user needs a relevant item, got {relevant.min()} for user number "
            f"{int(relevant.argmin())}: leave such users out"
        )
    return hits[:, :k]


def _discounts(length: int) -> PerUser:
    values: PerUser = 1.0 / np.log2(np.arange(2, length + 2))
    return values


def ndcg(hits: Hits, relevant: Counts, k: int) -> PerUser:
    """NDCG@k: sum over hits of 1 / log2(rank + 1), divided by its best possible value.

    The best possible value puts min(k, relevant) hits first.

    Example:
        >>> ndcg(np.array([[False, True], [True, False]]), np.array([1, 5]), 2).round(4).tolist()
        [0.6309, 0.6131]
    """
    first = _checked(hits, relevant, k)
    discounts = _discounts(first.shape[1])
    ideal = np.cumsum(_discounts(max(1, min(k, int(relevant.max(initial=1))))))
    gained: PerUser = (first * discounts).sum(axis=1)
    values: PerUser = gained / ideal[np.minimum(relevant, k) - 1]
    return values


def reciprocal_rank(hits: Hits, relevant: Counts, k: int) -> PerUser:
    """RR@k: one over the rank of the first hit, 0 where the first k ranks hold none.

    Its mean over users is MRR@k.

    Example:
        >>> reciprocal_rank(np.array([[False, True, True]]), np.array([2]), 3).tolist()
        [0.5]
    """
    first = _checked(hits, relevant, k)
    if first.shape[1] == 0:
        return np.zeros(len(first))
    values: PerUser = np.where(first.any(axis=1), 1.0 / (first.argmax(axis=1) + 1.0), 0.0)
    return values


def recall(hits: Hits, relevant: Counts, k: int) -> PerUser:
    """Recall@k: hits in the first k ranks, divided by the number of relevant items.

    Example:
        >>> recall(np.array([[True, False, True]]), np.array([4]), 2).tolist()
        [0.25]
    """
    values: PerUser = _checked(hits, relevant, k).sum(axis=1) / relevant
    return values


def precision(hits: Hits, relevant: Counts, k: int) -> PerUser:
    """Precision@k: hits in the first k ranks, divided by k (also where fewer items are left).

    Example:
        >>> precision(np.array([[True, False, True]]), np.array([4]), 2).tolist()
        [0.5]
    """
    values: PerUser = _checked(hits, relevant, k).sum(axis=1) / float(k)
    return values


def hit_rate(hits: Hits, relevant: Counts, k: int) -> PerUser:
    """HitRate@k: 1 where the first k ranks hold a hit, else 0.

    Example:
        >>> hit_rate(np.array([[False, True], [False, False]]), np.array([1, 1]), 2).tolist()
        [1.0, 0.0]
    """
    values: PerUser = np.any(_checked(hits, relevant, k), axis=1).astype(np.float64)
    return values


def average_precision(hits: Hits, relevant: Counts, k: int) -> PerUser:
    """AP@k: precision at each hit of the first k ranks, summed, divided by the relevant items.

    The denominator is the number of relevant items, also where it exceeds k (as trec_eval's
    ``map_cut``). The mean over users is MAP@k.

    Example:
        >>> average_precision(np.array([[True, False, True]]), np.array([2]), 3).round(4).tolist()
        [0.8333]
    """
    first = _checked(hits, relevant, k)
    ranks = np.arange(1, first.shape[1] + 1)
    values: PerUser = (first * (first.cumsum(axis=1) / ranks)).sum(axis=1) / relevant
    return values


def coverage(top: npt.NDArray[np.integer[Any]], n_items: int, k: int) -> float:
    """Coverage@k: the share of the catalogue that occurs in anybody's first k ranks.

    Args:
        top: users x ranks, item ids, best first; -1 where a list ran out of items.

    Example:
        >>> coverage(np.array([[0, 1], [0, 2]]), 4, 2)
        0.75
    """
    shown = shown_items(top, n_items, k)
    return float(shown.sum() / n_items) if n_items else 0.0


def shown_items(top: npt.NDArray[np.integer[Any]], n_items: int, k: int) -> npt.NDArray[np.bool_]:
    """Which items occur in anybody's first k ranks; arguments are those of :func:`coverage`.

    Example:
        >>> shown_items(np.array([[0, 1], [0, 2]]), 4, 1).tolist()
        [True, False, False, False]
    """
    check_integer("k", k)
    if top.ndim != 2:
        raise InputError(f"top must be users x ranks, got shape {top.shape}")
    if top.size and (top.max() >= n_items or top.min() < -1):
        raise InputError(
            f"item ids must be below n_items = {n_items} (or -1), got {top.min()} to {top.max()}"
        )
    shown = np.zeros(n_items + 1, dtype=bool)
    shown[top[:, :k].ravel()] = True  # -1, no item, lands in the spare last place
    return shown[:-1]


def worst_hits(overtakers: Counts, rows: Counts, n_users: int, length: int) -> Hits:
    """Return hits at the worst places of relevant items, by how many others may overtake each.

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
        n_users: rows of the result.
        length: places of the result.

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
