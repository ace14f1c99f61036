"""What a training run does: a frozen configuration, nested by what owns the settings.

A model, an objective, a regularizer and an adversary each own a small frozen config; a
:class:`TrainConfig` holds one of each, chosen by name out of a table. On the command line, in
presets and in Python there are flat names::

    TrainConfig.of(model="bpr-mf", dim=32, reg="two_to_inf", reg_weight=1e-3)

A flat name is the field's name, with ``reg_`` before those of the regularizer and ``adv_`` before
those of the adversary. Where two parts have a field of one name, or to be explicit, a dot tells
which is meant: ``model.dim``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from robustcf._checks import (
    check_choice,
    check_known,
    check_number,
    check_numbers,
    unknown_setting,
)
from robustcf._io.schema import shown
from robustcf._registry import ADVERSARIES, MODELS, OBJECTIVES, REGULARIZERS, Table
from robustcf.data.split import Split
from robustcf.errors import IdleSettingError, InputError
from robustcf.objectives import BatchConfig
from robustcf.training.optim import SCHEDULES

#: The model where none is named, known as the best for the data, or searched for.
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
_CHOICES = {"model": "model", "objective": "objective", "reg": "reg", "adversarial": "adversary"}
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
        name: of the entry, or ``module:Class``.
        settings: its config. A dict as tuple of pairs stands for that of a class from outside of
            the package which has not been imported yet: reading a configuration runs no code.
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
    """Everything that decides what a training run learns, apart from the data.

    Args:
        model: parameters and start.
        objective: what is minimized; by default the model's own.
        reg: the regularizer; by default the model's own.
        adversary: adversarial training, or ``none``.
        batching: what one step is.
        gauge: ``balanced``: rewrite U and V with smallest norms, without changing any ranking;
            ``none``. See :mod:`robustcf.models.gauge`.
        shrink: for the balanced gauge: how much shorter the singular values of the scores become,
            in their median; 0 leaves them.
        rank: for the balanced gauge: the strongest directions of the scores, which alone are kept;
            None for all.
        epochs: epochs at most; 0 leaves the start as it is.
        epochs_chosen: whether ``epochs`` was already chosen on validation data (a preset's was):
            then nothing is chosen any more, and the validation pairs may be learnt from.
        lr: learning rate of the items.
        user_lr: learning rate of the users; None for the same. In ``rows`` a user takes one step
            per epoch, an item many.
        schedule: ``linear`` or ``cosine`` to 0 over ``epochs``, or ``constant``.
        beta1: Adam's first decay.
        beta2: Adam's second decay.
        eval_every: epochs between validations.
        patience: validations that are worse than the best, by at least their standard error,
            before stopping; three times as many that are not better. 0 never stops early.
        refit: ``auto``: train again on train and valid together where valid was carved out of
            the training pairs; ``yes``, ``no``.
        seed: of everything random in training.

    Example:
        >>> config = TrainConfig.of(dim=32, reg="two_to_inf", reg_weight=1e-3)
        >>> config.model.name, config.model.settings.dim, config.reg.settings.weight
        ('softmax-mf', 32, 0.001)
        >>> TrainConfig.of(dmi=32)
        Traceback (most recent call last):
        robustcf.errors.InputError: unknown setting 'dmi'; did you mean 'dim'?
    """

    model: Chosen
    objective: Chosen
    reg: Chosen
    adversary: Chosen
    batching: BatchConfig = field(default_factory=BatchConfig)
    gauge: str = "none"
    shrink: float = 0.0
    rank: int | None = None
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
        check_choice("refit", self.refit, REFITS)
        check_numbers(self, may_be_zero=("epochs", "patience", "seed"))
        check_number("lr", self.lr, positive=True)
        for name in ("shrink", "rank"):
            if getattr(self, name) and self.gauge != "balanced":
                raise InputError(f"{name} needs the gauge 'balanced', got {self.gauge!r}")

    @classmethod
    def of(cls, **settings: Any) -> TrainConfig:
        """Return a configuration from flat (or dotted) names; the rest takes its default.

        Raises:
            InputError: a name is unknown, or belongs to another model or regularizer than the
                one that is chosen; or a value is out of its range.
        """
        model = MODELS[settings.get("model", DEFAULT_MODEL)]
        names = {"model": DEFAULT_MODEL, "objective": model.objective, "reg": model.reg}
        names["adversarial"] = "none"
        names |= {key: settings.pop(key) for key in names if key in settings}
        kinds = _kinds(names)
        places = _places(kinds)
        given: dict[str, dict[str, Any]] = {part: {} for part in (*kinds, "batching", "")}
        # What is given comes after what suits the model, under whichever of its names it comes.
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

        A field whose short name means another part's goes by its dotted one. Code from outside of
        the package is imported, see :meth:`resolved`.

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

        With another model, objective, regularizer or adversary, settings that the new one knows
        too are kept, unless they had the old one's default: then they take the new one's.
        """
        config = self.resolved()
        before = {key: getattr(config, part).name for key, part in _CHOICES.items()}
        after = before | {key: changes[key] for key in before if key in changes}
        models = [MODELS[names["model"]] for names in (before, after)]
        if after["model"] != before["model"] and "objective" not in changes:
            after["objective"] = models[1].objective
        replaced = {part for key, part in _CHOICES.items() if after[key] != before[key]}
        old, new = config._places(), _places(_kinds(after))
        # With a model goes what suits it in training.
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
        """Return the configuration of what :meth:`as_dict` gives; of an empty one, the defaults.

        Nothing from outside of the package is imported: :meth:`resolved` does that.
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
        """Return the names that stand for code from outside of the package, ``module:Class``."""
        names = [getattr(self, part).name for part in PARTS]
        return [name for name in names if ":" in name]

    def resolved(self) -> TrainConfig:
        """Return it with the configs of all parts, those from outside of the package imported."""
        parts: dict[str, Any] = {
            part: _resolved(table, getattr(self, part)) for part, table in PARTS.items()
        }
        return dataclasses.replace(self, **parts)


def learns_valid(refit: str, split: Split) -> bool:
    """Return whether validation pairs are learnt from in the end, by a setting ``refit``."""
    wanted = refit == "yes" or (refit == "auto" and split.valid_source == "carved")
    return wanted and len(split.valid) > 0


def _resolved(table: Table[Any], chosen: Chosen) -> Chosen:
    if not isinstance(chosen.settings, tuple):
        return chosen
    kind, settings = table[chosen.name].Config, dict(chosen.settings)
    check_known(kind, settings)
    return Chosen(chosen.name, kind(**settings))


def _kinds(names: Mapping[str, str]) -> dict[str, type]:
    """Part -> the class of its settings, for the names of the choices."""
    return {part: PARTS[part][names[key]].Config for key, part in _CHOICES.items()}


def _places(kinds: Mapping[str, type]) -> dict[str, _Place]:
    """Flat and dotted name -> place; a short name is that of the first part that has the field."""
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
    """The error for a name that no part knows; where another entry of a table has it, that."""
    for choice, part in _CHOICES.items():
        table = PARTS[part]
        for name in table:
            if _places({part: table[name].Config}).get(key, ("", ""))[0] == part:
                return IdleSettingError(
                    f"{key} is a setting of {table.kind} {name}, and this run has "
                    f"{table.kind} {names[choice]}: leave it out, or choose {name}"
                )
    return InputError(unknown_setting(key, [name for name in places if "." not in name]))
