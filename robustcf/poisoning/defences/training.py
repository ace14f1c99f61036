"""Defences in training: a cap on what one user decides, and adversarial training by user."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from robustcf._checks import check_number
from robustcf._registry import OBJECTIVES
from robustcf.data.interactions import Interactions
from robustcf.errors import InputError
from robustcf.objectives.weights import check_max_share
from robustcf.poisoning.defences.base import Defence, Defended
from robustcf.training.config import TrainConfig


class LeverageCap(Defence):
    """Training weights that cap each user's share of what an item learns.

    It sets ``max_share`` of the objective, or of a model that is solved for without one, see
    :func:`robustcf.objectives.weights.item_weights`.

    Args:
        max_share: the largest share.

    Example:
        >>> from robustcf.data import load
        >>> config = TrainConfig.of(model="softmax-mf")
        >>> LeverageCap(0.05).apply(load("demo").train, config).config.objective.settings.max_share
        0.05
    """

    name: ClassVar[str] = "leverage"

    def __init__(self, max_share: float = 0.01) -> None:
        check_max_share(max_share)
        self.max_share = max_share

    def apply(self, train: Interactions, config: TrainConfig) -> Defended:
        """Return the pairs as they are, and the settings with the cap."""
        config = config.resolved()
        if _has_cap(type(config.model.settings)):
            key = "model.max_share"
        elif config.epochs > 0 and _has_cap(OBJECTIVES[config.objective.name].Config):
            key = "objective.max_share"
        else:
            raise InputError(
                f"neither the model {config.model.name} nor its training weighs single pairs, so "
                "that leverage cannot be capped: choose a model that is trained with bce, bpr or "
                "softmax, or als"
            )
        report = {"defence": self.name, "max_share": self.max_share}
        return Defended(train, config.replace(**{key: self.max_share}), report)


def _has_cap(settings: type) -> bool:
    return any(entry.name == "max_share" for entry in dataclasses.fields(settings))


class _SizedTraining(Defence):
    """Adversarial training on the model's own objective, each user attacked by their own size.

    Args:
        eps: the size of the average user, in median row norms.
        weight: of the attacked loss.

    Cost of training: about twice that of plain training, with ``loss`` up to three times.
    """

    size: ClassVar[str]

    def __init__(self, eps: float = 0.1, weight: float = 1.0) -> None:
        self.eps, self.weight = check_number("eps", eps), check_number("weight", weight)

    def apply(self, train: Interactions, config: TrainConfig) -> Defended:
        """Return the pairs as they are, and the settings with adversarial training."""
        name = config.objective.name
        if config.epochs == 0:
            raise InputError(
                f"{config.model.name} is not trained in epochs, so that there is no adversarial "
                "training: choose another model or defence"
            )
        if name not in ("bce", "bpr", "softmax"):
            raise InputError(
                f"adversarial training attacks bce, bpr or softmax, and this model is trained with "
                f"{name}: choose another objective or defence"
            )
        settings = {"adv_eps": self.eps, "adv_weight": self.weight, "adv_size": self.size}
        changed = config.replace(adversarial=name, **settings)
        return Defended(train, changed, {"defence": self.name, **settings})


class SizeByLoss(_SizedTraining):
    """Whom the model fits best is attacked most (VAT), see :mod:`robustcf.training.adversarial`."""

    name: ClassVar[str] = "adversarial-loss"
    size: ClassVar[str] = "loss"


class SizeByNorm(_SizedTraining):
    """Users with long rows are attacked most (PamaCF), see :mod:`robustcf.training.adversarial`."""

    name: ClassVar[str] = "adversarial-norm"
    size: ClassVar[str] = "norm"
