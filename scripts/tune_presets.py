"""Choose presets on VALID, by random search; the test pairs are never used.

    python scripts/tune_presets.py --dataset ml-1m --model ultragcn --reg two_to_inf --trials 12

Each trial trains on train alone and is judged by NDCG@10 on valid after its last epoch (the
learning rate has then fallen to 0, so the number of epochs is a setting like the others). The best
one is written to robustcf/training/presets/, with the command, the trials and its metrics on valid.
The preset that is there already is trial 0, so that searching again never makes it worse.

For a regularizer that buys robustness with quality, the best quality alone would choose a weight
of 0. `--match 0.02` searches the largest weight instead whose NDCG@10 on valid stays within 2 %
of that of the weight_decay preset, out of `--weights`. Where none does, the best one is taken.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from robustcf._randomness import stream
from robustcf._runtime import set_threads
from robustcf.data import Split, load
from robustcf.errors import TrainingError
from robustcf.metrics import MetricReport, evaluate
from robustcf.training import TrainConfig, presets
from robustcf.training.fitting import fit_split
from robustcf.training.presets import preset

FOLDER = Path(presets.__file__).parent

# Factors that a setting of the best trial so far is multiplied by.
MOVES: dict[str, tuple[float, ...]] = {
    "reg_weight": (0.3, 0.5, 0.7, 1.4, 2.0, 3.0),
    "lr": (0.5, 0.7, 1.4, 2.0),
    "user_lr": (0.5, 0.7, 1.4, 2.0),
    "negative_weight": (0.5, 0.7, 1.4, 2.0),
    "item_weight": (0.1, 3.0, 10.0),
    "temperature": (0.8, 0.9, 1.1, 1.25),
    "epochs": (0.7, 0.8, 1.25, 1.5),
}
HOW = "random search, NDCG@10 on valid after training on train alone"
HOW_MATCHED = (
    "the largest weight tried whose NDCG@10 on valid, after training on train alone, is within a "
    "share of {} of the weight_decay preset's (the best one where none is)"
)
SHOWN = ("ndcg@10", "recall@20", "ndcg@20")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--model", default="ultragcn")
    parser.add_argument("--reg", default="weight_decay")
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--most-epochs", type=int, default=60)
    parser.add_argument("--data-dir")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--seed", type=int, default=0, help="of the search")
    parser.add_argument("--start", default="{}", help="JSON: settings of trial 0")
    parser.add_argument("--keys", nargs="*", help="the settings to vary")
    parser.add_argument("--match", type=float, help="share of weight_decay's quality to give up")
    parser.add_argument("--weights", type=float, nargs="*", help="of the regularizer, for --match")
    parser.add_argument("--dry", action="store_true", help="do not write")
    options = parser.parse_args()
    set_threads(options.threads)
    split = load(options.dataset, data_dir=options.data_dir, download=False)
    base = preset(split.name, options.model, options.reg).config
    base = base.replace(**json.loads(options.start), epochs_chosen=True)
    found = (search if options.match is None else match)(split, base, options)
    if not options.dry:
        write(split, options, *found)


def search(
    split: Split, base: TrainConfig, options: argparse.Namespace
) -> tuple[TrainConfig, MetricReport, list[dict[str, Any]]]:
    rng = stream(options.seed, "tune", split.name, options.model, options.reg)
    keys = options.keys or [key for key in MOVES if _applies(key, base)]
    best, best_report = base, trial(split, base)
    trials = [describe(base, best_report, keys)]
    began = time.monotonic()
    print(json.dumps(trials[0]), flush=True)
    while len(trials) < options.trials and time.monotonic() - began < 60 * options.minutes:
        config = moved(best, keys, rng, options.most_epochs)
        try:
            report = trial(split, config)
        except TrainingError as error:
            print(error, file=sys.stderr)
            continue
        trials.append(describe(config, report, keys))
        better = report["ndcg@10"] > best_report["ndcg@10"]
        print(json.dumps(trials[-1]), "*" if better else "", flush=True)
        if better:
            best, best_report = config, report
    return best, best_report, trials


def match(
    split: Split, base: TrainConfig, options: argparse.Namespace
) -> tuple[TrainConfig, MetricReport, list[dict[str, Any]]]:
    quality = preset(split.name, options.model, "weight_decay").found["valid"]["ndcg@10"]
    least = (1 - options.match) * quality
    print(f"wanted: at least {least:.4f} of weight_decay's {quality:.4f}", flush=True)
    tried: dict[float, MetricReport] = {}
    trials = []
    for weight in sorted(options.weights or [base.reg.settings.weight]):
        config = base.replace(reg_weight=weight)
        try:
            tried[weight] = trial(split, config)
        except TrainingError as error:
            print(error, file=sys.stderr)
            continue
        trials.append(describe(config, tried[weight], ["reg_weight", "epochs"]))
        print(json.dumps(trials[-1]), flush=True)
    within = [weight for weight, report in tried.items() if report["ndcg@10"] >= least]
    best = max(within, default=max(tried, key=lambda weight: tried[weight]["ndcg@10"]))
    return base.replace(reg_weight=best), tried[best], trials


def _applies(key: str, config: TrainConfig) -> bool:
    return key in config.flat() and (key != "reg_weight" or config.reg.name != "none")


def moved(
    config: TrainConfig, keys: list[str], rng: np.random.Generator, most_epochs: int
) -> TrainConfig:
    """One, two or three settings changed."""
    count = min(len(keys), int(rng.integers(1, 4)))
    settings = config.flat()
    changes: dict[str, Any] = {}
    for key in rng.choice(keys, size=count, replace=False).tolist():
        value = settings[key] * float(rng.choice(MOVES[key]))
        changes[key] = (
            min(most_epochs, max(1, round(value))) if key == "epochs" else float(f"{value:.2g}")
        )
    return config.replace(**changes)


def trial(split: Split, config: TrainConfig) -> MetricReport:
    trained = fit_split(split, config.replace(refit="no"))
    return evaluate(trained.factors, split, part="valid")


def describe(config: TrainConfig, report: MetricReport, keys: list[str]) -> dict[str, Any]:
    settings = config.flat()
    return {key: settings[key] for key in keys} | {
        f"valid {name}": round(report[name], 4) for name in SHOWN
    }


def write(
    split: Split,
    options: argparse.Namespace,
    config: TrainConfig,
    report: MetricReport,
    trials: list[dict[str, Any]],
) -> None:
    defaults = TrainConfig.of(model=options.model, reg=options.reg).flat()
    settings = {
        key: value
        for key, value in config.flat().items()
        if value != defaults.get(key) or key in ("factors", "epochs", "lr", "user_lr", "reg_weight")
    }
    arguments = [a for n, a in enumerate(sys.argv[1:]) if "--data-dir" not in sys.argv[n : n + 2]]
    content = {
        "config": settings | {"epochs_chosen": True},
        "found": {
            "how": HOW if options.match is None else HOW_MATCHED.format(options.match),
            "command": f"python scripts/tune_presets.py {shlex.join(arguments)}",
            "valid": {name: round(report[name], 4) for name in SHOWN},
            "protocol": str(report.protocol),
            "trials": trials,
        },
    }
    path = FOLDER / f"{split.name}.{options.model}.{options.reg}.json"
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    print(path)


if __name__ == "__main__":
    main()
