"""Choose on VALID what `auto` is made of: the temperature of its objectives, and its members.

    python scripts/tune_auto.py --data-dir DIR --threads 1

Every model is trained on train alone, with the settings of its preset, and attacked with
objectives over the train pairs; what is left is measured on valid. The test pairs are never used.
First each objective at several temperatures (log2_temperature: how far below the scale where it is
least): the one that leaves least, mean over models and sizes of the share of the clean quality, is
the one to use for the objectives that compare items. Then `auto` as it is, and without each of its
members: what a member is worth is how much would be left without it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from robustcf.attacks import FGM
from robustcf.data import Split, load
from robustcf.objectives import OBJECTIVES
from robustcf.robustness import AttackSpec, RobustnessCurve, Target, Threat, measure, worst_of
from robustcf.robustness.table import AUTO, Request
from robustcf.support.runtime import set_threads
from robustcf.training import TrainConfig, train
from robustcf.training.presets import preset

LOG2_TEMPERATURES = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0)
# The word for it in the file, from version 0.1 on.
BY = "by softness"
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
    """Train one model; attack it with every objective at every temperature, and with auto."""
    target = Target.of(train(split, config), part="valid")
    curves: dict[str, dict[str, list[float]]] = {}
    for name in OBJECTIVES:
        curves[name] = {
            f"{value:g}": rounded(one_step(target, name, value)) for value in LOG2_TEMPERATURES
        }
        print(f"  {name}: {curves[name]}", flush=True)
    result = measure(target, AUTO, epsilons=SIZES, ks=(10,), control=False)
    members = result.members or {}
    auto = {"all": rounded(result.curve)} | {
        f"without {name}": rounded(worst_of(without(members, name), AUTO, cumulative=True))
        for name in members
    }
    print(f"  auto: {auto}", flush=True)
    return {f"fgm {BY}": curves, "auto": auto}


def one_step(target: Target, name: str, log2_temperature: float) -> RobustnessCurve:
    request = Request(target, Threat(), AttackSpec("fgm", name), SIZES, (10,))
    attack = FGM(request.objective(name), log2_temperature=log2_temperature)
    return measure(target, attack, epsilons=SIZES, ks=(10,), control=False).curve


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
        f"fgm {name} {BY}": {
            key: mean([model[f"fgm {BY}"][name][key] for model in models])
            for key in models[0][f"fgm {BY}"][name]
        }
        for name in OBJECTIVES
    } | {"auto": {key: mean([model["auto"][key] for model in models]) for key in models[0]["auto"]}}


if __name__ == "__main__":
    main()
