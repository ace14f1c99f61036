"""Choose the robust preset on VALID: quality under `auto`, with the clean quality kept.

    python scripts/tune_robust.py --data-dir DIR --threads 1

Each candidate is trained on train alone. Then its factors face the ensemble of attacks that
`robustcf attack --attack auto` is made of, with objectives over the train pairs and relative row
budgets, and are evaluated on valid. The test pairs are never used. Out of the candidates that keep
97 % of the best clean NDCG@10, the one is chosen that has most under auto, mean over the sizes
above 0. The best of each model that trains at all becomes robustcf/training/presets/*.robust.json.
Certified lower bounds are reported too. A file that is there already is gone on
with.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from robustcf.attacks import FGM
from robustcf.data import Split, load
from robustcf.models import MODELS
from robustcf.objectives import OBJECTIVES
from robustcf.robustness import (
    AttackSpec,
    Result,
    Target,
    Threat,
    measure,
    worst_of,
)
from robustcf.robustness.table import AUTO, CERTIFICATE, Request
from robustcf.support.runtime import set_threads
from robustcf.training import TrainConfig, presets, train
from robustcf.training.presets import Preset, preset
from robustcf.training.train import gauged

RESULTS = Path(__file__).resolve().parent.parent / "results"
FOLDER = Path(presets.__file__).parent
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
    parser.add_argument("--out", type=Path, default=RESULTS / "robust_search.json")
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
    trained: dict[TrainConfig, Target] = {}
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
    """The settings that differ from the defaults of what is chosen, and what is chosen."""
    parts = {"reg": config.reg.name, "adversarial": config.adversary.name}
    defaults = TrainConfig.of(model=config.model.name, **parts).flat()
    defaults |= {"reg": TrainConfig().reg.name, "adversarial": TrainConfig().adversary.name}
    return {key: value for key, value in config.flat().items() if value != defaults[key]}


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
    split: Split, config: TrainConfig, trained: dict[TrainConfig, Target], *, one_step: bool
) -> dict[str, Any]:
    """Train, or take what was trained already, and attack on valid."""
    # Candidates that differ in their gauge alone come from one training.
    raw = config.replace(gauge="none", shrink=0.0)
    if raw not in trained:
        trained[raw] = Target.of(train(split, raw), part="valid")
    target = trained[raw]
    return attacked(target.with_factors(gauged(target.factors, config)), one_step=one_step)


def attacked(target: Target, *, one_step: bool) -> dict[str, Any]:
    """NDCG@10 on valid under auto and under its members, and the certificate."""

    def rounded(values: Any) -> list[float]:
        return [round(float(value), 4) for value in values]

    def measured(attack: str | FGM, epsilons: tuple[float, ...] = EPSILONS) -> Result:
        return measure(target, attack, epsilons=epsilons, ks=(10,), control=False)

    if one_step:
        members = {name: measured(attack).curve for name, attack in steps(target).items()}
    else:
        members = measured(AUTO).members or {}
    proved = measured(CERTIFICATE, CERTIFIED).curve
    curves = {name: rounded(curve[METRIC]) for name, curve in members.items()}
    return {
        "clean": curves["fgm-bce"][0],
        "auto": rounded(worst_of(members, AUTO, cumulative=True)[METRIC]),
        "worst member": np.min(list(curves.values()), axis=0).tolist(),
        "certified": rounded(proved[METRIC]),
        "members": curves,
    }


def steps(target: Target) -> dict[str, str | FGM]:
    """The members of auto that take one step: by name, and at the scale where they are least."""
    found: dict[str, str | FGM] = {f"fgm-{name}": f"fgm-{name}" for name in OBJECTIVES}
    for name in OBJECTIVES:
        request = Request(target, Threat(), AttackSpec("fgm", name), EPSILONS, (10,))
        objective = request.objective(name)
        if objective.log2_temperature:
            found[f"fgm-{name}-fitted"] = FGM(objective, log2_temperature=0.0)
    return found


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
    values = config.flat()
    settings = {key: values[key] for key in always} | changed(config)
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
    path = FOLDER / f"{split.name}.{base.config.model.name}.robust.json"
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    print(path)


if __name__ == "__main__":
    main()
