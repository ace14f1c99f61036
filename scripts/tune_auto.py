"""Choose on VALID what `auto` is made of: how softly it looks, and which members it has.

    python scripts/tune_auto.py --data-dir DIR --threads 1

Every model is trained on train alone, with the settings of its preset, and attacked with
objectives over the train pairs; what is left is measured on valid. The test pairs are never looked
at. First each objective at several softnesses (octaves below the scale where it is least): the one
that leaves least, mean over models and sizes of the share of the clean quality, is the one to use
for the objectives that compare items. Then `auto` as it is, and without each of its members: what a
member is worth is how much would be left without it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from robustcf.attacks import FGM
from robustcf.training.config import TrainConfig
from robustcf.data import Split, load
from robustcf.factors import Factors
from robustcf.training.presets import preset
from robustcf.robustness import (
    OBJECTIVES,
    RobustnessCurve,
    auto_members,
    objective_for,
    robustness_curve,
    worst_of,
)
from robustcf.support.runtime import set_threads
from robustcf.training import train

SOFTNESS = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0)
SIZES = (0.0, 0.05, 0.1, 0.2)
METRIC = "ndcg@10"
# Data set, model, regularizer and gauge.
MODELS = (
    ("ml-1m", "ultragcn", "weight_decay", "none"),
    ("ml-1m", "ultragcn", "two_to_inf", "none"),
    ("ml-1m", "ultragcn", "weight_decay", "balanced"),
    ("ml-1m", "bpr-mf", "weight_decay", "none"),
    ("citeulike", "ultragcn", "weight_decay", "none"),
    ("citeulike", "ultragcn", "two_to_inf", "none"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path, default=Path("results/auto_search.json"))
    options = parser.parse_args()
    set_threads(options.threads)
    found: dict[str, Any] = {}
    for dataset, model, reg, gauge in MODELS:
        split = load(dataset, data_dir=options.data_dir, download=False)
        name = f"{dataset} {model} {reg}" + (f" {gauge}" if gauge != "none" else "")
        print(name, flush=True)
        config = preset(split.name, model, reg).config
        found[name] = judge(split, config.replace(gauge=gauge, epochs_chosen=True, refit="no"))
    content = {
        "command": "python scripts/tune_auto.py --threads 1",
        "metric": f"{METRIC} on valid",
        "epsilons": list(SIZES),
        "budget": "row, in median row norms of U and of V",
        "left, mean over models and sizes": shares(found),
        "models": found,
    }
    options.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(content["left, mean over models and sizes"], indent=1))


def judge(split: Split, config: TrainConfig) -> dict[str, Any]:
    """Train one model; attack it with every objective at every softness, and with auto."""
    factors = train(split, config).factors
    curves: dict[str, dict[str, list[float]]] = {
        name: {
            f"{softness:g}": rounded(one_step(split, factors, config, name, softness))
            for softness in SOFTNESS
        }
        for name in OBJECTIVES
    }
    for name, by_softness in curves.items():
        print(f"  {name}: {by_softness}", flush=True)
    aims = [objective_for(name, config, factors, split.train) for name in OBJECTIVES]
    members = auto_members(factors, split, aims, SIZES, (10,), part="valid")
    auto = {"all": rounded(worst_of(members, "auto", carry=True))} | {
        f"without {name}": rounded(worst_of(without(members, name), "auto", carry=True))
        for name in members
    }
    print(f"  auto: {auto}", flush=True)
    return {"fgm by softness": curves, "auto": auto}


def one_step(
    split: Split, factors: Factors, config: TrainConfig, name: str, softness: float
) -> RobustnessCurve:
    aim = objective_for(name, config, factors, split.train)
    attack = FGM(aim, relative=True, softness=softness)
    return robustness_curve(factors, split, attack, SIZES, (10,), part="valid")


def without(members: dict[str, RobustnessCurve], name: str) -> dict[str, RobustnessCurve]:
    return {other: curve for other, curve in members.items() if other != name}


def rounded(curve: RobustnessCurve) -> list[float]:
    return [round(float(value), 4) for value in curve[METRIC]]


def shares(found: dict[str, Any]) -> dict[str, dict[str, float]]:
    """What is left of the clean quality: mean over models and sizes above 0, then per objective."""

    def mean(values: list[list[float]]) -> float:
        return round(float(np.mean([np.array(row[1:]) / row[0] for row in values])), 4)

    models = list(found.values())
    return {
        f"fgm {name} by softness": {
            key: mean([model["fgm by softness"][name][key] for model in models])
            for key in models[0]["fgm by softness"][name]
        }
        for name in OBJECTIVES
    } | {"auto": {key: mean([model["auto"][key] for model in models]) for key in models[0]["auto"]}}


if __name__ == "__main__":
    main()
