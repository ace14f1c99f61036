"""Penalties on a pair of factors: ``reg(U, V)`` is a scalar that any training loop can add.

Example:
    >>> import torch
    >>> reg = TwoToInf()
    >>> U, V = torch.ones(3, 2, requires_grad=True), torch.ones(4, 2)
    >>> reg(U, V).backward()
    >>> U.grad.shape
    torch.Size([3, 2])
"""

from robustcf.regularizers.base import (
    Accumulator,
    NoPenalty,
    Regularizer,
    RegularizerConfig,
    add_gradient,
)
from robustcf.regularizers.row_norms import DegreeDecay, MaxNorm, WeightDecay
from robustcf.regularizers.two_to_inf import ESTIMATORS, TwoToInf, TwoToInfConfig

__all__ = [
    "ESTIMATORS",
    "Accumulator",
    "DegreeDecay",
    "MaxNorm",
    "NoPenalty",
    "Regularizer",
    "RegularizerConfig",
    "TwoToInf",
    "TwoToInfConfig",
    "WeightDecay",
    "add_gradient",
]
