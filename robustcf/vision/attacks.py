"""FGSM, PGD and Auto-PGD on images in [0, 1]: an l_infinity ball of radius eps in pixel space."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from robustcf._checks import check_integer, check_number
from robustcf.errors import InputError
from robustcf.estimators.numerics import Seed, as_generator
from robustcf.vision.per_image import evaluation_mode

EPS = 2 / 255
Loss = Callable[[Tensor, Tensor], Tensor]


def fgsm(model: nn.Module, x: Tensor, y: Tensor, eps: float = EPS) -> Tensor:
    """Attack by one signed gradient step of the cross-entropy (Goodfellow et al., 2015).

    Args:
        model: pixels in [0, 1] to logits, normalization included. Attacked in evaluation mode, and
            left in its own mode.
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
    """Attack by signed gradient steps projected to the ball and to [0, 1] (Madry et al., 2018).

    Args:
        eps: radius of the ball.
        steps: gradient steps; the paper takes 2.
        step_size: of one step; None for 2.5 eps / steps, the rule of Madry et al. (the paper does
            not state its own).
        random_start: begin at a uniform point of the ball instead of x.

    Cost: one forward and backward pass per step.
    """
    _check(x, y, eps)
    check_number("step_size", 0.0 if step_size is None else step_size)
    check_integer("steps", steps)
    size = 2.5 * eps / steps if step_size is None else step_size
    attacked = x.detach().clone()
    if random_start and eps:
        noise = torch.rand(x.shape, generator=as_generator(generator), dtype=torch.float64)
        attacked = (attacked + (eps * (2 * noise - 1)).to(x)).clamp(0, 1)
    with evaluation_mode(model):
        for _ in range(steps):
            gradient = _climbed(model, attacked, y, _cross_entropy)[0]
            attacked = _projected(attacked + size * gradient.sign(), x, eps)
    return attacked.detach()


def apgd(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    eps: float = EPS,
    *,
    steps: int = 100,
    targets: int = 9,
    generator: Seed = 0,
) -> Tensor:
    """Attack by Auto-PGD on the cross-entropy, then on the targeted DLR loss.

    The two gradient attacks of AutoAttack (Croce and Hein 2020, arXiv:2003.01690); its FAB and
    Square attacks are not included. The step halves where an image stops
    gaining. Images that are misclassified already are left as they are.

    Args:
        eps: radius of the ball.
        steps: gradient steps of each of the runs.
        targets: runs of the targeted loss, at the likeliest wrong classes; fewer for few classes.
        generator: of the random starts.

    Cost: steps forward and backward passes for each of the 1 + targets runs, over the images that
    are classified right until then.
    """
    for name, value in (("steps", steps), ("targets", targets)):
        check_integer(name, value, 0 if name == "targets" else 1)
    _check(x, y, eps)
    source, attacked = as_generator(generator), x.detach().clone()
    with evaluation_mode(model):
        logits = _logits(model, x, y)
        others = logits.scatter(1, y[:, None], -torch.inf).argsort(dim=1, descending=True)
        for run in range(1 + min(targets, logits.shape[1] - 1)):
            with torch.no_grad():
                left = torch.nonzero(model(attacked).argmax(dim=1) == y).flatten()
            if not len(left) or not eps:
                break
            loss = _cross_entropy if run == 0 else partial(_dlr, target=others[left, run - 1])
            found, wrong = _auto(model, x[left], y[left], eps, steps, loss, source)
            attacked[left[wrong]] = found[wrong]
    return attacked


def _auto(
    model: nn.Module, x: Tensor, y: Tensor, eps: float, steps: int, loss: Loss, source: Any
) -> tuple[Tensor, Tensor]:
    """Return points of Auto-PGD, and which of them are misclassified."""
    noise = 2 * torch.rand(x.shape, generator=source, dtype=torch.float64) - 1
    here = _projected(x + eps * noise.to(x), x, eps)
    size = torch.full((len(x), *[1] * (x.dim() - 1)), 2 * eps, dtype=x.dtype, device=x.device)
    gradient, value, logits = _climbed(model, here, y, loss)
    best, best_value, best_gradient, before = here, value, gradient, here
    wrong, fooled = logits.argmax(dim=1) != y, here.clone()
    gains = torch.zeros(len(x), device=x.device)
    at_check, kept = best_value.clone(), torch.ones_like(wrong)
    marks, share = [0.0, 0.22], 0.22
    while marks[-1] < 1:
        share = max(share - 0.03, 0.06)
        marks.append(marks[-1] + share)
    checks = [math.ceil(mark * steps) for mark in marks]
    last = 0
    for step in range(steps):
        ahead = _projected(here + size * gradient.sign(), x, eps)
        if step:
            ahead = _projected(here + 0.75 * (ahead - here) + 0.25 * (here - before), x, eps)
        before, here, former = here, ahead, value
        gradient, value, logits = _climbed(model, here, y, loss)
        now = (logits.argmax(dim=1) != y) & ~wrong
        fooled[now], wrong = here[now], wrong | now
        gains += value > former
        better = value > best_value
        best, best_gradient = (
            torch.where(better.reshape(size.shape), new, old)
            for new, old in ((here, best), (gradient, best_gradient))
        )
        best_value = torch.maximum(value, best_value)
        if step + 1 in checks[1:]:
            # Too few gains, or no better point since a check that left the step as it was.
            stuck = (gains < 0.75 * (step + 1 - last)) | (~kept & (best_value <= at_check))
            places = stuck.reshape(size.shape)
            size = torch.where(places, size / 2, size)
            here, gradient = (
                torch.where(places, new, old)
                for new, old in ((best, here), (best_gradient, gradient))
            )
            value = torch.where(stuck, best_value, value)
            kept, at_check, last = stuck, best_value.clone(), step + 1
            gains.zero_()
    return fooled, wrong


def _check(x: Tensor, y: Tensor, eps: float) -> None:
    check_number("eps", eps)
    if len(x) != len(y) or not len(x):
        raise InputError(f"expected one label per image, got {len(x)} images, {len(y)} labels")
    low, high = (float(end) for end in x.aminmax())
    if low < 0 or high > 1:
        raise InputError(
            f"expected pixels in [0, 1], got [{low:.3g}, {high:.3g}]: move the normalization into "
            "the model"
        )


def _projected(moved: Tensor, x: Tensor, eps: float) -> Tensor:
    # Clamped as a difference, a point would leave the ball by rounding.
    return torch.minimum(torch.maximum(moved, x - eps), x + eps).clamp(0, 1)


def _logits(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    logits: Tensor = model(x)
    if int(y.min()) < 0 or int(y.max()) >= logits.shape[1]:
        raise InputError(
            f"expected labels from 0 to {logits.shape[1] - 1}, got {int(y.min())} ... "
            f"{int(y.max())}"
        )
    return logits


def _climbed(model: nn.Module, x: Tensor, y: Tensor, loss: Loss) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradient of the loss, its value per image, and the logits."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        logits = _logits(model, x, y)
        values = loss(logits, y)
        (gradient,) = torch.autograd.grad(values.sum(), x)
    return gradient, values.detach(), logits.detach()


def _cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(logits, y, reduction="none")


def _dlr(logits: Tensor, y: Tensor, target: Tensor) -> Tensor:
    """The targeted difference of logits ratio; with fewer than four classes, the difference."""
    own, other = (logits.gather(1, label[:, None])[:, 0] for label in (y, target))
    if logits.shape[1] < 4:
        return other - own
    top = logits.sort(dim=1, descending=True).values
    return (other - own) / (top[:, 0] - (top[:, 2] + top[:, 3]) / 2 + 1e-12)
