"""Adversarial training with a size per user, as a defence."""

from __future__ import annotations

from typing import ClassVar

from robustcf._checks import check_number
from robustcf.data.interactions import Interactions
from robustcf.errors import InputError
from robustcf.poisoning.defences.base import Defence, Defended
from robustcf.training.config import TrainConfig


class _SizedTraining(Defence):
    """Adversarial training on the model's own objective, users attacked by sizes of their own.

    Args:
        eps: the size of the average user, in median row norms.
        weight: of the attacked loss.

    Cost of training: about twice that of plain training, with ``loss`` up to three times.
    """

    size: ClassVar[str] = "same"

    def __init__(self, eps: float = 0.1, weight: float = 1.0) -> None:
        """Check the numbers."""
        self.eps, self.weight = check_number("eps", eps), check_number("weight", weight)

    def apply(self, train: Interactions, config: TrainConfig) -> Defended:
        """The pairs as they are; the settings with adversarial training.

        Raises:
            InputError: the model is not trained in epochs, or on an objective that no adversary
                attacks.
        """
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
        changed = config.replace(
            adversarial=name, adv_eps=self.eps, adv_weight=self.weight, adv_size=self.size
        )
        report = {
            "defence": self.name,
            "adv_eps": self.eps,
            "adv_weight": self.weight,
            "adv_size": self.size,
        }
        return Defended(train, changed, report)


class SizeByLoss(_SizedTraining):
    """Whom the model fits best is attacked most (VAT), see :mod:`robustcf.training.adversarial`.

    Example:
        >>> from robustcf.data import load
        >>> config = SizeByLoss().apply(load("demo").train, TrainConfig.of(model="bpr-mf")).config
        >>> config.adversary.name, config.adversary.settings.size
        ('bpr', 'loss')
    """

    name: ClassVar[str] = "adversarial-loss"
    size: ClassVar[str] = "loss"


class SizeByNorm(_SizedTraining):
    """Users with long rows are attacked most (PamaCF), see :mod:`robustcf.training.adversarial`.

    Example:
        >>> from robustcf.data import load
        >>> config = SizeByNorm().apply(load("demo").train, TrainConfig.of(model="bpr-mf")).config
        >>> config.adversary.settings.size
        'norm'
    """

    name: ClassVar[str] = "adversarial-norm"
    size: ClassVar[str] = "norm"
