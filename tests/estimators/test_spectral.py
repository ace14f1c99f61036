"""Bounds of the spectral norm: against the SVD, their coverage, what they refuse."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from robustcf.errors import InputError
from robustcf.estimators import FunctionOperator, spectral_norm

from .conftest import decaying, watched


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128])
def test_bounds(seed: int, dtype: type) -> None:
    A = decaying(80, 60, seed).astype(dtype)
    if dtype is np.complex128:
        A = A * np.exp(1j * np.arange(60))
    truth = np.linalg.norm(A, 2)
    op = FunctionOperator(A.shape, lambda X: A @ X, lambda Y: A.conj().T @ Y, dtype)
    spent = watched(op)
    answer = spectral_norm(op, 20, generator=seed, delta=1e-3)
    assert answer.lower <= truth * (1 + 1e-9) < answer.upper * (1 + 2e-9)
    assert answer.products + answer.rproducts == sum(spent.values()) <= 20
    assert answer.upper < 2 * truth
    exact = spectral_norm(op, 60)
    assert exact.certified
    assert float(exact) == pytest.approx(truth, rel=1e-5)


def test_the_upper_bound_fails_as_often_as_stated() -> None:
    A = torch.from_numpy(decaying(60, 50, 0, power=5.0))
    truth = float(torch.linalg.matrix_norm(A, 2))
    answers = [spectral_norm(A, 2, generator=seed, delta=0.3) for seed in range(400)]
    failed = sum(answer.upper < truth for answer in answers)
    assert all(answer.lower <= truth * (1 + 1e-9) for answer in answers)
    assert 0 < failed <= 0.3 * 400 + 3 * (0.3 * 0.7 * 400) ** 0.5


@pytest.mark.parametrize("size", [1e-200, 1.0, 1e200])
def test_powers_stay_in_range(size: float) -> None:
    A = decaying(80, 60, 0) * size
    answer = spectral_norm(A, 40, generator=0, delta=1e-3)
    assert answer.lower <= np.linalg.norm(A, 2) * (1 + 1e-9) < answer.upper * (1 + 2e-9)


def test_zero_and_bad_input() -> None:
    zero = spectral_norm(np.zeros((50, 40)), 10, generator=0)
    assert (zero.lower, zero.upper) == (0.0, 0.0)
    assert float(spectral_norm(np.zeros((0, 4)), 4)) == 0.0
    for options in ({"budget": 1}, {"delta": 1.5}):
        with pytest.raises(InputError):
            spectral_norm(np.eye(50), **{"budget": 10, **options})
