"""Settings in files, one per data set, model and regularizer, with how they were found.

- ``dataset.model.reg.json``: chosen on valid by clean quality.
- ``dataset.model.robust.json``: chosen on valid by quality under attack, regularizer included;
  without a search, weight decay in a more robust gauge.
- ``dataset.model.reg.paper.json``: the paper's table.

The data set ``default`` stands for all without a file. A file holds non-default settings only.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from robustcf._checks import check_choice, check_number
from robustcf._io import files
from robustcf._io.schema import OBJECT, check_kind, nullable, record
from robustcf._registry import MODELS, REGULARIZERS
from robustcf.errors import IdleSettingError, InputError
from robustcf.training.config import DEFAULT_MODEL, TrainConfig

_DEFAULT = "default"
KINDS = ("auto", "tuned", "robust", "paper")
# Settings of a training that has epochs.
_OF_EPOCHS = ("lr", "user_lr", "reg_weight", "batching", "precision")
ROBUST = "robust"
# Settings of the published procedure of sampled pairs, for presets of whole rows.
_PAIRS = {"lr": 1e-3, "user_lr": None, "schedule": "constant"}


@dataclass(frozen=True)
class Preset:
    """A configuration and how it was found."""

    name: str  # the file's, without ``.json``
    config: TrainConfig
    found: Mapping[str, Any]  # the script, its command, the metrics on valid

    @property
    def searches(self) -> bool:
        """Whether the settings are only to be searched for."""
        return self.name in ("auto", ROBUST)

    @property
    def under_attack(self) -> bool:
        """Whether that search is for quality under attack: the frontier of the data set."""
        return self.name == ROBUST


def preset(
    dataset: str, model: str | None = None, reg: str | None = None, kind: str = "tuned"
) -> Preset:
    """Return the preset of a data set, model and regularizer.

    Args:
        dataset: its name; ``tuned`` and ``robust`` fall back to ``default``.
        model: by default the best known for the set, by NDCG@20 on valid (``robust``: under
            attack); with a regularizer, ``ultragcn``, as in the paper.
        reg: by default the model's own; ``robust`` chooses it itself.
        kind: ``tuned``, ``robust`` or ``paper``.

    Example:
        >>> preset("my-file.csv").name
        'default.softmax-mf.none'
        >>> preset("ml-1m", reg="two_to_inf", kind="paper").name
        'ml-1m.ultragcn.two_to_inf.paper'
    """
    check_choice("preset", kind, KINDS[1:])
    # Unknown names raise here; module:Class is imported.
    for table, value in ((MODELS, model), (REGULARIZERS, reg)):
        if value is not None:
            table[value]
    if kind == "robust" and reg is not None:
        raise InputError(f"the robust preset chooses the regularizer itself: leave {reg!r} out")
    known = presets()
    if model is None:
        tuned = kind == "tuned" and reg is None
        best = best_model(dataset, kind) if tuned or kind == "robust" else None
        model = best or (DEFAULT_MODEL if tuned else "ultragcn")
    reg = reg or MODELS[model].reg
    rest = f"{model}." + {"robust": "robust", "paper": f"{reg}.paper"}.get(kind, reg)
    found = known.get(f"{dataset}.{rest}") or known.get(f"{_DEFAULT}.{rest}")
    if found is None and kind == "tuned":
        how = {"how": "the defaults of the model and the regularizer; not tuned for any set"}
        return Preset(f"{_DEFAULT}.{rest}", TrainConfig.of(model=model, reg=reg), how)
    if found is None:
        there = [name for name in known if name.endswith(f".{kind}")]
        raise InputError(f"there is no preset {dataset}.{rest}; known: {', '.join(there)}")
    return found


def choose(
    dataset: str,
    model: str | None = None,
    reg: str | None = None,
    kind: str | None = None,
    *,
    changed: Collection[str] = (),
) -> Preset:
    """Return the preset for the arguments of a training.

    The kind is one of :data:`KINDS`, a file, or None: ``tuned`` if there is a tuned preset or a
    model, a regularizer or changed settings are given, otherwise ``auto``.

    Example:
        >>> choose("my-file.csv").searches, choose("ml-1m").searches
        (True, False)
    """
    if kind is None:
        named = model is not None or reg is not None or bool(changed)
        kind = "tuned" if named or best_model(dataset) is not None else "auto"
    if kind not in KINDS and (kind.endswith(".json") or os.path.exists(kind)):
        found = read_preset(kind)
        config = found.config.resolved()
        if model not in (None, config.model.name) or reg not in (None, config.reg.name):
            expected = f"{config.model.name} with {config.reg.name}"
            raise InputError(f"{kind} is for {expected}: leave --model and --reg out")
        return found
    check_choice("preset", kind, (*KINDS, "a .json file"))
    if kind == ROBUST and model is None and reg is None and not _has_robust(dataset):
        how = {"how": "the frontier of clean quality and quality under attack, on validation data"}
        return Preset(ROBUST, TrainConfig.of(model=DEFAULT_MODEL), how)
    if kind != "auto":
        return preset(dataset, model, reg, kind)
    if model is not None or reg is not None or changed:
        raise InputError(
            "the preset auto chooses model, regularizer and settings itself: leave them out"
        )
    how = {"how": "searched for on validation data, see search.json of the run"}
    return Preset("auto", TrainConfig.of(model=DEFAULT_MODEL), how)


def _has_robust(dataset: str) -> bool:
    names = presets()
    return any(name.startswith(f"{dataset}.") and name.endswith(f".{ROBUST}") for name in names)


def best_model(dataset: str, kind: str = "tuned") -> str | None:
    """Return the model with the best preset of a set on valid, or None.

    By NDCG@20, or for ``robust`` by the sum of the values under attack.
    """
    found = {}
    for model in MODELS:
        entry = presets().get(
            f"{dataset}.{model}.{kind if kind == 'robust' else MODELS[model].reg}"
        )
        valid = {} if entry is None else entry.found.get("valid", {})
        if kind == "robust" and "joint" in valid:
            found[model] = sum(valid["joint"][1:])
        elif kind == "tuned" and "ndcg@20" in valid:
            found[model] = valid["ndcg@20"]
    return max(found, key=lambda model: found[model], default=None)


def read_preset(path: str | os.PathLike[str]) -> Preset:
    """Return the preset of a file, as ``robustcf tune`` writes it."""
    raw = files.read_json(Path(path), follow=True)
    check_kind(path, raw, record({"config": OBJECT}, {"found": nullable(OBJECT)}))
    try:
        config = TrainConfig.of(**raw["config"])
        # A preset without training keeps settings for those who train it after all.
        kept = _OF_EPOCHS if "epochs" in raw["config"] else ()
        check_used(config, {k: v for k, v in raw["config"].items() if k not in kept})
        return Preset(Path(path).stem, config, raw.get("found") or {})
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def check_used(config: TrainConfig, given: Mapping[str, Any]) -> None:
    """Raise for given settings that the configuration ignores."""
    for ignored, where, names in (
        (config.reg.name == "none", "the regularizer none", ("reg_weight",)),
        (config.batching.kind != "pairs", "the batching rows", ("batch_size",)),
        (config.batching.kind != "rows", "the batching pairs", ("block_users",)),
        (
            getattr(config.model.settings, "init", None) != "smooth",
            "a start that is not smooth",
            ("popularity",),
        ),
        (config.epochs == 0, f"the model {config.model.name} with 0 epochs", _OF_EPOCHS),
    ):
        if ignored and (idle := [name for name in names if given.get(name)]):
            raise IdleSettingError(f"{' and '.join(idle)} has no effect on {where}: leave it out")


@cache
def presets() -> Mapping[str, Preset]:
    """Return all presets by name."""
    found = {}
    for entry in sorted(resources.files(__package__).iterdir(), key=lambda e: e.name):
        if not entry.name.endswith(".json"):
            continue
        name = entry.name.removesuffix(".json")
        raw = json.loads(entry.read_text(encoding="utf-8"))
        _, model, reg, *_ = name.split(".")
        named = {"model": model} if reg == "robust" else {"model": model, "reg": reg}
        config = TrainConfig.of(**{**named, **raw["config"]})
        found[name] = Preset(name, config, raw["found"])
    return found


def adapted(base: TrainConfig, changes: Mapping[str, Any]) -> TrainConfig:
    """Return a preset's settings with some of them changed.

    Any change but ``refit`` makes training choose the number of epochs again. The users' learning
    rate follows the items'; a change to pairs takes the published learning rate and schedule.

    Example:
        >>> adapted(preset("ml-1m").config, {"factors": 8}).epochs_chosen
        False
    """
    if not changes:
        return base
    wanted = dict(changes)
    if wanted.get("batching") == "pairs" and base.batching.kind != "pairs":
        base = base.replace(**_PAIRS)
    if "lr" in wanted and "user_lr" not in wanted and base.user_lr is not None:
        lr = check_number("lr", wanted["lr"], positive=True)
        wanted["user_lr"] = base.user_lr * lr / base.lr
    tuned = base.epochs_chosen and set(wanted) <= {"refit", "epochs_chosen"}
    return base.replace(**{"epochs_chosen": tuned, **wanted})
