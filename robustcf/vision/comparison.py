"""Estimators of ||J||_{2->inf} side by side on the Jacobian of a trained network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from robustcf.errors import InputError
from robustcf.estimators import METHODS, FunctionOperator, two_to_inf
from robustcf.vision.jacobian import JacobianOperator
from robustcf.vision.per_image import evaluation_mode

#: The paper's methods, and the library's own.
COMPARED = (
    *("adaptive_power", "rademacher_averaging", "twinest", "twinest_pp"),
    *("sketch", "xrownorm", "rsvd_sketch", "save"),
)


class _Flops(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operations of convolutions and products; torch's own counter fails under vmap."""

    total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            self.total += int(count(*args, **(kwargs or {}), out_val=out))
        return out


def count_gflops(call: Callable[[], object]) -> float:
    """Count billions of floating point operations of convolutions and matrix products in a call.

    A multiplication and an addition count as two. Also works on tensors of the meta device.

    Example:
        >>> count_gflops(lambda: torch.ones(10, 20) @ torch.ones(20, 30)) * 1e9
        12000.0
    """
    with _Flops() as counted:  # type: ignore[no-untyped-call]
        call()
    return float(counted.total / 1e9)


def product_gflops(model: nn.Module, image: Tensor) -> dict[str, float]:
    """Count billions of operations of a forward pass, a VJP (J x) and a JVP (J^T y).

    Example:
        >>> from robustcf.vision.wideresnet import WideResNet
        >>> costs = product_gflops(WideResNet(10, 1, 10), torch.zeros(1, 3, 16, 16))
        >>> 1.9 < costs["vjp"] / costs["forward"] < 2.1
        True
    """
    with evaluation_mode(model), torch.no_grad():
        J = JacobianOperator(model, image)
        _, inputs, classes = J.shape
        u, v = (torch.ones(1, n, 1, dtype=J.dtype, device=J.device) for n in (classes, inputs))
        return {
            "forward": count_gflops(lambda: model(image)),
            "vjp": count_gflops(lambda: J.matmat(u)),
            "jvp": count_gflops(lambda: J.rmatmat(v)),
        }


@dataclass(frozen=True)
class Point:
    """One method at one budget.

    Args:
        budget: products given to the method.
        error: mean relative error of the norm.
        error_se: standard error of that mean.
        exact: share of trials with the right value (to 1e-6).
        gflops: mean cost of the products made, as JVPs and VJPs of the network.
    """

    method: str
    budget: int
    error: float
    error_se: float
    exact: float
    gflops: float
    trials: int


def compare(
    J: Tensor,
    costs: dict[str, float],
    *,
    methods: Sequence[str] = COMPARED,
    budgets: Sequence[int] = (10, 20, 50, 100, 200),
    trials: int = 100,
    seed: int = 0,
) -> list[Point]:
    """Return errors of estimators on one explicit Jacobian, against products and operations.

    The trials multiply with the entries of J, far cheaper than the network and the same up to
    rounding; ``gflops`` holds the cost of the network's products.

    Args:
        J: inputs x classes.
        costs: of :func:`product_gflops`.
        methods: names out of :data:`robustcf.estimators.METHODS`.
    """
    unknown = [method for method in methods if method not in METHODS]
    if unknown or trials < 1:
        raise InputError(
            f"expected methods out of {', '.join(METHODS)} and at least one trial, got "
            f"{', '.join(unknown) or 'good methods'} and {trials} trials"
        )
    dense = J.detach().double().cpu()
    truth = float(dense.square().sum(dim=1).amax().sqrt())
    # As two functions, so that every method works by products alone.
    operator = FunctionOperator(
        (dense.shape[0], dense.shape[1]), lambda X: dense @ X, lambda Y: dense.mT @ Y
    )

    def point(method: str, budget: int) -> Point:
        answers = [
            two_to_inf(operator, budget, method, generator=seed + trial) for trial in range(trials)
        ]
        errors = (abs(float(answer) / truth - 1) for answer in answers)
        values = torch.tensor([0.0 if e < 1e-6 else e for e in errors], dtype=torch.float64)
        spent = [a.products * costs["vjp"] + a.rproducts * costs["jvp"] for a in answers]
        return Point(
            method=method,
            budget=budget,
            error=float(values.mean()),
            error_se=float(values.std(correction=0)) / trials**0.5,
            exact=float((values == 0).double().mean()),
            gflops=sum(spent) / trials,
            trials=trials,
        )

    return [point(method, budget) for method in methods for budget in budgets]
