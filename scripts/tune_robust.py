"""Choose the robust preset on VALID: quality under `auto`, with the clean quality kept.

    python scripts/tune_robust.py --data-dir DIR --threads 1

Each candidate is trained on train alone. Then its factors face the ensemble of attacks that
`robustcf attack --attack auto` is made of, with objectives over the train pairs and relative row
budgets, and are evaluated on valid. The test pairs are never looked at. Out of the candidates that
keep 97 % of the best clean NDCG@10, the one is chosen that has most under auto, mean over the sizes
above 0. The best of each model that trains at all becomes robustcf/presets/*.robust.json. What no
attack can take (the certificate) is reported beside. A file that is there already is gone on with.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from robustcf.attacks import FGM
from robustcf.certificates import certified_curve
from robustcf.training.config import MODELS, TrainConfig
from robustcf.data import Split, load
from robustcf.factors import Factors
from robustcf.training.presets import Preset, preset
from robustcf.robustness import (
    OBJECTIVES,
    auto_members,
    objective_for,
    robustness_curve,
    worst_of,
)
from robustcf.support.runtime import set_threads
from robustcf.training import gauged, train

ROOT = Path(__file__).resolve().parent.parent
EPSILONS = (0.0, 0.05, 0.1, 0.2)
CERTIFIED = (0.0, 0.005, 0.01, 0.02)
METRIC = "ndcg@10"
KEPT = 0.97
COMMAND = "python scripts/tune_robust.py --threads 1"
BUDGET = "row, in median row norms of U and of V"
ADVERSARIAL = {"adversarial": "softmax", "adv_eps": 0.3, "adv_weight": 1.0, "reg_weight": 1.3e-4}
BALANCED = {"gauge": "balanced"}
START = {"init": "smooth", "epochs": 0, "dim": 128}
APR = {"adversarial": "bpr", "adv_eps": 0.2, "adv_weight": 1.0}


def margin(eps: float, weight: float = 1.0) -> dict[str, Any]:
    return {"adversarial": "margin", "adv_eps": eps, "adv_weight": weight}


# Name -> model and regularizer of the preset to start from, and what to change in it.
CANDIDATES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "weight decay": ("ultragcn", "weight_decay", {}),
    "two_to_inf": ("ultragcn", "two_to_inf", {}),
    "max_norm": ("ultragcn", "max_norm", {}),
    "softmax adversarial": ("ultragcn", "weight_decay", ADVERSARIAL),
    "weight decay, balanced": ("ultragcn", "weight_decay", BALANCED),
    "weight decay, balanced, dim 64": ("ultragcn", "weight_decay", BALANCED | {"dim": 64}),
    "weight decay, balanced, shrink 0.5": ("ultragcn", "weight_decay", BALANCED | {"shrink": 0.5}),
    "two_to_inf, balanced": ("ultragcn", "two_to_inf", BALANCED),
    "softmax adversarial, balanced": ("ultragcn", "weight_decay", ADVERSARIAL | BALANCED),
    "smooth start, no training": ("ultragcn", "weight_decay", START),
    "smooth start, no training, balanced": ("ultragcn", "weight_decay", START | BALANCED),
    "bpr-mf": ("bpr-mf", "weight_decay", {}),
    "bpr-mf, balanced": ("bpr-mf", "weight_decay", BALANCED),
    "bpr-mf, balanced, shrink 0.5": ("bpr-mf", "weight_decay", BALANCED | {"shrink": 0.5}),
    "bpr-mf, apr": ("bpr-mf", "weight_decay", APR),
    "bpr-mf, apr, balanced": ("bpr-mf", "weight_decay", APR | BALANCED),
    "bpr-mf, two_to_inf, balanced": ("bpr-mf", "two_to_inf", BALANCED),
    "bpr-mf, margin 0.2": ("bpr-mf", "weight_decay", margin(0.2)),
    **{
        f"bpr-mf, margin {eps}, balanced": ("bpr-mf", "weight_decay", margin(eps) | BALANCED)
        for eps in (0.1, 0.2, 0.3, 0.5)
    },
    **{
        f"bpr-mf, margin {eps}, balanced, shrink 0.5": (
            "bpr-mf",
            "weight_decay",
            margin(eps) | BALANCED | {"shrink": 0.5},
        )
        for eps in (0.1, 0.2)
    },
    "bpr-mf, balanced, shrink 0.7": ("bpr-mf", "weight_decay", BALANCED | {"shrink": 0.7}),
    "bpr-mf, margin 0.3, weight 4, balanced": (
        "bpr-mf",
        "weight_decay",
        margin(0.3, 4.0) | BALANCED,
    ),
    "weight decay, margin 0.1, balanced": ("ultragcn", "weight_decay", margin(0.1) | BALANCED),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", default="ml-1m")
    parser.add_argument("--data-dir")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--only", nargs="*", choices=list(CANDIDATES), help="these candidates")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "robust_search.json")
    parser.add_argument("--dry", action="store_true", help="do not write the preset")
    parser.add_argument(
        "--one-step", action="store_true", help="leave auto's pgd out: for large data sets"
    )
    options = parser.parse_args()
    set_threads(options.threads)
    split = load(options.dataset, data_dir=options.data_dir, download=False)
    rows = search(split, options.only or list(CANDIDATES), options)
    best = chosen_by_model(rows)
    names = {model: row["candidate"] for model, row in best.items()}
    print(f"chosen: {chosen(rows)['candidate']}; by model {names}")
    write(options, split, rows, chosen=chosen(rows)["candidate"], by_model=names)
    for row in () if options.dry else best.values():
        write_preset(split, row, options)


def search(split: Split, names: list[str], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Judge candidates; what the file has of this data set and these settings is not judged again.

    Returns:
        All candidates that are known then, also those that were not asked for.
    """
    known = {row["candidate"]: row for row in rows_of(options, split)}
    trained: dict[TrainConfig, Factors] = {}
    for name in names:
        model, reg, changes = CANDIDATES[name]
        config = preset(split.name, model, reg).config
        config = config.replace(**changes, epochs_chosen=True, refit="no")
        settings = changed(config)
        if known.get(name, {}).get("settings") != settings:
            known[name] = {
                "candidate": name,
                "changes": {"model": model, "reg": reg, **changes},
                "settings": settings,
                **judge(split, config, trained, one_step=options.one_step),
            }
        print(line(known[name]), flush=True)
        write(options, split, list(known.values()))
    return list(known.values())


def rows_of(options: argparse.Namespace, split: Split) -> list[dict[str, Any]]:
    """What the file holds already, if it is of this data set and these attacks."""
    if not options.out.exists():
        return []
    content = json.loads(options.out.read_text(encoding="utf-8"))
    if (content["dataset"], content["command"]) != (split.name, command(options)):
        raise SystemExit(
            f"{options.out} is of another search ({content['command']}): choose another --out"
        )
    rows: list[dict[str, Any]] = content["candidates"]
    return rows


def changed(config: TrainConfig) -> dict[str, Any]:
    """The settings that differ from the model's defaults."""
    defaults = TrainConfig(model=config.model).as_dict()
    return {key: value for key, value in config.as_dict().items() if value != defaults[key]}


def command(options: argparse.Namespace) -> str:
    words = [COMMAND]
    words += [f"--dataset {options.dataset}"] if options.dataset != "ml-1m" else []
    words += ["--one-step"] if options.one_step else []
    return " ".join(words)


def write(
    options: argparse.Namespace, split: Split, rows: list[dict[str, Any]], **more: Any
) -> None:
    content = {
        "command": command(options),
        "dataset": split.name,
        "metric": f"{METRIC} on valid",
        "epsilons": list(EPSILONS),
        "certified epsilons": list(CERTIFIED),
        "budget": BUDGET,
        **more,
        "candidates": rows,
    }
    options.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def judge(
    split: Split, config: TrainConfig, trained: dict[TrainConfig, Factors], *, one_step: bool
) -> dict[str, Any]:
    """Train, or take what was trained already, and attack on valid."""
    # Candidates that differ in their gauge alone come from one training.
    raw = config.replace(gauge="none", shrink=0.0)
    if raw not in trained:
        trained[raw] = train(split, raw).factors
    return attacked(split, gauged(trained[raw], config), config, one_step=one_step)


def attacked(
    split: Split, factors: Factors, config: TrainConfig, *, one_step: bool
) -> dict[str, Any]:
    """NDCG@10 on valid under auto and under its members, and the certificate."""

    def rounded(values: Any) -> list[float]:
        return [round(float(value), 4) for value in values]

    aims = [objective_for(name, config, factors, split.train) for name in OBJECTIVES]
    if one_step:
        attacks = {f"fgm-{aim.name}": FGM(aim, relative=True) for aim in aims} | {
            f"fgm-{aim.name}-fitted": FGM(aim, relative=True, softness=0.0)
            for aim in aims
            if aim.name != "bce"
        }
        members = {
            name: robustness_curve(factors, split, attack, EPSILONS, (10,), part="valid")
            for name, attack in attacks.items()
        }
    else:
        members = auto_members(factors, split, aims, EPSILONS, (10,), part="valid")
    proved = certified_curve(factors, split, CERTIFIED, (10,), relative=True, part="valid")
    curves = {name: rounded(curve[METRIC]) for name, curve in members.items()}
    return {
        "clean": curves["fgm-bce"][0],
        "auto": rounded(worst_of(members, "auto", carry=True)[METRIC]),
        "worst member": np.min(list(curves.values()), axis=0).tolist(),
        "certified": rounded(proved[METRIC]),
        "members": curves,
    }


def chosen(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The best candidate under auto that keeps the clean quality."""
    return max(good_enough(rows), key=lambda row: float(np.mean(row["auto"][1:])))


def chosen_by_model(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The same for each model that has one, among candidates that train at all."""
    good = [row for row in good_enough(rows) if row["changes"].get("epochs") != 0]
    by_model = {m: [row for row in good if row["changes"]["model"] == m] for m in MODELS}
    return {model: chosen(those) for model, those in by_model.items() if those}


def good_enough(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    floor = KEPT * max(row["clean"] for row in rows)
    return [row for row in rows if row["clean"] >= floor]


def line(row: dict[str, Any]) -> str:
    return (
        f"{row['candidate']:40} clean {row['clean']:.4f}  auto {row['auto'][1:]}  worst member "
        f"{row['worst member'][1:]}  certified {row['certified'][1:]}"
    )


def write_preset(split: Split, best: dict[str, Any], options: argparse.Namespace) -> None:
    changes = dict(best["changes"])
    base: Preset = preset(split.name, changes.pop("model"), changes.pop("reg"))
    config = base.config.replace(**changes)
    always = ("model", "dim", "epochs", "lr", "user_lr", "reg", "reg_weight")
    settings = {key: getattr(config, key) for key in always} | changed(config)
    content = {
        "config": settings | {"epochs_chosen": True},
        "found": {
            "how": f"NDCG@10 on valid under auto, mean over the sizes {EPSILONS[1:]}, among "
            f"candidates with {KEPT:.0%} of the best clean value; trained on train alone",
            "command": f"{command(options)} --out results/{options.out.name}",
            "starts from": base.name,
            "valid": {key: best[key] for key in ("clean", "auto", "worst member", "certified")},
            "tried": f"results/{options.out.name}",
        },
    }
    path = ROOT / "robustcf" / "presets" / f"{split.name}.{base.config.model}.robust.json"
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    print(path)


if __name__ == "__main__":
    main()
