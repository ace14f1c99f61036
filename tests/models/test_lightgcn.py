"""LightGCN against the dense formula: scored factors, gradients and training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from robustcf.data import Interactions, Split, checkerboard, split_pairs
from robustcf.metrics import evaluate
from robustcf.models import LightGCN
from robustcf.objectives import BPR, BatchConfig, Batches, Gradient
from robustcf.regularizers import MaxNorm, TwoToInf, WeightDecay
from robustcf.training import TrainConfig
from robustcf.training.adversarial import adversary
from robustcf.training.fitting import build_model, fit_split
from robustcf.training.loop import Stop, fit
from tests.objectives.naive import pairs_of

SEEDS = [0, 1, 2]


def dense_graph(pairs: Interactions) -> Tensor:
    """D^-1/2 [[0, R], [R^T, 0]] D^-1/2; nodes without pairs have zero rows."""
    m, n = pairs.n_users, pairs.n_items
    A = np.zeros((m + n, m + n))
    A[pairs.users, m + pairs.items] = A[m + pairs.items, pairs.users] = 1.0
    roots = np.sqrt(A.sum(axis=1).clip(1))
    return torch.tensor(A / np.outer(roots, roots))


def dense_scored(pairs: Interactions, E: Tensor, layers: int) -> Tensor:
    A, total = dense_graph(pairs), torch.zeros_like(E)
    for power in range(layers + 1):
        total = total + torch.linalg.matrix_power(A, power) @ E
    return total / (layers + 1)


def model_of(pairs: Interactions, seed: int, **settings: Any) -> LightGCN:
    options = {"factors": 3, "init": "normal", "init_std": 1.0, "layers": 3, **settings}
    return LightGCN(pairs, seed=seed, dtype=torch.float64, **options)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("layers", [1, 2, 3, 5])
def test_scored_is_the_dense_formula(seed: int, layers: int) -> None:
    """The last user and the last item have no pairs: they keep their share of layer 0 alone."""
    pairs = pairs_of(np.random.default_rng(seed))
    model = model_of(pairs, seed, layers=layers)
    expected = dense_scored(pairs, torch.cat((model.users, model.items)), layers)
    U, V = model.scored()
    torch.testing.assert_close(torch.cat((U, V)), expected)
    torch.testing.assert_close(U[-1], model.users[-1] / (layers + 1))
    torch.testing.assert_close(V[-1], model.items[-1] / (layers + 1))
    single = LightGCN(pairs, factors=3, init="normal", layers=layers)
    expected = dense_scored(pairs, torch.cat((single.users, single.items)).double(), layers)
    torch.testing.assert_close(torch.cat(single.scored()).double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("rows", [None, [2], [0, 5, 11]])
@pytest.mark.parametrize("normalize", [False, True])
def test_pull_back_is_autograd_through_the_dense_formula(
    seed: int, rows: list[int] | None, normalize: bool
) -> None:
    pairs = pairs_of(np.random.default_rng(seed))
    model = model_of(pairs, seed, normalize=normalize)
    E = torch.cat((model.users, model.items)).requires_grad_()
    expected = dense_scored(pairs, E, 3)
    if normalize:
        expected = expected / expected.norm(dim=1, keepdim=True).clamp_min(1e-300)
    torch.testing.assert_close(torch.cat(model.scored()), expected.detach())

    which = torch.arange(pairs.n_users) if rows is None else torch.tensor(rows)
    g = torch.Generator().manual_seed(seed)
    to_users = torch.randn(len(which), 3, generator=g, dtype=torch.float64)
    to_items = torch.randn(len(model.items), 3, generator=g, dtype=torch.float64)
    U, V = expected[: pairs.n_users], expected[pairs.n_users :]
    loss = (to_users * U[which]).sum() + (to_items * V).sum()
    (slope,) = torch.autograd.grad(loss, E)
    found = model.pull_back(Gradient(to_users, None if rows is None else which, to_items, 5.0))
    assert found.rows is None
    assert found.value == 5.0
    torch.testing.assert_close(torch.cat((found.users, found.items)), slope)


def learnable(seed: int) -> Split:
    """Users and items of four kinds; most pairs are of one's own kind."""
    rng = np.random.default_rng(seed)
    kinds = rng.integers(4, size=80), rng.integers(4, size=60)
    cells = rng.random((80, 60)) < np.where(kinds[0][:, None] == kinds[1], 0.6, 0.03)
    cells[:, 0] = True  # every user has a pair
    return split_pairs("kinds", Interactions(*np.nonzero(cells), 80, 60), seed)


QUICK: dict[str, Any] = {
    "model": "lightgcn", "factors": 8, "layers": 2, "init": "normal", "init_std": 0.1, "epochs": 20,
    "lr": 0.05, "block_users": 40, "batch_size": 256, "reg_weight": 1e-4, "refit": "no",
    "epochs_chosen": True,
}  # fmt: skip


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("batching", ["rows", "pairs"])
@pytest.mark.parametrize("objective", ["bpr", "softmax"])
def test_training_learns(seed: int, batching: str, objective: str) -> None:
    split = learnable(seed)
    config = TrainConfig.of(**QUICK, objective=objective, batching=batching, seed=seed)
    start = evaluate(build_model(config, split.train).factors(), split, (10,))["ndcg@10"]
    trained = fit_split(split, config)
    assert trained.config.model.name == "lightgcn"
    assert trained.evaluate((10,))["ndcg@10"] > max(0.38, 3 * start)
    assert trained.history[-1]["loss"] < 0.9 * trained.history[0]["loss"]


@pytest.mark.parametrize("seed", SEEDS)
def test_learns_a_checkerboard_by_its_defaults(seed: int) -> None:
    """Items of the right parity are the only ones that a user's neighbours have."""
    split = checkerboard(60, 40, seed=seed)
    trained = fit_split(split, TrainConfig.of(model="lightgcn", factors=4, epochs=10, seed=seed))
    assert trained.evaluate((4,))["recall@4"] == 1.0


class Recorder:
    """Stands in for Adam: adds up the gradients instead of taking steps."""

    made: list[Recorder] = []  # noqa: RUF012

    def __init__(self, parameter: Tensor, **_: Any) -> None:
        self.total = torch.zeros_like(parameter)
        self.made.append(self)

    def step(self, gradient: Tensor, lr: float, rows: Tensor | None = None) -> None:
        assert rows is None, "every step moves all users"
        self.total += gradient


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("batching", ["rows", "pairs"])
@pytest.mark.parametrize("reg", [WeightDecay(), TwoToInf(), TwoToInf(side="items"), MaxNorm()])
def test_weight_decay_is_on_the_parameters_and_the_others_on_the_scored_factors(
    reg: Any, batching: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over an epoch: the gradient of weight * pairs / 1024 times the penalty, for layer 0."""
    monkeypatch.setattr("robustcf.training.loop.Adam", Recorder)
    pairs = checkerboard(seed=seed).train

    def epoch(weight: float) -> Tensor:
        Recorder.made.clear()
        how = BatchConfig(batching, block_users=6, batch_size=11)
        batches = Batches(BPR(pairs, dtype=torch.float64), how, seed=seed)
        fit(model_of(pairs, seed), batches, Stop(1), reg=reg, reg_weight=weight)
        return torch.cat([part.total for part in Recorder.made])

    model = model_of(pairs, seed)
    E = torch.cat((model.users, model.items)).requires_grad_()
    at = E if isinstance(reg, WeightDecay) else dense_scored(pairs, E, 3)
    penalty = reg.eval()(at[: pairs.n_users], at[pairs.n_users :])
    reg.train()
    (expected,) = torch.autograd.grad(50.0 * len(pairs) / 1024 * penalty, E)
    torch.testing.assert_close(epoch(50.0) - epoch(0.0), expected, rtol=1e-8, atol=1e-10)


def test_an_adversary_sees_the_scored_factors(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = learnable(0).train
    model = model_of(pairs, 0)
    expected = [part.clone() for part in model.scored()]
    batches = Batches(BPR(pairs, dtype=torch.float64), BatchConfig(block_users=500))
    rival, seen = adversary("bpr", batches), []

    def spy(batch: Any, U: Tensor, V: Tensor, into: Gradient, **_: Any) -> None:
        seen.append((U.clone(), V.clone()))

    monkeypatch.setattr(rival, "add_gradient", spy)
    fit(model, batches, Stop(1), adversary=rival)
    assert all(map(torch.equal, seen[0], expected))
