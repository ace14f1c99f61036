"""A small recommender to audit, and naive top lists."""

from __future__ import annotations

import numpy as np

from robustcf.data import Split
from robustcf.recommender import Recommender


def small_split(seed=0, users=40, items=30, labels=False):
    """Random pairs: six for training and two held out per user."""
    rng = np.random.default_rng(seed)
    train, test = np.zeros((2, users, items))
    for user in range(users):
        chosen = rng.choice(items, 8, replace=False)
        train[user, chosen[:6]] = 1
        test[user, chosen[6:]] = 1
    named = {
        "user_labels": np.array([f"u{n}" for n in range(users)]),
        "item_labels": np.array([f"i{n}" for n in range(items)]),
    }
    return Split.from_csr(train, test, **(named if labels else {}))


def small_target(seed=0, dim=5, labels=False, **options):
    split = small_split(seed, labels=labels)
    rng = np.random.default_rng([seed, 1])
    users = rng.normal(size=(split.n_users, dim)).astype(np.float32)
    items = rng.normal(size=(split.n_items, dim)).astype(np.float32)
    return Recommender(users, items, split, **options)


def naive_top(users, items, seen, k=10):
    """The k best unseen items of each user, by plain loops."""
    lists = []
    for user in range(len(users)):
        have = set(seen.items_of(user).tolist())
        scores = {
            item: float(np.dot(users[user].astype(np.float64), items[item].astype(np.float64)))
            for item in range(len(items))
            if item not in have
        }
        lists.append(sorted(scores, key=lambda item: (-scores[item], item))[:k])
    return lists
