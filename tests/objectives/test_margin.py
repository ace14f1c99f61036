"""Margins: at least the loss under every attack within the slack, with autograd's gradient."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from robustcf.data import Interactions, checkerboard
from robustcf.objectives import (
    BPR,
    Batch,
    BatchConfig,
    Batches,
    ComparingObjective,
    Gradient,
    Softmax,
)
from tests.objectives.naive import assert_autograd, batch_loss, batch_pairs, parameters, small_case

SEEDS = [0, 1, 2]
KINDS: dict[str, type[ComparingObjective[Any]]] = {"bpr": BPR, "softmax": Softmax}
CASES = list(itertools.product(KINDS, ["rows", "pairs"]))
BOARD = checkerboard().train


def one_batch(
    name: str, batching: str, pairs: Interactions, seed: int, kind: torch.dtype = torch.float64
) -> tuple[ComparingObjective[Any], Batch]:
    settings = {"negatives": 3, "sampled_items": 5} if name == "bpr" else {}
    objective = KINDS[name](pairs, dtype=kind, **settings)
    batches = Batches(objective, BatchConfig(batching, block_users=6, batch_size=17), seed=seed)
    return objective, list(batches.epoch(0))[1]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("name", "batching"), CASES)
@pytest.mark.parametrize("slack", [(0.3, 0.2), (0.5, 0.0), (0.0, 0.4), (0.0, 0.0)])
def test_value_and_gradient_are_those_of_the_formula(
    name: str, batching: str, seed: int, slack: tuple[float, float]
) -> None:
    pairs, U, V = small_case(seed, grad=True, shape=(20, 14), dim=3)
    objective, batch = one_batch(name, batching, pairs, seed)
    with torch.no_grad():
        V[3] = V[5]  # twins: a distance of 0 has no gradient
        U[int(batch.users[0])] = 0.0
    found = objective.margin_gradient(batch, U.detach(), V.detach(), slack, value=True)
    assert_autograd(found, batch_loss(name, batch, U, V, pairs, slack), U, V)
    if batch.items is None:
        assert objective.margin_gradient(batch, U.detach(), V.detach(), slack).value is None


def to_length(rows: Tensor, size: Tensor | float) -> Tensor:
    """Every row at a length; zero rows stay."""
    return rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-300) * size


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("name", "batching"), CASES)
@pytest.mark.slow
def test_no_attack_within_the_slack_exceeds_the_bound(name: str, batching: str, seed: int) -> None:
    """Uphill steps, random ones at the edge and inside of it, and many steps uphill."""
    rng = np.random.default_rng(seed)
    U, V = (part.detach() for part in parameters(rng, BOARD, 3))
    objective, batch = one_batch(name, batching, BOARD, seed)
    slack = (0.2 + 0.05 * seed, 0.6 / (1 + seed))
    bound = objective.margin_gradient(batch, U, V, slack, value=True).value
    g = torch.Generator().manual_seed(seed)

    def value(users: Tensor, items: Tensor) -> Gradient:
        assert bool((users.norm(dim=1) <= slack[0] * (1 + 1e-9)).all())
        assert bool((items.norm(dim=1) <= slack[1] * (1 + 1e-9)).all())
        return objective.gradient(batch, U + users, V + items, value=True)

    def uphill(at: Gradient) -> tuple[Tensor, Tensor]:
        return to_length(at.whole(len(U)).users, slack[0]), to_length(at.items, slack[1])

    plain = objective.gradient(batch, U, V, value=True)
    point = uphill(plain)
    seen = [plain.value]
    for _ in range(10):
        there = value(*point)
        seen.append(there.value)
        point = uphill(there)
    for _ in range(20):
        noise = [torch.randn(part.shape, generator=g, dtype=torch.float64) for part in (U, V)]
        inside = [torch.rand(len(part), 1, generator=g, dtype=torch.float64) for part in (U, V)]
        if seed % 2:
            inside = [torch.ones_like(part) for part in inside]
        sides = (to_length(n, s * i) for n, s, i in zip(noise, slack, inside, strict=True))
        seen.append(value(*sides).value)
    assert bound is not None
    assert max(seen) > plain.value
    assert max(seen) <= bound


@pytest.mark.parametrize("seed", SEEDS)
def test_the_bound_of_bpr_is_reached_by_the_worst_attack(seed: int) -> None:
    """One comparison, whose user points against the gap: all three ways to lose add up."""
    pairs = Interactions.from_pairs([0], [0], 1, 2)[0]
    rng = np.random.default_rng(seed)
    _, V = (part.detach() for part in parameters(rng, pairs, 3))
    down = to_length((V[1] - V[0])[None], 1.0)
    U, (a, b) = 0.7 * down, (0.2, 0.1)
    attacked = U + a * down, V + b * torch.cat((-down, down))
    objective = BPR(pairs, dtype=torch.float64)
    for batch in (
        Batch(torch.tensor([0]), torch.tensor([0]), torch.tensor([[1]])),
        Batch(torch.tensor([0]), negatives=torch.tensor([0, 1])),
    ):
        bound = objective.margin_gradient(batch, U, V, (a, b), value=True).value
        assert objective.gradient(batch, *attacked, value=True).value == pytest.approx(bound)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("batching", ["rows", "pairs"])
def test_the_softmaxs_bound_is_looser_than_one_of_all_distances_but_not_by_much(
    batching: str, seed: int
) -> None:
    """By way of the mean, distances are at most those of the triangle: at most r_i + r_j."""
    rng = np.random.default_rng(seed)
    U, V = (part.detach() for part in parameters(rng, BOARD, 3))
    objective, batch = one_batch("softmax", batching, BOARD, seed)
    a, b = 0.3, 0.2
    bound = objective.margin_gradient(batch, U, V, (a, b), value=True).value
    exact = 0.0
    S = U @ V.T
    for u, i in batch_pairs(batch, BOARD):
        lost = a * (V - V[i]).norm(dim=1) + 2 * b * U[u].norm() + 2 * a * b
        terms = (S[u] - S[u, i] + lost).exp().sum().log()
        exact += float(terms) / int(BOARD.user_degrees[u])
    plain = objective.gradient(batch, U, V, value=True).value
    assert plain < exact <= bound
    assert bound - plain < 2 * (exact - plain)


@pytest.mark.parametrize("longest", [1.0, 100.0, 3000.0])
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", KINDS)
def test_the_margin_in_single_precision_is_that_in_double(
    name: str, seed: int, longest: float
) -> None:
    """Near twins and one row far longer than the rest, which must not blur the others."""
    g = torch.Generator().manual_seed(seed)
    U = torch.randn(BOARD.n_users, 3, generator=g, dtype=torch.float64)
    V = torch.randn(BOARD.n_items, 3, generator=g, dtype=torch.float64)
    V[3] = V[5] * (1 + 1e-9)
    V[0] *= longest
    found, expected = (
        objective.margin_gradient(batch, U.to(kind), V.to(kind), (0.3, 0.2), value=True)
        for kind in (torch.float32, torch.float64)
        for objective, batch in [one_batch(name, "rows", BOARD, seed, kind)]
    )
    assert found.value == pytest.approx(expected.value, rel=1e-4)
    rest = torch.arange(1, len(V))
    scale = float(expected.items[rest].abs().max())
    assert (found.items.double() - expected.items)[rest].abs().max() < 1e-3 * scale
    size = float(expected.users.abs().max())
    assert (found.users.double() - expected.users).abs().max() < 1e-3 * size
