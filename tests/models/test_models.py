"""What every model promises: shapes, cold users and items, fold-in, clear refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robustcf.data import Interactions, load
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.objectives.kernels import bpr
from robustcf.metrics import evaluate
from robustcf.models import BPRMF, UltraGCN
from robustcf.models.spectral import spectral_factors

MODELS = [UltraGCN, BPRMF]


def with_cold() -> Interactions:
    """Users 4 and items 5 of 6 have no pair."""
    return Interactions.from_pairs([0, 0, 1, 2, 3], [0, 1, 1, 2, 3], 5, 6)[0]


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize("batching", ["rows", "pairs"])
@pytest.mark.parametrize("init", ["spectral", "smooth", "normal"])
def test_contract(make: Any, batching: str, init: str) -> None:
    train = with_cold()
    model = make(train, 3, batching=batching, init=init, block_users=2, batch_size=2)
    batches = list(model.batches(0))
    assert len(batches) == model.n_steps
    users = np.concatenate([np.unique(batch.users) for batch in batches])
    assert set(users.tolist()) == {0, 1, 2, 3}  # the cold user is in no batch
    for batch in batches:
        gradient = model.gradient(batch, model.users, model.items, value=True)
        assert bool(torch.isfinite(gradient.users).all())
        assert bool(torch.isfinite(gradient.items).all())
        assert np.isfinite(gradient.value)
    factors = model.factors()
    assert (factors.n_users, factors.n_items, factors.dim) == (5, 6, 3)
    torch.testing.assert_close(factors.users[4], model.users[:4].mean(dim=0))
    same = list(model.batches(0))
    assert all(torch.equal(a.users, b.users) for a, b in zip(batches, same, strict=True))


@pytest.mark.parametrize("make", MODELS)
def test_factors_are_copies(make: Any) -> None:
    model = make(with_cold(), 2)
    model.factors().items.zero_()
    assert bool((model.items != 0).any())


@pytest.mark.parametrize("make", MODELS)
def test_starts_from_given_factors(make: Any) -> None:
    start = Factors(torch.ones(5, 7), torch.ones(6, 7))
    model = make(with_cold(), 2, start=start)
    assert model.dim == 7
    model.users.zero_()
    assert bool((start.users == 1).all())
    with pytest.raises(InputError, match="different data"):
        make(with_cold(), 2, start=Factors(torch.ones(4, 7), torch.ones(6, 7)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dim": 0}, "dim must be an integer of at least 1, got 0"),
        ({"dim": 2.5}, "dim must be an integer"),
        ({"batching": "cells"}, "batching must be one of rows, pairs, got 'cells'"),
        ({"init": "zeros"}, "init must be one of spectral, smooth, normal"),
        ({"batch_size": 0}, "batch_size"),
        ({"block_users": 0}, "block_users"),
        ({"init_std": 0.0}, "init_std must be a finite number and positive"),
        ({"base_logit": float("nan")}, "base_logit must be a finite number"),
        ({"negatives": 0}, "negatives"),
        ({"sampled_items": 0}, "sampled_items"),
        ({"seed": -1}, "seed"),
    ],
)
@pytest.mark.parametrize("make", MODELS)
def test_refuses(make: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make(with_cold(), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"negative_weight": 0.0}, "negative_weight must be a finite number and positive"),
        ({"item_weight": -1.0}, "item_weight must be a finite number and not negative"),
        ({"neighbours": 0}, "neighbours"),
        ({"w1": "x"}, "w1 must be a finite number"),
        ({"w3": 0.0, "w4": 0.0}, "w3 and w4 must not both be 0"),
    ],
)
def test_ultragcn_refuses(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        UltraGCN(with_cold(), **options)


@pytest.mark.parametrize("make", MODELS)
def test_refuses_empty_train(make: Any) -> None:
    none = with_cold().take(np.zeros(5, dtype=bool))
    with pytest.raises(InputError, match="nothing to learn from"):
        make(none)


def test_bpr_refuses_a_user_with_every_item() -> None:
    full = Interactions.from_pairs([0, 0, 1], [0, 1, 0], 2, 2)[0]
    for batching in ("rows", "pairs"):
        model = BPRMF(full, 2, batching=batching)
        with pytest.raises(InputError, match="user 0 has all 2 items"):
            [model.gradient(batch, model.users, model.items) for batch in model.batches(0)]
    with pytest.raises(InputError, match="does not have"):
        BPRMF(full, 2).fold_in([0, 1])


def test_bpr_loss_checks_shapes() -> None:
    with pytest.raises(InputError, match="one dimension more"):
        bpr(torch.ones(2), torch.ones(3, 2))


# --- spectral start -------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_spectral_start_is_the_svd_of_the_normalized_matrix(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cells = rng.random((40, 30)) < 0.3
    cells[0, 0] = True
    train = Interactions(*np.nonzero(cells), 40, 30)
    U, V = spectral_factors(train, 6, np.random.default_rng(seed), base_logit=4.0)
    scale = np.sqrt(np.outer(cells.sum(1).clip(1), cells.sum(0).clip(1)))
    left, sizes, right = np.linalg.svd(cells / scale)
    best = (left[:, :5] * sizes[:5]) @ right[:5]
    ours = U[:, :5].astype(np.float64) @ V[:, :5].T
    # Equal up to the one number that the row norms were scaled by.
    ratio = (ours * best).sum() / (best * best).sum()
    assert np.abs(ours - ratio * best).max() <= 0.05 * np.abs(ours).max()
    assert np.linalg.norm(U[:, :5], axis=1)[cells.any(1)].mean() == pytest.approx(1, abs=0.05)
    assert (U[:, 5] == 2.0).all()
    assert (V[:, 5] == -2.0).all()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_smooth_start_is_a_low_pass_filter_with_popularity(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cells = rng.random((40, 30)) < np.linspace(0.1, 0.6, 30)
    cells[0], cells[:, 0] = True, True
    train = Interactions(*np.nonzero(cells), 40, 30)
    U, V = spectral_factors(train, 6, np.random.default_rng(seed), smooth=True)
    left, sizes, right = np.linalg.svd(cells / np.sqrt(np.outer(cells.sum(1), cells.sum(0))))
    best = (left[:, :5] * sizes[:5] ** 1.5) @ (right[:5] * cells.sum(0) ** 0.25)
    ours = U[:, :5].astype(np.float64) @ V[:, :5].T
    ratio = (ours * best).sum() / (best * best).sum()
    assert np.abs(ours - ratio * best).max() <= 0.05 * np.abs(ours).max()


@pytest.mark.realdata
def test_smooth_start_ranks_far_better_than_the_plain_one(real_data: Path) -> None:
    split = load("ml-1m", data_dir=real_data, download=False)
    found = {}
    for smooth in (False, True):
        U, V = spectral_factors(split.train, 65, np.random.default_rng(0), smooth=smooth)
        factors = Factors(torch.tensor(U), torch.tensor(V))
        found[smooth] = evaluate(factors, split, (10,), part="valid")["ndcg@10"]
    assert found[True] > 0.23 > 0.2 > found[False]


@pytest.mark.parametrize("dim", [1, 2, 20])
def test_spectral_start_of_any_width(dim: int) -> None:
    U, V = spectral_factors(with_cold(), dim, np.random.default_rng(0))
    assert U.shape == (5, dim)
    assert V.shape == (6, dim)
    assert np.isfinite(U).all()
    assert np.isfinite(V).all()
    assert (U[4, :-1] == 0).all()
    with pytest.raises(InputError, match="dim"):
        spectral_factors(with_cold(), 0, np.random.default_rng(0))


# --- fold-in --------------------------------------------------------------------------------


@pytest.mark.parametrize("make", MODELS)
def test_fold_in_finds_the_minimum(make: Any) -> None:
    split = load("demo")
    model = make(split.train, 6)
    items = split.train.items_of(0).astype(np.int64)
    row = model.fold_in(items, ridge=0.1).double()
    loss = model._user_loss(items, model.items.double())

    def value(u: torch.Tensor) -> float:
        return float(loss(u) + 0.1 * u @ u)

    rng = np.random.default_rng(0)
    for _ in range(20):
        step = torch.tensor(rng.standard_normal(6)) * 0.05
        assert value(row) <= value(row + step)


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize("items", [[], [6], [-1], [0, 0], [0.5], [[0]]])
def test_fold_in_refuses(make: Any, items: Any) -> None:
    with pytest.raises(InputError, match="item"):
        make(with_cold(), 2).fold_in(items)
    with pytest.raises(InputError, match="ridge"):
        make(with_cold(), 2).fold_in([0], ridge=-1.0)
