"""The settings of a training run: a frozen configuration with a small config per part.

A :class:`TrainConfig` holds a model, an objective, a regularizer and an adversary, each chosen by
name from a table. The command line, presets and Python use flat names: the name of a field, with
``reg_`` before the regularizer's and ``adv_`` before the adversary's. If two parts share a name, or
to be explicit, a dotted name tells them apart: ``model.factors``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from robustcf import _checks
from robustcf._checks import check_choice, check_known, check_number
from robustcf._io.schema import shown
from robustcf._registry import ADVERSARIES, MODELS, OBJECTIVES, REGULARIZERS, Table
from robustcf.data.split import Split
from robustcf.errors import IdleSettingError, InputError
from robustcf.models.factorized import SERVES
from robustcf.objectives import BatchConfig
from robustcf.training.optim import SCHEDULES

#: The model if none is named and none is known as the best for the data.
DEFAULT_MODEL = "softmax-mf"
GAUGES = ("none", "balanced")
REFITS = ("auto", "yes", "no")

#: Part of a configuration -> the table that it is chosen from.
PARTS: Mapping[str, Table[Any]] = {
    "model": MODELS,
    "objective": OBJECTIVES,
    "reg": REGULARIZERS,
    "adversary": ADVERSARIES,
}
# Flat name -> the part that it chooses.
_CHOICES = {"adversarial" if part == "adversary" else part: part for part in PARTS}
# A part and a field of it; the part "" is the training configuration itself.
_Place = tuple[str, str]
_PREFIXES = {"reg": "reg_", "adversary": "adv_"}
# Flat names that do not follow from the fields.
_NAMES: Mapping[_Place, str] = {
    **{(part, "name"): flat for flat, part in _CHOICES.items()},
    ("batching", "kind"): "batching",
    ("reg", "estimator"): "estimator",
}


@dataclass(frozen=True)
class Chosen:
    """One entry of a table, by name, with its settings.

    Args:
        name: the entry, or ``module:Class``.
        settings: its config; pairs of names and values while a class from outside of the package
            is not imported, since reading a configuration runs no code.
    """

    name: str
    settings: Any

    def as_dict(self) -> dict[str, Any]:
        """Return the name and all settings, ready for JSON."""
        values = self.settings
        plain = dict(values) if isinstance(values, tuple) else dataclasses.asdict(values)
        return {"name": self.name, **plain}


@dataclass(frozen=True)
class TrainConfig:
    """All settings of a training run, apart from the data.

    Args:
        objective: what is minimized; by default the model's own.
        reg: the regularizer; by default the model's own.
        gauge: ``balanced``: after training, rewrite U and V with the smallest norms that keep every
            ranking; ``none``: leave them. See :mod:`robustcf.models.gauge`.
        shrink: reduction of the singular values of the scores, in their median (balanced gauge).
        rank: number of directions of the scores to keep, or None for all (balanced gauge).
        serve: ``stored``: user embeddings are stored; ``fold-in``: users are computed from their
            histories. See :meth:`robustcf.Recommender.serving`.
        epochs: maximum number of epochs; 0 returns the untrained start.
        epochs_chosen: whether ``epochs`` was already chosen on validation data, as in a preset;
            then the validation pairs may be learnt from at once.
        lr: learning rate of the items.
        user_lr: learning rate of the users; None for the same. In ``rows`` a user takes one step
            per epoch, an item many.
        schedule: ``linear`` or ``cosine`` to 0 over ``epochs``, or ``constant``.
        eval_every: epochs between validations.
        patience: validations before stopping that are worse than the best by at least their
            standard error, or three times as many that are not better. 0 never stops early.
        refit: whether to train again on train and valid together: ``yes``, ``no``, or ``auto``: if
            valid was carved out of the training pairs.

    Example:
        >>> config = TrainConfig.of(factors=32, reg="two_to_inf", reg_weight=1e-3)
        >>> config.model.settings.factors, config.reg.settings.weight
        (32, 0.001)
        >>> TrainConfig.of(dim=32)
        Traceback (most recent call last):
        robustcf.errors.InputError: unknown setting 'dim'; did you mean 'factors'?
    """

    model: Chosen
    objective: Chosen
    reg: Chosen
    adversary: Chosen
    batching: BatchConfig = field(default_factory=BatchConfig)
    gauge: str = "none"
    shrink: float = 0.0
    rank: int | None = None
    serve: str = "stored"
    epochs: int = 30
    epochs_chosen: bool = False
    lr: float = 7e-3
    user_lr: float | None = 3e-2
    schedule: str = "linear"
    beta1: float = 0.9
    beta2: float = 0.999
    eval_every: int = 2
    patience: int = 5
    refit: str = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("gauge", self.gauge, GAUGES)
        check_choice("schedule", self.schedule, SCHEDULES)
        check_choice("serve", self.serve, SERVES)
        check_choice("refit", self.refit, REFITS)
        _checks.check_numbers(self, may_be_zero=("epochs", "patience", "seed"))
        check_number("lr", self.lr, positive=True)
        for name in ("shrink", "rank"):
            if getattr(self, name) and self.gauge != "balanced":
                raise InputError(f"{name} needs the gauge 'balanced', got {self.gauge!r}")

    @classmethod
    def of(cls, **settings: Any) -> TrainConfig:
        """Return a configuration from flat (or dotted) names; the rest takes its default.

        Raises:
            InputError: a name is unknown or belongs to a part that is not chosen, or a value is
                out of range.
        """
        model = MODELS[settings.get("model", DEFAULT_MODEL)]
        names = {"model": DEFAULT_MODEL, "objective": model.objective, "reg": model.reg}
        names["adversarial"] = "none"
        names |= {key: settings.pop(key) for key in names if key in settings}
        kinds = _kinds(names)
        places = _places(kinds)
        given: dict[str, dict[str, Any]] = {part: {} for part in (*kinds, "batching", "")}
        # Given settings override the model's defaults, under either of their names.
        suited = {k: v for k, v in model.training_defaults.items() if k in places}
        for key, value in (*suited.items(), *settings.items()):
            if key not in places:
                raise _unknown(key, places, names)
            part, name = places[key]
            given[part][name] = value
        parts: dict[str, Any] = {
            part: Chosen(names[key], kinds[part](**given[part])) for key, part in _CHOICES.items()
        }
        return cls(batching=BatchConfig(**given["batching"]), **parts, **given[""])

    def flat(self) -> dict[str, Any]:
        """Return the settings by their flat names, as :meth:`of` takes them.

        Fields whose short name belongs to another part have their dotted name. Code from outside
        of the package is imported, see :meth:`resolved`.

        Example:
            >>> TrainConfig.of(**TrainConfig.of().flat()) == TrainConfig.of()
            True
        """
        config = self.resolved()
        names: dict[_Place, str] = {}
        for name, place in config._places().items():
            names.setdefault(place, name)
        return {name: config._at(place) for place, name in names.items()}

    def replace(self, **changes: Any) -> TrainConfig:
        """Return a copy with some settings changed, by flat (or dotted) names.

        With a new model, objective, regularizer or adversary, settings that the new one has too are
        kept, except defaults of the old one, which become the new one's.
        """
        config = self.resolved()
        before = {key: getattr(config, part).name for key, part in _CHOICES.items()}
        after = before | {key: changes[key] for key in before if key in changes}
        models = [MODELS[names["model"]] for names in (before, after)]
        if after["model"] != before["model"] and "objective" not in changes:
            after["objective"] = models[1].objective
        replaced = {part for key, part in _CHOICES.items() if after[key] != before[key]}
        old, new = config._places(), _places(_kinds(after))
        # A model's training defaults go with it.
        suits = {name for model in models for name in model.training_defaults}
        suited = {old.get(name) for name in suits} if "model" in replaced else set()
        changed = {new.get(key) for key in changes}
        defaults = TrainConfig.of(**before)
        kept = {}
        for place in dict.fromkeys(old.values()):
            part, name = place
            if name == "name" or place in changed or place not in new.values():
                continue
            value = config._at(place)
            if value != defaults._at(place) or (part not in replaced and place not in suited):
                kept[f"{part}.{name}" if part else name] = value
        return TrainConfig.of(**{**kept, **after, **changes})

    def _places(self) -> dict[str, _Place]:
        return _places({part: type(getattr(self, part).settings) for part in PARTS})

    def _at(self, place: _Place) -> Any:
        part, name = place
        owner: Any = getattr(self, part) if part else self
        return getattr(owner.settings if part in PARTS and name != "name" else owner, name)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, nested, ready for JSON."""
        values = dataclasses.asdict(self)
        return values | {part: getattr(self, part).as_dict() for part in PARTS}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainConfig:
        """Return the configuration of :meth:`as_dict`, without importing code from outside.

        An empty one stands for the defaults.
        """
        if not isinstance(values, Mapping):
            raise InputError(f"training settings must be an object, got {type(values).__name__}")
        if not values:
            return cls.of()
        check_known(cls, values)
        parts: dict[str, Any] = {}
        for part, table in PARTS.items():
            found = values.get(part)
            if not isinstance(found, Mapping) or not isinstance(found.get("name"), str):
                raise InputError(f"{part} must be an object with a name, got {shown(found)}")
            settings = {key: value for key, value in found.items() if key != "name"}
            chosen = Chosen(found["name"], tuple(settings.items()))
            parts[part] = _resolved(table, chosen) if chosen.name in table else chosen
        batching = values.get("batching", {})
        if not isinstance(batching, Mapping):
            raise InputError(f"batching must be an object, got {shown(batching)}")
        check_known(BatchConfig, batching)
        return cls(**{**values, **parts, "batching": BatchConfig(**batching)})

    def outside(self) -> list[str]:
        """Return the names of code from outside of the package, ``module:Class``."""
        names = [getattr(self, part).name for part in PARTS]
        return [name for name in names if ":" in name]

    def resolved(self) -> TrainConfig:
        """Return it with the configs of all parts, importing code from outside of the package."""
        parts: dict[str, Any] = {
            part: _resolved(table, getattr(self, part)) for part, table in PARTS.items()
        }
        return dataclasses.replace(self, **parts)


def learns_valid(refit: str, split: Split) -> bool:
    """Return whether the final model learns from validation pairs, by a setting ``refit``."""
    wanted = refit == "yes" or (refit == "auto" and split.valid_source == "carved")
    return wanted and len(split.valid) > 0


def _resolved(table: Table[Any], chosen: Chosen) -> Chosen:
    if not isinstance(chosen.settings, tuple):
        return chosen
    kind, settings = table[chosen.name].Config, dict(chosen.settings)
    check_known(kind, settings)
    return Chosen(chosen.name, kind(**settings))


def _kinds(names: Mapping[str, str]) -> dict[str, type]:
    return {part: PARTS[part][names[key]].Config for key, part in _CHOICES.items()}


def _places(kinds: Mapping[str, type]) -> dict[str, _Place]:
    """Flat and dotted name -> place; a short name belongs to the first part with that field."""
    own = [f.name for f in dataclasses.fields(TrainConfig) if f.name not in (*PARTS, "batching")]
    every: list[_Place] = [("", name) for name in own]
    every += [place for place in _NAMES if place[1] in ("name", "kind")]
    for part, kind in {**kinds, "batching": BatchConfig}.items():
        every += [(part, entry.name) for entry in dataclasses.fields(kind)]
    places: dict[str, _Place] = {}
    for part, name in every:
        places.setdefault(_NAMES.get((part, name), _PREFIXES.get(part, "") + name), (part, name))
        if part and name != "name":
            places[f"{part}.{name}"] = (part, name)
    return places


def _unknown(key: str, places: Mapping[str, Any], names: Mapping[str, str]) -> InputError:
    """The error for an unknown name, which says if another entry of a table has it."""
    for choice, part in _CHOICES.items():
        table = PARTS[part]
        for name in table:
            if _places({part: table[name].Config}).get(key, ("", ""))[0] == part:
                return IdleSettingError(
                    f"{key} is a setting of {table.kind} {name}, but {table.kind} is "
                    f"{names[choice]}: leave it out, or choose {name}"
                )
    return InputError(_checks.unknown_setting(key, [name for name in places if "." not in name]))
