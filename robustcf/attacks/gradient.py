"""Attacks that follow the gradient of an objective: one step (FGM) and many (PGD)."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from robustcf.attacks.base import Attack
from robustcf.attacks.objectives import Objective, ObjectiveGradient
from robustcf.attacks.scale import Scaled, canonical
from robustcf.errors import InputError
from robustcf.factors import Factors

Point = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Viewpoint:
    """What an attack sees of the factors before it moves.

    Args:
        scaled: the factors, at the scale at which the objective looks at them.
        gradient: the objective's there.
    """

    scaled: Scaled
    gradient: ObjectiveGradient


class Views:
    """The viewpoint for the factors asked last: one gradient serves a whole sweep.

    Args:
        objective: what is to get worse.
        relative: whether the objective chooses its scale, see :mod:`robustcf.attacks.scale`.
        softness: octaves below the scale where the objective is least.
    """

    def __init__(self, objective: Objective, *, relative: bool, softness: float) -> None:
        """Nothing is seen yet."""
        self.objective, self.relative, self.softness = objective, relative, softness
        self._last: tuple[Factors, Viewpoint] | None = None

    def of(self, factors: Factors) -> Viewpoint:
        """The viewpoint for these factors."""
        if self._last is None or self._last[0] is not factors:
            scaled = Scaled(factors)
            if self.relative:
                scaled = canonical(factors, self.objective, self.softness)
            gradient = self.objective.gradient(scaled.factors.users, scaled.factors.items)
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
        softness: relative only: octaves between that scale and the one where the objective is
            least; None for the objective's own choice.
        **options: see :class:`robustcf.attacks.base.Attack`.

    Cost: one gradient for a whole sweep of epsilons, and, relative, about two more.
    """

    name = "fgm"

    def __init__(
        self,
        objective: Objective,
        *arguments: Any,
        softness: float | None = None,
        **options: Any,
    ) -> None:
        """Keep the objective."""
        super().__init__(*arguments, **options)
        self.objective = objective
        own: float = getattr(objective, "softness", 0.0)
        # Attacks on one objective may share this: they start from the same place.
        self.views = Views(
            objective, relative=self.relative, softness=own if softness is None else softness
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

    def climb(self, view: Viewpoint, rooms: tuple[float, float]) -> Point:
        """Perturbations of U and V within these rooms: the gradient, scaled to the edge."""
        return self._scale((view.gradient.users, view.gradient.items), rooms)

    def _scale(self, directions: Point, rooms: tuple[float, float]) -> Point:
        return (
            self.budget.scale(directions[0], rooms[0]),
            self.budget.scale(directions[1], rooms[1]),
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
            stacklevel=4,
        )


class PGD(FGM):
    """Projected gradient ascent: many scaled steps, each followed by projection, with restarts.

    The best point by the objective is returned, out of all steps of all starts, FGM's own point
    among them: PGD is never weaker than FGM in the objective. In a ranking metric it may be, for
    the objective is not the metric: :func:`robustcf.robustness.pgd_curve` reports the worst of
    both, user by user.

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
        objective: Objective,
        *arguments: Any,
        steps: int = 8,
        step_size: float = 0.4,
        restarts: int = 1,
        seed: int = 0,
        **options: Any,
    ) -> None:
        """Check and keep the options."""
        for name, value in (("steps", steps), ("restarts", restarts)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"{name} must be an integer of at least 1, got {value!r}")
        if not step_size > 0:
            raise InputError(f"step_size must be positive, got {step_size!r}")
        super().__init__(objective, *arguments, **options)
        self.steps, self.step_size, self.restarts, self.seed = steps, step_size, restarts, seed

    def climb(self, view: Viewpoint, rooms: tuple[float, float]) -> Point:
        """The best point that was seen."""
        best = super().climb(view, rooms)
        best_value = self._at(view, best).value
        generator = torch.Generator().manual_seed(self.seed)
        U, V = view.scaled.factors
        for start in range(self.restarts):
            if start == 0:
                point, here = (torch.zeros_like(U), torch.zeros_like(V)), view.gradient
            else:
                noise = [torch.randn(part.shape, generator=generator).to(part) for part in (U, V)]
                point = self._scale((noise[0], noise[1]), rooms)
                here = self._at(view, point)
            for _ in range(self.steps):
                point = self._step(point, here, rooms)
                here = self._at(view, point)
                if here.value > best_value:
                    best, best_value = point, here.value
        return best

    def _at(self, view: Viewpoint, point: Point) -> ObjectiveGradient:
        U, V = view.scaled.factors
        return self.objective.gradient(U + point[0], V + point[1])

    def _step(self, point: Point, here: ObjectiveGradient, rooms: tuple[float, float]) -> Point:
        moves = self._scale(
            (here.users, here.items), (self.step_size * rooms[0], self.step_size * rooms[1])
        )
        return (
            self.budget.project(point[0] + moves[0], rooms[0]),
            self.budget.project(point[1] + moves[1], rooms[1]),
        )
