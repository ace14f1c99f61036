"""FGSM and PGD on images in [0, 1], within an l_infinity ball of radius eps in pixel space."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from robustcf._checks import check_integer, check_number
from robustcf.errors import InputError
from robustcf.estimators.numerics import Seed, as_generator

EPS = 2 / 255


def fgsm(model: nn.Module, x: Tensor, y: Tensor, eps: float = EPS) -> Tensor:
    """One signed gradient step of the cross-entropy, clipped to [0, 1] (Goodfellow et al., 2015).

    Args:
        model: pixels in [0, 1] to logits; normalization belongs inside it. Attacked in evaluation
            mode, and left in the mode it was in.
        x: images x channels x height x width, in [0, 1].
        y: the right classes.
        eps: largest change of a pixel; 0 gives x itself, bit for bit.

    Cost: one forward and backward pass.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
        >>> x, y = torch.full((3, 1, 2, 2), 0.5), torch.tensor([0, 1, 0])
        >>> round(float((fgsm(model, x, y, 0.1) - x).abs().max()), 3)
        0.1
    """
    return pgd(model, x, y, eps, steps=1, step_size=eps)


def pgd(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    eps: float = EPS,
    *,
    steps: int = 2,
    step_size: float | None = None,
    random_start: bool = False,
    generator: Seed = None,
) -> Tensor:
    """Signed gradient steps, each projected to the ball and to [0, 1] (Madry et al., 2018).

    Args:
        eps: radius of the ball.
        steps: gradient steps; the paper takes 2.
        step_size: of one step; None for 2.5 eps / steps, the rule of Madry et al. The paper does
            not state its own.
        random_start: begin at a uniform point of the ball instead of x.

    Cost: one forward and backward pass a step.
    """
    _check(x, y, eps, steps, step_size)
    size = 2.5 * eps / steps if step_size is None else step_size
    attacked = x.detach().clone()
    if random_start and eps:
        noise = torch.rand(x.shape, generator=as_generator(generator), dtype=torch.float64)
        attacked = attacked + (eps * (2 * noise - 1)).to(x)
        attacked = attacked.clamp(0, 1)
    with evaluation_mode(model):
        for _ in range(steps):
            attacked = attacked.requires_grad_()
            with torch.enable_grad():
                logits = model(attacked)
                if int(y.max()) >= logits.shape[1]:
                    raise InputError(
                        f"expected labels below {logits.shape[1]}, the number of classes, got "
                        f"{int(y.max())}"
                    )
                loss = F.cross_entropy(logits, y, reduction="sum")
                (gradient,) = torch.autograd.grad(loss, attacked)
            stepped = attacked.detach() + size * gradient.sign()
            # Clamped as a difference, a point would leave the ball by rounding.
            attacked = torch.minimum(torch.maximum(stepped, x - eps), x + eps).clamp(0, 1)
    return attacked.detach()


def _check(x: Tensor, y: Tensor, eps: float, steps: int, step_size: float | None) -> None:
    check_number("eps", eps)
    if step_size is not None:
        check_number("step_size", step_size)
    check_integer("steps", steps)
    if len(x) != len(y) or not len(x):
        raise InputError(f"expected one label per image, got {len(x)} images, {len(y)} labels")
    if float(x.min()) < 0 or float(x.max()) > 1:
        raise InputError(
            f"expected pixels in [0, 1], got [{float(x.min()):.3g}, {float(x.max()):.3g}]: "
            "normalization belongs inside the model"
        )
    if int(y.min()) < 0:
        raise InputError(f"expected labels of at least 0, got {int(y.min())}")


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside, and every module's own mode back outside."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
