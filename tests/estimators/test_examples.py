"""The examples of docs/examples: each trains, and its penalized version has the smaller norm."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

from robustcf.data import checkerboard
from robustcf.estimators import LowRank

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
PAIRS = checkerboard(40, 60).train
#: Name -> epochs and weight of the penalty.
SETTINGS = {
    "neumf": (200, 0.3),
    "two_tower": (120, 0.1),
    "lightgcn": (25, 0.5),
    "sasrec": (15, 0.5),
    "recbole_style": (120, 0.1),
    "lightning_module": (120, 0.1),
}


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def scores_of(name: str, weight: float, seed: int) -> torch.Tensor:
    module = example(name)
    with torch.random.fork_rng():
        trained = module.train(PAIRS, weight, seed, epochs=SETTINGS[name][0])
    with torch.no_grad():
        if name == "lightgcn":
            users, items = trained()
        elif name == "sasrec":
            users, items = trained.encode(trained.table, module.histories(PAIRS)), trained.table
        elif name in ("recbole_style", "lightning_module"):
            users, items = trained.factors
        else:
            return trained.rows(torch.arange(40))
        return LowRank(users, items).rows(torch.arange(40))


def precision(scores: torch.Tensor) -> float:
    """The share of the ten best items of each user that have the user's parity."""
    best = scores.topk(10, dim=1).indices
    return float(((best + torch.arange(40)[:, None]) % 2 == 0).double().mean())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # Lightning on this torch
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", SETTINGS)
def test_it_learns_and_the_penalty_shrinks_the_norm(name: str, seed: int) -> None:
    if name == "lightning_module":
        pytest.importorskip("lightning")
    plain, penalized = (scores_of(name, weight, seed) for weight in (0.0, SETTINGS[name][1]))
    assert penalized.norm(dim=1).max() < 0.8 * plain.norm(dim=1).max()
    assert precision(plain) > 0.7
    assert precision(penalized) > 0.6
