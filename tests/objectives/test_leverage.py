"""A cap on one user's share of an item: the weights, and the objectives that take them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from robustcf.data import Interactions, checkerboard
from robustcf.errors import InputError
from robustcf.models import ALS
from robustcf.objectives import BCE, BPR, Batch, Batches, Softmax
from robustcf.objectives.weights import item_weights
from robustcf.training import TrainConfig
from robustcf.training.adversarial import adversary
from robustcf.training.fitting import fit_split
from tests.objectives.naive import (
    WEIGHTS,
    assert_gradient,
    batch_loss,
    of_epoch,
    pairs_of,
    small_case,
)

SEEDS = [0, 1, 2]
CAP = 0.2


@pytest.mark.parametrize("cap", [1.0, 0.5, 0.3, 0.1, 0.01, 1e-6])
def test_no_share_exceeds_the_cap_and_no_weight_is_smaller_than_need_be(cap: float) -> None:
    degrees = np.arange(0, 300)
    weights = item_weights(degrees, cap)
    weights = np.ones(300) if weights is None else weights
    assert ((weights > 0) & (weights <= 1)).all()
    shares = weights / (1 + degrees * weights)
    assert (shares <= cap * (1 + 1e-12)).all()
    # The largest that will do: where a weight is not 1 its share is the cap.
    np.testing.assert_allclose(shares[weights < 1], cap)
    assert (weights[degrees >= 1 / cap - 1] == 1).all()
    assert (np.diff(weights) >= 0).all()


def test_no_cap_and_a_cap_that_does_not_bind_give_no_weights() -> None:
    assert item_weights(np.array([1, 2]), None) is None
    assert item_weights(np.array([3, 4]), 0.25) is None
    assert item_weights(np.array([], dtype=np.int64), 0.1) is None


@pytest.mark.parametrize("cap", [0.0, -0.1, 1.01, float("nan"), float("inf"), "half", True])
@pytest.mark.parametrize("kind", [BCE.Config, BPR.Config, Softmax.Config, ALS.Config])
def test_a_share_is_more_than_0_and_at_most_1(kind: Any, cap: Any) -> None:
    with pytest.raises(InputError, match="max_share must be"):
        kind(max_share=cap)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("weighting", ["users", "pairs"])
def test_the_bilateral_softmax_has_the_weighted_soft_mean(weighting: str, seed: int) -> None:
    pairs, U, V = small_case(seed, grad=True)
    t, p = 0.7, 0.3
    loss = U.new_zeros(())
    for u in np.unique(pairs.users).tolist():
        own = pairs.items_of(u).tolist()
        degrees = [int(pairs.item_degrees[i]) for i in own]
        w = [1.0 if d >= 1 / CAP - 1 else CAP / (1 - CAP * d) for d in degrees]
        scores = V @ U[u]
        mean = sum(x * torch.exp(scores[i] / p) for x, i in zip(w, own, strict=True)) / sum(w)
        term = torch.log(torch.exp(scores / t).sum()) - p / t * torch.log(mean)
        loss = loss + term * sum(w) / (len(own) if weighting == "users" else 1)
    users, items = torch.autograd.grad(loss, (U, V))
    objective = Softmax(
        pairs, max_share=CAP, temperature=t, positive_temperature=p, weighting=weighting,
        dtype=torch.float64,
    )  # fmt: skip
    found = of_epoch(Batches(objective, seed=seed), U, V)
    assert_gradient(found, float(loss.detach()), users, items)


def weighted_naive(name: str, pairs: Interactions, U: Tensor, V: Tensor) -> Tensor:
    """Every pair's loss, times the weight that the definition gives its item."""
    total = U.new_zeros(())
    for u, i in zip(pairs.users.tolist(), pairs.items.tolist(), strict=True):
        degree = int(pairs.item_degrees[i])
        weight = 1.0 if degree >= 1 / CAP - 1 else CAP / (1 - CAP * degree)
        others = set(range(pairs.n_items))
        if name == "bpr":
            others -= set(pairs.items_of(u).tolist())
        one = Batch(torch.tensor([u]), torch.tensor([i]), torch.tensor([sorted(others)]))
        total = total + weight * batch_loss(name, one, U, V, pairs)
    return total


def objective_of(name: str, pairs: Interactions, **more: Any) -> Any:
    options: dict[str, Any] = {"max_share": CAP, "dtype": torch.float64, **more}
    if name == "bce":
        return BCE(pairs, **WEIGHTS | {"item_weight": 0.0} | options)
    if name == "bpr":
        return BPR(pairs, sampled_items=pairs.n_items, **options)
    return Softmax(pairs, **options)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["bce", "bpr", "softmax"])
def test_the_gradient_is_that_of_weighted_pairs(name: str, seed: int) -> None:
    pairs, U, V = small_case(seed, grad=True)
    loss = weighted_naive(name, pairs, U, V)
    users, items = torch.autograd.grad(loss, (U, V))
    found = of_epoch(Batches(objective_of(name, pairs), seed=seed), U, V)
    assert_gradient(found, float(loss.detach()), users, items)
    plain = of_epoch(Batches(objective_of(name, pairs, max_share=None), seed=seed), U, V)
    assert (plain.items - items).abs().max() > 1e-3, "the cap binds here"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["bce", "bpr", "softmax"])
def test_pairs_and_rows_agree(name: str, seed: int) -> None:
    """All pairs with all their negatives are the rows: also with the item-item term."""
    pairs, U, V = small_case(seed)
    more = {"item_weight": 0.3} if name == "bce" else {}
    objective = objective_of(name, pairs, **more)
    rows = of_epoch(Batches(objective, seed=seed), U, V)
    users, items = torch.zeros_like(U), torch.zeros_like(V)
    value = 0.0
    for u, i in zip(pairs.users.tolist(), pairs.items.tolist(), strict=True):
        others = set(range(pairs.n_items))
        if name == "bpr":
            others -= set(pairs.items_of(u).tolist())
        one = Batch(torch.tensor([u]), torch.tensor([i]), torch.tensor([sorted(others)]))
        part = objective.gradient(one, U, V, value=True).whole(len(U))
        users, items, value = users + part.users, items + part.items, value + part.value
    assert value == pytest.approx(rows.value)
    torch.testing.assert_close(users, rows.users)
    torch.testing.assert_close(items, rows.items)


@pytest.mark.parametrize("name", ["bpr", "softmax"])
def test_the_margin_is_weighted_too(name: str) -> None:
    """A margin of size 0 is the objective itself."""
    pairs, U, V = small_case(3)
    objective = objective_of(name, pairs)
    batch = next(iter(Batches(objective).epoch(0)))
    plain = objective.gradient(batch, U, V, value=True)
    margin = objective.margin_gradient(batch, U, V, (0.0, 0.0), value=True)
    assert margin.value == pytest.approx(plain.value)
    torch.testing.assert_close(margin.items, plain.items)


def test_tempered_softmax_is_weighted_too() -> None:
    pairs, U, V = small_case(4)
    objective = objective_of("softmax", pairs, temperature=0.5, weighting="pairs")
    twice = objective_of("softmax", pairs, weighting="pairs").full_gradient(2 * U, V)
    found = objective.full_gradient(U, V)
    assert found.value == pytest.approx(twice.value)
    torch.testing.assert_close(found.users, 2 * twice.users)


@pytest.mark.parametrize("rival", ["bpr", "bce", "softmax", "margin"])
@pytest.mark.parametrize("name", ["bce", "bpr", "softmax"])
def test_the_adversary_has_the_cap_of_the_training(name: str, rival: str) -> None:
    batches = Batches(objective_of(name, checkerboard().train))
    assert adversary(rival, batches).objective.config.max_share == CAP


@pytest.mark.parametrize("seed", SEEDS)
def test_als_solves_the_weighted_problem(seed: int) -> None:
    """After many sweeps every row is the closed-form solution for the other side, weighted."""
    rng = np.random.default_rng(seed)
    pairs = pairs_of(rng)
    config = ALS.Config(dim=3, sweeps=200, max_share=CAP, unobserved=0.1, ridge=0.05)
    U, V = (each.double().numpy() for each in ALS(pairs, config, seed=seed).factors())
    U[pairs.user_degrees == 0] = 0.0  # these are given the mean of the others afterwards
    weights = item_weights(pairs.item_degrees, CAP)
    assert weights is not None
    W = pairs.csr().toarray() * weights
    a = config.unobserved
    for i in range(pairs.n_items - 1):
        ridge = config.ridge * (W[:, i].sum() + a * pairs.n_users)
        matrix = a * U.T @ U + (U.T * W[:, i]) @ U + ridge * np.eye(3)
        expected = np.linalg.solve(matrix, U.T @ W[:, i])
        np.testing.assert_allclose(V[i], expected, atol=2e-4)


@pytest.mark.parametrize("model", ["ultragcn", "bpr-mf", "softmax-mf", "als"])
def test_a_cap_that_does_not_bind_changes_no_bit(model: str) -> None:
    board = checkerboard()
    config = TrainConfig.of(model=model, dim=4, **({} if model == "als" else {"epochs": 2}))
    least = int(board.train_full.item_degrees.min())
    for loose, binds in ((1 / (least + 1), False), (0.02, True)):
        capped = fit_split(board, config.replace(max_share=loose))
        same = torch.equal(capped.factors.items, fit_split(board, config).factors.items)
        assert same != binds
