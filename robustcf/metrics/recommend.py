"""Top lists of users, with scores."""

from __future__ import annotations

from collections.abc import Sequence

from robustcf.data.interactions import Interactions
from robustcf.factors import Factors
from robustcf.metrics.topk import dot64, top_items

Ranked = tuple[list[int], list[float]]


def recommend_to(
    factors: Factors, seen: Interactions | None, users: Sequence[int], k: int = 10
) -> list[Ranked]:
    """For each user the k best items not seen yet, and their scores, best first.

    Example:
        >>> import torch
        >>> factors = Factors(torch.ones(1, 1), torch.tensor([[1.0], [3.0], [2.0]]))
        >>> recommend_to(factors, None, [0], k=2)
        [([1, 2], [3.0, 2.0])]
    """
    found = []
    for user, row in zip(users, top_items(factors, list(users), k, seen), strict=True):
        items = [int(item) for item in row if item >= 0]
        scores = dot64(factors.users[user][None, :], factors.items[items])
        found.append((items, scores.tolist()))
    return found
