"""EASE against its definition worked out densely."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from robustcf.data import Interactions, checkerboard
from robustcf.errors import InputError
from robustcf.models import EASE

SEEDS = [0, 1, 2]


def random_pairs(seed: int, users: int = 30, items: int = 20) -> Interactions:
    rng = np.random.default_rng(seed)
    there = rng.random((users, items)) < 0.3
    there[np.arange(users), np.arange(users) % items] = True  # nobody is without items
    return Interactions.from_pairs(*np.nonzero(there), users, items)[0]


def item_item_scores(R: np.ndarray, ridge: float) -> np.ndarray:
    """Steck's formula: B = I - P diag(P)^-1, P = (R^T R + ridge I)^-1, scores R B."""
    P = np.linalg.inv(R.T @ R + ridge * np.eye(R.shape[1]))
    B = np.eye(R.shape[1]) - P / np.diag(P)
    np.fill_diagonal(B, 0.0)
    return R @ B


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("ridge", [1.0, 30.0])
@pytest.mark.parametrize("shape", [(30, 20), (20, 30)])
def test_ease_of_full_rank_ranks_as_the_item_item_matrix(
    seed: int, ridge: float, shape: tuple[int, int]
) -> None:
    pairs = random_pairs(seed, *shape)
    R = pairs.csr().toarray().astype(np.float64)
    U, V = EASE(pairs, dim=20, ridge=ridge, dtype=torch.float64).factors()
    scores = (U @ V.T).numpy()
    assert np.abs(scores - item_item_scores(R, ridge))[R == 0].max() < 1e-12


@pytest.mark.parametrize("shape", [(12, 30), (30, 12)])
def test_ease_of_users_and_items_that_are_alike(shape: tuple[int, int]) -> None:
    """Their singular values are 0, or the rounding errors of it."""
    there = np.zeros(shape, dtype=bool)
    there[:, : shape[1] // 2] = True
    there[0, -1] = there[1, :3] = True
    there[1, 3] = False
    pairs = Interactions.from_pairs(*np.nonzero(there), *shape)[0]
    U, V = EASE(pairs, dim=12, ridge=2.0, dtype=torch.float64).factors()
    R = there.astype(np.float64)
    assert np.abs((U @ V.T).numpy() - item_item_scores(R, 2.0))[~there].max() < 1e-10


@pytest.mark.parametrize("ridge", [1e-16, 1e-9])
@pytest.mark.parametrize("shape", [(12, 30), (30, 12)])
def test_ease_with_a_ridge_next_to_nothing_stays_finite(
    ridge: float, shape: tuple[int, int]
) -> None:
    there = np.random.default_rng(0).random(shape) < 0.4
    there[1], there[:, 1] = there[0], there[:, 0]
    pairs = Interactions.from_pairs(*np.nonzero(there), *shape)[0]
    EASE(pairs, dim=12, ridge=ridge).factors().check_finite()


@pytest.mark.parametrize("seed", SEEDS)
def test_ease_is_the_same_by_either_decomposition(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = random_pairs(seed, 40, 25)
    dense = EASE(pairs, dim=25, ridge=3.0).factors()
    monkeypatch.setattr("robustcf.models.ease._DENSE", 0)
    drawn = EASE(pairs, dim=25, ridge=3.0).factors()
    scores = [(each.users @ each.items.T).numpy() for each in (dense, drawn)]
    assert not np.array_equal(*scores)
    assert np.abs(scores[0] - scores[1]).max() < 1e-3


@pytest.mark.parametrize("seed", SEEDS)
def test_ease_at_a_rank_is_that_of_the_truncated_matrix(seed: int) -> None:
    """Cut at k singular values, P is the inverse of the cut Gram matrix plus the ridge."""
    pairs = random_pairs(seed)
    R = pairs.csr().toarray().astype(np.float64)
    left, sizes, right = np.linalg.svd(R, full_matrices=False)
    cut = (left[:, :6] * sizes[:6]) @ right[:6]
    P = np.linalg.inv(cut.T @ cut + 5.0 * np.eye(20))
    B = np.eye(20) - P / np.diag(P)
    # The cut matrix times B, less what the identity adds to it.
    expected = cut @ B - cut
    expected += cut / (5.0 * np.diag(P))
    U, V = EASE(pairs, dim=6, ridge=5.0, dtype=torch.float64).factors()
    assert np.abs((U @ V.T).numpy() - expected).max() < 1e-2 * np.abs(expected).max()


def test_refuses() -> None:
    with pytest.raises(InputError, match="ridge"):
        EASE(checkerboard().train, ridge=0.0)
