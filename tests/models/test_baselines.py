"""Baselines in closed form, against their definitions worked out densely."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from robustcf.data import Interactions, checkerboard, load
from robustcf.errors import InputError
from robustcf.models import ALS, EASE, Popularity
from robustcf.models.spectral import truncated_svd
from robustcf.training import TrainConfig
from robustcf.training.fitting import fit_split

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


def als_loss(R: np.ndarray, U: np.ndarray, V: np.ndarray, config: Any) -> float:
    a, scores = config.unobserved, U @ V.T
    users, items = R.sum(axis=1) + a * R.shape[1], R.sum(axis=0) + a * R.shape[0]
    fit = (R * (scores - 1) ** 2).sum() + a * (scores**2).sum()
    rows = (users * (U**2).sum(axis=1)).sum() + (items * (V**2).sum(axis=1)).sum()
    return float(fit + config.ridge * rows)


@pytest.mark.parametrize(("n_items", "weight"), [(4_000, 0.075), (20, 0.3)])
def test_als_weighs_what_is_not_there_by_the_catalogue(n_items: int, weight: float) -> None:
    pairs = Interactions(np.arange(30), np.arange(30) % 20, 30, n_items)
    default, same, other = (
        ALS(pairs, dim=3, **options).factors()
        for options in ({}, {"unobserved": weight}, {"unobserved": 1.1 * weight})
    )
    assert torch.equal(default.users, same.users)
    assert torch.equal(default.items, same.items)
    assert not torch.equal(default.users, other.users)


@pytest.mark.parametrize("seed", SEEDS)
def test_als_comes_to_rest_where_its_loss_has_no_slope(seed: int) -> None:
    pairs = random_pairs(seed)
    R = pairs.csr().toarray().astype(np.float64)
    model = ALS(pairs, dim=3, unobserved=0.1, ridge=0.05, sweeps=60, seed=seed)
    U, V = (part.double().requires_grad_() for part in model.factors())
    a, scores = model.config.unobserved, U @ V.T
    r = torch.from_numpy(R)
    weights = [r.sum(dim=1) + a * 20, r.sum(dim=0) + a * 30]
    loss = (r * (scores - 1) ** 2).sum() + a * (scores**2).sum()
    for rows, weight in zip((U, V), weights, strict=True):
        loss = loss + model.config.ridge * (weight * (rows**2).sum(dim=1)).sum()
    slopes = torch.autograd.grad(loss, (U, V))
    start = ALS(pairs, dim=3, unobserved=0.1, ridge=0.05, sweeps=1, seed=seed)
    assert max(float(slope.abs().max()) for slope in slopes) < 2e-3
    values = [
        als_loss(R, *(part.double().numpy() for part in each.factors()), model.config)
        for each in (start, model)
    ]
    assert values[1] < values[0]
    assert values[1] == pytest.approx(loss.item(), rel=1e-9)


def test_popularity_counts() -> None:
    pairs = Interactions.from_pairs([0, 1, 2, 1], [0, 0, 0, 2], 4, 3)[0]
    U, V = Popularity(pairs).factors()
    assert (U @ V.T).tolist() == [[0.75, 0.0, 0.25]] * 4


@pytest.mark.parametrize("model", ["als", "ease"])
@pytest.mark.parametrize("seed", SEEDS)
def test_baselines_know_a_checkerboard(model: str, seed: int) -> None:
    config = TrainConfig.of(model=model, dim=4, seed=seed)
    trained = fit_split(checkerboard(), config)
    assert trained.epochs == 0
    assert trained.evaluate((5,))["ndcg@5"] > 0.95


@pytest.mark.parametrize("model", ["als", "ease", "popularity"])
def test_a_refit_learns_from_valid_too(model: str) -> None:
    split = load("demo")
    trained = fit_split(
        split, TrainConfig.of(model=model, **({} if model == "popularity" else {"dim": 8}))
    )
    assert trained.fit_on == "train and valid"


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (EASE, {"ridge": 0.0}, "ridge must be a finite number and positive, got 0.0"),
        (ALS, {"ridge": 0.0}, "ridge must be a finite number and positive"),
        (ALS, {"unobserved": 0.0}, "unobserved must be a finite number and positive"),
        (ALS, {"sweeps": 0}, "sweeps must be an integer of at least 1, got 0"),
        (Popularity, {"ridge": 1.0}, "unknown setting 'ridge'"),
    ],
)
def test_refuses(make: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make(checkerboard().train, **settings)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_truncated_svd_is_numpys(seed: int) -> None:
    R = random_pairs(seed, 60, 40).csr().astype(np.float32)
    sizes = np.linalg.svd(R.toarray(), compute_uv=False)
    left, found, right = truncated_svd(R, 5, np.random.default_rng(seed))
    assert np.abs(found.numpy() - sizes[:5]).max() < 2e-2 * sizes[0]
    torch.testing.assert_close(left.T @ left, torch.eye(5), atol=1e-5, rtol=0)
    torch.testing.assert_close(right.T @ right, torch.eye(5), atol=1e-5, rtol=0)
