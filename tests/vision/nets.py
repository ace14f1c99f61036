"""Small networks in float64, and the explicit Jacobian as an oracle."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def small_net(seed: int, *, batch_norm: bool = False, classes: int = 4) -> nn.Sequential:
    """A smooth convolutional net on 2 x 5 x 5 images (tanh, so that gradcheck has derivatives)."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers: list[nn.Module] = [nn.Conv2d(2, 3, 3, padding=1)]
        if batch_norm:
            layers.append(nn.BatchNorm2d(3))
        layers += [nn.Tanh(), nn.Flatten(), nn.Linear(75, classes)]
        net = nn.Sequential(*layers).double()
        if batch_norm:  # running statistics other than the identity
            net[1].running_mean.normal_()
            net[1].running_var.uniform_(0.5, 2)
            net[1].weight.data.uniform_(0.5, 2)
        return net


def images(seed: int, count: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(1000 + seed)
    return torch.rand(count, 2, 5, 5, dtype=torch.float64, generator=generator)


def explicit(function: nn.Module, x: Tensor) -> Tensor:
    """images x inputs x classes, one image and one class at a time, by plain autograd."""
    result = []
    for image in x:
        one = image.unsqueeze(0).clone().requires_grad_()
        logits = function(one)[0]
        columns = [torch.autograd.grad(out, one, retain_graph=True)[0].flatten() for out in logits]
        result.append(torch.stack(columns, dim=1))
    return torch.stack(result)
