"""WideResNet (Zagoruyko and Komodakis, 2016), and the normalization in front of it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from robustcf._checks import check_integer
from robustcf.errors import InputError
from robustcf.estimators.numerics import Seed, as_generator

_GROUPS = (16, 32, 64)
_STEM = 16


class _Block(nn.Module):
    """Two 3 x 3 convolutions, each after batch-norm and ReLU, added to the input."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.shortcut: nn.Conv2d | None = None
        if channels != out or stride != 1:
            self.shortcut = nn.Conv2d(channels, out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.bn1(x))
        # As published: where shapes change, the shortcut starts after the activation.
        kept = x if self.shortcut is None else self.shortcut(active)
        inner: Tensor = self.conv2(F.relu(self.bn2(self.conv1(active))))
        return inner + kept


class WideResNet(nn.Module):
    """WideResNet-depth-width: a stem, three groups of (depth - 4) / 6 blocks, a linear layer.

    Group g has 16, 32 or 64 times ``width`` channels; the second and third halve the resolution.
    No dropout, as in the paper's experiments; Kaiming initialization.

    Args:
        depth: 6 n + 4: 10, 16, 22, 28, 40, ...
        width: factor on the channels.
        generator: of the initial weights: a torch generator, an integer seed, or None.

    Cost: WideResNet-16-10 has 17.1 million parameters and takes 2.4 billion multiplications and
    additions for an image of 32 x 32.

    Example:
        >>> WideResNet(10, 1, 4, in_channels=1, generator=0)(torch.zeros(2, 1, 8, 8)).shape
        torch.Size([2, 4])
    """

    def __init__(
        self,
        depth: int,
        width: int,
        num_classes: int,
        in_channels: int = 3,
        *,
        generator: Seed = None,
    ) -> None:
        super().__init__()
        if isinstance(depth, bool) or not isinstance(depth, int) or depth < 10 or (depth - 4) % 6:
            raise InputError(f"depth must be 10, 16, 22, 28, ... (6 n + 4), got {depth!r}")
        for name, value in (("width", width), ("classes", num_classes), ("channels", in_channels)):
            check_integer(f"the number for {name}", value)
        self.depth, self.width = depth, width
        self.num_classes, self.in_channels = num_classes, in_channels
        # The layers draw initial values of their own from torch's global state: give that back.
        with torch.random.fork_rng(devices=[]):
            self.stem = nn.Conv2d(in_channels, _STEM, 3, 1, 1, bias=False)
            channels = _STEM
            groups = []
            for number, base in enumerate(_GROUPS):
                layers = []
                for block in range((depth - 4) // 6):
                    stride = 2 if number and not block else 1
                    layers.append(_Block(channels, base * width, stride))
                    channels = base * width
                groups.append(nn.Sequential(*layers))
            self.groups = nn.Sequential(*groups)
            self.bn = nn.BatchNorm2d(channels)
            self.linear = nn.Linear(channels, num_classes)
        how: dict[str, Any] = {"generator": as_generator(generator)}
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu", **how)
            elif isinstance(module, nn.Linear):
                nn.init.kaiming_normal_(module.weight, nonlinearity="linear", **how)
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, images x classes."""
        _check_channels(x, self.in_channels)
        out = F.relu(self.bn(self.groups(self.stem(x))))
        logits: Tensor = self.linear(out.mean(dim=(2, 3)))
        return logits


def _check_channels(x: Tensor, channels: int) -> None:
    if x.dim() != 4 or x.shape[1] != channels:
        raise InputError(
            f"expected images x {channels} channels x height x width, got shape {tuple(x.shape)}"
        )


def parameter_count(depth: int, width: int, num_classes: int, in_channels: int = 3) -> int:
    """Return the number of parameters of a WideResNet, without allocating it.

    Example:
        >>> parameter_count(28, 10, 10)
        36479194
    """
    with torch.device("meta"):
        net = WideResNet(depth, width, num_classes, in_channels, generator=0)
    return sum(parameter.numel() for parameter in net.parameters())


class Normalize(nn.Module):
    """(x - mean) / std for each channel, as the first layer of a model.

    Inside the model, so that attacks, budgets and Jacobians are about pixels in [0, 1].

    Example:
        >>> Normalize([0.5], [0.5])(torch.tensor([[[[1.0]]]])).item()
        1.0
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        if len(mean) != len(std) or not len(mean) or min(std) <= 0:
            raise InputError(
                f"expected mean and positive std, one number per channel, got {mean} and {std}"
            )
        self.register_buffer("mean", torch.tensor(mean).reshape(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(std).reshape(1, -1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Return normalized images."""
        _check_channels(x, self.mean.shape[1])
        return (x - self.mean) / self.std


def classifier(
    depth: int,
    width: int,
    num_classes: int,
    mean: Sequence[float],
    std: Sequence[float],
    *,
    generator: Seed = None,
) -> nn.Sequential:
    """Return normalization and a WideResNet: pixels in [0, 1] in, logits out.

    Example:
        >>> classifier(10, 1, 5, [0.5], [0.5], generator=0)(torch.zeros(2, 1, 8, 8)).shape
        torch.Size([2, 5])
    """
    net = WideResNet(depth, width, num_classes, len(mean), generator=generator)
    return nn.Sequential(OrderedDict(normalize=Normalize(mean, std), net=net))
