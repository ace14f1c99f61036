"""Softmax MF: rows of length 1, gradients through the division, learning, cold rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from robustcf.data import Interactions, checkerboard, load
from robustcf.models import SoftmaxMF
from robustcf.models.factorizations import unit_rows
from robustcf.objectives import Batch, Softmax
from robustcf.training import TrainConfig
from robustcf.training.fitting import fit_split
from tests.objectives.naive import pairs_of

SEEDS = [0, 1, 2]


def lengths(rows: torch.Tensor) -> torch.Tensor:
    return torch.linalg.vector_norm(rows.double(), dim=1)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("init", ["smooth", "spectral", "normal"])
def test_scored_rows_have_length_1_cold_ones_too(init: str, seed: int) -> None:
    pairs = Interactions.from_pairs([0, 0, 1, 3], [0, 1, 1, 2], 6, 5)[0]
    model = SoftmaxMF(pairs, factors=3, init=init, seed=seed)
    factors = model.factors()
    for rows in (*model.scored(), *factors):
        assert (lengths(rows) - 1).abs().max() < 1e-6
    cold = factors.users[[2, 4, 5]]
    assert torch.equal(cold[0], cold[1])
    direction = model.scored()[0][[0, 1, 3]].mean(dim=0)
    torch.testing.assert_close(cold[0], direction / direction.norm())


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("some", [False, True])
def test_a_step_has_autograds_gradient_for_the_parameters(
    normalize: bool, some: bool, seed: int
) -> None:
    pairs = pairs_of(np.random.default_rng(seed))
    settings: dict[str, Any] = {"temperature": 0.3, "weighting": "pairs"}
    objective = Softmax(pairs, dtype=torch.float64, **settings)
    model = SoftmaxMF(pairs, factors=3, seed=seed, dtype=torch.float64, normalize=normalize)
    users = torch.tensor(np.unique(pairs.users).astype(np.int64))
    users = users[::2] if some else users

    U, V = model.users.clone().requires_grad_(), model.items.clone().requires_grad_()
    u, v = (x / x.norm(dim=1, keepdim=True) if normalize else x for x in (U, V))
    loss = U.new_zeros(())
    for user in users.tolist():
        own = torch.tensor(pairs.items_of(user).astype(np.int64))
        scores = v @ u[user] / 0.3
        loss = loss + len(own) * scores.logsumexp(dim=0) - scores[own].sum()
    to_users, to_items = torch.autograd.grad(loss, (U, V))
    found = model.pull_back(objective.gradient(Batch(users), *model.scored()))
    assert found.rows is not None
    torch.testing.assert_close(found.users, to_users[found.rows])
    torch.testing.assert_close(found.items, to_items)


def test_scored_rows_follow_the_parameters() -> None:
    model = SoftmaxMF(checkerboard().train, factors=4)
    before = model.scored()[0].clone()
    rows = torch.tensor([3, 5])
    model.users[rows] = torch.randn(2, 4)
    model.items.mul_(3.0)
    model.updated(rows)
    after = model.scored()
    torch.testing.assert_close(after[0][rows], unit_rows(model.users[rows])[0])
    torch.testing.assert_close(after[1], unit_rows(model.items)[0])
    others = [row for row in range(20) if row not in (3, 5)]
    assert torch.equal(after[0][others], before[others])


@pytest.mark.parametrize("seed", SEEDS)
def test_learns_a_checkerboard_by_its_defaults(seed: int) -> None:
    trained = fit_split(checkerboard(), TrainConfig.of(model="softmax-mf", factors=4, seed=seed))
    assert trained.evaluate((5,))["ndcg@5"] > 0.95
    for rows in trained.factors:
        assert (lengths(rows) - 1).abs().max() < 1e-6


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))]
)
def test_training_beats_its_start(seed: int) -> None:
    """From a random start nothing but the gradients can have done it."""
    split = load("demo")
    settings = {"model": "softmax-mf", "factors": 16, "init": "normal", "seed": seed}
    fixed = {"epochs_chosen": True, "refit": "no"}
    start = fit_split(split, TrainConfig.of(**settings, **fixed, epochs=0)).evaluate()["ndcg@10"]
    learnt = fit_split(split, TrainConfig.of(**settings, **fixed, epochs=12)).evaluate()["ndcg@10"]
    assert learnt > 3 * start


def test_all_columns_are_used() -> None:
    model = SoftmaxMF(load("demo").train, factors=8)
    assert bool((model.users.abs().sum(dim=0) > 0).all())
