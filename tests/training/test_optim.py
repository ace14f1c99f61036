"""Adam and the schedules of its learning rate."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from robustcf.errors import InputError
from robustcf.training.optim import SCHEDULES, Adam, schedule

SEEDS = [0, 1, 2]


@pytest.mark.parametrize("seed", SEEDS)
def test_adam_is_adam(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(6, 3, generator=generator)
    ours, theirs = start.clone(), start.clone().requires_grad_()
    mine = Adam(ours, beta1=0.8, beta2=0.95)
    reference = torch.optim.Adam([theirs], lr=0.1, betas=(0.8, 0.95))
    for _ in range(10):
        gradient = torch.randn(6, 3, generator=generator)
        mine.step(gradient, 0.1)
        theirs.grad = gradient.clone()
        reference.step()
    torch.testing.assert_close(ours, theirs.detach())


@pytest.mark.parametrize("seed", SEEDS)
def test_adam_rows_count_their_own_steps(seed: int) -> None:
    """Rows left out of steps end as if those steps had never been."""
    rng = np.random.default_rng(seed)
    start = torch.tensor(rng.standard_normal((5, 2)), dtype=torch.float32)
    ours = start.clone()
    mine = Adam(ours)
    alone = [start[n : n + 1].clone() for n in range(5)]
    singles = [Adam(row) for row in alone]
    for _ in range(12):
        rows = np.flatnonzero(rng.random(5) < 0.6)
        if len(rows) == 0:
            continue
        gradient = torch.tensor(rng.standard_normal((len(rows), 2)), dtype=torch.float32)
        mine.step(gradient, 0.05, torch.tensor(rows))
        for place, row in enumerate(rows.tolist()):
            singles[row].step(gradient[place : place + 1], 0.05)
    torch.testing.assert_close(ours, torch.cat(alone))


def test_schedules() -> None:
    values = {name: [schedule(name, x) for x in (0.0, 0.5, 1.0, 1.5)] for name in SCHEDULES}
    falling = pytest.approx([1.0, 0.5, 0.0, 0.0], abs=1e-7)
    assert values == {"linear": falling, "cosine": falling, "constant": [1.0] * 4}


def test_refuses() -> None:
    with pytest.raises(InputError, match="schedule"):
        schedule("steps", 0.0)
    for betas in ({"beta1": 1.0}, {"beta2": -0.1}):
        with pytest.raises(InputError, match="beta"):
            Adam(torch.zeros(2, 1), **betas)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_fused_step_is_the_plain_one(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps on all rows, then on some, then on all again: the rows then differ in their counts."""
    rng = np.random.default_rng(seed)
    start = torch.tensor(rng.standard_normal((6, 3)), dtype=torch.float32)
    runs = []
    for least in (2**21, 1):
        monkeypatch.setattr("robustcf.training.optim.FUSED_FROM", least)
        parameter, draws = start.clone(), np.random.default_rng(seed)
        adam = Adam(parameter, beta1=0.8, beta2=0.95)
        for n in range(12):
            rows = torch.tensor([0, 2, 5]) if n == 6 else None
            size = (6 if rows is None else 3, 3)
            gradient = torch.tensor(draws.standard_normal(size), dtype=torch.float32)
            adam.step(gradient, 0.1 / (n + 1), rows)
        runs.append((parameter, adam.mean, adam.square))
        assert adam.steps.tolist() == [12, 11, 12, 11, 11, 12]
    for plain, fused in zip(*runs, strict=True):
        torch.testing.assert_close(fused, plain)
    assert not torch.equal(runs[0][0], start)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_state_is_restored(seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    gradients = [torch.randn(4, 2, generator=g) for _ in range(6)]
    whole, parts = torch.zeros(4, 2), torch.zeros(4, 2)
    one, two = Adam(whole), Adam(parts)
    for n, gradient in enumerate(gradients):
        one.step(gradient, 0.1)
        if n == 3:
            saved = {name: value.clone() for name, value in two.state("x").items()}
            two = Adam(parts)
            two.load("x", saved)
        two.step(gradient, 0.1)
    assert torch.equal(whole, parts)
