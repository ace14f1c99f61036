"""A model as a function of each image on its own, which batch-norm in training mode is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from robustcf.errors import InputError

Layer = Callable[[Tensor], Tensor]


class PerImage:
    """The function a model applies to each image, for Jacobians: ``PerImage(model, x)(x)``.

    In evaluation mode a classifier treats images one by one. In training mode batch-norm ties them
    together through the statistics of the batch, so "the Jacobian at an image" needs a decision.
    Ours: **the statistics are computed once, from ``x``, and then held constant**, so that the
    function is the one which the network applies within this batch. Its values at ``x`` are those
    of the training mode. The statistics still depend on the weights, and gradients by weights
    reach them: scaling the weights in front of a batch-norm changes neither the function nor the
    penalty, and a penalty does not waste its gradient on it.

    Dropout and other layers with a training mode act as in evaluation, so that all products are
    of one function. Running statistics are never updated, and the model's mode is never changed
    for the caller.

    Args:
        model: a module; whichever mode it is in decides.
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
        self._live = [m for m in model.modules() if isinstance(m, _BatchNorm) and _by_batch(m)]
        self._affine: dict[_BatchNorm, tuple[Tensor, Tensor]] = {}
        if self._live:
            with self._layers({layer: self._recording(layer) for layer in self._live}):
                output = model(x)
        else:
            with torch.no_grad():
                output = self(x)
        if not isinstance(output, Tensor) or output.dim() != 2 or len(output) != len(x):
            got = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise InputError(f"the model must return images x classes, got {got}")
        self.classes = output.shape[1]

    def __call__(self, x: Tensor) -> Tensor:
        """Logits."""
        with self._layers({layer: self._applying(layer) for layer in self._live}):
            logits: Tensor = self.model(x)
            return logits

    def _recording(self, layer: _BatchNorm) -> Layer:
        def forward(x: Tensor) -> Tensor:
            if layer in self._affine:
                raise InputError(
                    "a batch-norm layer is called more than once in one pass: its statistics "
                    "cannot be held; use one layer for each call, or evaluation mode"
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

        return forward

    def _applying(self, layer: _BatchNorm) -> Layer:
        return lambda x: self._apply(layer, x)

    def _apply(self, layer: _BatchNorm, x: Tensor) -> Tensor:
        scale, shift = self._affine[layer]
        shape = [1, -1] + [1] * (x.dim() - 2)
        return x * scale.reshape(shape) + shift.reshape(shape)

    @contextmanager
    def _layers(self, replaced: dict[_BatchNorm, Layer]) -> Iterator[None]:
        """Evaluation mode, with some layers' forward replaced; all is given back at the end."""
        modes = [(module, module.training) for module in self.model.modules()]
        own = {layer: layer.__dict__.get("forward") for layer in replaced}
        try:
            for module, _ in modes:
                module.training = False
            for layer, forward in replaced.items():
                layer.forward = forward  # type: ignore[assignment, method-assign]
            yield
        finally:
            for layer, before in own.items():
                if before is None:
                    layer.__dict__.pop("forward", None)
                else:
                    layer.forward = before  # type: ignore[method-assign]
            for module, mode in modes:
                module.training = mode


def _by_batch(layer: _BatchNorm) -> bool:
    return layer.training or layer.running_mean is None
