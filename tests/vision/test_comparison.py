"""Counted operations against arithmetic by hand; errors against direct calls."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from robustcf.errors import InputError
from robustcf.estimators import two_to_inf
from robustcf.vision import WideResNet, classifier
from robustcf.vision.comparison import compare, count_gflops, product_gflops
from robustcf.vision.config import VisionConfig


def test_operations_of_a_convolution_and_a_linear_layer():
    net = nn.Sequential(
        nn.Conv2d(2, 5, 3, padding=1, bias=False), nn.Flatten(), nn.Linear(5 * 36, 4)
    )
    forward = 2 * (36 * 5 * 2 * 9) + 2 * (5 * 36 * 4)
    costs = product_gflops(net, torch.rand(1, 2, 6, 6))
    assert costs["forward"] * 1e9 == forward
    # The function itself, and every layer's transpose once.
    assert costs["vjp"] * 1e9 == 2 * forward
    # torch's forward mode multiplies with the (zero) tangents of the weights as well: 3 in 2.13.
    assert costs["jvp"] * 1e9 in (2 * forward, 3 * forward)


@pytest.mark.slow
def test_the_default_penalty_every_50_steps_costs_less_than_5_percent():
    """Counted for the paper's network on the meta device, where nothing is computed."""
    recipe = VisionConfig(reg="two_to_inf", reg_weight=1.0)
    net = classifier(recipe.depth, recipe.width, 100, [0.5] * 3, [0.5] * 3, generator=0)
    net = net.train().to("meta")
    x = torch.rand(recipe.batch_size, 3, 32, 32, device="meta")
    y = torch.zeros(recipe.batch_size, dtype=torch.int64, device="meta")
    plain = count_gflops(lambda: nn.functional.cross_entropy(net(x), y).backward())
    some = count_gflops(lambda: recipe.regularizer()(net, x).backward()) / plain
    paper = recipe.replace(reg_images=None).regularizer()
    whole = count_gflops(lambda: paper(net, x).backward()) / plain
    assert some / 50 < 0.05
    assert whole == pytest.approx(4 * some, rel=0.01)
    assert whole < 9


def test_operations_of_a_wideresnet():
    net = WideResNet(10, 2, 10, generator=0)
    costs = product_gflops(net, torch.rand(1, 3, 32, 32))
    layers = [
        (3, 16, 9, 1024), (16, 32, 9, 1024), (32, 32, 9, 1024), (16, 32, 1, 1024),
        (32, 64, 9, 256), (64, 64, 9, 256), (32, 64, 1, 256),
        (64, 128, 9, 64), (128, 128, 9, 64), (64, 128, 1, 64), (128, 10, 1, 1),
    ]  # fmt: skip
    assert costs["forward"] * 1e9 == 2 * sum(a * b * c * d for a, b, c, d in layers)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_points_are_means_of_plain_calls(seed):
    rng = np.random.default_rng(seed)
    J = torch.from_numpy(rng.normal(size=(60, 12)) * rng.uniform(size=(60, 1)))
    costs = {"vjp": 2.0, "jvp": 3.0, "forward": 1.0}
    points = compare(J, costs, methods=("twinest", "sketch"), budgets=(7, 9), trials=5, seed=seed)
    assert [(p.method, p.budget) for p in points] == [
        ("twinest", 7), ("twinest", 9), ("sketch", 7), ("sketch", 9),
    ]  # fmt: skip
    truth = float(J.norm(dim=1).max())
    errors = [
        abs(float(two_to_inf(J, 9, "twinest", generator=seed + n)) / truth - 1) for n in range(5)
    ]
    assert points[1].error == pytest.approx(np.mean(errors), abs=1e-9)
    assert points[1].exact == np.mean(np.array(errors) < 1e-6)
    # Four samples: four JVPs and four VJPs; the row is one JVP more.
    assert points[1].gflops == 4 * 2.0 + 5 * 3.0
    whole = compare(J, costs, methods=("save",), budgets=(20,), trials=3)
    assert whole[0].exact == 1.0


def test_bad_input():
    for options in ({"methods": ("guess",)}, {"trials": 0}):
        with pytest.raises(InputError, match="methods"):
            compare(torch.eye(3), {"vjp": 1, "jvp": 1}, **options)
