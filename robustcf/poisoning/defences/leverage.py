"""A cap on what one user decides of an item, as a defence."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from robustcf._registry import OBJECTIVES
from robustcf.data.interactions import Interactions
from robustcf.errors import InputError
from robustcf.objectives.leverage import check_max_share
from robustcf.poisoning.defences.base import Defence, Defended
from robustcf.training.config import TrainConfig


class LeverageCap(Defence):
    """Training weights that cap each user's share of what an item learns.

    It sets ``max_share`` of the objective, or of the model where that is solved for without one,
    see :func:`robustcf.objectives.leverage.item_weights`.

    Args:
        max_share: the largest share.

    Cost: none.

    Example:
        >>> from robustcf.data import load
        >>> config = TrainConfig.of(model="softmax-mf")
        >>> LeverageCap(0.05).apply(load("demo").train, config).config.objective.settings.max_share
        0.05
    """

    name: ClassVar[str] = "leverage"

    def __init__(self, max_share: float = 0.01) -> None:
        """Check the share."""
        check_max_share(max_share)
        self.max_share = max_share

    def apply(self, train: Interactions, config: TrainConfig) -> Defended:
        """The pairs as they are; the settings with the cap.

        Raises:
            InputError: neither model nor objective knows such weights.
        """
        config = config.resolved()
        name = config.objective.name
        if _has_cap(config.model.settings):
            key = "model.max_share"
        elif config.epochs > 0 and _has_cap(OBJECTIVES[name].Config):
            key = "objective.max_share"
        else:
            raise InputError(
                f"neither the model {config.model.name} nor its training weighs single pairs, so "
                "that leverage cannot be capped: choose a model that is trained with bce, bpr or "
                "softmax, or als"
            )
        report = {"defence": self.name, "max_share": self.max_share}
        return Defended(train, config.replace(**{key: self.max_share}), report)


def _has_cap(settings: object) -> bool:
    return any(entry.name == "max_share" for entry in dataclasses.fields(settings))  # type: ignore[arg-type]
