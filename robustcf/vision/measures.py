"""Measures of a trained classifier: accuracy, accuracy under attack, norms of its Jacobian."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from robustcf.errors import InputError, TrainingError
from robustcf.estimators.numerics import Seed, as_generator, blocks
from robustcf.vision.attacks import EPS, apgd, fgsm, pgd
from robustcf.vision.jacobian import JacobianOperator
from robustcf.vision.per_image import evaluation_mode
from robustcf.vision.regularizers import Frobenius, Spectral

Attack = Callable[[nn.Module, Tensor, Tensor, float], Tensor]


def accuracy(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    attack: Attack | None = None,
    eps: float = EPS,
    batch_size: int = 256,
) -> float:
    """Return the share of images that are classified right, after an attack if one is given.

    With eps = 0 it is the accuracy without attack, bit for bit.

    Args:
        model: pixels in [0, 1] to logits; evaluated in evaluation mode.
        x: images in [0, 1], or uint8.
        attack: :func:`~robustcf.vision.attacks.fgsm`, :func:`~robustcf.vision.attacks.pgd` or any
            function of (model, x, y, eps).

    Example:
        >>> model = nn.Flatten()
        >>> accuracy(model, torch.eye(2).reshape(2, 2, 1, 1), torch.tensor([0, 1]))
        1.0
    """
    if not len(x) or len(x) != len(y):
        raise InputError(f"expected one label per image, got {len(x)} images, {len(y)} labels")
    right = 0
    with evaluation_mode(model):
        for part, labels in zip(blocks(x, batch_size), blocks(y, batch_size), strict=True):
            images = pixels(part)
            if attack is not None:
                images = attack(model, images, labels, eps)
            with torch.no_grad():
                right += int((model(images).argmax(dim=1) == labels).sum())
    return right / len(x)


def pixels(x: Tensor) -> Tensor:
    """Return uint8 images as float32 in [0, 1]; floating point images pass through.

    Example:
        >>> pixels(torch.tensor([255], dtype=torch.uint8)).tolist()
        [1.0]
    """
    return x.float() / 255 if x.dtype == torch.uint8 else x


@dataclass(frozen=True)
class JacobianNorms:
    """Norms of J (inputs x classes), one number per image; None where not estimated.

    Args:
        frobenius: ||J||_F.
        spectral: ||J||_2.
        infinity: ||J^T||_inf, the largest l_1 norm of a logit's gradient.
        two_to_inf: ||J||_{2->inf}, the largest norm of a pixel's row.
    """

    frobenius: Tensor
    spectral: Tensor
    infinity: Tensor | None = None
    two_to_inf: Tensor | None = None

    @property
    def stable_rank(self) -> Tensor:
        """||J||_F^2 / ||J||_2^2 for each image, between 1 and the number of classes."""
        return (self.frobenius / self.spectral).square()

    def means(self) -> dict[str, float]:
        """Return means over images, of the stable rank too."""
        values = {**vars(self), "stable_rank": self.stable_rank}
        return {name: float(v.double().mean()) for name, v in values.items() if v is not None}


def jacobian_norms(
    model: nn.Module, x: Tensor, *, batch_size: int = 32, block: int | None = 16
) -> JacobianNorms:
    """Return exact norms of the Jacobian at each image, from all its entries.

    Cost: one product per class and image; holds classes x inputs numbers per image of a batch.

    Example:
        >>> net = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
        >>> norms = jacobian_norms(net, torch.rand(2, 1, 2, 2))
        >>> torch.allclose(norms.frobenius, net[1].weight.norm().double())
        True
    """
    parts = []
    with evaluation_mode(model), torch.no_grad():
        for part in blocks(x, batch_size):
            dense = JacobianOperator(model, pixels(part), block=block).dense().double()
            if not bool(torch.isfinite(dense).all()):
                raise TrainingError(
                    "the Jacobian of the network is not finite, its training diverged: lower lr or "
                    "reg_weight"
                )
            gram = dense.mT @ dense
            norms = (
                gram.diagonal(dim1=1, dim2=2).sum(dim=1).sqrt(),
                torch.linalg.eigvalsh(gram)[:, -1].clamp_min(0).sqrt(),
                dense.abs().sum(dim=1).amax(dim=1),
                dense.square().sum(dim=2).amax(dim=1).sqrt(),
            )
            parts.append(torch.stack(norms))
    return JacobianNorms(*torch.cat(parts, dim=1))


def estimated_norms(
    model: nn.Module,
    x: Tensor,
    *,
    projections: int = 16,
    steps: int = 20,
    batch_size: int = 32,
    generator: Seed = None,
) -> JacobianNorms:
    """Estimate the Frobenius and spectral norm from products, for many classes.

    Args:
        projections: random vectors for ||J||_F^2 (unbiased).
        steps: of the power method for ||J||_2 (a lower bound).

    Cost: projections + 2 steps + 1 products per image.
    """
    source = as_generator(generator)
    regs = (Frobenius(projections=projections), Spectral(steps=steps))
    squares = []
    with evaluation_mode(model), torch.no_grad():
        for part in blocks(x, batch_size):
            J = JacobianOperator(model, pixels(part), block=4)
            squares.append(torch.stack([reg.squares(J, source) for reg in regs]))
    return JacobianNorms(*torch.cat(squares, dim=1).double().sqrt())


def report(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    eps: float = EPS,
    steps: int = 2,
    strong_steps: int = 0,
    jacobian_images: int = 100,
    estimate_above: int = 100,
    generator: Seed = 0,
) -> dict[str, float | int]:
    """Return the paper's columns (accuracy, FGSM, PGD, stable rank) and the mean norms of J.

    Args:
        jacobian_images: test images at which the Jacobian is measured.
        estimate_above: with more classes than this J is estimated, else exact.
        steps: PGD steps.
        strong_steps: steps of Auto-PGD and its targeted runs (``strong``); 0 leaves it out.
    """
    with evaluation_mode(model):
        classes = JacobianOperator(model, pixels(x[:1])).shape[2]
    some = x[:jacobian_images]
    if classes > estimate_above:
        norms = estimated_norms(model, some, generator=generator)
    else:
        norms = jacobian_norms(model, some)
    strong: dict[str, float | int] = {}
    if strong_steps:
        attack = partial(apgd, steps=strong_steps)
        strong["strong"] = accuracy(model, x, y, attack=attack, eps=eps)
        strong["strong_steps"] = strong_steps
    return {
        "accuracy": accuracy(model, x, y),
        "fgsm": accuracy(model, x, y, attack=fgsm, eps=eps),
        "pgd": accuracy(model, x, y, attack=partial(pgd, steps=steps), eps=eps),
        **strong,
        **norms.means(),
        "eps": eps,
        "pgd_steps": steps,
        "images": len(x),
        "jacobian_images": len(some),
    }
