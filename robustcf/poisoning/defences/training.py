"""Defences in training: a cap on the share of one user, and adversarial training per user."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar

from robustcf._checks import check_number
from robustcf._registry import OBJECTIVES
from robustcf.data.interactions import Interactions
from robustcf.errors import InputError
from robustcf.objectives.weights import check_max_share
from robustcf.poisoning.defences.base import Defence, Defended
from robustcf.training.config import TrainConfig

if TYPE_CHECKING:
    from robustcf.poisoning.defences.base import Settings


class LeverageCap(Defence):
    """Training weights that cap each user's share of an item's training weight.

    It sets ``max_share`` of the model or its objective, see
    :func:`robustcf.objectives.weights.item_weights`.

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

    def configured(self, config: Settings) -> Settings:
        """Return the settings with the cap."""
        config = _trained(config)
        if _has_cap(type(config.model.settings)):
            key = "model.max_share"
        elif config.epochs > 0 and _has_cap(OBJECTIVES[config.objective.name].Config):
            key = "objective.max_share"
        else:
            raise InputError(
                f"neither the model {config.model.name} nor its objective weighs single pairs: "
                "choose als, or a model that is trained with bce, bpr or softmax"
            )
        return config.replace(**{key: self.max_share})

    def apply(self, train: Interactions, config: Settings) -> Defended:
        """Return the same pairs, and the settings with the cap."""
        report = {"defence": self.name, "max_share": self.max_share}
        return Defended(train, self.configured(config), report)


def _trained(config: Settings) -> TrainConfig:
    if not isinstance(config, TrainConfig):
        raise InputError("a vote is not trained: choose a defence that looks at the accounts")
    return config.resolved()


def _has_cap(settings: type) -> bool:
    return any(entry.name == "max_share" for entry in dataclasses.fields(settings))


class _SizedTraining(Defence):
    """Adversarial training on the model's own objective with an attack size per user.

    See :class:`robustcf.training.adversarial.AdversaryConfig` for the arguments.

    Cost of training: about twice that of plain training, with ``loss`` up to three times.
    """

    size: ClassVar[str]

    def __init__(self, eps: float = 0.1, weight: float = 1.0) -> None:
        self.eps, self.weight = check_number("eps", eps), check_number("weight", weight)

    def configured(self, config: Settings) -> Settings:
        """Return the settings with adversarial training."""
        config = _trained(config)
        name = config.objective.name
        if config.epochs == 0:
            raise InputError(
                f"adversarial training needs epochs, and {config.model.name} has none: choose "
                "another model or defence"
            )
        if name not in ("bce", "bpr", "softmax"):
            raise InputError(f"adversarial training needs bce, bpr or softmax, got {name}")
        return config.replace(adversarial=name, **self._settings)

    @property
    def _settings(self) -> dict[str, float | str]:
        return {"adv_eps": self.eps, "adv_weight": self.weight, "adv_size": self.size}

    def apply(self, train: Interactions, config: Settings) -> Defended:
        """Return the same pairs, and the settings with adversarial training."""
        report = {"defence": self.name, **self._settings}
        return Defended(train, self.configured(config), report)


class SizeByLoss(_SizedTraining):
    """Adversarial training that attacks the users with the smallest loss most (VAT)."""

    name: ClassVar[str] = "adversarial-loss"
    size: ClassVar[str] = "loss"


class SizeByNorm(_SizedTraining):
    """Adversarial training that attacks the users with the longest rows most (PamaCF)."""

    name: ClassVar[str] = "adversarial-norm"
    size: ClassVar[str] = "norm"
