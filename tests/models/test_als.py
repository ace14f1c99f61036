"""ALS against its loss worked out densely; what all models without epochs share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from robustcf.data import Interactions, checkerboard, load
from robustcf.errors import InputError
from robustcf.models import ALS, Popularity
from robustcf.training import TrainConfig
from robustcf.training.fitting import fit_split
from tests.models.test_ease import random_pairs

SEEDS = [0, 1, 2]


@pytest.mark.parametrize(("n_items", "weight"), [(4_000, 0.075), (20, 0.3)])
def test_weighs_unobserved_pairs_by_the_catalogue(n_items: int, weight: float) -> None:
    pairs = Interactions(np.arange(30), np.arange(30) % 20, 30, n_items)
    default, same, other = (
        ALS(pairs, dim=3, **options).factors()
        for options in ({}, {"unobserved": weight}, {"unobserved": 1.1 * weight})
    )
    assert torch.equal(default.users, same.users)
    assert torch.equal(default.items, same.items)
    assert not torch.equal(default.users, other.users)


@pytest.mark.parametrize("seed", SEEDS)
def test_comes_to_rest_where_its_loss_has_no_slope(seed: int) -> None:
    pairs = random_pairs(seed)
    r, a, ridge = torch.from_numpy(pairs.csr().toarray().astype(np.float64)), 0.1, 0.05
    losses = []
    for sweeps in (1, 60):
        model = ALS(pairs, dim=3, unobserved=a, ridge=ridge, sweeps=sweeps, seed=seed)
        U, V = (part.double().requires_grad_() for part in model.factors())
        scores = U @ V.T
        loss = (r * (scores - 1) ** 2).sum() + a * (scores**2).sum()
        for rows, weight in ((U, r.sum(dim=1) + a * 20), (V, r.sum(dim=0) + a * 30)):
            loss = loss + ridge * (weight * (rows**2).sum(dim=1)).sum()
        slopes = torch.autograd.grad(loss, (U, V))
        losses.append(loss.item())
    assert losses[1] < losses[0]
    assert max(float(slope.abs().max()) for slope in slopes) < 2e-3


def test_popularity_counts() -> None:
    pairs = Interactions.from_pairs([0, 1, 2, 1], [0, 0, 0, 2], 4, 3)[0]
    U, V = Popularity(pairs).factors()
    assert (U @ V.T).tolist() == [[0.75, 0.0, 0.25]] * 4


@pytest.mark.parametrize("model", ["als", "ease"])
@pytest.mark.parametrize("seed", SEEDS)
def test_models_without_epochs_know_a_checkerboard(model: str, seed: int) -> None:
    trained = fit_split(checkerboard(), TrainConfig.of(model=model, dim=4, seed=seed))
    assert trained.epochs == 0
    assert trained.evaluate((5,))["ndcg@5"] > 0.95


@pytest.mark.parametrize("model", ["als", "ease", "popularity"])
def test_a_refit_learns_from_valid_too(model: str) -> None:
    settings = {} if model == "popularity" else {"dim": 8}
    trained = fit_split(load("demo"), TrainConfig.of(model=model, **settings))
    assert trained.fit_on == "train and valid"


@pytest.mark.parametrize("settings", [{"ridge": 0.0}, {"unobserved": 0.0}, {"sweeps": 0}])
def test_refuses(settings: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(settings))):
        ALS(checkerboard().train, **settings)
