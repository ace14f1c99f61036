"""The spectral start is the singular value decomposition that it says it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from robustcf.data import Interactions, load
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.metrics import evaluate
from robustcf.models.spectral import spectral_factors
from tests.models.test_models import with_cold


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
