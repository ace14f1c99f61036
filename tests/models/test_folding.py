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
from robustcf.models.factorized import FactorScorer, FoldedScorer
from robustcf.models.folding import Histories
from robustcf.objectives import BCE, BPR, Batch, Gradient, Objective, Softmax
from tests.models.test_base import with_cold

SEEDS = [0, 1, 2]
KINDS = [BCE, BPR, Softmax]


@pytest.fixture
def board() -> tuple[Interactions, Factors]:
    pairs = checkerboard().train
    return pairs, BPRMF(pairs, factors=4).factors()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_vanishes_there(kind: Any, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    factors = Factors(*(torch.randn(n, 3, generator=g, dtype=torch.float64) for n in (20, 30)))
    items = np.array([1, 4, 9])
    objective = kind(checkerboard(seed=seed).train, dtype=torch.float64)
    row = fold_in(objective, factors, items, ridge=0.05, steps=200).requires_grad_()
    assert row.dtype == torch.float64
    value = objective.user_loss(items, factors.items)(row) + 0.05 * row @ row
    (slope,) = torch.autograd.grad(value, row)
    assert float(slope.norm()) < 1e-4 * float(value.detach())


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_items_of_the_users_taste_first(kind: Any) -> None:
    """Items of the checkerboard come in two kinds, and two items tell the user's."""
    parity = torch.tensor([1.0, -1.0]).repeat(15)
    users = parity[:20, None].repeat(1, 2)
    factors = Factors(users, torch.stack([parity, torch.ones(30)], 1))
    scores = factors.items @ fold_in(kind(checkerboard().train), factors, [3, 7], ridge=0.01)
    assert float(scores[1::2].min()) > float(scores[::2].max())


def test_a_larger_ridge_makes_a_shorter_row(board: tuple[Interactions, Factors]) -> None:
    pairs, factors = board
    norms = [float(fold_in(BPR(pairs), factors, [0, 2], ridge=r).norm()) for r in (0.01, 0.1, 1.0)]
    assert norms[0] > norms[1] > norms[2] > 0


def test_takes_any_list_of_integers(board: tuple[Interactions, Factors]) -> None:
    pairs, factors = board
    expected = fold_in(BPR(pairs), factors, [0, 2])
    for items in ((0, 2), np.array([0, 2], dtype=np.uint8), np.array([0, 2], ">i4")):
        assert torch.equal(fold_in(BPR(pairs), factors, items), expected)
    assert fold_in(BPR(pairs), factors, [5]).shape == (4,)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("items", [[], [6], [-1], [0, 0], [0.5], [[0]], ["a"], [True]])
def test_refuses(kind: Any, items: Any) -> None:
    objective, factors = kind(with_cold()), BPRMF(with_cold(), factors=2).factors()
    with pytest.raises(InputError, match="item"):
        fold_in(objective, factors, items)
    with pytest.raises(InputError, match="ridge"):
        fold_in(objective, factors, [0], ridge=-1.0)


class Mute(Objective[Any]):
    """An objective without a loss of a single user."""

    name = "mute"

    def gradient(self, batch: Batch, U: Any, V: Any, *, value: bool = False) -> Gradient:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("kind", "items", "word"), [(BPR, [0, 1], "does not have"), (Mute, [0], "mute")]
)
def test_refuses_objectives_without_a_minimum(kind: Any, items: list[int], word: str) -> None:
    full = Interactions.from_pairs([0, 0, 1], [0, 1, 0], 2, 2)[0]
    with pytest.raises(InputError, match=word):
        fold_in(kind(full), BPRMF(full, factors=2).factors(), items)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_row_of_length_1_is_the_best_of_its_length(seed: int) -> None:
    """For models that score such rows: nothing near it on the sphere has a smaller loss."""
    split = load("demo")
    objective = Softmax(split.train, temperature=0.3, weighting="pairs")
    factors = SoftmaxMF(split.train, factors=6, seed=seed).factors()
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
    assert (type(how.ridge), how.as_dict()["ridge"]) == (float, 1e25)


@pytest.mark.parametrize("seed", SEEDS)
def test_computed_users_and_their_gradient_are_those_of_the_dense_formula(seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    chosen = torch.rand(9, 7, generator=g) < 0.4
    chosen[3] = False
    pairs, h = Interactions.from_csr(chosen.double().numpy()), chosen.double()
    M, V = (torch.randn(n, 3, generator=g, dtype=torch.float64).requires_grad_() for n in (5, 7))
    n = h.sum(dim=1, keepdim=True)
    damped = n.clamp_min(1) ** -0.7
    users = torch.cat((damped * (h @ V), damped * n, (n == 0).double()), dim=1) @ M
    histories, arrays = Histories(pairs, 0.7), Factors(M.detach(), V.detach())
    torch.testing.assert_close(histories.factors(arrays).users, users.detach())
    U, W = (torch.randn(k, 3, generator=g, dtype=torch.float64) for k in (9, 7))
    ((users * U).sum() + (V * W).sum()).backward()
    for found, wanted in zip(histories.pull(arrays, U, W), (M.grad, V.grad), strict=True):
        torch.testing.assert_close(found, wanted)
    fitted = histories.fitted(histories.factors(arrays))  # least squares finds an exact map
    torch.testing.assert_close(fitted[:4], M.detach()[:4])


def test_equal_histories_are_served_alike_to_the_last_bit() -> None:
    split = load("demo")
    g = torch.Generator().manual_seed(0)
    V = torch.randn(split.n_items, 8, generator=g)
    scorer = FoldedScorer(torch.randn(10, 8, generator=g), V, split.train)
    whole = scorer.factors.users
    for user in (0, 7, 1999):
        history = split.train.items_of(user).astype(np.int64)
        assert torch.equal(scorer.embed(history, split.train), whole[user])
        few = FoldedScorer(*scorer.arrays, split.train)
        asked = np.array([user])
        one = few.top(asked, 5, split.train)
        assert "factors" not in vars(few), "no embedding of another user was computed"
        for found in (scorer.top(asked, 5, split.train), one):
            new = scorer.top_for_history(history, 5, split.train)
            np.testing.assert_array_equal(found.items, new.items)
            np.testing.assert_array_equal(found.scores, new.scores)


def test_a_map_that_does_not_fit_is_refused() -> None:
    split, V = checkerboard(), torch.ones(30, 2)
    with pytest.raises(InputError, match="map of 4 x 2"):
        FoldedScorer(torch.ones(3, 2), V, split.train)
    with pytest.raises(InputError, match="different data"):
        FoldedScorer(torch.ones(4, 2), V[:5], split.train)
    with pytest.raises(InputError, match="finite"):
        FoldedScorer(torch.full((4, 2), torch.nan), V, split.train)
    stored = FactorScorer(Factors(torch.ones(20, 2), V), fixed=[1])
    with pytest.raises(InputError, match="biases"):
        FoldedScorer.of(stored, split.train)
    with pytest.raises(InputError, match="histories"):
        FoldedScorer.of(FactorScorer(Factors(torch.ones(20, 2), V)), None)
    with pytest.raises(InputError, match="number"):
        Histories(split.train, -1.0)
