"""ALS against its loss worked out densely; properties of all models without epochs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from robustcf.data import Interactions, checkerboard, load
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.models import ALS, EASE, Popularity
from robustcf.training import TrainConfig
from robustcf.training.fitting import fit_split
from tests.models.test_ease import random_pairs

SEEDS = [0, 1, 2]


@pytest.mark.parametrize(("n_items", "alpha"), [(4_000, 1 + 4_000 / 300), (20, 13 / 3)])
def test_default_alpha_follows_catalogue_size(n_items: int, alpha: float) -> None:
    pairs = Interactions(np.arange(30), np.arange(30) % 20, 30, n_items)
    same = {"regularization": 0.01 * alpha / (alpha - 1), "by_frequency": True, "alpha": alpha}
    first, second, other = (
        torch.cat(tuple(ALS(pairs, factors=3, **options).factors()))
        for options in ({}, same, {"alpha": 1.1 * alpha})
    )
    assert torch.allclose(first, second, atol=1e-6)
    assert not torch.allclose(first, other, atol=1e-3)


@pytest.mark.parametrize("by_frequency", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_converges_to_a_stationary_point_of_the_loss(seed: int, by_frequency: bool) -> None:
    pairs = random_pairs(seed)
    r, alpha = torch.from_numpy(pairs.csr().toarray().astype(np.float64)), 11.0
    decay = 0.05 if by_frequency else 3.0
    C = 1 + (alpha - 1) * r
    losses = []
    for count in (1, 100):
        own = {"alpha": alpha, "regularization": decay, "by_frequency": by_frequency}
        model = ALS(pairs, factors=3, **own, iterations=count, seed=seed)
        U, V = (part.double().requires_grad_() for part in model.factors())
        loss = (C * (U @ V.T - r) ** 2).sum()
        for rows, axis in ((U, 1), (V, 0)):
            weight = C.sum(dim=axis) if by_frequency else torch.ones(len(rows))
            loss = loss + decay * (weight * (rows**2).sum(dim=1)).sum()
        slopes = torch.autograd.grad(loss, (U, V))
        losses.append(loss.item())
    assert losses[1] < losses[0]
    assert max(float(slope.abs().max()) for slope in slopes) < 5e-2


@pytest.mark.parametrize("seed", SEEDS)
def test_settings_mean_what_they_mean_in_implicit(seed: int) -> None:
    """At implicit's solution, a user's row is that of ours for the same items."""
    als = pytest.importorskip("implicit.cpu.als")
    pairs, settings = random_pairs(seed), {"alpha": 8.0, "regularization": 2.0}
    other = als.AlternatingLeastSquares(3, **settings, iterations=400, random_state=1)
    other.fit(pairs.csr().astype(np.float32), show_progress=False)
    factors = Factors(torch.from_numpy(other.user_factors), torch.from_numpy(other.item_factors))
    how = ALS.fold_in_by(ALS.Config(**settings), pairs)
    for user in range(5):
        row = how.embed(factors, pairs.csr()[[user]].indices.astype(np.int64), pairs, ())
        torch.testing.assert_close(row, factors.users[user], atol=2e-3, rtol=0)


def test_popularity_counts() -> None:
    pairs = Interactions.from_pairs([0, 1, 2, 1], [0, 0, 0, 2], 4, 3)[0]
    U, V = Popularity(pairs).factors()
    assert (U @ V.T).tolist() == [[0.75, 0.0, 0.25]] * 4


@pytest.mark.parametrize("model", ["als", "ease"])
@pytest.mark.parametrize("seed", SEEDS)
def test_models_without_epochs_learn_a_checkerboard(model: str, seed: int) -> None:
    trained = fit_split(checkerboard(), TrainConfig.of(model=model, factors=4, seed=seed))
    assert trained.epochs == 0
    assert trained.evaluate((5,))["ndcg@5"] > 0.95


@pytest.mark.parametrize("model", ["als", "ease", "popularity"])
def test_a_refit_learns_from_valid_too(model: str) -> None:
    settings = {} if model == "popularity" else {"factors": 8}
    trained = fit_split(load("demo"), TrainConfig.of(model=model, **settings))
    assert trained.fit_on == "train and valid"


@pytest.mark.parametrize(
    ("kind", "name"),
    [(ALS, "regularization"), (ALS, "alpha"), (ALS, "iterations"), (EASE, "regularization")],
)
def test_refuses_zero(kind: Any, name: str) -> None:
    with pytest.raises(InputError, match=name):
        kind(checkerboard().train, **{name: 0})
