"""Matrices and oracles for the estimator tests: numpy only, no code under test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

SEEDS = (0, 1, 2)


def row_norms(A: np.ndarray) -> np.ndarray:
    """Exact row norms, by numpy."""
    wide = np.asarray(A, dtype=np.result_type(A, np.float64))
    scale = np.abs(wide).max(initial=0.0) or 1.0
    return np.linalg.norm(wide / scale, axis=1) * scale


def decaying(d: int, n: int, seed: int, power: float = 0.7) -> np.ndarray:
    """Correlated rows, like a Jacobian's: singular values k^-power, log-normal row sizes."""
    rng = np.random.default_rng(seed)
    k = min(d, n)
    left = np.linalg.qr(rng.normal(size=(d, k)))[0] * np.exp(0.5 * rng.normal(size=(d, 1)))
    right = np.linalg.qr(rng.normal(size=(n, k)))[0]
    return (left * np.arange(1, k + 1) ** -power) @ right.T


def watched(op: Any) -> dict[str, int]:
    """Count the vectors that an operator multiplies."""
    spent = {"matmat": 0, "rmatmat": 0}

    def counted(name: str, product: Any) -> Any:
        def multiply(X: torch.Tensor) -> torch.Tensor:
            spent[name] += X.shape[1]
            return product(X)

        return multiply

    for name in spent:
        setattr(op, name, counted(name, getattr(type(op), name).__get__(op)))
    return spent


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Small matrices gain nothing from threads, and on a busy machine lose much."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
