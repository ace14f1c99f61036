"""Threat: abilities and knowledge of an attacker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from robustcf._checks import check_choice, check_epsilons
from robustcf.attacks.budgets import BUDGETS, Budget, OwnRowBudget, check_reach
from robustcf.attacks.certificates.radius import Budgets
from robustcf.attacks.certificates.search import Folded
from robustcf.data.interactions import Interactions
from robustcf.errors import InputError
from robustcf.recommender import Recommender

UNITS: tuple[str, ...] = ("own", "relative", "absolute")
#: What an attacker may write; the last is for users computed from their histories.
SURFACES: tuple[str, ...] = ("both", "users", "items", "items+map")
KNOWLEDGE: tuple[str, ...] = ("none", "data", "labels", "sample")

_UNIT_WORDS = {"row": "median row", "frobenius": "Frobenius", "spectral": "spectral"}


@dataclass(frozen=True)
class Threat:
    """Abilities and knowledge of an attacker, who always knows the embeddings.

    Args:
        norm: the norm that epsilon bounds: that of each ``row``, or the ``frobenius`` or
            ``spectral`` norm of the whole factor.
        unit: unit of epsilon: ``own``, the length of each row (the default of the norm ``row``, and
            only for it); ``relative``, the size of the factor: its median row norm, Frobenius or
            spectral norm; or ``absolute``.
        side: which stored arrays are perturbed: ``both``, ``users`` or ``items``. Where users are
            computed from their histories, ``both`` stands for ``items``, all that is stored as
            embeddings; ``items+map`` alters the map from histories to users too.
        knowledge: what the attacker knows (default: labels for auto, pairwise and cutoff, data for
            fgm and pgd): ``labels``: the relevant items of all users, evaluated or not; ``data``:
            the training pairs; ``sample``: the relevant items of the evaluated users only, where
            these are a sample (a stronger attack on fewer users: do not compare it with labels).
            ``none`` is only noise; None for the default.

    Example:
        >>> Threat(unit="relative").axis
        'attack size, row budget, in median row norms of the factors'
    """

    norm: str = "row"
    unit: str | None = None
    side: str = "both"
    knowledge: str | None = None

    def __post_init__(self) -> None:
        check_choice("norm", self.norm, BUDGETS)
        if self.unit is None:
            object.__setattr__(self, "unit", "own" if self.norm == "row" else "relative")
        check_choice("unit", self.unit, UNITS)
        check_choice("side", self.side, SURFACES)
        if self.knowledge is not None:
            check_choice("knowledge", self.knowledge, KNOWLEDGE)
        if self.unit == "own" and self.norm != "row":
            advice = "use the unit relative"
            raise InputError(f"the unit 'own' needs the norm 'row', got {self.norm!r}; {advice}")

    @property
    def relative(self) -> bool:
        """Whether epsilon is in units of the factors."""
        return self.unit != "absolute"

    @property
    def budget(self) -> Budget:
        """The norm, with its measure and its projection."""
        return OwnRowBudget() if self.unit == "own" else BUDGETS[self.norm]()

    @property
    def axis(self) -> str:
        """The axis label of a picture."""
        kind = f"{self.norm} budget" + ("" if self.side == "both" else f" on {self.side}")
        size = "attack size" if self.relative else "attack size epsilon"
        of = " of the factors" if self.unit == "relative" else ""
        return f"{size}, {kind}, {self.unit_words}{of}"

    @property
    def side_words(self) -> str:
        """The arrays that are perturbed, in words."""
        return {"both": "users and items", "items+map": "items and map"}.get(self.side, self.side)

    @property
    def unit_words(self) -> str:
        """The unit of epsilon in words."""
        if self.unit == "own":
            return "as a share of each row's own length"
        return f"in {_UNIT_WORDS[self.norm]} norms" if self.relative else "absolute"

    def on(self, model: Recommender) -> Threat:
        """Return the threat by the arrays that this model stores; raise if it asks for others."""
        computed = model.histories is not None
        if computed and self.side == "users":
            words = f"the {model.kind} recommender stores {' and '.join(model.stores)}, no users"
            raise InputError(f"{words}: use the side items or items+map")
        if not computed and self.side == "items+map":
            raise InputError(
                "the side 'items+map' is for users computed from their histories, and this model "
                "stores users: use both, users or items, or model.serving('fold-in')"
            )
        return replace(self, side="items") if computed and self.side == "both" else self

    def options(self, model: Recommender) -> dict[str, Any]:
        """Return the options of an :class:`robustcf.attacks.Attack` on this model."""
        side = "both" if self.side == "items+map" else self.side
        how = {"relative": self.relative, "side": side, "fixed": model.fixed}
        return {"budget": self.budget, "histories": model.histories, **how}

    def pairs(self, model: Recommender) -> Interactions:
        """Return the pairs that the attacker knows and demotes."""
        if self.knowledge not in KNOWLEDGE[1:]:
            advice = "use knowledge data or labels, or the attack random"
            raise InputError(f"an attacker who knows nothing has no pairs to aim at: {advice}")
        if self.knowledge == "data":
            return model.known
        if model.part == "train":
            advice = "give test pairs, or use knowledge data"
            raise InputError(
                f"knowledge {self.knowledge!r} needs a model with held-out pairs: {advice}"
            )
        if self.knowledge == "labels":
            return model.all_relevant
        if model.relevant is model.all_relevant:
            advice = "draw one by with_eval_users(number), --eval-users, or use knowledge labels"
            raise InputError(f"knowledge 'sample' needs a sample of evaluated users: {advice}")
        return model.relevant

    def check_sizes(self, model: Recommender, epsilons: Sequence[float]) -> tuple[float, ...]:
        """Return epsilons as floats; raise unless they are ascending and scores stay finite."""
        sizes = check_epsilons(epsilons)
        reaches = []
        for name, factor in zip(("users", "items"), model.arrays, strict=True):
            moves = self.side in ("both", "items+map", name)
            most = sizes[-1] * self._unit(model, factor) if moves else 0.0
            reaches.append(self.budget.reach(factor, most))
        check_reach(model.arrays, (reaches[0], reaches[1]), sizes[-1])
        return sizes

    def row_moves(self, model: Recommender) -> Budgets:
        """Return how far rows may move at epsilon 1, for certificates."""
        if self.norm != "row":
            raise InputError(f"there are certificates for the norm 'row' only, got {self.norm!r}")
        users, items = model.arrays
        largest = items.double().norm(dim=1).max().item() if len(items) else 0.0
        return Budgets(
            users=self._unit(model, users) if self.side != "items" else 0.0,
            items=self._unit(model, items) if self.side != "users" else 0.0,
            dim=model.arrays.dim,
            largest_item=largest * (1 + 1e-9),
            own=self.unit == "own",
            computed=max(2 * torch.finfo(items.dtype).eps, 1e-9) if model.histories else 0.0,
        )

    def folded(self, model: Recommender, moves: Budgets, largest: float) -> Folded | None:
        """Return how far computed users move at epsilon 1, up to the largest epsilon.

        None where users are stored.
        """
        if model.histories is None:
            return None
        table, V = (part.cpu().double() for part in model.arrays)
        P, sums = table[:-2], model.histories.sums
        lengths = torch.linalg.vector_norm(V, dim=1) * (1 + 2 * moves.rounding)
        reach = sums(moves.item_moves(lengths)[:, None])[:, 0]
        users = reach * torch.linalg.matrix_norm(P, 2)
        if self.side == "items+map":
            rows = moves.user_moves(torch.linalg.vector_norm(table, dim=1))
            inputs = torch.cat((sums(V), model.histories.lengths[:, None]), dim=1).abs()
            users += inputs @ rows[:-1] + largest * reach * rows[:-2].norm()
            users += torch.where(model.histories.cold, rows[-1], 0.0)
        return Folded(P, users * (1 + 1e-9), any_way=self.side == "items+map")

    def _unit(self, model: Recommender, factor: Tensor) -> float:
        return self.budget.unit(factor[:, model.free]) if self.relative else 1.0

    def as_dict(self) -> dict[str, str | None]:
        """Return plain values, ready for JSON."""
        return asdict(self)


def check_threat(threat: object) -> Threat:
    """Return the threat, or the default one for None; raise for anything else."""
    if threat is not None and not isinstance(threat, Threat):
        raise InputError(f"threat must be a Threat, got {threat!r}: give Threat(norm='row')")
    return threat or Threat()
