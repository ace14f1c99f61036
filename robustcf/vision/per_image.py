"""A model as a function of each image on its own, also with batch-norm in training mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from robustcf.errors import InputError


class PerImage:
    """The function a model applies to each image, for Jacobians: ``PerImage(model, x)(x)``.

    In training mode batch-norm ties the images of a batch together. Here **its statistics are
    computed once, from ``x``, and then held constant**: at ``x`` the function has the values of
    the training mode. Gradients by weights still reach the statistics, so scaling the weights in
    front of a batch-norm changes neither the function nor a penalty on its Jacobian.

    Dropout and other layers act as in evaluation mode. Running statistics are never updated, and
    the model keeps its mode for the caller.

    Args:
        model: a module, in the mode that decides.
        x: images whose statistics are taken (training mode).

    Raises:
        InputError: a batch-norm layer is called more than once in a pass; the output is not
            images x classes.

    Cost: one forward pass to begin with; none beyond the model's own afterwards.

    Example:
        >>> model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 3)).train()
        >>> x = torch.randn(8, 2)
        >>> function = PerImage(model, x)
        >>> torch.allclose(function(x), model(x), atol=1e-5), function(x[:1]).shape
        (True, torch.Size([1, 3]))
    """

    def __init__(self, model: nn.Module, x: Tensor) -> None:
        self.model = model
        layers = (module for module in model.modules() if isinstance(module, _BatchNorm))
        self._live = [m for m in layers if m.training or m.running_mean is None]
        self._affine: dict[_BatchNorm, tuple[Tensor, Tensor]] = {}
        with torch.set_grad_enabled(bool(self._live) and torch.is_grad_enabled()):
            output = self._run(x, self._record)
        if not isinstance(output, Tensor) or output.dim() != 2 or len(output) != len(x):
            got = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise InputError(f"the model must return images x classes, got {got}")
        self.classes = output.shape[1]

    def __call__(self, x: Tensor) -> Tensor:
        """Return logits."""
        return self._run(x, self._apply)

    def _record(self, layer: _BatchNorm, x: Tensor) -> Tensor:
        if layer in self._affine:
            raise InputError(
                "a batch-norm layer is called more than once in one pass: use one layer for each "
                "call, or evaluation mode"
            )
        axes = [axis for axis in range(x.dim()) if axis != 1]
        variance, mean = torch.var_mean(x, dim=axes, correction=0)
        scale = torch.rsqrt(variance + layer.eps)
        if layer.weight is not None:
            scale = scale * layer.weight
        shift = -mean * scale
        if layer.bias is not None:
            shift = shift + layer.bias
        self._affine[layer] = (scale, shift)
        return self._apply(layer, x)

    def _apply(self, layer: _BatchNorm, x: Tensor) -> Tensor:
        scale, shift = self._affine[layer]
        shape = [1, -1] + [1] * (x.dim() - 2)
        return x * scale.reshape(shape) + shift.reshape(shape)

    def _run(self, x: Tensor, forward: Callable[[_BatchNorm, Tensor], Tensor]) -> Tensor:
        """The model in evaluation mode, with the forward of its live layers replaced."""
        own = {layer: layer.__dict__.get("forward") for layer in self._live}
        with evaluation_mode(self.model):
            try:
                for layer in self._live:
                    layer.forward = partial(forward, layer)  # type: ignore[method-assign]
                logits: Tensor = self.model(x)
                return logits
            finally:
                for layer, before in own.items():
                    layer.__dict__.pop("forward", None)
                    if before is not None:
                        layer.forward = before  # type: ignore[method-assign]


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside, and every module's own mode back outside."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in modes:
            module.training = False
        yield
    finally:
        for module, mode in modes:
            module.training = mode
