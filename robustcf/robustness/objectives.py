"""Objectives that need a model or a configuration: what runs are attacked with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from robustcf.attacks.objectives import SLOPE_USERS, SOFT, Objective, ObjectiveGradient, Softmax
from robustcf.attacks.scale import inner
from robustcf.config import TrainConfig
from robustcf.data.interactions import Interactions
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.models import BPRMF, Model, UltraGCN

OBJECTIVES = ("bce", "bpr", "softmax")


class PassObjective:
    """A model's own training objective as something to attack: summed over a whole pass.

    For :class:`robustcf.models.UltraGCN` with ``item_weight=0`` this is the paper's choice, the
    cross-entropy term over all training pairs and all items. No regularizer is part of it.

    Args:
        model: its objective is used, its parameters are not.
        name: what to call it.
        softness: see :mod:`robustcf.attacks.scale`.

    Cost of a gradient: one pass of the model.
    """

    def __init__(self, model: Model, name: str, *, softness: float = 0.0) -> None:
        """Keep the model."""
        self.model, self.name, self.softness = model, name, softness

    def _check(self, U: Tensor, V: Tensor) -> None:
        train = self.model.train
        if (len(U), len(V)) != (train.n_users, train.n_items):
            raise InputError(
                f"factors are for {len(U)} users x {len(V)} items, the pairs for "
                f"{train.n_users} x {train.n_items}: they belong to different data"
            )

    def gradient(self, U: Tensor, V: Tensor) -> ObjectiveGradient:
        """Value and full gradient at (U, V)."""
        self._check(U, V)
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

    def slope(self, U: Tensor, V: Tensor) -> float:
        """The derivative for the logarithm of a common factor of all scores, of some batches."""
        self._check(U, V)
        total, seen = 0.0, 0
        for batch in self.model.batches(0):
            part = self.model.gradient(batch, U, V)
            total += inner(part.users, U if part.rows is None else U[part.rows])
            seen += len(batch.users)
            # A block holds each of its users once, and blocks are drawn at random: some will do.
            if batch.items is None and seen >= SLOPE_USERS:
                break
        return total


def objective_for(
    name: str, config: TrainConfig, factors: Factors, positives: Interactions
) -> Objective:
    """The objective of a name for factors that a configuration trained.

    Args:
        name: ``bce``, the cross-entropy of UltraGCN with the configuration's weights, without
            its item-item term, which is a constraint of training; ``bpr``; or ``softmax``.
        config: what the factors were trained with.
        factors: they give the shapes.
        positives: the pairs that are to lose: those the factors were learnt from.

    Example:
        >>> from robustcf.data import checkerboard
        >>> factors = Factors(torch.zeros(20, 2), torch.zeros(30, 2))
        >>> objective_for("softmax", TrainConfig(), factors, checkerboard().train).name
        'softmax'
    """
    place: dict[str, Any] = {"dtype": factors.users.dtype, "device": factors.users.device}
    if name == "softmax":
        return Softmax(positives)
    if name == "bpr":
        return PassObjective(BPRMF(positives, start=factors, **place), name, softness=SOFT)
    if name == "bce":
        weights = {key: getattr(config, key) for key in ("negative_weight", "w1", "w2", "w3", "w4")}
        model = UltraGCN(positives, item_weight=0.0, start=factors, **weights, **place)
        return PassObjective(model, name)
    raise InputError(f"objective must be one of {', '.join(OBJECTIVES)}, got {name!r}")
