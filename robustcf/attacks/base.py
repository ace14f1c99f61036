"""The Attack contract: a subclass proposes; the base projects, verifies and reports."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from robustcf.attacks.budgets import Budget, RowBudget
from robustcf.errors import InputError, RobustcfError
from robustcf.factors import Factors
from robustcf.support.checks import check_choice, check_epsilons

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
        relative: whether epsilon is in units of the factor's own size (``budget.unit``), the
            default, or absolute. Multiplying embeddings by a constant changes no ranking: only
            relative budgets compare models of different scale.
        side: which factors are perturbed.
        fixed: columns that no attack may touch, the constant 1 of a bias, say. They do not count
            in the factor's own size either.
    """

    name: str = ""

    def __init__(
        self,
        budget: Budget | None = None,
        *,
        relative: bool = True,
        side: Side = "both",
        fixed: Sequence[int] = (),
    ) -> None:
        """Keep the options."""
        check_choice("side", side, SIDES)
        self.budget = RowBudget() if budget is None else budget
        self.relative, self.side, self.fixed = relative, side, tuple(fixed)

    def free(self, delta: Tensor) -> Tensor:
        """A perturbation or gradient with nothing in the columns that are held fixed."""
        if not self.fixed:
            return delta
        kept = delta.clone()
        kept[:, list(self.fixed)] = 0.0
        return kept

    @abstractmethod
    def propose(self, factors: Factors, allowed: dict[str, float]) -> tuple[Tensor, Tensor]:
        """Perturbations of U and V for these budgets; whatever is too large will be projected."""

    def perturb(self, factors: Factors, epsilon: float) -> Perturbed:
        """Attack factors with a budget of epsilon.

        With epsilon 0 the very same factors come back, so the clean result is met to the bit.

        Raises:
            InputError: epsilon is negative or not finite, or the factors are not finite.
        """
        check_epsilons([epsilon])
        factors.check_finite()
        if self.fixed and not all(0 <= column < factors.dim for column in self.fixed):
            raise InputError(
                f"fixed columns must be in [0, {factors.dim}), got {list(self.fixed)}: they are "
                "not in these factors"
            )
        parts = {"users": factors.users, "items": factors.items}
        allowed = {
            name: epsilon * (self.budget.unit(self.free(part)) if self.relative else 1.0)
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
                # Free again: projecting on a spectral norm may round into a column held fixed.
                delta = self.free(self.budget.project(self.free(proposed[name]), allowed[name]))
                attacked[name] = part + delta
                # What counts is what the factors really moved by, rounding included.
                realised[name] = self.budget.measure(attacked[name].double() - part.double())
                most = allowed[name] * (1 + _TOLERANCE) + _rounding(part)
                if not realised[name] <= most:
                    raise BudgetError(
                        f"{self.name} spent {realised[name]:g} of {allowed[name]:g} on the {name}: "
                        "a bug, report it"
                    )
        return Perturbed(Factors(attacked["users"], attacked["items"]), epsilon, allowed, realised)


def _rounding(part: Tensor) -> float:
    """How far adding a small perturbation may miss, at worst, in any of the norms."""
    return float(part.abs().max()) * torch.finfo(part.dtype).eps * math.sqrt(part.numel() or 1)
