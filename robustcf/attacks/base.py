"""The Attack contract: a subclass proposes; the base projects, verifies and reports."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from robustcf.attacks.budgets import Budget, RowBudget
from robustcf.errors import InputError, RobustcfError
from robustcf.factors import Factors

Side = Literal["both", "users", "items"]
SIDES: tuple[str, ...] = ("both", "users", "items")

# Rounding may carry a projected perturbation this far over the edge, relatively.
_TOLERANCE = 1e-4


class BudgetError(RobustcfError, RuntimeError):
    """A perturbation is larger than its budget: a defect of the attack, never of the input."""


@dataclass(frozen=True, eq=False)
class Perturbed:
    """Attacked factors and what was really spent on them.

    Args:
        factors: the attacked embeddings.
        epsilon: the budget as it was asked for.
        allowed: ``users`` and ``items`` -> the budget in absolute terms.
        realised: ``users`` and ``items`` -> the measured size of the perturbation.
    """

    factors: Factors
    epsilon: float
    allowed: dict[str, float]
    realised: dict[str, float]


class Attack(ABC):
    """A way to choose perturbations of U and V within a budget.

    Args:
        budget: the norm that counts; :class:`RowBudget` by default.
        relative: whether epsilon is in units of the factor's own size (``budget.unit``) instead
            of absolute. Multiplying embeddings by a constant changes no ranking: only relative
            budgets compare models of different scale.
        side: which factors are perturbed.
    """

    name: str = ""

    def __init__(
        self, budget: Budget | None = None, *, relative: bool = False, side: Side = "both"
    ) -> None:
        """Keep the options."""
        if side not in SIDES:
            raise InputError(f"side must be one of {', '.join(SIDES)}, got {side!r}")
        self.budget = RowBudget() if budget is None else budget
        self.relative, self.side = relative, side

    @abstractmethod
    def propose(self, factors: Factors, allowed: dict[str, float]) -> tuple[Tensor, Tensor]:
        """Perturbations of U and V for these budgets; whatever is too large will be projected."""

    def perturb(self, factors: Factors, epsilon: float) -> Perturbed:
        """Attack factors with a budget of epsilon.

        With epsilon 0 the very same factors come back, so the clean result is met to the bit.

        Raises:
            InputError: epsilon is negative or not finite, or the factors are not finite.
        """
        if not math.isfinite(epsilon) or epsilon < 0:
            raise InputError(f"epsilon must be a finite number of at least 0, got {epsilon}")
        factors.check_finite()
        parts = {"users": factors.users, "items": factors.items}
        allowed = {
            name: epsilon * (self.budget.unit(part) if self.relative else 1.0)
            if self.side in ("both", name)
            else 0.0
            for name, part in parts.items()
        }
        realised = {"users": 0.0, "items": 0.0}
        if epsilon == 0:
            return Perturbed(factors, epsilon, allowed, realised)
        with torch.no_grad():
            proposed = dict(zip(parts, self.propose(factors, allowed), strict=True))
            attacked = {}
            for name, part in parts.items():
                if allowed[name] == 0:
                    attacked[name] = part
                    continue
                delta = self.budget.project(proposed[name], allowed[name])
                attacked[name] = part + delta
                # What counts is what the factors really moved by, rounding included.
                realised[name] = self.budget.measure(attacked[name].double() - part.double())
                room = allowed[name] * (1 + _TOLERANCE) + _rounding(part)
                if not realised[name] <= room:
                    raise BudgetError(
                        f"{self.name} spent {realised[name]:g} of {allowed[name]:g} on the {name}: "
                        "a bug, report it"
                    )
        return Perturbed(Factors(attacked["users"], attacked["items"]), epsilon, allowed, realised)


def _rounding(part: Tensor) -> float:
    """How far adding a small perturbation may miss, at worst, in any of the norms."""
    return float(part.abs().max()) * torch.finfo(part.dtype).eps * math.sqrt(part.numel() or 1)
