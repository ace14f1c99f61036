"""Configurations of vision runs; the defaults are the paper's recipe."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from robustcf._checks import check_choice, check_known, check_number, check_numbers
from robustcf._io import schema
from robustcf._io.schema import FLAG, NAME, Kind, nullable, shown, whole
from robustcf.errors import InputError
from robustcf.experiments.folders import RunConfigBase
from robustcf.vision.regularizers import REGULARIZERS, JacobianRegularizer, OperatorNorm, TwoToInf

REGS = ("none", *REGULARIZERS)
#: The arguments of :func:`robustcf.vision.loading.load_images` that a run may have.
DATA_OPTIONS = schema.record(
    {},
    {
        "data_dir": nullable(NAME),
        "download": FLAG,
        "size": nullable(whole(1, 65_536)),
        "valid_share": schema.NOT_NEGATIVE,
        "seed": whole(),
    },
    others=schema.ABSENT,
)


@dataclass(frozen=True)
class VisionConfig:
    """Training settings of a classifier.

    The defaults are the paper's, all but ``reg_images``: WideResNet-16-10, SGD with Nesterov
    momentum, learning rate 0.1 divided by 10 at epochs 60, 120 and 160 of 200, batches of 128.
    The paper does not publish its ``reg_weight``.

    Args:
        depth: depth of the WideResNet.
        width: width of the WideResNet.
        reg: the norm of the Jacobian that is penalized.
        reg_weight: lambda, the weight of the mean squared norm of the Jacobian (pixels in [0, 1]).
        reg_every: act in every k-th step only.
        reg_images: images of a batch that are penalized; the paper penalizes all (None). Batches
            are shuffled, so 32 of 128 have about the same penalty at a quarter of the cost, with
            the batch-norm statistics of the 32.
        reg_block: vectors that one forward or backward pass takes; None for all.
        estimator: estimator of ``two_to_inf``.
        reg_budget: products per image of ``two_to_inf``.
        reg_steps: power iterations of ``spectral`` and ``infinity``.
        epochs: epochs.
        lr: learning rate at the start.
        milestones: epochs after which it is divided by 10; None for 30, 60 and 80 % of them.
        momentum: Nesterov momentum.
        weight_decay: of all parameters.
        batch_size: images per step.
        augment: whether to augment as the data set's recipe says.
        seed: of everything random in training.

    Example:
        >>> VisionConfig(epochs=200).lr_at(60), VisionConfig(epochs=200).lr_at(59)
        (0.01, 0.1)
    """

    depth: int = 16
    width: int = 10
    reg: str = "none"
    reg_weight: float = 0.0
    reg_every: int = 1
    reg_images: int | None = 32
    reg_block: int | None = None
    estimator: str = "twinest"
    reg_budget: int = 9
    reg_steps: int = 1
    epochs: int = 200
    lr: float = 0.1
    milestones: tuple[int, ...] | None = None
    momentum: float = 0.9
    weight_decay: float = 5e-5
    batch_size: int = 128
    augment: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("reg", self.reg, REGS)
        check_numbers(self, may_be_zero=("seed",))
        check_number("lr", self.lr, positive=True)
        if not 0 < self.momentum < 1:
            raise InputError(f"momentum must lie between 0 and 1, got {self.momentum!r}")
        if (marks := self.milestones) is not None:
            if not isinstance(marks, list | tuple) or not all(map(whole().fits, marks)):
                raise InputError(f"milestones must be a list of epochs, got {shown(marks)}")
            object.__setattr__(self, "milestones", tuple(marks))  # JSON has lists only
        self.regularizer()  # checks its own options

    def lr_at(self, epoch: int) -> float:
        """Return the learning rate of an epoch, counted from 0."""
        marks = self.milestones
        if marks is None:
            marks = tuple(round(share * self.epochs) for share in (0.3, 0.6, 0.8))
        return self.lr / 10.0 ** sum(epoch >= mark for mark in marks)

    def regularizer(self) -> JacobianRegularizer | None:
        """Return a new regularizer of these settings, or None."""
        if self.reg == "none":
            return None
        kind = REGULARIZERS[self.reg]
        options: dict[str, Any] = {"every": self.reg_every, "seed": self.seed}
        options |= {"images": self.reg_images, "block": self.reg_block}
        if issubclass(kind, TwoToInf):
            options |= {"estimator": self.estimator, "budget": self.reg_budget}
        elif issubclass(kind, OperatorNorm):
            options["steps"] = self.reg_steps
        return kind(**options)

    def replace(self, **changes: Any) -> VisionConfig:
        """Return a copy with some settings changed; unknown ones are an error."""
        check_known(type(self), changes)
        return dataclasses.replace(self, **changes)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> VisionConfig:
        """Return settings from plain values; the others take their defaults."""
        if not isinstance(values, Mapping):
            raise InputError(f"training settings must be an object, got {shown(values)}")
        check_known(cls, values)
        return cls(**values)


@dataclass(frozen=True)
class VisionRunConfig(RunConfigBase[VisionConfig]):
    """The data and training settings of a vision run; arguments as in its base class.

    ``data`` holds further arguments of :func:`robustcf.vision.loading.load_images`.

    Example:
        >>> config = VisionRunConfig("digits")
        >>> VisionRunConfig.from_json(config.to_json()) == config
        True
    """

    data_kind: ClassVar[Kind] = DATA_OPTIONS

    @classmethod
    def read_train(cls, values: Mapping[str, Any]) -> VisionConfig:
        """Return training settings from plain values."""
        return VisionConfig.from_dict(values)
