"""The scale at which an objective sees factors: its own choice, not that of their training.

Multiplying U or V by a constant changes no ranking, but it does change the gradients of losses that
read a score as a logit. An attack of relative size must not depend on it: otherwise embeddings that
are merely long, or short, would pass for robust ones. So it works on ``c U / ||U||`` and
``c V / ||V||``, where c is the scale at which the objective is least, and takes its perturbation
back to the scale of the factors.

An objective may ask for a temperature: scores are then divided by ``2**log2_temperature``.
Objectives that compare items are far stronger attacks so: at its least, a softmax sees little but
the items at the top, and raises the very ones that the evaluation is about.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from robustcf.factors import Factors
from robustcf.objectives import Objective

# The root mean square of the scores is looked for between these powers of two. Below, every loss
# is linear and its direction no longer changes; above, it is saturated and has none.
_LOWEST, _HIGHEST = -6.0, 4.0
_HALVINGS = 11  # to 0.5 % of a factor of two: rankings do not see less


@dataclass(frozen=True, eq=False)
class Scaled:
    """Factors times a constant each.

    Args:
        factors: the products.
        users: what U was multiplied by.
        items: what V was multiplied by.
    """

    factors: Factors
    users: float = 1.0
    items: float = 1.0


def canonical(factors: Factors, objective: Objective[Any], log2_temperature: float = 0.0) -> Scaled:
    """Factors at the scale where an objective is least: the same for all multiples of U and of V.

    Each of the three objectives is convex in the common factor of the scores, so its slope changes
    its sign once, and halving an interval finds the place. Where the least lies outside of the
    range in which gradients mean something, the edge is taken.

    Args:
        factors: finite embeddings.
        objective: its ``slope`` is used.
        log2_temperature: the scores shall be this power of two smaller than where the objective
            is least.

    Returns:
        The scaled factors; unscaled where all scores are zero.

    Cost: 13 slopes.

    Example:
        >>> import numpy as np
        >>> import torch
        >>> from robustcf.objectives import Softmax
        >>> from robustcf.data import Interactions
        >>> objective = Softmax(Interactions(np.array([0, 1]), np.array([0, 1]), 2, 2))
        >>> U, V = torch.eye(2), torch.tensor([[1.0, 0.5], [0.5, 1.0]])
        >>> one, two = (canonical(Factors(U, c * V), objective).factors.items for c in (1, 8))
        >>> torch.equal(one, two)
        True
    """
    sizes = [float(part.double().square().mean().sqrt()) for part in factors]
    if not all(sizes):
        return Scaled(factors)
    spread = _score_size(factors, sizes)
    if spread == 0:
        return Scaled(factors)

    def at(power: float) -> Scaled:
        c = math.sqrt(2.0**power / spread)
        scales = c / sizes[0], c / sizes[1]
        return Scaled(Factors(factors.users * scales[0], factors.items * scales[1]), *scales)

    def rising(power: float) -> bool:
        return objective.slope(*at(power).factors) > 0

    low, high = _LOWEST, _HIGHEST
    if rising(low):
        return at(low - log2_temperature)
    if not rising(high):
        return at(high - log2_temperature)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) else (middle, high)
    return at((low + high) / 2 - log2_temperature)


def _score_size(factors: Factors, sizes: list[float]) -> float:
    """The root mean square of all scores of the factors, each divided by its size; by Grams."""
    grams = []
    for part, size in zip(factors, sizes, strict=True):
        wide = part.double() / size
        grams.append(wide.mT @ wide / len(wide))
    return math.sqrt(max(0.0, float((grams[0] * grams[1]).sum())))
