"""Robustness curves: a metric against the size of the attack."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from robustcf.attacks.base import Attack
from robustcf.attacks.objectives import ObjectiveGradient
from robustcf.data.interactions import Split
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.metrics.evaluate import Part, Protocol, evaluate
from robustcf.models.base import Model


class PassObjective:
    """A model's own training objective as something to attack: summed over a whole pass.

    For :class:`robustcf.models.UltraGCN` with ``item_weight=0`` this is the paper's choice, the
    cross-entropy term over all training pairs and all items. No regularizer is part of it.

    Args:
        model: its objective is used, its parameters are not.
        name: what to call it.

    Cost of a gradient: one pass of the model.
    """

    def __init__(self, model: Model, name: str) -> None:
        """Keep the model."""
        self.model, self.name = model, name

    def gradient(self, U: Tensor, V: Tensor) -> ObjectiveGradient:
        """Value and full gradient at (U, V)."""
        users, items = torch.zeros_like(U), torch.zeros_like(V)
        total = 0.0
        # The batches of one pass cover all pairs; epoch 0 fixes whatever is drawn in them.
        for batch in self.model.batches(0):
            part = self.model.gradient(batch, U, V, value=True)
            if part.rows is None:
                users += part.users
            else:
                users.index_add_(0, part.rows, part.users)
            items += part.items
            total += part.value or 0.0
        return ObjectiveGradient(users, items, total)


@dataclass(frozen=True, eq=False)
class RobustnessCurve:
    """Metrics at each epsilon, with what the attack was and how the numbers were made.

    Args:
        attack: name of the attack.
        objective: what it made worse, or None.
        budget: the norm that counted.
        relative: whether epsilons are in units of the factors' own size.
        side: which factors were perturbed.
        epsilons: ascending.
        values: metric -> one mean an epsilon.
        per_user: metric -> epsilons x users.
        users: ids of the users evaluated.
        realised: for each epsilon, the measured perturbation of users and items.
        protocol: what was ranked, masked and averaged.
    """

    attack: str
    objective: str | None
    budget: str
    relative: bool
    side: str
    epsilons: tuple[float, ...]
    values: Mapping[str, npt.NDArray[np.float64]]
    per_user: Mapping[str, npt.NDArray[np.float64]]
    users: npt.NDArray[np.int64]
    realised: tuple[dict[str, float], ...]
    protocol: Protocol

    def __getitem__(self, metric: str) -> npt.NDArray[np.float64]:
        if metric not in self.values:
            raise InputError(f"no metric {metric!r} here; there are {', '.join(self.values)}")
        return self.values[metric]

    @property
    def axis(self) -> str:
        """What epsilon means, for the axis of a picture."""
        units = {
            "row": "median row norms",
            "frobenius": "Frobenius norms",
            "spectral": "spectral norms",
        }
        kind = f"{self.budget} budget" + ("" if self.side == "both" else f" on {self.side}")
        if self.relative:
            return f"attack size, {kind}, in {units.get(self.budget, 'units')} of the factors"
        return f"attack size epsilon, {kind}, absolute"

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; without the values of single users."""
        return {
            "attack": self.attack,
            "objective": self.objective,
            "budget": self.budget,
            "relative": self.relative,
            "side": self.side,
            "epsilons": list(self.epsilons),
            **{name: values.tolist() for name, values in self.values.items()},
            "realised": list(self.realised),
            "protocol": self.protocol.as_dict(),
        }


def robustness_curve(
    factors: Factors,
    split: Split,
    attack: Attack,
    epsilons: Sequence[float],
    ks: Sequence[int] = (10, 20),
    *,
    part: Part = "test",
    mask: Sequence[str] | None = None,
) -> RobustnessCurve:
    """Attack factors with growing budgets and evaluate each result on held-out pairs.

    Args:
        factors: trained embeddings.
        split: the data.
        attack: how to perturb.
        epsilons: ascending, from 0 on.
        ks: cutoffs of the metrics.
        part: ``test``, or ``valid`` to choose by.
        mask: parts that are not candidates; None for the set's own protocol.

    Returns:
        The curve. At epsilon 0 it is the clean result to the bit.

    Cost: the attack's, and one evaluation an epsilon.

    Example:
        >>> from robustcf.attacks import RandomNoise
        >>> from robustcf.data import checkerboard
        >>> board = checkerboard()
        >>> parity = torch.eye(2)[torch.arange(30) % 2]
        >>> curve = robustness_curve(Factors(parity[:20], parity), board, RandomNoise(), [0, 2])
        >>> bool(curve["ndcg@10"][0] > curve["ndcg@10"][1])
        True
    """
    sizes = check_epsilons(epsilons)
    reports, realised = [], []
    for epsilon in sizes:
        attacked = attack.perturb(factors, epsilon)
        reports.append(evaluate(attacked.factors, split, ks, part=part, mask=mask))
        realised.append(attacked.realised)
    first = reports[0]
    return RobustnessCurve(
        attack=attack.name,
        objective=getattr(getattr(attack, "objective", None), "name", None),
        budget=attack.budget.name,
        relative=attack.relative,
        side=attack.side,
        epsilons=sizes,
        values={name: np.array([r.values[name] for r in reports]) for name in first.values},
        per_user={name: np.stack([r.per_user[name] for r in reports]) for name in first.per_user},
        users=first.users,
        realised=tuple(realised),
        protocol=first.protocol,
    )


def check_epsilons(epsilons: Sequence[float]) -> tuple[float, ...]:
    """Epsilons as floats, or an error: finite, not negative, strictly ascending, at least one.

    Example:
        >>> check_epsilons([0, 0.5])
        (0.0, 0.5)
    """
    sizes = tuple(float(epsilon) for epsilon in epsilons)
    if not sizes:
        raise InputError("epsilons must name at least one attack size, got none")
    for epsilon in sizes:
        if not math.isfinite(epsilon) or epsilon < 0:
            raise InputError(f"epsilons must be finite and not negative, got {epsilon}")
    if any(b <= a for a, b in pairwise(sizes)):
        raise InputError(
            f"epsilons must be ascending and differ, got {', '.join(f'{e:g}' for e in sizes)}: "
            "sort them"
        )
    return sizes
