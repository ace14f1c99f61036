"""Folding in a new user: the minimum of their own part of the objective, and clear refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from robustcf.data import Interactions, checkerboard, load
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.models import BPRMF, FoldIn, SoftmaxMF, fold_in
from robustcf.objectives import BCE, BPR, Batch, Gradient, Objective, Softmax
from tests.models.test_base import with_cold

SEEDS = [0, 1, 2]
KINDS = [BCE, BPR, Softmax]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_vanishes_there(kind: Any, seed: int) -> None:
    pairs = checkerboard(seed=seed).train
    g = torch.Generator().manual_seed(seed)
    factors = Factors(
        torch.randn(20, 3, generator=g, dtype=torch.float64),
        torch.randn(30, 3, generator=g, dtype=torch.float64),
    )
    items = np.array([1, 4, 9])
    objective = kind(pairs, dtype=torch.float64)
    row = fold_in(objective, factors, items, ridge=0.05, steps=200).requires_grad_()
    assert row.dtype == torch.float64
    value = objective.user_loss(items, factors.items)(row) + 0.05 * row @ row
    (slope,) = torch.autograd.grad(value, row)
    assert float(slope.norm()) < 1e-4 * float(value.detach())


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_what_the_new_user_has_first(kind: Any) -> None:
    """On a board whose items come in two kinds, two of a kind tell the user's."""
    pairs = checkerboard().train
    parity = torch.tensor([1.0, -1.0]).repeat(15)
    factors = Factors(
        torch.tensor([1.0, -1.0]).repeat(10)[:, None].repeat(1, 2),
        torch.stack([parity, torch.ones(30)], 1),
    )
    row = fold_in(kind(pairs), factors, [3, 7], ridge=0.01)
    scores = factors.items @ row
    assert float(scores[1::2].min()) > float(scores[::2].max())


def test_a_larger_ridge_makes_a_shorter_row() -> None:
    pairs = checkerboard().train
    factors = BPRMF(pairs, dim=4).factors()
    norms = [float(fold_in(BPR(pairs), factors, [0, 2], ridge=r).norm()) for r in (0.01, 0.1, 1.0)]
    assert norms[0] > norms[1] > norms[2] > 0


def test_any_numbers_of_items_and_kinds_of_lists() -> None:
    pairs = checkerboard().train
    factors = BPRMF(pairs, dim=4).factors()
    rows = [
        fold_in(BPR(pairs), factors, items)
        for items in ([0, 2], (0, 2), np.array([0, 2], dtype=np.uint8), np.array([0, 2], ">i4"))
    ]
    assert all(torch.equal(row, rows[0]) for row in rows)
    assert fold_in(BPR(pairs), factors, [5]).shape == (4,)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("items", [[], [6], [-1], [0, 0], [0.5], [[0]], ["a"], [True]])
def test_refuses(kind: Any, items: Any) -> None:
    objective, factors = kind(with_cold()), BPRMF(with_cold(), dim=2).factors()
    with pytest.raises(InputError, match="item"):
        fold_in(objective, factors, items)
    with pytest.raises(InputError, match="ridge"):
        fold_in(objective, factors, [0], ridge=-1.0)


def test_refuses_where_it_makes_no_sense() -> None:
    full = Interactions.from_pairs([0, 0, 1], [0, 1, 0], 2, 2)[0]
    with pytest.raises(InputError, match="does not have"):
        fold_in(BPR(full), BPRMF(full, dim=2).factors(), [0, 1])

    class Mute(Objective[Any]):
        name = "mute"

        def gradient(
            self, batch: Batch, U: torch.Tensor, V: torch.Tensor, *, value: bool = False
        ) -> Gradient:
            raise NotImplementedError

    with pytest.raises(InputError, match="mute"):
        fold_in(Mute(full), BPRMF(full, dim=2).factors(), [0])


@pytest.mark.parametrize("seed", SEEDS)
def test_a_row_of_length_1_is_the_best_of_its_length(seed: int) -> None:
    """For models that score such rows: nothing near it on the sphere has a smaller loss."""
    split = load("demo")
    objective = Softmax(split.train, temperature=0.3, weighting="pairs")
    factors = SoftmaxMF(split.train, dim=6, seed=seed).factors()
    items = split.train.items_of(seed).astype(np.int64)
    row = fold_in(objective, factors, items, ridge=0.01, unit=True).double()
    assert float(row.norm()) == pytest.approx(1.0, abs=1e-6)
    loss = objective.user_loss(items, factors.items.double())
    rng = np.random.default_rng(seed)
    for _ in range(20):
        near = row + 0.05 * torch.tensor(rng.standard_normal(6))
        assert float(loss(row)) <= float(loss(near / near.norm())) + 1e-9


@pytest.mark.parametrize("seed", SEEDS)
def test_columns_held_fixed_stay_at_the_users_mean(seed):
    """Biases: the rest is the best there is with them in place (a free one would do better)."""
    from scipy.optimize import minimize

    rng = np.random.default_rng(seed)
    train = checkerboard().train
    U, V = rng.normal(size=(train.n_users, 4)), rng.normal(size=(train.n_items, 4))
    U[:, 1] = 1.0
    V[:, 3] = 1.0
    factors = Factors(torch.from_numpy(U), torch.from_numpy(V))
    items, ridge, fixed = [0, 2, 6], 0.1, (1, 3)
    objective = Softmax(train)
    row = fold_in(objective, factors, items, ridge=ridge, fixed=fixed)
    assert torch.equal(row[[1, 3]], factors.users.mean(dim=0)[[1, 3]])
    loss = objective.user_loss(np.array(items), factors.items)

    def value(free):
        whole = row.clone()
        whole[[0, 2]] = torch.from_numpy(free)
        return float(loss(whole)) + ridge * float(free @ free)

    best = minimize(value, np.zeros(2), method="Nelder-Mead", options={"xatol": 1e-8})
    np.testing.assert_allclose(row[[0, 2]].numpy(), best.x, atol=1e-4)


def test_a_ridge_may_be_a_whole_number_of_any_length() -> None:
    """JSON has them; torch multiplies by none beyond 64 bits."""
    how = FoldIn(ridge=10**25)
    assert isinstance(how.ridge, float)
    assert how.as_dict()["ridge"] == 1e25
