"""Attacks that follow the gradient of an objective: one step (FGM) and many (PGD)."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from robustcf.attacks.base import Attack
from robustcf.attacks.objectives import Objective, ObjectiveGradient
from robustcf.errors import InputError
from robustcf.factors import Factors


class FGM(Attack):
    """One step along the gradient, to the edge of the budget: ``epsilon * G / ||G||``.

    The gradient is that of the objective at the trained factors over all the data; it is computed
    once and serves every epsilon. Rows without a gradient stay as they are.

    Args:
        objective: what to make worse.
        budget: the norm that counts.
        **options: see :class:`robustcf.attacks.base.Attack`.

    Cost: one gradient for a whole sweep of epsilons.
    """

    name = "fgm"

    def __init__(self, objective: Objective, *arguments: Any, **options: Any) -> None:
        """Keep the objective."""
        super().__init__(*arguments, **options)
        self.objective = objective
        self._last: tuple[Factors, ObjectiveGradient] | None = None

    def propose(self, factors: Factors, allowed: dict[str, float]) -> tuple[Tensor, Tensor]:
        """The gradient, scaled to the edge."""
        gradient = self.gradient(factors)
        return (
            self.budget.scale(gradient.users, allowed["users"]),
            self.budget.scale(gradient.items, allowed["items"]),
        )

    def gradient(self, factors: Factors) -> ObjectiveGradient:
        """The objective's gradient at the factors, remembered for the factors asked last."""
        if self._last is None or self._last[0] is not factors:
            gradient = self.objective.gradient(factors.users, factors.items)
            if not bool(gradient.users.any()) and not bool(gradient.items.any()):
                warnings.warn(
                    f"the gradient of {self.objective.name} is zero everywhere: {self.name} has no "
                    "direction to go and leaves the factors as they are",
                    RuntimeWarning,
                    stacklevel=3,
                )
            self._last = factors, gradient
        return self._last[1]


class PGD(FGM):
    """Projected gradient ascent: many scaled steps, each followed by projection, with restarts.

    The best point by the objective is returned, out of all steps of all starts, FGM's own point
    among them: PGD is never weaker than FGM in the objective. (In a ranking metric it may be: the
    objective is not the metric.)

    Args:
        objective: what to make worse.
        budget: the norm that counts.
        steps: gradient steps a start.
        step_size: of a step, in units of epsilon.
        restarts: starts; the first from the factors themselves, others from random points.
        seed: of the random starts.
        **options: see :class:`robustcf.attacks.base.Attack`.

    Cost: ``steps * restarts + 2`` gradients for every epsilon.
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

    def propose(self, factors: Factors, allowed: dict[str, float]) -> tuple[Tensor, Tensor]:
        """The best point that was seen."""
        best = super().propose(factors, allowed)
        best_value = self._at(factors, best).value
        generator = torch.Generator().manual_seed(self.seed)
        for start in range(self.restarts):
            point = self._start(factors, allowed, start, generator)
            for _ in range(self.steps):
                here = self._at(factors, point)
                if here.value > best_value:
                    best, best_value = point, here.value
                point = self._step(point, here, allowed)
            if self._at(factors, point).value > best_value:
                best, best_value = point, self._at(factors, point).value
        return best

    def _at(self, factors: Factors, point: tuple[Tensor, Tensor]) -> ObjectiveGradient:
        return self.objective.gradient(factors.users + point[0], factors.items + point[1])

    def _start(
        self, factors: Factors, allowed: dict[str, float], start: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        if start == 0:
            return torch.zeros_like(factors.users), torch.zeros_like(factors.items)
        directions = [torch.randn(part.shape, generator=generator).to(part) for part in factors]
        return (
            self.budget.scale(directions[0], allowed["users"]),
            self.budget.scale(directions[1], allowed["items"]),
        )

    def _step(
        self, point: tuple[Tensor, Tensor], here: ObjectiveGradient, allowed: dict[str, float]
    ) -> tuple[Tensor, Tensor]:
        moved = []
        for old, gradient, room in zip(
            point, (here.users, here.items), (allowed["users"], allowed["items"]), strict=True
        ):
            step = self.budget.scale(gradient, self.step_size * room)
            moved.append(self.budget.project(old + step, room))
        return moved[0], moved[1]
