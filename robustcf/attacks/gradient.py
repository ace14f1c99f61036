"""Attacks that follow the gradient of an objective: one step (FGM) and many (PGD).

**Scale.** Multiplying U or V by a constant changes no ranking, but it changes the gradients of
losses that read a score as a logit: embeddings that are merely long, or short, would look robust.
So attacks of relative size follow the gradient at ``c U / ||U||`` and ``c V / ||V||``, where c is
the scale at which the objective is least.

**Temperature.** An objective may ask for scores divided by ``2**log2_temperature``. This makes
objectives that compare items far stronger: at its least, a softmax sees little but the top items.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from robustcf._checks import check_integer, check_number
from robustcf.attacks.base import Attack, Point
from robustcf.factors import Factors
from robustcf.objectives import Gradient, Objective

# The root mean square of the scores is searched between these powers of two. Below, every loss is
# linear and its direction constant; above, it is saturated.
_LOWEST, _HIGHEST = -6.0, 4.0
_HALVINGS = 11  # to 0.5 % of a factor of two: rankings do not see less


class Scaled(NamedTuple):
    """Factors times a constant each: ``users`` and ``items``."""

    factors: Factors
    users: float = 1.0
    items: float = 1.0


def canonical(factors: Factors, objective: Objective[Any], log2_temperature: float = 0.0) -> Scaled:
    """Scale factors to the minimum of an objective: the same for all multiples of U and of V.

    Each objective of the package is convex in the common factor of the scores, so bisection on its
    ``slope`` finds the minimum. Outside the range in which gradients are meaningful, the edge is
    taken; if all scores are zero, the factors stay. Scores are then divided by
    ``2**log2_temperature``.

    Cost: 13 slopes.
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
    """The root mean square of all scores of the factors divided by their sizes, by Grams."""
    grams = []
    for part, size in zip(factors, sizes, strict=True):
        wide = part.double() / size
        grams.append(wide.mT @ wide / len(wide))
    return math.sqrt(max(0.0, float((grams[0] * grams[1]).sum())))


class Viewpoint(NamedTuple):
    """Stored arrays, the embeddings they serve with at the objective's scale, the gradient there.

    The gradient is that for the stored arrays.
    """

    stored: Factors
    scaled: Scaled
    gradient: Gradient


class Views:
    """A cache of the last viewpoint: one gradient serves a whole sweep.

    If ``relative``, the objective chooses its scale, see :func:`canonical`.
    """

    def __init__(self, objective: Objective[Any], *, relative: bool) -> None:
        self.objective, self.relative = objective, relative
        self._last: Viewpoint | None = None

    def of(self, stored: Factors, attack: Attack) -> Viewpoint:
        """Return the viewpoint for these arrays."""
        if self._last is None or self._last.stored is not stored:
            served = attack.served(stored)
            scaled = Scaled(served)
            if self.relative:
                scaled = canonical(served, self.objective, self.objective.log2_temperature)
            gradient = self._pulled(stored, scaled, attack)
            self._last = Viewpoint(stored, scaled, gradient)
        return self._last

    def at(self, view: Viewpoint, point: Point, attack: Attack) -> Gradient:
        """Return the gradient at perturbed arrays, at the scale of the viewpoint."""
        stored = Factors(view.stored.users + point[0], view.stored.items + point[1])
        served, (_, u, v) = attack.served(stored), view.scaled
        scaled = Scaled(Factors(served.users * u, served.items * v), u, v)
        return self._pulled(stored, scaled, attack)

    def _pulled(self, stored: Factors, scaled: Scaled, attack: Attack) -> Gradient:
        found = self.objective.full_gradient(*scaled.factors)
        both = found.users * scaled.users, found.items * scaled.items
        users, items = attack.pulled(stored, both)
        return replace(found, users=users, items=items)


class FGM(Attack):
    """One step along the gradient, to the edge of the budget: ``epsilon * G / ||G||``.

    The fast gradient method (Goodfellow, Shlens and Szegedy, 2015, arXiv:1412.6572) on embeddings,
    as in He et al. (2018, arXiv:1808.03908), with the gradient over all the data. Rows without a
    gradient stay.

    Args:
        objective: the loss to increase.
        *arguments: see :class:`robustcf.attacks.base.Attack`, as for ``options``.

    Cost: one gradient for a whole sweep of epsilons, and about two more for relative sizes.
    """

    name = "fgm"

    def __init__(self, objective: Objective[Any], *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.objective = objective
        # Attacks on one objective may share this.
        self.views = Views(objective, relative=self.relative)
        self._warned: Viewpoint | None = None

    def propose(self, factors: Factors, allowed: dict[str, float]) -> Point:
        """Return the perturbation found at the objective's scale."""
        view = self.views.of(factors, self)
        self._warn(view, allowed)
        return self.climb(view, (allowed["users"], allowed["items"]))

    def climb(self, view: Viewpoint, sizes: tuple[float, float]) -> Point:
        """Return perturbations of U and V of at most these sizes: the gradient, scaled."""
        return self._each("scale", (view.gradient.users, view.gradient.items), sizes)

    def _warn(self, view: Viewpoint, allowed: dict[str, float]) -> None:
        parts = {"users": view.gradient.users, "items": view.gradient.items}
        if view is self._warned or any(bool(parts[n].any()) for n in parts if allowed[n] > 0):
            return
        self._warned = view
        warnings.warn(
            f"the gradient of {self.objective.name} is zero everywhere: {self.name} does nothing",
            RuntimeWarning,
            stacklevel=5,
        )


class PGD(FGM):
    """Projected gradient ascent (Madry et al., 2018, arXiv:1706.06083), with restarts.

    Returns the best point by the objective of all steps and starts, and FGM's. In a ranking metric
    FGM may still be stronger: :func:`robustcf.measure` reports the worst of both per user.

    Args:
        objective: the loss to increase.
        *arguments: see :class:`FGM`, as for ``options``.
        steps: gradient steps per start.
        step_size: length of a step, in units of epsilon.
        restarts: starts; the first from the factors themselves, others from random points.
        seed: seed of the random starts.

    Cost: ``(steps + 1) * restarts`` gradients per epsilon.
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
        """Return the best point by the objective."""
        best = super().climb(view, sizes)
        best_value = self.views.at(view, best, self).value or 0.0
        generator = torch.Generator().manual_seed(self.seed)
        U, V = view.stored
        for start in range(self.restarts):
            point, here = (torch.zeros_like(U), torch.zeros_like(V)), view.gradient
            if start:
                u, v = (torch.randn(part.shape, generator=generator).to(part) for part in (U, V))
                point = self._each("scale", (u, v), sizes)
                here = self.views.at(view, point, self)
            for _ in range(self.steps):
                point = self._step(point, here, sizes)
                here = self.views.at(view, point, self)
                if (here.value or 0.0) > best_value:
                    best, best_value = point, here.value or 0.0
        return best

    def _step(self, point: Point, here: Gradient, sizes: tuple[float, float]) -> Point:
        lengths = self.step_size * sizes[0], self.step_size * sizes[1]
        moves = self._each("scale", (here.users, here.items), lengths)
        return (
            self.budgets[0].project(point[0] + moves[0], sizes[0]),
            self.budgets[1].project(point[1] + moves[1], sizes[1]),
        )
