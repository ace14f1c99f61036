"""Settings in files, one for each data set, model and regularizer, with how they were found.

``dataset.model.reg.json``: chosen on valid by clean quality. ``dataset.model.robust.json``: chosen
on valid by quality under attack, or, without a search, weight decay in a more robust gauge; it
brings its own regularizer. ``dataset.model.reg.paper.json``: the paper's table. The data set
``default`` stands for all that have no file of their own. A file holds the settings that differ
from the defaults.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from robustcf._checks import check_choice, check_number
from robustcf._io import files
from robustcf._io.schema import OBJECT, check_kind, nullable, record
from robustcf._registry import MODELS, REGULARIZERS
from robustcf.errors import InputError
from robustcf.training.config import DEFAULT_MODEL, TrainConfig

DEFAULT = "default"
KINDS = ("auto", "tuned", "robust", "paper")
# What the published procedure goes with, where the preset speaks of whole rows.
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
        return self.name == "auto"


def preset(
    dataset: str, model: str | None = None, reg: str | None = None, kind: str = "tuned"
) -> Preset:
    """Return the preset of a data set, model and regularizer.

    Args:
        dataset: its name; ``tuned`` and ``robust`` fall back to ``default``.
        model: by default the best known for the set, by NDCG@20 on valid; with a regularizer,
            ``ultragcn``, as in the paper; for ``robust`` the best on valid under attack, where
            that was measured.
        reg: the regularizer, by default the model's own; ``robust`` chooses it itself.
        kind: ``tuned``, ``robust`` or ``paper``.

    Example:
        >>> preset("my-file.csv").name
        'default.softmax-mf.none'
        >>> preset("ml-1m", reg="two_to_inf", kind="paper").name
        'ml-1m.ultragcn.two_to_inf.paper'
    """
    check_choice("preset", kind, KINDS[1:])
    # A name that is not in the tables is code of the user's own, or an error.
    for table, value in ((MODELS, model), (REGULARIZERS, reg)):
        if value is not None:
            table[value]
    if kind == "robust" and reg is not None:
        raise InputError(
            f"the robust preset chooses its regularizer itself, got reg {reg!r}: leave it out"
        )
    known = presets()
    if model is None:
        model = "ultragcn"
        if kind == "robust":
            # Without a search, UltraGCN's costs no clean quality: its rankings are weight decay's.
            model = _best(dataset, "robust", lambda valid: sum(valid["joint"][1:])) or model
        elif kind == "tuned" and reg is None:
            model = best_model(dataset) or DEFAULT_MODEL
    reg = reg or MODELS[model].reg
    rest = f"{model}.robust" if kind == "robust" else f"{model}.{reg}"
    rest = f"{rest}.paper" if kind == "paper" else rest
    found = known.get(f"{dataset}.{rest}") or known.get(f"{DEFAULT}.{rest}")
    if found is None and kind == "tuned":
        # Code from outside has no preset: its own defaults are the settings.
        how = {"how": "the defaults of the model and the regularizer; not tuned for any set"}
        return Preset(f"{DEFAULT}.{rest}", TrainConfig.of(model=model, reg=reg), how)
    if found is None:
        there = [name for name in known if name.endswith(f".{kind}")]
        raise InputError(
            f"there is no preset {dataset}.{rest}; of the kind {kind!r} there are "
            f"{', '.join(there)}"
        )
    return found


def choose(
    dataset: str,
    model: str | None = None,
    reg: str | None = None,
    kind: str | None = None,
    *,
    changed: Collection[str] = (),
) -> Preset:
    """Return the preset that is meant by the arguments of a training.

    The kind is one of :data:`KINDS`, a file, or None: ``tuned`` where there is a tuned preset or a
    model, a regularizer or settings to change are given, otherwise ``auto``.

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
            raise InputError(
                f"{kind} is for {config.model.name} with {config.reg.name}: leave --model and "
                "--reg out"
            )
        return found
    check_choice("preset", kind, (*KINDS, "a .json file"))
    if kind != "auto":
        return preset(dataset, model, reg, kind)
    if model is not None or reg is not None or changed:
        raise InputError(
            "the preset auto chooses model, regularizer and settings itself: leave them out, or "
            "take another preset"
        )
    how = {"how": "searched for on validation data, see search.json of the run"}
    return Preset("auto", TrainConfig.of(model=DEFAULT_MODEL), how)


def best_model(dataset: str) -> str | None:
    """Return the model with the best NDCG@20 on valid among the tuned presets of a set, or None."""
    return _best(dataset, None, lambda valid: valid["ndcg@20"])


def _best(dataset: str, kind: str | None, value: Callable[[Any], float]) -> str | None:
    """The model whose preset of a kind (its own regularizer's) has the largest value on valid."""
    found = {}
    for model in MODELS:
        entry = presets().get(f"{dataset}.{model}.{kind or MODELS[model].reg}")
        with suppress(KeyError):
            if entry is not None:
                found[model] = value(entry.found["valid"])
    return max(found, key=lambda model: found[model], default=None)


def read_preset(path: str | os.PathLike[str]) -> Preset:
    """Return the preset of a file, as ``robustcf tune`` writes it."""
    raw = files.read_json(Path(path), follow=True)
    check_kind(path, raw, record({"config": OBJECT}, {"found": nullable(OBJECT)}))
    try:
        return Preset(Path(path).stem, TrainConfig.of(**raw["config"]), raw.get("found") or {})
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


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

    With a changed setting, other than how to refit, the number of epochs will be chosen again. The
    users' learning rate follows that of the items; a change to pairs takes the published
    procedure's learning rate and schedule along.

    Example:
        >>> adapted(preset("ml-1m").config, {"dim": 8}).epochs_chosen
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
