"""Top lists for known users, and for a new one given by items."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from robustcf.data.interactions import Interactions, Split
from robustcf.factors import Factors
from robustcf.metrics.topk import dot64, top_items
from robustcf.training import build_model

if TYPE_CHECKING:
    from robustcf.runs import RunDir

# Where training had no weight decay: keeps a row bounded, too small to matter otherwise.
_RIDGE = 1e-2

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


def fold_in(run: RunDir, split: Split, items: Sequence[int], k: int = 10) -> Ranked:
    """The k best items for a new user who has these items.

    The ridge is the weight that training had on the squared norm of a user's row.
    """
    config, factors = run.config.train, run.factors()
    learnt = run.learnt_pairs(split)
    model = build_model(config, learnt, start=factors)
    ridge = config.reg_weight * len(learnt) / 1024 if config.reg == "weight_decay" else _RIDGE
    row = model.fold_in(sorted(set(items)), ridge=ridge, offset=config.gauge != "none")
    new = Factors(row[None, :], factors.items)
    have = Interactions.from_pairs([0] * len(items), list(items), 1, factors.n_items)[0]
    return recommend_to(new, have, [0], k)[0]
