"""The Attack contract: a subclass proposes; the base projects, verifies and reports."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from robustcf._checks import check_choice, check_epsilons, check_list
from robustcf.attacks.budgets import LEAST, Budget, OwnRowBudget, RowBudget, check_reach
from robustcf.errors import InputError, RobustcfError
from robustcf.factors import Factors

if TYPE_CHECKING:
    from robustcf.models.folding import Histories

#: Two tensors shaped like U and V; where no users are stored, like the map and V.
Point = tuple[Tensor, Tensor]
Side = Literal["both", "users", "items"]
SIDES: tuple[str, ...] = ("both", "users", "items")


class BudgetError(RobustcfError, RuntimeError):
    """A perturbation exceeds its budget: a defect of the attack, never of the input."""


@dataclass(frozen=True, eq=False)
class Perturbed:
    """Attacked factors and the budget that was spent.

    Args:
        factors: the embeddings that the attacked arrays serve with.
        epsilon: the requested attack size.
        allowed: stored array -> the budget in absolute terms: ``users`` and ``items``; where no
            users are stored, ``items`` alone, or ``map`` and ``items``.
        realised: stored array -> the measured size of the perturbation.
    """

    factors: Factors
    epsilon: float
    allowed: dict[str, float]
    realised: dict[str, float]


class Attack(ABC):
    """A way to choose perturbations of U and V within a budget.

    Args:
        budget: the norm; None for each row's own length (:class:`OwnRowBudget`), or for absolute
            sizes :class:`RowBudget`.
        relative: whether epsilon is in units of the factor's own size (``budget.unit``). Absolute
            budgets do not compare models of different scale, which no ranking shows.
        side: the factors that are perturbed.
        fixed: columns that may not change, such as the constant 1 of a bias; they do not count in
            the factor's own size either.
        histories: what computes users from the map and V, where no users are stored. Then the
            attack takes and writes these two arrays in place of U and V, the side ``items`` means V
            alone, and ``both`` the map too.
    """

    name: str = ""
    #: Whether it attacks computed users too, by :meth:`served` and :meth:`pulled`.
    folds: bool = False

    def __init__(
        self,
        budget: Budget | None = None,
        *,
        relative: bool = True,
        side: Side = "both",
        fixed: Sequence[int] = (),
        histories: Histories | None = None,
    ) -> None:
        check_choice("side", side, SIDES)
        if histories is not None and side == "users":
            raise InputError("no users are stored to attack: use the side items, or both")
        if budget is None:
            budget = OwnRowBudget() if relative else RowBudget()
        self.budget = budget
        self.relative, self.side, self.histories = relative, side, histories
        # The budget for each factor of the last call.
        self.budgets: tuple[Budget, Budget] = (self.budget, self.budget)
        self.fixed: tuple[int, ...] = check_list("fixed", fixed)

    def free(self, delta: Tensor) -> Tensor:
        """Return a perturbation or gradient with zeros in the fixed columns."""
        if not self.fixed:
            return delta
        kept = delta.clone()
        kept[:, list(self.fixed)] = 0.0
        return kept

    def _each(
        self, what: Literal["scale", "project"], parts: Point, sizes: Sequence[float]
    ) -> Point:
        """Apply a method of the two budgets to the columns that may move."""
        users, items = (
            getattr(budget, what)(self.free(part), size)
            for budget, part, size in zip(self.budgets, parts, sizes, strict=True)
        )
        return users, items

    def served(self, stored: Factors) -> Factors:
        """Return the embeddings that stored arrays serve with: themselves, if these are U and V."""
        return stored if self.histories is None else self.histories.factors(stored)

    def pulled(self, stored: Factors, gradient: Point) -> Point:
        """Return the gradient for stored arrays, by that for the embeddings they serve with."""
        return gradient if self.histories is None else self.histories.pull(stored, *gradient)

    @abstractmethod
    def propose(self, factors: Factors, allowed: dict[str, float]) -> Point:
        """Return perturbations of U and V, which are then projected; do not change the factors.

        Without stored users the first array is the map: rank and follow gradients by
        :meth:`served` and :meth:`pulled`, and set ``folds = True`` in the class.
        """

    def perturb(self, factors: Factors, epsilon: float) -> Perturbed:
        """Attack factors with a budget of epsilon; 0 returns the same factors.

        Factors never move by more than epsilon, rounding included: see
        :meth:`robustcf.attacks.Budget.apply`.
        """
        check_epsilons([epsilon])
        factors.check_finite()
        if self.fixed and not all(0 <= column < factors.dim for column in self.fixed):
            columns = list(self.fixed)
            raise InputError(f"fixed columns must be in [0, {factors.dim}), got {columns}")
        if self.histories is not None and not (self.folds or self._is_ours):
            raise InputError(
                f"attack {self._called} takes stored users, and these are computed from their "
                "histories: use Attack.served and Attack.pulled, and set folds = True"
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
            return self._perturbed(factors, epsilon, allowed, realised)
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
                realised[name] = budget.measure(attacked[name].double() - part.double())
                if not realised[name] <= allowed[name]:
                    spent = f"{self._called} spent {realised[name]:g} of {allowed[name]:g}"
                    raise BudgetError(f"{spent} on the {name}: report this bug")
        factors = Factors(attacked["users"], attacked["items"])
        return self._perturbed(factors, epsilon, allowed, realised)

    def _perturbed(
        self,
        stored: Factors,
        epsilon: float,
        allowed: dict[str, float],
        realised: dict[str, float],
    ) -> Perturbed:
        if self.histories is not None:
            for sizes in (allowed, realised):
                size = sizes.pop("users")
                if self.side == "both":
                    sizes["map"] = size
            stored = self.served(stored)
        return Perturbed(stored, epsilon, allowed, realised)

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
        """The checked result of :meth:`propose`, which may not change the factors."""
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
                f"attack {self._called} changed the factors: propose must return perturbations; "
                "change a copy, factors.users.clone()"
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
        proposed = {}
        for name, value, part in zip(("users", "items"), found, expected, strict=True):
            proposed[name] = value.to(part)
            if allowed[name] > 0 and not bool(torch.isfinite(proposed[name]).all()):
                message = (
                    f"attack {self._called} proposed values that are not finite for the {name}"
                )
                if torch.finfo(part.dtype).bits < 32:
                    raise InputError(f"{message}: half precision overflows; use float32 factors")
                if self._is_ours:
                    raise BudgetError(f"{message}: report this bug")
                raise InputError(f"{message}: look for a division by zero or an overflow")
        return proposed


def _versions(factors: Factors) -> list[int]:
    return [part._version for part in factors if not part.is_inference()]


def _fits(value: object, part: Tensor) -> bool:
    return isinstance(value, Tensor) and value.shape == part.shape and not value.is_complex()


def _words(value: object) -> str:
    if isinstance(value, Tensor):
        kind = "complex " if value.is_complex() else ""
        return f"a {kind}tensor of shape {tuple(value.shape)}"
    return "None" if value is None else f"a {type(value).__name__}"
