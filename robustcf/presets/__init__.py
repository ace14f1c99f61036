"""Settings chosen on valid, one file for each data set, model and regularizer.

Each file holds the settings that differ from the defaults and how they were found.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from robustcf.config import MODELS, REGULARIZERS, TrainConfig
from robustcf.errors import InputError

DEFAULT = "default"
# What the published procedure goes with, where the preset speaks of whole rows.
_PAIRS = {"lr": 1e-3, "user_lr": None, "schedule": "constant"}


@dataclass(frozen=True)
class Preset:
    """A configuration and where it comes from.

    Args:
        name: ``dataset.model.reg``.
        config: the settings.
        found: how they were found: the script, its command, the metrics on valid.
    """

    name: str
    config: TrainConfig
    found: Mapping[str, Any]


def preset(dataset: str, model: str = "ultragcn", reg: str = "weight_decay") -> Preset:
    """The preset of a data set, model and regularizer; unknown data sets get ``default``.

    Example:
        >>> preset("my-file.csv").name
        'default.ultragcn.weight_decay'
    """
    if model not in MODELS:
        raise InputError(f"model must be one of {', '.join(MODELS)}, got {model!r}")
    if reg not in REGULARIZERS:
        raise InputError(f"reg must be one of {', '.join(REGULARIZERS)}, got {reg!r}")
    known = presets()
    return known.get(f"{dataset}.{model}.{reg}") or known[f"{DEFAULT}.{model}.{reg}"]


@cache
def presets() -> Mapping[str, Preset]:
    """All presets by name.

    Example:
        >>> "ml-1m.ultragcn.weight_decay" in presets()
        True
    """
    found = {}
    for entry in sorted(resources.files(__package__).iterdir(), key=lambda e: e.name):
        if not entry.name.endswith(".json"):
            continue
        name = entry.name.removesuffix(".json")
        raw = json.loads(entry.read_text(encoding="utf-8"))
        _, model, reg = name.rsplit(".", 2)
        config = TrainConfig.from_dict({"model": model, "reg": reg, **raw["config"]})
        found[name] = Preset(name, config, raw["found"])
    return found


def adapted(base: TrainConfig, changes: Mapping[str, Any]) -> TrainConfig:
    """A preset's settings with some of them changed.

    A changed setting, other than how to refit, makes the preset's number of passes a guess: it
    will be chosen again. The users' learning rate follows that of the items; a change to pairs
    takes the published procedure's learning rate and schedule along.

    Example:
        >>> adapted(preset("ml-1m").config, {"dim": 8}).epochs_chosen
        False
    """
    if not changes:
        return base
    wanted = dict(changes)
    if wanted.get("batching", base.batching) == "pairs" and base.batching != "pairs":
        base = base.replace(**_PAIRS)
    if "lr" in wanted and "user_lr" not in wanted and base.user_lr is not None:
        wanted["user_lr"] = base.user_lr * wanted["lr"] / base.lr
    tuned = base.epochs_chosen and set(wanted) <= {"refit", "epochs_chosen"}
    return base.replace(**{"epochs_chosen": tuned, **wanted})
