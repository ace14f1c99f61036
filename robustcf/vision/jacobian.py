"""The Jacobians of a classifier at a batch of images, known by their products."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from robustcf.errors import InputError
from robustcf.estimators.jacobian import Jacobian
from robustcf.estimators.numerics import blocks
from robustcf.estimators.operators import Matrix
from robustcf.vision.per_image import PerImage


class JacobianOperator:
    """J = d logits / d pixels at each image, inputs x classes: the paper's tall orientation.

    The Jacobian of the batch is block-diagonal, so one pass through the network multiplies the
    matrix of every image with a vector of its own. J X is a VJP (reverse mode), J^T Y a JVP
    (forward mode); several vectors per image go through `torch.func.vmap`, ``block`` at a time.
    Products are differentiable in the weights.

    Args:
        model: a module, or a :class:`~robustcf.vision.per_image.PerImage`, which defines
            batch-norm in training mode.
        x: images x anything; the rest of the shape is flattened to the inputs.
        block: vectors per image and pass, which bound the memory; None for all.

    Cost: k products in one call cost k + 1 forward passes by VJP and k + 2 by JVP.

    Example:
        >>> net = nn.Sequential(nn.Flatten(), nn.Linear(4, 3, bias=False))
        >>> J = JacobianOperator(net, torch.zeros(5, 1, 2, 2))
        >>> J.shape
        (5, 4, 3)
        >>> torch.equal(J.dense()[0], net[1].weight.T)
        True
    """

    def __init__(self, model: nn.Module | PerImage, x: Tensor, *, block: int | None = None) -> None:
        if not isinstance(x, Tensor) or x.dim() < 2 or not len(x):
            got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise InputError(f"expected a batch of at least one image, got {got}")
        self.function = model if isinstance(model, PerImage) else PerImage(model, x)
        self.x, self.block = x, block
        self.shape = (len(x), x[0].numel(), self.function.classes)
        self._jacobian = self._of(x)
        self.dtype, self.device = self._jacobian.dtype, self._jacobian.device

    def _of(self, x: Tensor) -> Jacobian:
        shape = torch.Size((len(x), self.function.classes))
        return Jacobian(self.function, x, chunk=self.block, output_shape=shape)

    def matmat(self, X: Tensor) -> Tensor:
        """J X, images x inputs x vectors, for X of images x classes x vectors (VJPs)."""
        _, inputs, classes = self.shape
        return self._product(self._jacobian.rmatmat, X, classes, inputs)

    def rmatmat(self, Y: Tensor) -> Tensor:
        """J^T Y, images x classes x vectors, for Y of images x inputs x vectors (JVPs)."""
        _, inputs, classes = self.shape
        return self._product(self._jacobian.matmat, Y, inputs, classes)

    def _product(
        self, product: Callable[[Tensor], Tensor], X: Tensor, sides: int, out: int
    ) -> Tensor:
        images = self.shape[0]
        if X.dim() != 3 or X.shape[:2] != (images, sides):
            raise InputError(
                f"expected {images} images x {sides} x vectors, got shape {tuple(X.shape)}"
            )
        vectors = X.shape[2]
        flat = X.reshape(images * sides, vectors).to(self.dtype)
        return product(flat).reshape(images, out, vectors)

    def rows(self, index: Tensor) -> Tensor:
        """Some rows of each Jacobian: images x k -> images x k x classes (k JVPs)."""
        shape = (*self.shape[:2], index.shape[1])
        units = torch.zeros(shape, dtype=self.dtype, device=self.device)
        units.scatter_(1, index.unsqueeze(1), 1.0)
        return self.rmatmat(units).transpose(1, 2)

    def dense(self) -> Tensor:
        """All entries, images x inputs x classes, by one product per class."""
        images, _, classes = self.shape
        eye = torch.eye(classes, dtype=self.dtype, device=self.device)
        parts = blocks(eye, self.block or classes)
        return torch.cat([self.matmat(part.T.expand(images, -1, -1)) for part in parts], dim=2)

    def image(self, number: int) -> Matrix:
        """The Jacobian of one image as an operator of :mod:`robustcf.estimators`.

        Example:
            >>> from robustcf.estimators import two_to_inf
            >>> net = nn.Sequential(nn.Flatten(), nn.Linear(4, 3, bias=False))
            >>> answer = two_to_inf(JacobianOperator(net, torch.zeros(2, 1, 2, 2)).image(1), 10)
            >>> torch.allclose(answer.value.float(), net[1].weight.norm(dim=0).max())
            True
        """
        one = self.x[number : number + 1]
        if not len(one):
            raise InputError(f"expected an image below {self.shape[0]}, got {number}")
        return self._of(one).H
