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

#: Two tensors shaped like U and V.
Point = tuple[Tensor, Tensor]
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
        relative: whether epsilon is in units of the factor's own size (``budget.unit``) or
            absolute. Only relative budgets compare models of different scale, since multiplying
            embeddings by a constant changes no ranking.
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
        check_choice("side", side, SIDES)
        self.budget = RowBudget() if budget is None else budget
        self.relative, self.side = relative, side
        # The budget for each factor; those of the factors asked about last.
        self.budgets: tuple[Budget, Budget] = (self.budget, self.budget)
        self.fixed: tuple[int, ...] = check_list("fixed", fixed)

    def free(self, delta: Tensor) -> Tensor:
        """Return a perturbation or gradient with zeros in the columns that are held fixed."""
        if not self.fixed:
            return delta
        kept = delta.clone()
        kept[:, list(self.fixed)] = 0.0
        return kept

    def _each(
        self, what: Literal["scale", "project"], parts: Point, sizes: Sequence[float]
    ) -> Point:
        """A method of the two budgets, for the columns that may move."""
        users, items = (
            getattr(budget, what)(self.free(part), size)
            for budget, part, size in zip(self.budgets, parts, sizes, strict=True)
        )
        return users, items

    @abstractmethod
    def propose(self, factors: Factors, allowed: dict[str, float]) -> Point:
        """Return perturbations of U and V for these budgets, which are then projected.

        The factors themselves must stay as they are.
        """

    def perturb(self, factors: Factors, epsilon: float) -> Perturbed:
        """Attack factors with a budget of epsilon.

        With epsilon 0 the very same factors come back, so the clean result is met to the bit.
        What the factors move by, rounding included, is never more than epsilon: see
        :meth:`robustcf.attacks.Budget.apply`.
        """
        check_epsilons([epsilon])
        factors.check_finite()
        if self.fixed and not all(0 <= column < factors.dim for column in self.fixed):
            raise InputError(
                f"fixed columns must be in [0, {factors.dim}), got {list(self.fixed)}: they are "
                "not in these factors"
            )
        parts = {"users": factors.users, "items": factors.items}
        free = {name: self.free(part) for name, part in parts.items()}
        budgets = {name: self.budget.of(part) for name, part in free.items()}
        self.budgets = budgets["users"], budgets["items"]
        allowed = {
            name: epsilon * (budgets[name].unit(part) if self.relative else 1.0)
            if self.side in ("both", name)
            else 0.0
            for name, part in free.items()
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
        """Whether all code of this attack is the package's own; other code is checked more."""
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
    return [part._version for part in factors if not part.is_inference()]


def _fits(value: object, part: Tensor) -> bool:
    return isinstance(value, Tensor) and value.shape == part.shape and not value.is_complex()


def _words(value: object) -> str:
    if isinstance(value, Tensor):
        kind = "complex " if value.is_complex() else ""
        return f"a {kind}tensor of shape {tuple(value.shape)}"
    return "None" if value is None else f"a {type(value).__name__}"
