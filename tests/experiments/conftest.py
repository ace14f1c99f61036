"""A small table of one's own, and a finished run on it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from robustcf.data import Split, load
from robustcf.experiments.run import RunConfig, RunDir
from robustcf.training.config import TrainConfig

TRAIN = TrainConfig.of(
    model="ultragcn", factors=3, epochs=3, block_users=20, negative_weight=20.0, refit="no"
)


def small_table() -> str:
    """Two tastes and some noise, as CSV."""
    rng = np.random.default_rng(0)
    lines = ["user,item"]
    for user in range(90):
        chances = np.where(np.arange(60) % 2 == user % 2, 0.5, 0.05)
        lines += [f"u{user},i{item}" for item in np.flatnonzero(rng.random(60) < chances)]
    return "\n".join(lines)


@pytest.fixture(scope="session")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("data") / "mine.csv"
    path.write_text(small_table())
    return str(path)


@pytest.fixture(scope="session")
def split(table: str) -> Split:
    return load(table)


@pytest.fixture(scope="session")
def finished(split: Split, table: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is never changed."""
    path = tmp_path_factory.mktemp("runs") / "run"
    assert RunDir.create(path, RunConfig(table, train=TRAIN), split).execute(split)
    return path
