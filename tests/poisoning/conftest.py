"""A small world of two tastes, with labels, and its split."""

from __future__ import annotations

import numpy as np
import pytest

from robustcf.data import Interactions, Split

N_USERS, N_ITEMS = 60, 40


def small_split(seed: int = 0) -> Split:
    """Two groups of users with a half of the items each; some pairs of each held out."""
    rng = np.random.default_rng(seed)
    labels = {
        "user_labels": np.array([f"u{n}" for n in range(N_USERS)]),
        "item_labels": np.array([f"i{n}" for n in range(N_ITEMS)]),
    }
    parts: dict[str, list[tuple[int, int]]] = {"train": [], "valid": [], "test": []}
    for user in range(N_USERS):
        own = rng.permutation(np.arange(user % 2, N_ITEMS, 2))[: rng.integers(6, 14)]
        cut = {"test": own[:1], "valid": own[1:2], "train": own[2:]}
        for part, items in cut.items():
            parts[part] += [(user, int(item)) for item in items]
    made = {
        name: Interactions(*map(np.array, zip(*pairs, strict=True)), N_USERS, N_ITEMS, **labels)
        for name, pairs in parts.items()
    }
    return Split("small", made["train"], made["valid"], made["test"])


@pytest.fixture(scope="session")
def split() -> Split:
    return small_split()
