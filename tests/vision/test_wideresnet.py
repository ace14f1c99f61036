"""WideResNet: published sizes, shapes, a plain transcription of a block, determinism."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from robustcf.errors import InputError
from robustcf.vision import JacobianOperator, Normalize, WideResNet, classifier, parameter_count

# Millions of parameters on CIFAR-10, from tables 4 and 5 of the publication.
PUBLISHED = {
    (40, 1): 0.6,
    (40, 2): 2.2,
    (40, 4): 8.9,
    (40, 8): 35.7,
    (28, 10): 36.5,
    (28, 12): 52.5,
    (22, 8): 17.2,
    (22, 10): 26.8,
    (16, 8): 11.0,
    (16, 10): 17.1,
}


@pytest.mark.parametrize(("shape", "millions"), PUBLISHED.items())
def test_published_sizes(shape, millions):
    assert round(parameter_count(*shape, 10) / 1e6, 1) == millions


@pytest.mark.parametrize(
    ("depth", "width", "classes", "channels"),
    [(10, 1, 10, 1), (10, 2, 3, 3), (16, 1, 100, 3), (16, 10, 100, 3), (22, 2, 7, 2)],
)
def test_the_formula_counts_what_is_there(depth, width, classes, channels):
    net = WideResNet(depth, width, classes, channels, generator=0)
    count = sum(parameter.numel() for parameter in net.parameters())
    assert count == parameter_count(depth, width, classes, channels)
    convolutions = [m for m in net.modules() if isinstance(m, torch.nn.Conv2d)]
    shortcuts = sum(m.kernel_size == (1, 1) for m in convolutions)
    # "Depth" counts the 3 x 3 convolutions and the linear layer of a net with wide first group.
    assert len(convolutions) - shortcuts + 3 == depth


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_forward_against_a_plain_transcription(seed):
    net = WideResNet(10, 2, 5, generator=seed).eval().double()
    for module in net.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.uniform_(-0.2, 0.2)
            module.running_var.uniform_(0.5, 2)
    state = net.state_dict()

    def bn(x, name):
        mean, var = state[f"{name}.running_mean"], state[f"{name}.running_var"]
        x = (x - mean.reshape(1, -1, 1, 1)) / (var.reshape(1, -1, 1, 1) + 1e-5).sqrt()
        return x * state[f"{name}.weight"].reshape(1, -1, 1, 1) + state[f"{name}.bias"].reshape(
            1, -1, 1, 1
        )

    x = torch.rand(2, 3, 16, 16, dtype=torch.float64)
    out = F.conv2d(x, state["stem.weight"], padding=1)
    for group, stride in ((0, 1), (1, 2), (2, 2)):
        name = f"groups.{group}.0"
        active = bn(out, f"{name}.bn1").clamp_min(0)
        inner = F.conv2d(active, state[f"{name}.conv1.weight"], stride=stride, padding=1)
        inner = bn(inner, f"{name}.bn2").clamp_min(0)
        inner = F.conv2d(inner, state[f"{name}.conv2.weight"], padding=1)
        out = inner + F.conv2d(active, state[f"{name}.shortcut.weight"], stride=stride)
    out = bn(out, "bn").clamp_min(0).mean(dim=(2, 3))
    logits = out @ state["linear.weight"].T + state["linear.bias"]
    torch.testing.assert_close(net(x), logits)


def test_one_seed_one_network_and_no_global_state():
    before = torch.get_rng_state()
    first, second = (WideResNet(10, 1, 3, generator=4) for _ in range(2))
    other = WideResNet(10, 1, 3, generator=5)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(first.stem.weight, second.stem.weight)
    assert torch.equal(first.linear.weight, second.linear.weight)
    assert not torch.equal(first.stem.weight, other.stem.weight)


def test_normalization_is_inside():
    net = classifier(10, 1, 4, [0.4, 0.5, 0.6], [0.1, 0.2, 0.3], generator=0).eval()
    x = torch.rand(2, 3, 8, 8)
    mean = torch.tensor([0.4, 0.5, 0.6]).reshape(3, 1, 1)
    std = torch.tensor([0.1, 0.2, 0.3]).reshape(3, 1, 1)
    torch.testing.assert_close(net(x), net.net((x - mean) / std))


@pytest.mark.parametrize("depth", [4, 9, 11, 12, 16.0, True])
def test_no_such_depth(depth):
    with pytest.raises(InputError, match="depth"):
        WideResNet(depth, 1, 2)


def test_bad_input():
    with pytest.raises(InputError, match="width"):
        WideResNet(10, 0, 2)
    net = WideResNet(10, 1, 2, in_channels=3, generator=0)
    with pytest.raises(InputError, match="channels"):
        net(torch.zeros(2, 1, 8, 8))
    with pytest.raises(InputError, match="channels"):
        net(torch.zeros(3, 8, 8))
    with pytest.raises(InputError, match="channels"):
        classifier(10, 1, 2, [0.5] * 3, [0.5] * 3, generator=0)(torch.zeros(2, 1, 8, 8))
    for mean, std in (([0.5], [0.0]), ([0.5], [1.0, 1.0]), ([], [])):
        with pytest.raises(InputError, match="mean"):
            Normalize(mean, std)


@pytest.mark.slow
def test_wideresnet_16_10_runs_here():
    """Forward, one JVP and one VJP at 32 x 32, and their adjointness."""
    net = WideResNet(16, 10, 100, generator=0).eval()
    x = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert net(x).shape == (1, 100)
        J = JacobianOperator(net, x)
        assert J.shape == (1, 3072, 100)
        u, v = torch.randn(1, 100, 1), torch.randn(1, 3072, 1)
        left, right = (v * J.matmat(u)).sum(), (J.rmatmat(v) * u).sum()
    torch.testing.assert_close(left, right, rtol=1e-3, atol=1e-3)
