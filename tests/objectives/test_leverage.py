"""A cap on one user's share of an item: the weights, and the objectives that take them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

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
    assert_autograd,
    assert_gradient,
    batch_loss,
    listed,
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


def weight_of(pairs: Interactions, item: int) -> float:
    """The definition of the weight of an item's pairs."""
    degree = int(pairs.item_degrees[item])
    return 1.0 if degree >= 1 / CAP - 1 else CAP / (1 - CAP * degree)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("weighting", ["users", "pairs"])
@pytest.mark.parametrize("dense", [0.0, 2.0])
def test_the_bilateral_softmax_has_the_weighted_soft_mean(
    weighting: str, seed: int, dense: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With own items in the products with the catalogue, and in products of their own."""
    monkeypatch.setattr("robustcf.objectives.softmax._DENSE", dense)
    pairs, U, V = small_case(seed, grad=True)
    t, p = 0.7, 0.3
    loss = U.new_zeros(())
    for u in np.unique(pairs.users).tolist():
        own = pairs.items_of(u).tolist()
        w = [weight_of(pairs, i) for i in own]
        scores = V @ U[u]
        mean = sum(x * torch.exp(scores[i] / p) for x, i in zip(w, own, strict=True)) / sum(w)
        term = torch.log(torch.exp(scores / t).sum()) - p / t * torch.log(mean)
        loss = loss + term * sum(w) / (len(own) if weighting == "users" else 1)
    objective = Softmax(
        pairs, max_share=CAP, temperature=t, positive_temperature=p, weighting=weighting,
        dtype=torch.float64,
    )  # fmt: skip
    assert_autograd(of_epoch(Batches(objective, seed=seed), U, V), loss, U, V)


def single(name: str, pairs: Interactions) -> list[Batch]:
    """A batch for each pair, with all its negatives."""
    found = []
    for u, i in listed(pairs):
        others = set(range(pairs.n_items))
        if name == "bpr":
            others -= set(pairs.items_of(u).tolist())
        found.append(Batch(torch.tensor([u]), torch.tensor([i]), torch.tensor([sorted(others)])))
    return found


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
    loss = sum(
        weight_of(pairs, int(one.items)) * batch_loss(name, one, U, V, pairs)
        for one in single(name, pairs)
    )
    found = of_epoch(Batches(objective_of(name, pairs), seed=seed), U, V)
    assert_autograd(found, loss, U, V)
    plain = of_epoch(Batches(objective_of(name, pairs, max_share=None), seed=seed), U, V)
    assert (plain.items - found.items).abs().max() > 1e-3, "the cap binds here"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["bce", "bpr", "softmax"])
def test_pairs_and_rows_agree(name: str, seed: int) -> None:
    """All pairs with all their negatives are the rows, also with the item-item term."""
    pairs, U, V = small_case(seed)
    more = {"item_weight": 0.3} if name == "bce" else {}
    objective = objective_of(name, pairs, **more)
    rows = of_epoch(Batches(objective, seed=seed), U, V)
    parts = [objective.gradient(one, U, V, value=True).whole(len(U)) for one in single(name, pairs)]
    users, items = sum(part.users for part in parts), sum(part.items for part in parts)
    assert_gradient(rows, sum(part.value for part in parts), users, items)


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
    """After many iterations every row is the closed-form solution for the other side, weighted."""
    rng = np.random.default_rng(seed)
    pairs = pairs_of(rng)
    config = ALS.Config(factors=3, iterations=200, max_share=CAP, alpha=11.0, regularization=3.0)
    U, V = (each.double().numpy() for each in ALS(pairs, config, seed=seed).factors())
    U[pairs.user_degrees == 0] = 0.0  # these are given the mean of the others afterwards
    weights = item_weights(pairs.item_degrees, CAP)
    assert weights is not None
    W = pairs.csr().toarray() * weights
    for i in range(pairs.n_items - 1):
        matrix = U.T @ U + 10.0 * (U.T * W[:, i]) @ U + 3.0 * np.eye(3)
        expected = np.linalg.solve(matrix, 11.0 * U.T @ W[:, i])
        np.testing.assert_allclose(V[i], expected, atol=2e-4)


@pytest.mark.parametrize("model", ["ultragcn", "bpr-mf", "softmax-mf", "als"])
def test_a_cap_that_does_not_bind_changes_no_bit(model: str) -> None:
    board = checkerboard()
    config = TrainConfig.of(model=model, factors=4, **({} if model == "als" else {"epochs": 2}))
    least = int(board.train_full.item_degrees.min())
    for loose, binds in ((1 / (least + 1), False), (0.02, True)):
        capped = fit_split(board, config.replace(max_share=loose))
        same = torch.equal(capped.factors.items, fit_split(board, config).factors.items)
        assert same != binds
