"""The scale at which an objective looks at factors: its own choice, not that of their training.

Multiplying U or V by a constant changes no ranking, but it does change the gradients of losses that
read a score as a logit. An attack of relative size must not depend on it: otherwise embeddings that
are merely long, or short, would pass for robust ones. So it looks at ``c U / ||U||`` and
``c V / ||V||``, where c is the scale at which the objective is least, and takes its perturbation
back to the scale of the factors.

An objective may ask to be looked at more softly, some octaves (powers of two of the scores) below
that. Objectives that compare items are far stronger attacks there: at its least, a softmax sees
little but the items at the top, and raises the very ones that the evaluation is about.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from robustcf.attacks.objectives import Objective
from robustcf.factors import Factors

# The root mean square of the scores is looked for between these powers of two. Below, every loss
# is linear and its direction no longer changes; above, it is saturated and has none.
_LOWEST, _HIGHEST = -6.0, 4.0
_HALVINGS = 11  # to 0.5 % of the range's octaves: rankings do not see less


@runtime_checkable
class Sloped(Protocol):
    """An objective that knows a cheap way to its slope in the scale of the scores."""

    def slope(self, U: Tensor, V: Tensor) -> float:
        """The derivative for log t when all scores are multiplied by t, at t = 1; or a share."""


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


def canonical(factors: Factors, objective: Objective, softness: float = 0.0) -> Scaled:
    """Factors at the scale where an objective is least: the same for all multiples of U and of V.

    Each of the three objectives is convex in the common factor of the scores, so its slope changes
    its sign once, and halving an interval finds the place. Where the least lies outside of the
    range in which gradients mean something, the edge is taken.

    Args:
        factors: finite embeddings.
        objective: its ``slope`` is used where it has one, else its full gradient.
        softness: octaves by which the scores shall be smaller than where the objective is least.

    Returns:
        The scaled factors; unscaled where all scores are zero.

    Cost: 13 slopes.

    Example:
        >>> import numpy as np
        >>> import torch
        >>> from robustcf.attacks.objectives import Softmax
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

    def at(octave: float) -> Scaled:
        c = math.sqrt(2.0**octave / spread)
        scales = c / sizes[0], c / sizes[1]
        return Scaled(Factors(factors.users * scales[0], factors.items * scales[1]), *scales)

    def rising(octave: float) -> bool:
        return slope(objective, at(octave).factors) > 0

    low, high = _LOWEST, _HIGHEST
    if rising(low):
        return at(low - softness)
    if not rising(high):
        return at(high - softness)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) else (middle, high)
    return at((low + high) / 2 - softness)


def slope(objective: Objective, factors: Factors) -> float:
    """How fast an objective grows with the logarithm of a common factor of all scores.

    It is ``<G_U, U>``, and ``<G_V, V>`` too: the scores are linear in either.
    """
    U, V = factors
    if isinstance(objective, Sloped):
        return objective.slope(U, V)
    return inner(objective.gradient(U, V).users, U)


def inner(left: Tensor, right: Tensor) -> float:
    """The sum of products, added in float64."""
    return float((left.double() * right.double()).sum())


def _score_size(factors: Factors, sizes: list[float]) -> float:
    """The root mean square of all scores of the factors, each divided by its size; by Grams."""
    grams = []
    for part, size in zip(factors, sizes, strict=True):
        wide = part.double() / size
        grams.append(wide.mT @ wide / len(wide))
    return math.sqrt(max(0.0, float((grams[0] * grams[1]).sum())))
