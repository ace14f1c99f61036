"""Attacks on embeddings: how much worse can a ranking get within a budget?

Example:
    >>> import torch
    >>> from robustcf.attacks import FGM, RowBudget, Softmax
    >>> from robustcf.data import checkerboard
    >>> from robustcf.factors import Factors
    >>> train = checkerboard().train
    >>> g = torch.Generator().manual_seed(0)
    >>> factors = Factors(torch.randn(20, 4, generator=g), torch.randn(30, 4, generator=g))
    >>> attacked = FGM(Softmax(train), RowBudget(), relative=False).perturb(factors, 0.5)
    >>> round(attacked.realised["users"], 4), round(attacked.realised["items"], 4)
    (0.5, 0.5)
"""

from robustcf.attacks.base import Attack, Perturbed
from robustcf.attacks.budgets import (
    BUDGETS,
    Budget,
    FrobeniusBudget,
    OwnRowBudget,
    RowBudget,
    SpectralBudget,
    unevenness,
)
from robustcf.attacks.cutoff import Cutoff
from robustcf.attacks.gradient import FGM, PGD
from robustcf.attacks.noise import RandomNoise
from robustcf.attacks.pairwise import Pairwise
from robustcf.objectives import Objective, Softmax

__all__ = [
    "BUDGETS",
    "FGM",
    "PGD",
    "Attack",
    "Budget",
    "Cutoff",
    "FrobeniusBudget",
    "Objective",
    "OwnRowBudget",
    "Pairwise",
    "Perturbed",
    "RandomNoise",
    "RowBudget",
    "Softmax",
    "SpectralBudget",
    "unevenness",
]
