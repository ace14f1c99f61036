"""Objectives: losses of two factors, for training, attacks and adversarial training alike.

Example:
    >>> import torch
    >>> from robustcf.data import checkerboard
    >>> from robustcf.objectives import OBJECTIVES
    >>> list(OBJECTIVES)
    ['bce', 'bpr', 'softmax']
    >>> objective = OBJECTIVES["softmax"](checkerboard().train)
    >>> objective.full_gradient(torch.zeros(20, 2), torch.zeros(30, 2)).users.shape
    torch.Size([20, 2])
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from robustcf._lazy import lazy_names

if TYPE_CHECKING:
    from robustcf._registry import OBJECTIVES
    from robustcf.objectives.base import (
        Batch,
        ComparingObjective,
        Gradient,
        Objective,
        ObjectiveConfig,
    )
    from robustcf.objectives.batches import BATCHINGS, BatchConfig, Batches
    from robustcf.objectives.bce import BCE, BCEConfig
    from robustcf.objectives.bpr import BPR, BPRConfig
    from robustcf.objectives.softmax import Softmax, SoftmaxConfig

__all__ = [
    "BATCHINGS",
    "BCE",
    "BPR",
    "OBJECTIVES",
    "BCEConfig",
    "BPRConfig",
    "Batch",
    "BatchConfig",
    "Batches",
    "ComparingObjective",
    "Gradient",
    "Objective",
    "ObjectiveConfig",
    "Softmax",
    "SoftmaxConfig",
]

_HOMES = {
    "robustcf._registry": ("OBJECTIVES",),
    ".base": ("Batch", "ComparingObjective", "Gradient", "Objective", "ObjectiveConfig"),
    ".batches": ("BATCHINGS", "BatchConfig", "Batches"),
    ".bce": ("BCE", "BCEConfig"),
    ".bpr": ("BPR", "BPRConfig"),
    ".softmax": ("Softmax", "SoftmaxConfig"),
}
__getattr__, __dir__ = lazy_names(
    __name__, {name: home for home, names in _HOMES.items() for name in names}
)
