"""Training follows its tensors: on another device nothing falls back, and little is copied."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from robustcf.factors import Factors
from robustcf.objectives import Batches
from robustcf.training.adversarial import adversary
from robustcf.training.loop import Optimizer, Stop, fit
from tests.distributed.equality import (
    BATCHINGS,
    DIM,
    ITEMS,
    MODELS,
    OBJECTIVES,
    PENALTIES,
    some_pairs,
)
from tests.distributed.second_device import DEVICE, There, content, second_device


def trained(choice: tuple[str, ...], device: Any) -> Factors:
    model, objective, penalty, foe, batching = choice
    pairs = some_pairs(0)
    kind, settings = OBJECTIVES[objective]
    batches = Batches(kind(pairs, device=device, **settings), BATCHINGS[batching])
    kind, settings = MODELS[model]
    start = kind(pairs, factors=DIM, device=device, **settings)
    reg = PENALTIES[penalty]()
    if hasattr(reg, "prepare"):
        degrees = pairs.user_degrees, pairs.item_degrees
        reg.prepare(*(torch.tensor(each, device=device) for each in degrees))
    return fit(
        start,
        batches,
        Stop(1),
        reg=reg,
        reg_weight=0.05,
        adversary=None if foe == "none" else adversary(foe, batches),
        optimizer=Optimizer(lr=0.02, user_lr=0.05),
    ).factors


# LightGCN's sparse graph is beyond what a mocked device can do.
CHOICES = [
    *itertools.product(["softmax-mf"], OBJECTIVES, ["none"], ["none"], ["rows"]),
    *itertools.product(["softmax-mf"], ["softmax, cool"], PENALTIES, ["none"], ["rows"]),
    *itertools.product(["bpr-mf"], ["bpr"], ["none"], ["bpr", "bce", "margin"], ["rows", "pairs"]),
    ("ultragcn", "bce", "weight_decay", "none", "pairs"),
]


@pytest.mark.parametrize("choice", CHOICES, ids=", ".join)
@pytest.mark.slow
def test_training_stays_on_its_device(choice: tuple[str, ...]) -> None:
    expected = trained(choice, "cpu")
    with second_device() as mode:
        found = trained(choice, DEVICE)
    for mine, theirs in zip(found, expected, strict=True):
        assert isinstance(mine, There)
        torch.testing.assert_close(content(mine), theirs, atol=2e-6, rtol=1e-5)
    # The ids of a block go back, to look its pairs up; factors and gradients never do.
    assert mode.largest["back"] < ITEMS * DIM, mode.largest


def test_the_mocked_device_notices_a_tensor_that_is_elsewhere() -> None:
    with second_device() as mode:
        there = torch.ones(2, 2, device=DEVICE)
        with pytest.raises(RuntimeError, match="tensors"):
            _ = there @ torch.ones(2, 1)
        assert content(there.cpu()).tolist() == [[1.0, 1.0], [1.0, 1.0]]
        assert mode.largest["back"] == 4
