"""Attacks that follow the gradient of an objective: one step (FGM) and many (PGD).

**Scale.** Multiplying U or V by a constant changes no ranking, but it does change the gradients of
losses that read a score as a logit. An attack of relative size must not depend on it: otherwise
embeddings that are merely long, or short, would pass for robust ones. So it works on
``c U / ||U||`` and ``c V / ||V||``, where c is the scale at which the objective is least, and takes
its perturbation back to the scale of the factors.

**Temperature.** An objective may ask for scores that are divided by ``2**log2_temperature``. Those
that compare items are far stronger attacks so: at its least, a softmax sees little but the items at
the top, and raises the very ones that the evaluation is about.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import torch

from robustcf._checks import check_integer, check_number
from robustcf.attacks.base import Attack, Point
from robustcf.factors import Factors
from robustcf.objectives import Gradient, Objective

# The root mean square of the scores is looked for between these powers of two. Below, every loss
# is linear and its direction no longer changes; above, it is saturated and has none.
_LOWEST, _HIGHEST = -6.0, 4.0
_HALVINGS = 11  # to 0.5 % of a factor of two: rankings do not see less


@dataclass(frozen=True, eq=False)
class Scaled:
    """Factors times a constant each: ``users`` and ``items``."""

    factors: Factors
    users: float = 1.0
    items: float = 1.0


def canonical(factors: Factors, objective: Objective[Any], log2_temperature: float = 0.0) -> Scaled:
    """Scale factors to where an objective is least: the same for all multiples of U and of V.

    Each objective of the package is convex in the common factor of the scores, so its slope changes
    its sign once, and halving an interval finds the place. Where the least lies outside of the
    range in which gradients mean something, the edge is taken; where all scores are zero, the
    factors stay.

    Args:
        factors: finite embeddings.
        objective: its ``slope`` is used.
        log2_temperature: how many powers of two the scores shall be smaller than at the least.

    Cost: 13 slopes.

    Example:
        >>> import numpy as np
        >>> from robustcf.objectives import Softmax
        >>> from robustcf.data import Interactions
        >>> objective = Softmax(Interactions(np.array([0, 1]), np.array([0, 1]), 2, 2))
        >>> U, V = torch.eye(2), torch.tensor([[1.0, 0.5], [0.5, 1.0]])
        >>> one, two = (canonical(Factors(U, c * V), objective).factors.items for c in (1, 8))
        >>> torch.equal(one, two)
        True
    """
    sizes = [float(part.double().square().mean().sqrt()) for part in factors]
    spread = _score_size(factors, sizes) if all(sizes) else 0.0
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


@dataclass(frozen=True, eq=False)
class Viewpoint:
    """Factors at the scale at which an objective sees them, and its gradient there."""

    scaled: Scaled
    gradient: Gradient


class Views:
    """The viewpoint for the factors asked last: one gradient serves a whole sweep.

    Args:
        objective: what is to get worse.
        relative: whether the objective chooses its scale.
        log2_temperature: see :func:`canonical`.
    """

    def __init__(
        self, objective: Objective[Any], *, relative: bool, log2_temperature: float
    ) -> None:
        self.objective, self.relative = objective, relative
        self.log2_temperature = log2_temperature
        self._last: tuple[Factors, Viewpoint] | None = None

    def of(self, factors: Factors) -> Viewpoint:
        """Return the viewpoint for these factors."""
        if self._last is None or self._last[0] is not factors:
            scaled = Scaled(factors)
            if self.relative:
                scaled = canonical(factors, self.objective, self.log2_temperature)
            gradient = self.objective.full_gradient(*scaled.factors)
            self._last = factors, Viewpoint(scaled, gradient)
        return self._last[1]


class FGM(Attack):
    """One step along the gradient, to the edge of the budget: ``epsilon * G / ||G||``.

    The fast gradient method (Goodfellow, Shlens and Szegedy, 2015, arXiv:1412.6572) on embeddings,
    as in He et al. (2018, arXiv:1808.03908), with the gradient over all the data. Rows without a
    gradient stay as they are.

    Args:
        objective: what to make worse.
        *arguments: see :class:`robustcf.attacks.base.Attack`.
        log2_temperature: relative only, see :mod:`robustcf.attacks.gradient`; None for the
            objective's own choice.
        **options: see :class:`robustcf.attacks.base.Attack`.

    Cost: one gradient for a whole sweep of epsilons, and, relative, about two more.
    """

    name = "fgm"

    def __init__(
        self,
        objective: Objective[Any],
        *arguments: Any,
        log2_temperature: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self.objective = objective
        power = objective.log2_temperature if log2_temperature is None else log2_temperature
        # Attacks on one objective may share this: they start from the same place.
        self.views = Views(objective, relative=self.relative, log2_temperature=power)
        self._warned: Viewpoint | None = None

    def propose(self, factors: Factors, allowed: dict[str, float]) -> Point:
        """Return the perturbation found at the objective's scale, at that of the factors."""
        view = self.views.of(factors)
        self._warn(view, allowed)
        scaled = view.scaled
        users, items = self.climb(
            view, (allowed["users"] * scaled.users, allowed["items"] * scaled.items)
        )
        return users / scaled.users, items / scaled.items

    def climb(self, view: Viewpoint, sizes: tuple[float, float]) -> Point:
        """Return perturbations of U and V of these sizes at most: the gradient, scaled."""
        return self._each("scale", (view.gradient.users, view.gradient.items), sizes)

    def _warn(self, view: Viewpoint, allowed: dict[str, float]) -> None:
        parts = {"users": view.gradient.users, "items": view.gradient.items}
        if view is self._warned or any(bool(parts[n].any()) for n in parts if allowed[n] > 0):
            return
        self._warned = view
        warnings.warn(
            f"the gradient of {self.objective.name} is zero everywhere: {self.name} has no "
            "direction to go and leaves the factors as they are",
            RuntimeWarning,
            stacklevel=5,
        )


class PGD(FGM):
    """Projected gradient ascent (Madry et al., 2018, arXiv:1706.06083), with restarts.

    The best point by the objective is returned, out of all steps of all starts, FGM's own point
    among them: PGD is never weaker than FGM in the objective. In a ranking metric it may be:
    :func:`robustcf.measure` reports the worst of both, user by user.

    Args:
        objective: what to make worse.
        *arguments: see :class:`robustcf.attacks.base.Attack`.
        steps: gradient steps per start.
        step_size: of a step, in units of epsilon.
        restarts: starts; the first from the factors themselves, others from random points.
        seed: of the random starts.
        **options: see :class:`FGM`.

    Cost: ``(steps + 1) * restarts`` gradients for every epsilon.
    """

    name = "pgd"

    def __init__(
        self,
        objective: Objective[Any],
        *arguments: Any,
        steps: int = 8,
        step_size: float = 0.4,
        restarts: int = 1,
        seed: int = 0,
        **options: Any,
    ) -> None:
        check_integer("steps", steps)
        check_integer("restarts", restarts)
        check_number("step_size", step_size, positive=True)
        super().__init__(objective, *arguments, **options)
        self.steps, self.step_size, self.restarts, self.seed = steps, step_size, restarts, seed

    def climb(self, view: Viewpoint, sizes: tuple[float, float]) -> Point:
        """Return the best point that was seen."""
        best = super().climb(view, sizes)
        best_value = self._at(view, best).value or 0.0
        generator = torch.Generator().manual_seed(self.seed)
        U, V = view.scaled.factors
        for start in range(self.restarts):
            if start == 0:
                point, here = (torch.zeros_like(U), torch.zeros_like(V)), view.gradient
            else:
                noise = [torch.randn(part.shape, generator=generator).to(part) for part in (U, V)]
                point = self._each("scale", (noise[0], noise[1]), sizes)
                here = self._at(view, point)
            for _ in range(self.steps):
                point = self._step(point, here, sizes)
                here = self._at(view, point)
                if (here.value or 0.0) > best_value:
                    best, best_value = point, here.value or 0.0
        return best

    def _at(self, view: Viewpoint, point: Point) -> Gradient:
        U, V = view.scaled.factors
        return self.objective.full_gradient(U + point[0], V + point[1])

    def _step(self, point: Point, here: Gradient, sizes: tuple[float, float]) -> Point:
        lengths = self.step_size * sizes[0], self.step_size * sizes[1]
        moves = self._each("scale", (here.users, here.items), lengths)
        return (
            self.budgets[0].project(point[0] + moves[0], sizes[0]),
            self.budgets[1].project(point[1] + moves[1], sizes[1]),
        )
