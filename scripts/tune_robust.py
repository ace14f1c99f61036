"""Choose the robust preset on VALID: quality under the headline attack, the clean quality kept.

    python scripts/tune_robust.py --data-dir DIR --threads 2

Each candidate is trained on train alone. Then its factors face the attack at the cutoff: one
perturbation for all users, by an attacker who knows the valid pairs, sizes in lengths of each row,
fewer steps than the headline's (they order candidates alike and cost less). The test pairs are
never used. Out of the candidates that keep 97 % of the best clean NDCG@10, the one with the
highest mean over the sizes above 0 is chosen. In the same way one is chosen for each model, against
the best clean NDCG@10 of that model: it becomes robustcf/training/presets/*.robust.json. Certified
lower bounds are reported too. An existing file is resumed.

Every training is judged in the balanced gauge at several ranks: how many directions of the scores
are kept. That costs no training. Sparse sets fall at smaller sizes than MovieLens does: there
``--epsilons 0 0.02 0.05 0.1`` tells candidates apart. On large sets ``--users 4000`` attacks and
judges a sample of the users, the same for all candidates; all users' pairs are trained on.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from robustcf._runtime import set_threads
from robustcf.data import Interactions, Split, load
from robustcf.factors import Factors
from robustcf.models import MODELS
from robustcf.recommender import Recommender
from robustcf.robustness import measure
from robustcf.robustness.table import CERTIFICATE, CUTOFF
from robustcf.training import TrainConfig, presets
from robustcf.training.fitting import fit_split, gauged
from robustcf.training.presets import Preset, preset

RESULTS = Path(__file__).resolve().parent.parent / "results"
FOLDER = Path(presets.__file__).parent
EPSILONS = (0.0, 0.05, 0.1, 0.2)
CERTIFIED = (0.0, 0.01, 0.02, 0.05)
METRIC = "ndcg@10"
KEPT = 0.97
STEPS = 20
COMMAND = "python scripts/tune_robust.py --threads 2"
BUDGET = "row, in lengths of each row of U and of V"
BALANCED = {"gauge": "balanced"}
RANKS = (24, 32, 48, 64, 96, 128, 256)
START = {"init": "smooth", "epochs": 0, "factors": 128}
ADVERSARIAL = {"adversarial": "softmax", "adv_eps": 0.3, "adv_weight": 1.0}


def margin(eps: float, weight: float = 1.0) -> dict[str, Any]:
    return {"adversarial": "margin", "adv_eps": eps, "adv_weight": weight}


# Name -> model and regularizer of the preset to start from, and what to change in it.
TRAINED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "weight decay": ("ultragcn", "weight_decay", {}),
    "two_to_inf": ("ultragcn", "two_to_inf", {}),
    "two_to_inf, half the epochs": ("ultragcn", "two_to_inf", {"epochs": 0.5}),
    "max_norm": ("ultragcn", "max_norm", {}),
    "smooth start, no training": ("ultragcn", "weight_decay", START),
    "smooth start of 256, no training": ("ultragcn", "weight_decay", START | {"factors": 256}),
    "smooth start of 512, no training": ("ultragcn", "weight_decay", START | {"factors": 512}),
    "smooth start of 640, no training": ("ultragcn", "weight_decay", START | {"factors": 640}),
    "smooth start, one epoch": ("ultragcn", "two_to_inf", {"init": "smooth", "epochs": 1}),
    "softmax MF": ("softmax-mf", "none", {}),
    "softmax MF, margin 0.1": ("softmax-mf", "none", {"positive_temperature": None} | margin(0.1)),
    "softmax MF, margin 0.2": ("softmax-mf", "none", {"positive_temperature": None} | margin(0.2)),
    "softmax adversarial": ("ultragcn", "weight_decay", ADVERSARIAL),
    "bpr-mf": ("bpr-mf", "weight_decay", {}),
    "bpr-mf, margin 0.2": ("bpr-mf", "weight_decay", margin(0.2)),
}
CANDIDATES: dict[str, tuple[str, str, dict[str, Any]]] = {
    **TRAINED,
    **{
        f"{name}, balanced{f', rank {rank}' if rank else ''}": (
            *start,
            changes | BALANCED | ({"rank": rank} if rank else {}),
        )
        for name, (*start, changes) in TRAINED.items()
        for rank in (None, *RANKS)
    },
}  # type: ignore[dict-item]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", default="ml-1m")
    parser.add_argument("--data-dir")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--epsilons", type=float, nargs="+", default=list(EPSILONS))
    parser.add_argument("--users", type=int, help="judge this many users; default: all")
    parser.add_argument("--kept", type=float, default=KEPT, help="of the best clean quality")
    parser.add_argument("--only", nargs="*", choices=list(CANDIDATES), help="these candidates")
    parser.add_argument("--out", type=Path, default=RESULTS / "robust_search.json")
    parser.add_argument("--dry", action="store_true", help="do not write the preset")
    options = parser.parse_args()
    set_threads(options.threads)
    split = load(options.dataset, data_dir=options.data_dir, download=False)
    rows = search(split, options.only or list(CANDIDATES), options)
    best = chosen_by_model(rows, options.kept)
    names = {model: row["candidate"] for model, row in best.items()}
    winner = chosen(rows, options.kept)["candidate"]
    print(f"chosen: {winner}; by model {names}")
    write(options, split, rows, chosen=winner, by_model=names)
    for row in () if options.dry else best.values():
        # Where no defence is better, there is no robust preset of that model.
        if row["changes"].get("gauge"):
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
        config = configured(split, model, reg, changes)
        if (config.rank or 0) >= config.flat()["factors"]:
            continue  # all directions there are: the candidate without a rank
        settings = changed(config)
        if known.get(name, {}).get("settings") != settings:
            known[name] = {
                "candidate": name,
                "changes": {"model": model, "reg": reg, **changes},
                "settings": settings,
                **judge(split, config, trained, options),
            }
        print(line(known[name]), flush=True)
        write(options, split, list(known.values()))
    return list(known.values())


def configured(split: Split, model: str, reg: str, changes: dict[str, Any]) -> TrainConfig:
    """The settings of a candidate; epochs below 1 are a share of the preset's."""
    base = preset(split.name, model, reg).config
    wanted = dict(changes)
    if 0 < wanted.get("epochs", 0) < 1:
        wanted["epochs"] = max(1, round(wanted["epochs"] * base.epochs))
    return base.replace(**wanted, epochs_chosen=True, refit="no")


def rows_of(options: argparse.Namespace, split: Split) -> list[dict[str, Any]]:
    """What the file holds already, if it is of this data set and these attacks."""
    if not options.out.exists():
        return []
    content = json.loads(options.out.read_text(encoding="utf-8"))
    told = tuple(content[key] for key in ("dataset", "command", "budget"))
    if told != (split.name, command(options), BUDGET):
        raise SystemExit(
            f"{options.out} is of another search ({'; '.join(told)}): choose another --out"
        )
    rows: list[dict[str, Any]] = content["candidates"]
    return rows


def changed(config: TrainConfig) -> dict[str, Any]:
    """Return the choices, and the settings that differ from their defaults."""
    parts = {"reg": config.reg.name, "adversarial": config.adversary.name}
    defaults = TrainConfig.of(model=config.model.name, **parts).flat()
    defaults |= {
        "reg": TrainConfig.of(model="ultragcn").reg.name,
        "adversarial": TrainConfig.of(model="ultragcn").adversary.name,
    }
    return {key: value for key, value in config.flat().items() if value != defaults[key]}


def command(options: argparse.Namespace) -> str:
    words = [COMMAND]
    words += [f"--dataset {options.dataset}"] if options.dataset != "ml-1m" else []
    if tuple(options.epsilons) != EPSILONS:
        words += ["--epsilons", *map(str, options.epsilons)]
    words += [f"--users {options.users}"] if options.users else []
    words += [f"--kept {options.kept:g}"] if options.kept != KEPT else []
    return " ".join(words)


def write(
    options: argparse.Namespace, split: Split, rows: list[dict[str, Any]], **more: Any
) -> None:
    content = {
        "command": command(options),
        "dataset": split.name,
        "metric": f"{METRIC} on valid",
        "epsilons": options.epsilons,
        "certified epsilons": list(CERTIFIED),
        "budget": BUDGET,
        **more,
        "candidates": rows,
    }
    options.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def judge(
    split: Split,
    config: TrainConfig,
    trained: dict[TrainConfig, Factors],
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Train, or take what was trained already, and attack on valid."""
    # Candidates that differ in their gauge alone come from one training.
    raw = config.replace(gauge="none", shrink=0.0, rank=None)
    if raw not in trained:
        trained[raw] = fit_split(split, raw).factors
    users, items = gauged(trained[raw], config)
    if options.users and options.users < split.n_users:
        rng = np.random.default_rng(0)
        some = np.sort(rng.choice(split.n_users, options.users, replace=False))
        split, users = of_users(split, some), users[some]
    return attacked(Recommender(users, items, split, part="valid"), options.epsilons)


def of_users(split: Split, some: np.ndarray) -> Split:
    """A split of these users alone, numbered anew."""
    place = np.full(split.n_users, -1)
    place[some] = np.arange(len(some))

    def theirs(pairs: Interactions) -> Interactions:
        kept = place[pairs.users] >= 0
        return Interactions(
            place[pairs.users[kept]], pairs.items[kept], len(some), pairs.n_items
        )  # fmt: skip

    parts = (theirs(part) for part in (split.train, split.valid, split.test))
    return Split(split.name, *parts, valid_source=split.valid_source, protocol=split.protocol)


def attacked(target: Recommender, epsilons: list[float]) -> dict[str, Any]:
    """NDCG@10 on valid under the attack at the cutoff, and the certificate."""

    def measured(attack: str, sizes: Sequence[float], **options: Any) -> list[float]:
        result = measure(target, attack, epsilons=sizes, ks=(10,), control=False, **options)
        return [round(float(value), 4) for value in result.curve[METRIC]]

    joint = measured(CUTOFF, epsilons, steps=STEPS)
    return {"clean": joint[0], "joint": joint, "certified": measured(CERTIFICATE, CERTIFIED)}


def chosen(rows: list[dict[str, Any]], kept: float = KEPT) -> dict[str, Any]:
    """The best candidate under attack that keeps the clean quality."""
    return max(good_enough(rows, kept), key=lambda row: float(np.mean(row["joint"][1:])))


def chosen_by_model(rows: list[dict[str, Any]], kept: float = KEPT) -> dict[str, dict[str, Any]]:
    """The same for each model, next to the best clean quality of that model."""
    by_model = {m: [row for row in rows if row["changes"]["model"] == m] for m in MODELS}
    return {model: chosen(those, kept) for model, those in by_model.items() if those}


def good_enough(rows: list[dict[str, Any]], kept: float) -> list[dict[str, Any]]:
    floor = kept * max(row["clean"] for row in rows)
    return [row for row in rows if row["clean"] >= floor]


def line(row: dict[str, Any]) -> str:
    return (
        f"{row['candidate']:44} clean {row['clean']:.4f}  joint {row['joint'][1:]}  certified "
        f"{row['certified'][1:]}"
    )


def write_preset(split: Split, best: dict[str, Any], options: argparse.Namespace) -> None:
    changes = dict(best["changes"])
    model, reg = changes.pop("model"), changes.pop("reg")
    base: Preset = preset(split.name, model, reg)
    config = configured(split, model, reg, changes).replace(refit=base.config.refit)
    always = ("model", "factors", "epochs", "lr", "user_lr", "reg", "reg_weight")
    values = config.flat()
    settings = {key: values[key] for key in always} | changed(config)
    content = {
        "config": settings | {"epochs_chosen": True},
        "found": {
            "how": f"NDCG@10 on valid under the attack at the cutoff (joint, labels, {STEPS} "
            f"steps), mean over the sizes {tuple(options.epsilons[1:])}, among candidates with "
            f"{options.kept:.0%} of the best clean value; trained on train alone",
            "command": f"{command(options)} --out results/{options.out.name}",
            "starts from": base.name,
            "valid": {key: best[key] for key in ("clean", "joint", "certified")},
            "tried": f"results/{options.out.name}",
        },
    }
    path = FOLDER / f"{split.name}.{base.config.model.name}.robust.json"
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    print(path)


if __name__ == "__main__":
    main()
