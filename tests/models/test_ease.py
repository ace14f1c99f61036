"""EASE against its definition worked out densely."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from robustcf.data import Interactions
from robustcf.models import EASE

SEEDS = [0, 1, 2]


def pairs_of(there: np.ndarray) -> Interactions:
    return Interactions.from_pairs(*np.nonzero(there), *there.shape)[0]


def random_pairs(seed: int, users: int = 30, items: int = 20) -> Interactions:
    there = np.random.default_rng(seed).random((users, items)) < 0.3
    there[np.arange(users), np.arange(users) % items] = True  # every user has an item
    return pairs_of(there)


def item_item_scores(R: np.ndarray, ridge: float) -> np.ndarray:
    """Steck's formula: B = I - P diag(P)^-1, P = (R^T R + ridge I)^-1, scores R B."""
    P = np.linalg.inv(R.T @ R + ridge * np.eye(R.shape[1]))
    B = np.eye(R.shape[1]) - P / np.diag(P)
    np.fill_diagonal(B, 0.0)
    return R @ B


def degenerate(shape: tuple[int, int]) -> Interactions:
    """Most users and items are alike, so that most singular values are 0."""
    there = np.zeros(shape, dtype=bool)
    there[:, : shape[1] // 2] = True
    there[0, -1] = there[1, :3] = True
    there[1, 3] = False
    return pairs_of(there)


@pytest.mark.parametrize("ridge", [1.0, 30.0])
@pytest.mark.parametrize(
    ("pairs", "tolerance"),
    [
        *((random_pairs(seed, *shape), 1e-4) for seed in SEEDS for shape in ((30, 20), (20, 30))),
        *((degenerate(shape), 1e-4) for shape in ((12, 30), (30, 12))),
    ],
)
def test_full_rank_equals_the_item_item_matrix(
    pairs: Interactions, tolerance: float, ridge: float
) -> None:
    R = pairs.csr().toarray().astype(np.float64)
    U, V = EASE(pairs, factors=20, regularization=ridge, dtype=torch.float64).factors()
    assert np.abs((U @ V.T).numpy() - item_item_scores(R, ridge))[R == 0].max() < tolerance


@pytest.mark.parametrize("ridge", [1e-16, 1e-9])
@pytest.mark.parametrize("shape", [(12, 30), (30, 12)])
def test_a_tiny_ridge_stays_finite(ridge: float, shape: tuple[int, int]) -> None:
    there = np.random.default_rng(0).random(shape) < 0.4
    there[1], there[:, 1] = there[0], there[:, 0]
    EASE(pairs_of(there), factors=12, regularization=ridge).factors().check_finite()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_lower_rank_is_that_of_the_truncated_matrix(seed: int) -> None:
    """Cut at k singular values, P is the inverse of the cut Gram matrix plus the ridge."""
    pairs = random_pairs(seed)
    left, sizes, right = np.linalg.svd(pairs.csr().toarray().astype(float), full_matrices=False)
    cut = (left[:, :6] * sizes[:6]) @ right[:6]
    P = np.linalg.inv(cut.T @ cut + 5.0 * np.eye(20))
    # The cut matrix times B, less the part of the identity.
    expected = cut / (5.0 * np.diag(P)) - cut @ (P / np.diag(P))
    U, V = EASE(pairs, factors=6, regularization=5.0, dtype=torch.float64).factors()
    assert np.abs((U @ V.T).numpy() - expected).max() < 1e-2 * np.abs(expected).max()
