"""The spectral start is the singular value decomposition that it says it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robustcf.data import Interactions, interactions, load
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.metrics import evaluate
from robustcf.models import spectral
from robustcf.models.spectral import spectral_factors, truncated_svd
from tests.models.test_base import with_cold
from tests.models.test_ease import random_pairs

SEEDS = [0, 1, 2]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("smooth", [False, True])
def test_the_start_is_the_svd_of_the_normalized_matrix(seed: int, smooth: bool) -> None:
    """Smooth: the values to the power of 3/2, and items times the fourth root of their degree."""
    rng = np.random.default_rng(seed)
    cells = rng.random((40, 30)) < np.linspace(0.1, 0.6, 30)
    cells[0, 0] = True
    train = Interactions(*np.nonzero(cells), 40, 30)
    U, V = spectral_factors(train, 6, np.random.default_rng(seed), base_logit=4.0, smooth=smooth)
    degrees = cells.sum(0).clip(1)
    left, sizes, right = np.linalg.svd(cells / np.sqrt(np.outer(cells.sum(1).clip(1), degrees)))
    power, popularity = (1.5, degrees**0.25) if smooth else (1.0, 1.0)
    best = (left[:, :5] * sizes[:5] ** power) @ (right[:5] * popularity)
    ours = U[:, :5].astype(np.float64) @ V[:, :5].T
    # Equal up to the one number that the row norms were scaled by.
    ratio = (ours * best).sum() / (best * best).sum()
    assert np.abs(ours - ratio * best).max() <= 0.05 * np.abs(ours).max()
    assert np.linalg.norm(U[:, :5], axis=1)[cells.any(1)].mean() == pytest.approx(1, abs=0.05)
    assert (U[:, 5] == 2.0).all()
    assert (V[:, 5] == -2.0).all()


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
    assert (U.shape, V.shape) == ((5, dim), (6, dim))
    assert np.isfinite(np.vstack((U, V))).all()
    assert (U[4, :-1] == 0).all()
    with pytest.raises(InputError, match="dim"):
        spectral_factors(with_cold(), 0, np.random.default_rng(0))


@pytest.mark.parametrize("most", [1, 100, 1 << 22])
@pytest.mark.parametrize("seed", SEEDS)
def test_weights_do_not_depend_on_blocks(seed: int, most: int, monkeypatch: Any) -> None:
    monkeypatch.setattr(spectral, "user_ranges", lambda p: interactions.user_ranges(p, most))
    train = load("demo", seed=seed).train.between(100, 400)
    found = spectral._normalized(train, train.item_degrees)
    dense = train.csr().toarray().astype(np.float64)
    rows, columns = dense.sum(1, keepdims=True), dense.sum(0, keepdims=True)
    expected = (dense / np.sqrt(np.maximum(rows * columns, 1))).astype(np.float32)
    np.testing.assert_allclose(found.toarray(), expected, rtol=1e-6)
    assert np.shares_memory(found.indices, train.items), "the items were copied"


@pytest.mark.parametrize("seed", SEEDS)
def test_the_truncated_svd_is_numpys(seed: int) -> None:
    R = random_pairs(seed, 60, 40).csr().astype(np.float32)
    sizes = np.linalg.svd(R.toarray(), compute_uv=False)
    left, found, right = truncated_svd(R, 5, np.random.default_rng(seed))
    assert np.abs(found.numpy() - sizes[:5]).max() < 2e-2 * sizes[0]
    for part in (left, right):
        torch.testing.assert_close(part.T @ part, torch.eye(5), atol=1e-5, rtol=0)


def test_popularity_is_the_exponent_of_an_items_degree():
    train = load("demo").train
    start = {
        power: spectral_factors(train, 5, np.random.default_rng(0), smooth=True, popularity=power)
        for power in (0.0, 0.5)
    }
    some = np.flatnonzero(train.item_degrees)
    flat, tilted = (start[power][1][some, :4] for power in (0.0, 0.5))
    ratio = np.linalg.norm(tilted, axis=1) / np.linalg.norm(flat, axis=1)
    ratio /= train.item_degrees[some] ** 0.5
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-4)
    np.testing.assert_array_equal(start[0.0][0], start[0.5][0])
