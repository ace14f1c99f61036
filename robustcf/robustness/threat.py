"""Threat: what an attacker may do and know, and which sizes can be computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from robustcf._checks import check_choice, check_epsilons
from robustcf.attacks.base import SIDES
from robustcf.attacks.budgets import BUDGETS, Budget, OwnRowBudget, check_reach
from robustcf.attacks.certificates.radius import Budgets
from robustcf.data.interactions import Interactions
from robustcf.errors import InputError
from robustcf.recommender import Recommender

UNITS: tuple[str, ...] = ("relative", "own", "absolute")
KNOWLEDGE: tuple[str, ...] = ("none", "data", "labels")

_UNIT_WORDS = {
    "row": "median row norms",
    "frobenius": "Frobenius norms",
    "spectral": "spectral norms",
}


@dataclass(frozen=True)
class Threat:
    """What an attacker, who always knows the embeddings, may do to them and knows besides.

    Args:
        norm: the norm that epsilon bounds: of each ``row``, or the ``frobenius`` or ``spectral``
            norm of the whole factor.
        unit: what a size of 1 is: ``relative``, the factor's own size (median row norm, Frobenius
            or spectral norm), so that models of different scale compare; ``own``, for the norm
            ``row`` alone, the length of each row itself; or ``absolute``.
        side: which factors are perturbed: ``both``, ``users`` or ``items``.
        knowledge: what the attacker knows: ``labels``, the pairs that the evaluation counts, or
            ``data``, the training pairs. ``none`` is only noise; None for what the attack assumes
            (``auto`` and ``cutoff``: labels, ``fgm`` and ``pgd``: data).

    Example:
        >>> Threat().axis
        'attack size, row budget, in median row norms of the factors'
    """

    norm: str = "row"
    unit: str = "relative"
    side: str = "both"
    knowledge: str | None = None

    def __post_init__(self) -> None:
        check_choice("norm", self.norm, BUDGETS)
        check_choice("unit", self.unit, UNITS)
        check_choice("side", self.side, SIDES)
        if self.knowledge is not None:
            check_choice("knowledge", self.knowledge, KNOWLEDGE)
        if self.unit == "own" and self.norm != "row":
            raise InputError(
                f"the unit 'own' is the length of each row: it goes with the norm 'row', got "
                f"{self.norm!r}; use the unit relative"
            )

    @property
    def relative(self) -> bool:
        """Whether sizes are in units of the factors' own."""
        return self.unit != "absolute"

    @property
    def budget(self) -> Budget:
        """The norm, with its measure and its projection."""
        return OwnRowBudget() if self.unit == "own" else BUDGETS[self.norm]()

    @property
    def axis(self) -> str:
        """What a size means, for the axis of a picture."""
        kind = f"{self.norm} budget" + ("" if self.side == "both" else f" on {self.side}")
        size = "attack size" if self.relative else "attack size epsilon"
        of = " of the factors" if self.unit == "relative" else ""
        return f"{size}, {kind}, {self.unit_words}{of}"

    @property
    def unit_words(self) -> str:
        """The unit of sizes, in a few words."""
        if self.unit == "own":
            return "as a share of each row's own length"
        return f"in {_UNIT_WORDS[self.norm]}" if self.relative else "absolute"

    def options(self, model: Recommender) -> dict[str, Any]:
        """The options of an :class:`robustcf.attacks.Attack` on this model."""
        return {
            "budget": self.budget,
            "relative": self.relative,
            "side": self.side,
            "fixed": model.fixed,
        }

    def pairs(self, model: Recommender) -> Interactions:
        """The pairs that the attacker knows and pushes down."""
        if self.knowledge not in ("data", "labels"):
            raise InputError(
                "an attacker who knows nothing has no pairs to aim at: use the attack random, or "
                "knowledge data or labels"
            )
        if self.knowledge == "labels" and model.part == "train":
            raise InputError(
                "knowledge 'labels' is about held-out pairs, and this model has none: give it "
                "test pairs, or use knowledge data"
            )
        return model.known if self.knowledge == "data" else model.relevant

    def check_sizes(self, model: Recommender, epsilons: Sequence[float]) -> tuple[float, ...]:
        """Attack sizes as floats, or an error: ascending, not negative, and not beyond computing.

        Example:
            >>> import numpy as np
            >>> Threat().check_sizes(Recommender(np.eye(2), np.eye(2), np.eye(2)), [0.1, 1e308])
            Traceback (most recent call last):
            robustcf.errors.InputError: an attack of size 1e+308 makes embeddings or scores larger
            than float64 can hold: use smaller sizes
        """
        sizes = check_epsilons(epsilons)
        reaches = []
        for name, factor in zip(("users", "items"), model.factors, strict=True):
            most = sizes[-1] * self._unit(model, factor) if self.side in ("both", name) else 0.0
            reaches.append(self.budget.reach(factor, most))
        check_reach(model.factors, (reaches[0], reaches[1]), sizes[-1])
        return sizes

    def row_moves(self, model: Recommender) -> Budgets:
        """How far rows may move at size 1, for certificates: of the norm ``row`` alone."""
        if self.norm != "row":
            raise InputError(f"there are certificates for the norm 'row' only, got {self.norm!r}")
        users, items = model.factors
        largest = items.double().norm(dim=1).max().item() if len(items) else 0.0
        return Budgets(
            users=self._unit(model, users) if self.side != "items" else 0.0,
            items=self._unit(model, items) if self.side != "users" else 0.0,
            dim=model.factors.dim,
            largest_item=largest * (1 + 1e-9),
            own=self.unit == "own",
        )

    def _unit(self, model: Recommender, factor: Tensor) -> float:
        return self.budget.unit(factor[:, model.free]) if self.relative else 1.0

    def as_dict(self) -> dict[str, str | None]:
        """Plain values, ready for JSON."""
        return asdict(self)


def check_threat(threat: object) -> Threat:
    """A threat as it is, the default one for None, or an error."""
    if threat is not None and not isinstance(threat, Threat):
        raise InputError(f"threat must be a Threat, got {threat!r}: give Threat(norm='row'), say")
    return threat or Threat()
