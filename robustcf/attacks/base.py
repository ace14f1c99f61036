"""The Attack contract: a subclass proposes; the base projects, verifies and reports."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from robustcf._checks import check_choice, check_epsilons, check_list
from robustcf.attacks.budgets import LEAST, Budget, RowBudget, check_reach
from robustcf.errors import InputError, RobustcfError
from robustcf.factors import Factors

Side = Literal["both", "users", "items"]
SIDES: tuple[str, ...] = ("both", "users", "items")


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
        self.relative, self.side = relative, side
        # The budget for each factor; those of the factors asked about last.
        self.budgets: tuple[Budget, Budget] = (self.budget, self.budget)
        self.fixed: tuple[int, ...] = check_list("fixed", fixed)

    def free(self, delta: Tensor) -> Tensor:
        """A perturbation or gradient with nothing in the columns that are held fixed."""
        if not self.fixed:
            return delta
        kept = delta.clone()
        kept[:, list(self.fixed)] = 0.0
        return kept

    @abstractmethod
    def propose(self, factors: Factors, allowed: dict[str, float]) -> tuple[Tensor, Tensor]:
        """Perturbations of U and V for these budgets; whatever is too large will be projected.

        Two tensors shaped like U and V. The factors themselves must stay as they are.
        """

    def perturb(self, factors: Factors, epsilon: float) -> Perturbed:
        """Attack factors with a budget of epsilon.

        With epsilon 0 the very same factors come back, so the clean result is met to the bit.
        What the factors move by, rounding included, is never more than epsilon: see
        :meth:`robustcf.attacks.Budget.apply`.

        Raises:
            InputError: epsilon is negative or not finite, or so large that scores can no longer
                be computed; the factors are not finite; or the attack proposes something else
                than two finite tensors shaped like U and V.
        """
        check_epsilons([epsilon])
        factors.check_finite()
        if self.fixed and not all(0 <= column < factors.dim for column in self.fixed):
            raise InputError(
                f"fixed columns must be in [0, {factors.dim}), got {list(self.fixed)}: they are "
                "not in these factors"
            )
        parts = {"users": factors.users, "items": factors.items}
        self.budgets = (
            self.budget.of(self.free(factors.users)),
            self.budget.of(self.free(factors.items)),
        )
        budgets = dict(zip(parts, self.budgets, strict=True))
        allowed = {
            name: epsilon * (budgets[name].unit(self.free(part)) if self.relative else 1.0)
            if self.side in ("both", name)
            else 0.0
            for name, part in parts.items()
        }
        realised = {"users": 0.0, "items": 0.0}
        if epsilon == 0:
            return Perturbed(factors, epsilon, allowed, realised)
        reaches = [budgets[name].reach(part, allowed[name]) for name, part in parts.items()]
        check_reach(factors, (reaches[0], reaches[1]), epsilon)
        with torch.no_grad():
            proposed = self._proposed(factors, allowed)
            attacked = {}
            for name, part in parts.items():
                if allowed[name] < LEAST:
                    attacked[name] = part
                    continue
                # Free again: projecting on a spectral norm may round into a column held fixed.
                budget = budgets[name]
                delta = self.free(budget.project(self.free(proposed[name]), allowed[name]))
                attacked[name] = budget.apply(part, delta, allowed[name])
                # What counts is what the factors really moved by, rounding included.
                realised[name] = budget.measure(attacked[name].double() - part.double())
                if not realised[name] <= allowed[name]:
                    raise BudgetError(
                        f"{self._called} spent {realised[name]:g} of {allowed[name]:g} on the "
                        f"{name}: a bug, report it"
                    )
        return Perturbed(Factors(attacked["users"], attacked["items"]), epsilon, allowed, realised)

    @property
    def _is_ours(self) -> bool:
        """Whether all code of this attack is of this package; code from outside is checked more."""
        parts = (self, self.budget, getattr(self, "objective", None))
        modules = (type(part).__module__ for part in parts if part is not None)
        return all(module.partition(".")[0] == __name__.partition(".")[0] for module in modules)

    @property
    def _called(self) -> str:
        """Its name; a class from outside may have inherited one, or have none."""
        name = type(self).__name__
        return self.name or name if type(self).__module__.startswith("robustcf.") else name

    def _proposed(self, factors: Factors, allowed: dict[str, float]) -> dict[str, Tensor]:
        """What :meth:`propose` returns, checked: an attack moves factors by its budget alone."""
        versions = _versions(factors)
        kept = None if self._is_ours else tuple(part.clone() for part in factors)
        try:
            answer: Any = self.propose(factors, dict(allowed))
        finally:
            # Through numpy or .data a tensor is changed without a new version.
            changed = versions != _versions(factors)
            if kept is not None:
                for part, before in zip(factors, kept, strict=True):
                    if not torch.equal(part, before):
                        changed = True
                        part.copy_(before)
        if changed:
            raise InputError(
                f"attack {self._called} changed the factors that it was given: propose must leave "
                "them as they are and return perturbations; change a copy, factors.users.clone()"
            )
        several = isinstance(answer, Iterable) and not isinstance(answer, Tensor)
        found = tuple(answer) if several else (answer,)
        expected = tuple(factors)
        if len(found) != len(expected) or not all(map(_fits, found, expected)):
            shapes = " and ".join(str(tuple(part.shape)) for part in expected)
            raise InputError(
                f"attack {self._called}: propose must return two tensors shaped like U and V, "
                f"{shapes}, got {' and '.join(map(_words, found))}"
            )
        proposed = {
            name: value.to(part)
            for name, value, part in zip(("users", "items"), found, expected, strict=True)
        }
        for name, value in proposed.items():
            if allowed[name] > 0:
                self._check_finite(name, value)
        return proposed

    def _check_finite(self, name: str, proposed: Tensor) -> None:
        if bool(torch.isfinite(proposed).all()):
            return
        message = f"attack {self._called} proposed values that are not finite for the {name}"
        if torch.finfo(proposed.dtype).bits < 32:
            raise InputError(
                f"{message}, in {proposed.dtype}: half precision overflows easily; attack the "
                "factors in float32, factors.users.float()"
            )
        if self._is_ours:
            raise BudgetError(f"{message}: a bug, report it")
        raise InputError(f"{message}: look for a division by zero or an overflow in its propose")


def _versions(factors: Factors) -> list[int]:
    """How often torch has changed the tensors in place, as far as it counts that."""
    return [part._version for part in factors if not part.is_inference()]


def _fits(value: object, part: Tensor) -> bool:
    """Whether this is a perturbation of a factor: real numbers in the same shape."""
    return isinstance(value, Tensor) and value.shape == part.shape and not value.is_complex()


def _words(value: object) -> str:
    """What a proposal is, for a message."""
    if isinstance(value, Tensor):
        kind = "complex " if value.is_complex() else ""
        return f"a {kind}tensor of shape {tuple(value.shape)}"
    return "None" if value is None else f"a {type(value).__name__}"
