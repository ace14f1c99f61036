"""Attacks that follow the gradient of an objective: one step (FGM) and many (PGD)."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from robustcf._checks import check_integer, check_number
from robustcf.attacks.base import Attack
from robustcf.attacks.scale import Scaled, canonical
from robustcf.factors import Factors
from robustcf.objectives import Gradient, Objective

Point = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Viewpoint:
    """What an attack sees of the factors before it moves.

    Args:
        scaled: the factors, at the scale at which the objective sees them.
        gradient: the objective's there.
    """

    scaled: Scaled
    gradient: Gradient


class Views:
    """The viewpoint for the factors asked last: one gradient serves a whole sweep.

    Args:
        objective: what is to get worse.
        relative: whether the objective chooses its scale, see :mod:`robustcf.attacks.scale`.
        log2_temperature: how far below the scale where the objective is least.
    """

    def __init__(
        self, objective: Objective[Any], *, relative: bool, log2_temperature: float
    ) -> None:
        """Nothing is seen yet."""
        self.objective, self.relative = objective, relative
        self.log2_temperature = log2_temperature
        self._last: tuple[Factors, Viewpoint] | None = None

    def of(self, factors: Factors) -> Viewpoint:
        """The viewpoint for these factors."""
        if self._last is None or self._last[0] is not factors:
            scaled = Scaled(factors)
            if self.relative:
                scaled = canonical(factors, self.objective, self.log2_temperature)
            gradient = self.objective.full_gradient(scaled.factors.users, scaled.factors.items)
            self._last = factors, Viewpoint(scaled, gradient)
        return self._last[1]


class FGM(Attack):
    """One step along the gradient, to the edge of the budget: ``epsilon * G / ||G||``.

    The gradient is that of the objective at the trained factors over all the data; it is computed
    once and serves every epsilon. Rows without a gradient stay as they are.

    With ``relative=True`` the gradient is taken at a scale of the objective's own, see
    :mod:`robustcf.attacks.scale`: the attack is the same for all multiples of U and V.

    Args:
        objective: what to make worse.
        budget: the norm that counts.
        log2_temperature: relative only: scores are taken times 2**-log2_temperature of those
            where the objective is least; None for the objective's own choice.
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
        """Keep the objective."""
        super().__init__(*arguments, **options)
        self.objective = objective
        own = objective.log2_temperature
        # Attacks on one objective may share this: they start from the same place.
        self.views = Views(
            objective,
            relative=self.relative,
            log2_temperature=own if log2_temperature is None else log2_temperature,
        )
        self._warned: Viewpoint | None = None

    def propose(self, factors: Factors, allowed: dict[str, float]) -> Point:
        """The perturbation found at the objective's scale, taken back to that of the factors."""
        view = self.views.of(factors)
        self._warn(view, allowed)
        scaled = view.scaled
        users, items = self.climb(
            view, (allowed["users"] * scaled.users, allowed["items"] * scaled.items)
        )
        return users / scaled.users, items / scaled.items

    def climb(self, view: Viewpoint, sizes: tuple[float, float]) -> Point:
        """Perturbations of U and V of these sizes at most: the gradient, scaled to the edge."""
        return self._scale((view.gradient.users, view.gradient.items), sizes)

    def _scale(self, directions: Point, sizes: tuple[float, float]) -> Point:
        return (
            self.budgets[0].scale(self.free(directions[0]), sizes[0]),
            self.budgets[1].scale(self.free(directions[1]), sizes[1]),
        )

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
    """Projected gradient ascent: many scaled steps, each followed by projection, with restarts.

    The best point by the objective is returned, out of all steps of all starts, FGM's own point
    among them: PGD is never weaker than FGM in the objective. In a ranking metric it may be, for
    the objective is not the metric: :func:`robustcf.measure` reports the worst of both, user by
    user.

    Args:
        objective: what to make worse.
        budget: the norm that counts.
        steps: gradient steps a start.
        step_size: of a step, in units of epsilon.
        restarts: starts; the first from the factors themselves, others from random points.
        seed: of the random starts.
        **options: see :class:`robustcf.attacks.base.Attack`.

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
        """Check and keep the options."""
        check_integer("steps", steps)
        check_integer("restarts", restarts)
        check_number("step_size", step_size, positive=True)
        super().__init__(objective, *arguments, **options)
        self.steps, self.step_size, self.restarts, self.seed = steps, step_size, restarts, seed

    def climb(self, view: Viewpoint, sizes: tuple[float, float]) -> Point:
        """The best point that was seen."""
        best = super().climb(view, sizes)
        best_value = self._at(view, best).value or 0.0
        generator = torch.Generator().manual_seed(self.seed)
        U, V = view.scaled.factors
        for start in range(self.restarts):
            if start == 0:
                point, here = (torch.zeros_like(U), torch.zeros_like(V)), view.gradient
            else:
                noise = [torch.randn(part.shape, generator=generator).to(part) for part in (U, V)]
                point = self._scale((noise[0], noise[1]), sizes)
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
        moves = self._scale(
            (here.users, here.items), (self.step_size * sizes[0], self.step_size * sizes[1])
        )
        return (
            self.budgets[0].project(point[0] + moves[0], sizes[0]),
            self.budgets[1].project(point[1] + moves[1], sizes[1]),
        )
