"""What the tests of robustness share: small worlds, and a curve in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from robustcf.attacks import Attack
from robustcf.data import checkerboard
from robustcf.factors import Factors
from robustcf.recommender import Recommender
from robustcf.robustness import RobustnessCurve, measure

BOARD = checkerboard()
PARITY = torch.eye(2)[torch.arange(30) % 2]
RIGHT = Factors(PARITY[:20].clone(), PARITY.clone())
PNG = b"\x89PNG"


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a folder, by name."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def nearly_right(seed: int, dtype: torch.dtype = torch.float32) -> Factors:
    """Factors that know the checkerboard, and some noise."""
    g = torch.Generator().manual_seed(seed)
    return Factors(
        (PARITY[:20] + 0.4 * torch.randn(20, 2, generator=g)).to(dtype),
        (PARITY + 0.4 * torch.randn(30, 2, generator=g)).to(dtype),
    )


def curve_of(
    factors: Factors, attack: Attack, epsilons: Any, ks: Any = (10, 20), **options: Any
) -> RobustnessCurve:
    """The curve of an attack that is built, on the checkerboard."""
    target = Recommender(*factors, BOARD, **options)
    return measure(target, attack, epsilons=epsilons, ks=ks, control=False).curve


def random_world(
    seed: int, n_users: int = 30, n_items: int = 40, dim: int = 5
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """U, V, train and test of a recommender that is right more often than not, in numpy."""
    rng = np.random.default_rng(seed)
    U, V = rng.normal(size=(n_users, dim)), rng.normal(size=(n_items, dim))
    liked = np.argsort(-(U @ V.T + 0.7 * rng.normal(size=(n_users, n_items))), axis=1)
    train, test = np.zeros((2, n_users, n_items), dtype=int)
    np.put_along_axis(train, liked[:, 4:9], 1, axis=1)
    np.put_along_axis(test, liked[:, :4], 1, axis=1)
    test[n_users // 2] = 0  # a user without relevant items
    return U, V, train, test


def shortest_items(model: Recommender, kept: np.ndarray, k: int = 10) -> np.ndarray:
    """The smallest factors of the items' rows that keep all top-k lists, 1 for those kept.

    An item must stay ahead of all below it in every list that it is in. Going up from near 0 until
    this holds everywhere gives the least solution, since all these conditions are lower bounds.
    """
    U, V = (part.double().numpy() for part in model.factors)
    scores = U @ V.T
    if model.seen is not None:
        rows, items = model.seen.rows(np.arange(model.n_users))
        scores[rows, items] = -np.inf
    top = np.argsort(-scores, axis=1)[:, :k]
    users = np.arange(len(U))
    listed = scores[users[:, None], top]
    assert listed.min() > 0, "a negative score rises when its item is made short"
    rest = scores.copy()
    rest[users[:, None], top] = -np.inf
    scales = np.where(kept, 1.0, 1e-3)
    for _ in range(100):
        before = scales.copy()
        below = np.where(rest > 0, rest * scales, 0.0).max(axis=1) * (1 + 1e-6)
        for place in range(k - 1, -1, -1):
            items = top[:, place]
            np.maximum.at(scales, items, below / listed[:, place])
            below = scales[items] * listed[:, place] * (1 + 1e-6)
        if np.allclose(scales, before, rtol=1e-9):
            return scales
    raise AssertionError("no convergence")


def random_target(seed: int, **options: Any) -> Recommender:
    """The same as a target."""
    sizes = {key: options.pop(key) for key in ("n_users", "n_items", "dim") if key in options}
    return Recommender(*random_world(seed, **sizes), **options)
