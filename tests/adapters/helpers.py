"""A small world with known taste, pairs as files, imports; shared by the tests of adapters."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robustcf.adapters import Imported, joined
from robustcf.adapters.ordering import ordered
from robustcf.data.interactions import Interactions
from robustcf.data.split import Split
from robustcf.recommender import Recommender, open_recommender
from robustcf.recommender.matching import Rows

N_USERS, N_ITEMS, DIM = 40, 30, 4


def world(seed: int = 0, n_users: int = N_USERS, n_items: int = N_ITEMS, dim: int = DIM):
    """U, V and a split: each user has the items of the highest scores, some of them held out."""
    rng = np.random.default_rng(seed)
    U = rng.normal(size=(n_users, dim)).astype(np.float32)
    V = rng.normal(size=(n_items, dim)).astype(np.float32)
    top = np.argsort(-(U @ V.T + 0.3 * rng.normal(size=(n_users, n_items))), axis=1)[:, :8]
    train, test = np.zeros((n_users, n_items)), np.zeros((n_users, n_items))
    for user, items in enumerate(top):
        held = rng.permutation(8) < 2
        train[user, items[~held]] = 1
        test[user, items[held]] = 1
    return U, V, Split.from_csr(train, test)


def write_pairs(
    path: Path,
    pairs: Interactions,
    user_names: Sequence[Any] | None = None,
    item_names: Sequence[Any] | None = None,
    order: np.ndarray | None = None,
) -> Path:
    """Pairs as CSV, by row numbers or by names."""
    rows = range(len(pairs)) if order is None else order
    lines = ["user,item"]
    for n in rows:
        user, item = int(pairs.users[n]), int(pairs.items[n])
        left = user if user_names is None else user_names[user]
        right = item if item_names is None else item_names[item]
        lines.append(f"{left},{right}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def rows_of(found: Imported) -> Rows:
    """The rows of imported factors, as ``match`` takes them."""
    return Rows(found.factors.n_users, found.factors.n_items, found.user_labels, found.item_labels)


def saved_import(
    found: Imported, interactions: Any, path: Path, *arguments: Any, **joining: Any
) -> Recommender:
    """What ``robustcf import`` does: match, check, order, save; opened again."""
    model = joined(found, interactions, *arguments, **joining)
    model = ordered(model, interactions if isinstance(interactions, Split) else None)
    return open_recommender(model.save(path))


def naive_ndcg(scores: np.ndarray, train: Interactions, test: Interactions, k: int = 10) -> float:
    """NDCG@k written out, user by user, in plain Python."""
    seen, held = train.csr().toarray(), test.csr().toarray()
    values = []
    for user in range(len(scores)):
        if not held[user].any():
            continue
        candidates = [item for item in range(scores.shape[1]) if not seen[user, item]]
        ranked = sorted(candidates, key=lambda item: (-scores[user, item], item))[:k]
        gain = sum(1 / np.log2(n + 2) for n, item in enumerate(ranked) if held[user, item])
        best = sum(1 / np.log2(n + 2) for n in range(min(k, int(held[user].sum()))))
        values.append(gain / best)
    return float(np.mean(values))


def library(name: str) -> Any:
    """A library that is not part of robustcf; the test is skipped where it is absent."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(
            name, reason=f"{name} is not installed: pip install 'robustcf[adapters]'"
        )
