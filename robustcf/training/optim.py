"""Adam on factors, with steps on some of the rows, and learning rate schedules."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.optim.adam import adam

from robustcf.errors import InputError

SCHEDULES = ("linear", "cosine", "constant")

# From this many numbers on, a step on all rows is torch's fused one: smaller tensors fit the cache.
FUSED_FROM = 2**21
_EPS = 1e-8
_STATE = ("mean", "square", "steps")


def schedule(name: str, progress: float) -> float:
    """Return the factor of the learning rate after a share ``progress`` of the planned steps."""
    if name == "linear":
        return max(0.0, 1.0 - progress)
    if name == "cosine":
        return 0.5 * (1.0 + float(torch.cos(torch.tensor(min(1.0, progress) * torch.pi))))
    if name == "constant":
        return 1.0
    raise InputError(f"schedule must be one of {', '.join(SCHEDULES)}, got {name!r}")


class Adam:
    """Adam with bias correction, where each row has its own count of steps.

    Rows outside of a step keep their moments.

    Cost: memory of two more tensors like the parameter; a step reads and writes its rows.
    """

    def __init__(self, parameter: Tensor, *, beta1: float = 0.9, beta2: float = 0.999) -> None:
        for name, value in (("beta1", beta1), ("beta2", beta2)):
            if not 0.0 <= value < 1.0:
                raise InputError(f"{name} must be in [0, 1), got {value}")
        self.parameter = parameter
        self.beta1, self.beta2 = beta1, beta2
        self.mean = torch.zeros_like(parameter)
        self.square = torch.zeros_like(parameter)
        self.steps = torch.zeros(len(parameter), dtype=torch.int64, device=parameter.device)

    def step(self, gradient: Tensor, lr: float, rows: Tensor | None = None) -> None:
        """Take one step for all rows, or for these rows (each at most once)."""
        if len(gradient) == 0:
            return
        if rows is None:
            if self.parameter.numel() >= FUSED_FROM and self._fused(gradient, lr):
                return
            self.steps += 1
            self._update(self.parameter, self.mean, self.square, gradient, lr, self.steps)
            return
        parameter, mean, square = self.parameter[rows], self.mean[rows], self.square[rows]
        steps = self.steps[rows] + 1
        self._update(parameter, mean, square, gradient, lr, steps)
        self.parameter[rows], self.mean[rows], self.square[rows] = parameter, mean, square
        self.steps[rows] = steps

    def _fused(self, gradient: Tensor, lr: float) -> bool:
        """Take torch's fused step if all rows have equal counts; return whether it was taken."""
        done = int(self.steps[0])
        if not bool((self.steps == done).all()):
            return False
        count = torch.tensor(float(done), device=self.parameter.device)
        adam(
            [self.parameter], [gradient], [self.mean], [self.square], [], [count],
            fused=True, amsgrad=False, beta1=self.beta1, beta2=self.beta2, lr=lr,
            weight_decay=0.0, eps=_EPS, maximize=False,
        )  # fmt: skip
        self.steps += 1
        return True

    def _update(
        self, parameter: Tensor, mean: Tensor, square: Tensor, g: Tensor, lr: float, steps: Tensor
    ) -> None:
        mean.lerp_(g, 1.0 - self.beta1)
        square.mul_(self.beta2).addcmul_(g, g, value=1.0 - self.beta2)
        first, last = int(steps[0]), int(steps[-1])
        if first == last and bool((steps == first).all()):
            correction1, correction2 = 1.0 - self.beta1**first, 1.0 - self.beta2**first
            root = (square / correction2).sqrt_().add_(_EPS)
            parameter.addcdiv_(mean, root, value=-lr / correction1)
            return
        count = steps.to(parameter.dtype)[:, None]
        root = (square / (1.0 - self.beta2**count)).sqrt_().add_(_EPS)
        parameter.addcdiv_(mean / (1.0 - self.beta1**count), root, value=-lr)

    def state(self, prefix: str) -> dict[str, Tensor]:
        """Return the tensors to save."""
        return {f"{prefix}.{name}": getattr(self, name) for name in _STATE}

    def load(self, prefix: str, tensors: Mapping[str, Tensor]) -> None:
        """Restore saved tensors."""
        for name in _STATE:
            getattr(self, name).copy_(tensors[f"{prefix}.{name}"])
