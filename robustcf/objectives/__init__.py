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
