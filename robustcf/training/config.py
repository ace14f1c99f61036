"""What a training run does: a frozen configuration, nested by what owns the settings.

A model, an objective, a regularizer and an adversary each own a small frozen config; a
:class:`TrainConfig` holds one of each, chosen by name out of a table. For people there are flat
names, on the command line, in presets and in Python::

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
    check_integer,
    check_known,
    check_number,
    check_numbers,
    unknown_setting,
)
from robustcf._io.reading import parse_json as parse
from robustcf._io.schema import shown
from robustcf._registry import ADVERSARIES, MODELS, OBJECTIVES, REGULARIZERS, Table
from robustcf.errors import InputError
from robustcf.models import ModelConfig
from robustcf.objectives import BatchConfig, BCEConfig
from robustcf.regularizers import RegularizerConfig
from robustcf.training.adversarial import AdversaryConfig
from robustcf.training.optim import SCHEDULES

GAUGES = ("none", "balanced")
REFITS = ("auto", "yes", "no")

# Part -> its table and the prefix of its flat names.
_PARTS: Mapping[str, tuple[Table[Any], str]] = {
    "model": (MODELS, ""),
    "objective": (OBJECTIVES, ""),
    "reg": (REGULARIZERS, "reg_"),
    "adversary": (ADVERSARIES, "adv_"),
}
# Flat names that do not follow from the fields.
_NAMES = {
    "model": ("model", "name"),
    "objective": ("objective", "name"),
    "reg": ("reg", "name"),
    "adversarial": ("adversary", "name"),
    "batching": ("batching", "kind"),
    "estimator": ("reg", "estimator"),
}

# What is chosen out of a table.
_CHOICES = ("model", "objective", "reg", "adversarial")


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
        """The name and all settings, ready for JSON."""
        values = self.settings
        plain = dict(values) if isinstance(values, tuple) else dataclasses.asdict(values)
        return {"name": self.name, **plain}


@dataclass(frozen=True)
class TrainConfig:
    """Everything that decides what a training run learns, apart from the data themselves.

    Args:
        model: parameters and start.
        objective: what is minimized; by default the model's own.
        reg: the regularizer.
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
        >>> config.model.settings.dim, config.reg.name, config.reg.settings.weight
        (32, 'two_to_inf', 0.001)
        >>> TrainConfig.of(dmi=32)
        Traceback (most recent call last):
        robustcf.errors.InputError: unknown setting 'dmi'; did you mean 'dim'?
    """

    model: Chosen = field(default_factory=lambda: Chosen("ultragcn", ModelConfig()))
    objective: Chosen = field(default_factory=lambda: Chosen("bce", BCEConfig()))
    reg: Chosen = field(default_factory=lambda: Chosen("weight_decay", RegularizerConfig()))
    adversary: Chosen = field(default_factory=lambda: Chosen("none", AdversaryConfig()))
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
        if self.shrink and self.gauge != "balanced":
            raise InputError(f"shrink needs the gauge 'balanced', got {self.gauge!r}")
        if self.rank is not None:
            check_integer("rank", self.rank)
            if self.gauge != "balanced":
                raise InputError(f"rank needs the gauge 'balanced', got {self.gauge!r}")

    @classmethod
    def of(cls, **settings: Any) -> TrainConfig:
        """A configuration from flat (or dotted) names; what is not given takes its default.

        Raises:
            InputError: a name is unknown, or belongs to another model or regularizer than the
                one that is chosen; or a value is out of its range.
        """
        named = settings.get("model", "ultragcn")
        model = MODELS[named]
        wanted = {"objective": model.objective, **settings, "model": named}
        parts = {"reg": model.reg, "adversarial": "none"} | {
            key: wanted.pop(key) for key in _CHOICES if key in wanted
        }
        chosen = {_NAMES[key][0]: (name, _entry(key, name).Config) for key, name in parts.items()}
        places = _places({part: config for part, (_, config) in chosen.items()})
        given: dict[str, dict[str, Any]] = {part: {} for part in (*chosen, "batching", "")}
        # What is given comes after what suits the model, under whichever of its names it comes.
        suited = {k: v for k, v in model.training_defaults.items() if k in places}
        for key, value in (*suited.items(), *wanted.items()):
            if key not in places:
                raise InputError(_unknown(key, places, parts))
            part, name = places[key]
            given[part][name] = value
        parts_chosen: dict[str, Any] = {
            part: Chosen(name, kind(**given[part])) for part, (name, kind) in chosen.items()
        }
        return cls(batching=BatchConfig(**given["batching"]), **parts_chosen, **given[""])

    def flat(self) -> dict[str, Any]:
        """The settings by their flat names: what :meth:`of` takes.

        Code from outside of the package is imported, see :meth:`resolved`.

        Example:
            >>> TrainConfig.of(**TrainConfig().flat()) == TrainConfig()
            True
        """
        config = self.resolved()
        places = _places(config._configs())
        # A field whose short name means another part's goes by its dotted one.
        return {_flat_name(places, name): config._at(place) for name, place in places.items()}

    def replace(self, **changes: Any) -> TrainConfig:
        """A copy with some settings changed, by flat (or dotted) names; unknown ones are an error.

        With another model, objective, regularizer or adversary, settings that the new one knows
        too are kept, unless they had the old one's default: then they take the new one's.
        """
        config = self.resolved()
        before = {key: getattr(config, _NAMES[key][0]).name for key in _CHOICES}
        after = before | {key: changes[key] for key in _CHOICES if key in changes}
        models = [MODELS[names["model"]] for names in (before, after)]
        if after["model"] != before["model"] and "objective" not in changes:
            after["objective"] = models[1].objective
        replaced = {_NAMES[key][0] for key in _CHOICES if after[key] != before[key]}
        old = _places(config._configs())
        new = _places({_NAMES[key][0]: _entry(key, name).Config for key, name in after.items()})
        stay = set(new.values()) - {new.get(key) for key in changes}
        kept = {place: config._at(place) for place in old.values() if place in stay}
        # With a model goes what suits it in training.
        suits = {
            name for model in models for name in model.training_defaults if "model" in replaced
        }
        suited = {old.get(name) for name in suits}
        defaults = TrainConfig.of(**before)
        values = {
            _dotted(place): value
            for place, value in kept.items()
            if place[1] != "name"
            and (value != defaults._at(place) or (place[0] not in replaced and place not in suited))
        }
        return TrainConfig.of(**{**values, **after, **changes})

    def _configs(self) -> dict[str, type]:
        return {part: type(getattr(self, part).settings) for part in _PARTS}

    def _at(self, place: tuple[str, str]) -> Any:
        """The value of a field of a part, see :func:`_places`."""
        part, name = place
        owner: Any = getattr(self, part) if part else self
        return getattr(owner.settings if part in _PARTS and name != "name" else owner, name)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, nested, ready for JSON."""
        values = dataclasses.asdict(self)
        return values | {part: getattr(self, part).as_dict() for part in _PARTS}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainConfig:
        """From what :meth:`as_dict` gives, or from the flat settings that version 0.1 wrote.

        Nothing from outside of the package is imported: :meth:`resolved` does that.
        """
        if not isinstance(values, Mapping):
            raise InputError(f"training settings must be an object, got {type(values).__name__}")
        if isinstance(values.get("model"), str) or "dim" in values:
            return cls.of(**_from_0_1(values))
        check_known(cls, values)
        parts: dict[str, Any] = {}
        for part, (table, _) in _PARTS.items():
            if part in values:
                parts[part] = _read_chosen(part, table, values[part])
        if "batching" in values:
            if not isinstance(values["batching"], Mapping):
                raise InputError(f"batching must be an object, got {shown(values['batching'])}")
            check_known(BatchConfig, values["batching"])
            parts["batching"] = BatchConfig(**values["batching"])
        return cls(**{**values, **parts})

    def outside(self) -> list[str]:
        """The names that stand for code of somebody's own, ``module:Class``.

        Example:
            >>> TrainConfig().outside()
            []
        """
        names = [getattr(self, part).name for part in _PARTS]
        return [name for name in names if ":" in name]

    def resolved(self) -> TrainConfig:
        """With the configs of all parts, those from outside of the package imported."""
        found: dict[str, Any] = {}
        for part, (table, _) in _PARTS.items():
            chosen: Chosen = getattr(self, part)
            if isinstance(chosen.settings, tuple):
                kind = table[chosen.name].Config
                check_known(kind, dict(chosen.settings))
                found[part] = Chosen(chosen.name, kind(**dict(chosen.settings)))
        return dataclasses.replace(self, **found)


def _entry(key: str, name: str) -> Any:
    return _PARTS[_NAMES[key][0]][0][name]


def _places(configs: Mapping[str, type]) -> dict[str, tuple[str, str]]:
    """Flat and dotted name -> part and field; the part "" is the training configuration itself."""
    own = [f.name for f in dataclasses.fields(TrainConfig) if f.name not in (*_PARTS, "batching")]
    places = {name: ("", name) for name in own}
    places |= {name: place for name, place in _NAMES.items() if place[1] in ("name", "kind")}
    for part, config in {**configs, "batching": BatchConfig}.items():
        prefix = _PARTS[part][1] if part in _PARTS else ""
        for entry in dataclasses.fields(config):
            flat = "estimator" if (part, entry.name) == _NAMES["estimator"] else prefix + entry.name
            places[f"{part}.{entry.name}"] = (part, entry.name)
            if flat not in places and (part, entry.name) != _NAMES["batching"]:
                places[flat] = (part, entry.name)
    return places


def _flat_name(places: Mapping[str, tuple[str, str]], key: str) -> str:
    """The flat name of what a flat or dotted name means."""
    place = places.get(key)
    return next((flat for flat, at in places.items() if at == place and "." not in flat), key)


def _dotted(place: tuple[str, str]) -> str:
    """The name that no other place has."""
    part, name = place
    return f"{part}.{name}" if part else name


def _unknown(key: str, places: Mapping[str, Any], chosen: Mapping[str, str]) -> str:
    """What to say of a name that no part knows; where another entry has it, that."""
    for flat in _CHOICES:
        part = _NAMES[flat][0]
        table, _ = _PARTS[part]
        for name in table:
            if _places({part: table[name].Config}).get(key, ("", ""))[0] == part:
                return (
                    f"{key} is a setting of {table.kind} {name}, and this run has "
                    f"{table.kind} {chosen[flat]}: leave it out, or choose {name}"
                )
    return unknown_setting(key, [name for name in places if "." not in name])


def _read_chosen(part: str, table: Table[Any], values: Any) -> Chosen:
    if not isinstance(values, Mapping) or not isinstance(values.get("name"), str):
        raise InputError(f"{part} must be an object with a name, got {shown(values)}")
    name = values["name"]
    settings = {key: value for key, value in values.items() if key != "name"}
    if name not in table:
        return Chosen(name, tuple(settings.items()))
    kind = table[name].Config
    check_known(kind, settings)
    return Chosen(name, kind(**settings))


def _from_0_1(values: Mapping[str, Any]) -> dict[str, Any]:
    """The flat settings of version 0.1, less those that the chosen parts do not have.

    Version 0.1 wrote all settings of all models into every file.
    """
    for key in _CHOICES:
        # It knew no code from outside, and none is imported for it.
        if key in values:
            check_choice(key, values[key], _PARTS[_NAMES[key][0]][0])
    model = values.get("model", "ultragcn")
    reg, adversary = values.get("reg", "weight_decay"), values.get("adversarial", "none")
    defaults = dataclasses.asdict(BCEConfig())
    weights = ("negative_weight", "w1", "w2", "w3", "w4")
    if adversary == "bce" and model == "bpr-mf":
        changed = [key for key in weights if values.get(key, defaults[key]) != defaults[key]]
        if changed:
            raise InputError(
                f"{', '.join(changed)} of the adversary bce with bpr-mf cannot be carried over "
                "from version 0.1: train again"
            )
    configs = {
        "model": MODELS[model].Config,
        "objective": OBJECTIVES[MODELS[model].objective].Config,
        "reg": REGULARIZERS[reg].Config,
        "adversary": ADVERSARIES[adversary].Config,
    }
    places = _places(configs)
    everything = set(places) | _settings_of_0_1()
    for key in values:
        if key not in everything:
            raise InputError(unknown_setting(key, sorted(everything)))
    unset = ("negatives", "sampled_items")  # None meant the model's own default
    return {
        key: value
        for key, value in values.items()
        if key in places and not (key in unset and value is None)
    }


def _settings_of_0_1() -> set[str]:
    names = {"estimator", "adv_eps", "adv_weight", "negatives", "sampled_items"}
    names |= {f"reg_{key}" for key in ("budget", "top", "side", "every", "refresh", "weight")}
    return names | {entry.name for entry in dataclasses.fields(BCEConfig)} - {"max_share"}


def parse_json(text: str) -> dict[str, Any]:
    """A JSON object, or an error that says what it is instead."""
    try:
        values = parse(text)
    except InputError as error:
        raise InputError(f"a configuration must be JSON ({error})") from error
    if not isinstance(values, dict):
        raise InputError(f"a configuration must be a JSON object, got {type(values).__name__}")
    return values
