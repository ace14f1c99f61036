"""Configurations: frozen dataclasses, JSON in and out, an unknown key is an error."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from robustcf.errors import InputError
from robustcf.settings import check_known, check_numbers

MODELS = ("ultragcn", "bpr-mf")
REGULARIZERS = ("none", "weight_decay", "two_to_inf", "max_norm")
ADVERSARIES = ("none", "bpr", "bce", "softmax", "margin")
GAUGES = ("none", "balanced")
REFITS = ("auto", "yes", "no")
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "model": MODELS,
    "reg": REGULARIZERS,
    "batching": ("rows", "pairs"),
    "init": ("spectral", "smooth", "normal"),
    "schedule": ("linear", "cosine", "constant"),
    "refit": REFITS,
    "reg_side": ("users", "items"),
    "adversarial": ADVERSARIES,
    "gauge": GAUGES,
}


@dataclass(frozen=True)
class TrainConfig:
    """Everything that decides what a training run learns, apart from the data themselves.

    Args:
        model: ``ultragcn`` or ``bpr-mf``.
        reg: ``none``, ``weight_decay``, ``two_to_inf`` or ``max_norm``.
        reg_weight: weight of the regularizer for every 1,024 training pairs: a pass adds
            ``reg_weight * pairs / 1024`` times the penalty to the summed loss, whatever the
            batching and the size of a step. At batches of 1,024 pairs this is the published
            meaning, once a batch.
        estimator: of ``two_to_inf``.
        reg_budget: products the estimator may use.
        reg_top: rows whose mean squared norm ``two_to_inf`` takes.
        reg_side: ``users`` or ``items``.
        reg_every: steps between actions of ``two_to_inf``.
        reg_refresh: actions between its looks at all rows (``exact``); the largest of the rows
            that led last time is taken in between.
        adversarial: the objective of adversarial training: ``none``, ``bpr``, ``bce``, ``softmax``
            or ``margin``, see :mod:`robustcf.adversarial`.
        adv_eps: size of its attack, in median row norms of U and of V.
        adv_weight: its weight beside the model's objective.
        gauge: ``balanced`` writes the trained factors in coordinates in which an attack reaches
            less far, with the same rankings, see :mod:`robustcf.gauge`; ``none`` leaves them.
        shrink: for the balanced gauge: how much shorter the singular values of the scores become,
            in their median; 0 leaves them.
        dim: columns of the factors.
        epochs: passes over the training pairs, at most; 0 leaves the start as it is.
        epochs_chosen: whether ``epochs`` was already chosen on valid (a preset's was): then
            nothing is chosen any more, and valid may be learnt from.
        lr: learning rate of the items.
        user_lr: learning rate of the users; None for the same. In ``rows`` a user takes one
            step a pass, an item many.
        schedule: ``linear`` or ``cosine`` to 0 over ``epochs``, or ``constant``.
        beta1: Adam's first decay.
        beta2: Adam's second decay.
        batching: ``rows`` or ``pairs``.
        block_users: users a step (rows).
        batch_size: pairs a step (pairs).
        sampled_items: rows: items drawn for a step instead of all; None for the model's own
            default (UltraGCN: all).
        init: ``spectral``, ``smooth`` or ``normal``.
        init_std: of ``normal``.
        negatives: pairs: negatives a positive; None for the model's own default.
        negative_weight: UltraGCN's weight of the mean over negatives.
        item_weight: UltraGCN's weight of the item-item term.
        neighbours: items an item is linked to.
        w1: UltraGCN, constant weight of positives.
        w2: UltraGCN, weight of beta_u beta_i of positives.
        w3: UltraGCN, constant weight of negatives.
        w4: UltraGCN, weight of beta_u beta_j of negatives.
        eval_every: passes between looks at valid.
        patience: looks without improvement before stopping; 0 never stops early.
        refit: ``auto``: train again on train and valid together where valid was carved out of
            the training pairs; ``yes``, ``no``.
        seed: of everything random in training.

    Example:
        >>> TrainConfig.from_dict({"dim": 32}).dim
        32
        >>> TrainConfig.from_dict({"dmi": 32})
        Traceback (most recent call last):
        robustcf.errors.InputError: unknown setting 'dmi'; did you mean 'dim'?
    """

    model: str = "ultragcn"
    reg: str = "weight_decay"
    reg_weight: float = 6.5e-5
    estimator: str = "exact"
    reg_budget: int = 33
    reg_top: int = 1
    reg_side: str = "users"
    reg_every: int = 1
    reg_refresh: int = 8
    adversarial: str = "none"
    adv_eps: float = 0.1
    adv_weight: float = 1.0
    gauge: str = "none"
    shrink: float = 0.0
    dim: int = 64
    epochs: int = 30
    epochs_chosen: bool = False
    lr: float = 7e-3
    user_lr: float | None = 3e-2
    schedule: str = "linear"
    beta1: float = 0.9
    beta2: float = 0.999
    batching: str = "rows"
    block_users: int = 256
    batch_size: int = 1024
    sampled_items: int | None = None
    init: str = "spectral"
    init_std: float = 1e-3
    negatives: int | None = None
    negative_weight: float = 200.0
    item_weight: float = 1e-3
    neighbours: int = 10
    w1: float = 1e-7
    w2: float = 1.0
    w3: float = 1e-7
    w4: float = 1.0
    eval_every: int = 2
    patience: int = 5
    refit: str = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise InputError(
                    f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}"
                )
        check_numbers(self, may_be_zero=("epochs", "patience", "seed"))
        if not isinstance(self.epochs_chosen, bool):
            raise InputError(f"epochs_chosen must be true or false, got {self.epochs_chosen!r}")
        if self.shrink and self.gauge != "balanced":
            raise InputError(f"shrink needs the gauge 'balanced', got {self.gauge!r}")
        if self.lr == 0:
            raise InputError("lr must be positive, got 0")

    def replace(self, **changes: Any) -> TrainConfig:
        """A copy with some settings changed; unknown ones are an error."""
        check_known(type(self), changes)
        return dataclasses.replace(self, **changes)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainConfig:
        """From plain values; what is not given takes its default."""
        check_known(cls, values)
        return cls(**values)


@dataclass(frozen=True)
class RunConfig:
    """What a run directory was made from: the data, and how to train on them.

    Args:
        dataset: a name or a path.
        data: the other arguments of :func:`robustcf.data.load`.
        train: the training configuration.
        preset: the preset it came from, or None.
        threads: torch threads; the same number repeats the same bits.
        device: where the tensors live.

    Example:
        >>> config = RunConfig("demo")
        >>> RunConfig.from_json(config.to_json()) == config
        True
    """

    dataset: str
    data: Mapping[str, Any] = field(default_factory=dict)
    train: TrainConfig = field(default_factory=TrainConfig)
    preset: str | None = None
    threads: int = 1
    device: str = "cpu"

    def to_json(self) -> str:
        """As indented JSON text."""
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> RunConfig:
        """From JSON text; an unknown key is an error."""
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise InputError(f"a configuration must be JSON ({error})") from error
        if not isinstance(values, dict):
            raise InputError(f"a configuration must be a JSON object, got {type(values).__name__}")
        check_known(cls, values)
        if "dataset" not in values:
            raise InputError("a configuration must name its dataset, got none")
        train = TrainConfig.from_dict(values.pop("train", {}))
        return cls(train=train, **values)
