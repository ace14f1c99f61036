"""Choose the robust preset on VALID: quality under an ensemble of attacks, clean quality kept.

    python scripts/tune_robust.py --data-dir DIR --threads 1

Each candidate is trained on train alone. Then its factors are attacked, with objectives over the
train pairs and relative row budgets of 0.1 and 0.2, and evaluated on valid. The test pairs are
never looked at. Out of the candidates that keep 97 % of the best clean NDCG@10, the one is chosen
that has most under its worst attack, mean over the sizes 0 (clean), 0.1 and 0.2; it becomes
robustcf/presets/*.robust.json. A file that is there already is gone on with.

With --test it reports the chosen preset on test instead, once, beside the others.

A softmax is attacked at three sharpnesses: scores times a constant rank alike, but their softmax
has another gradient, and a defence that has only seen one of them may fail against the next. They
are shares of the sharpness at which the softmax fits the train pairs best.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from robustcf.attacks import FGM, PGD, Attack, Softmax
from robustcf.config import TrainConfig
from robustcf.data import Split, load
from robustcf.factors import Factors
from robustcf.metrics import evaluate
from robustcf.metrics.evaluate import Part
from robustcf.models import BPRMF, UltraGCN
from robustcf.presets import preset
from robustcf.robustness import PassObjective
from robustcf.runtime import set_threads
from robustcf.training import gauged, train

ROOT = Path(__file__).resolve().parent.parent
EPSILONS = (0.1, 0.2)
TEST_EPSILONS = (0.05, 0.1, 0.2)
KEPT = 0.97
COMMAND = "python scripts/tune_robust.py --threads 1"
BUDGET = "row, in median row norms of U and of V"
ADVERSARIAL = {"adversarial": "softmax", "adv_eps": 0.3, "adv_weight": 1.0, "reg_weight": 1.3e-4}
BALANCED = {"gauge": "balanced"}

# Name -> regularizer of the preset to start from, and what to change in it.
CANDIDATES: dict[str, tuple[str, dict[str, Any]]] = {
    "weight decay": ("weight_decay", {}),
    "two_to_inf": ("two_to_inf", {}),
    "softmax adversarial, eps 0.1": (
        "weight_decay",
        {"adversarial": "softmax", "adv_eps": 0.1, "adv_weight": 1.0},
    ),
    "softmax adversarial, eps 0.3, more weight decay": ("weight_decay", ADVERSARIAL),
    "weight decay, balanced": ("weight_decay", BALANCED),
    "two_to_inf, balanced": ("two_to_inf", BALANCED),
    "softmax adversarial, eps 0.3, balanced": ("weight_decay", ADVERSARIAL | BALANCED),
    "weight decay, balanced, dim 64": ("weight_decay", BALANCED | {"dim": 64}),
    "weight decay, balanced, shrink 0.5": ("weight_decay", BALANCED | {"shrink": 0.5}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", default="ml-1m")
    parser.add_argument("--data-dir")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--only", nargs="*", choices=list(CANDIDATES), help="these candidates")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "robust_search.json")
    parser.add_argument(
        "--test",
        type=int,
        nargs="?",
        const=3,
        metavar="SEEDS",
        help="do not choose: report on test",
    )
    parser.add_argument("--dry", action="store_true", help="do not write the preset")
    options = parser.parse_args()
    set_threads(options.threads)
    split = load(options.dataset, data_dir=options.data_dir, download=False)
    if options.test:
        content = {
            "command": f"{COMMAND} --test",
            "dataset": split.name,
            "metric": "ndcg@10 on test",
            "epsilons": list(TEST_EPSILONS),
            "budget": BUDGET,
            "presets": on_test(split, options.test),
        }
        options.out.with_name("robust_test.json").write_text(json.dumps(content, indent=1) + "\n")
        return
    rows = search(split, options.only or list(CANDIDATES), options.out)
    best = chosen(rows)
    print(f"chosen: {best['candidate']}")
    write(options.out, split, rows, chosen=best["candidate"])
    if not options.dry:
        write_preset(split, best)


def search(split: Split, names: list[str], out: Path) -> list[dict[str, Any]]:
    """Judge candidates one by one; what the file has already is not judged again."""
    rows: list[dict[str, Any]] = []
    known = json.loads(out.read_text(encoding="utf-8"))["candidates"] if out.exists() else []
    trained: dict[TrainConfig, Factors] = {}
    for name in names:
        reg, changes = CANDIDATES[name]
        row: dict[str, Any] = {"candidate": name, "changes": {"reg": reg, **changes}}
        for old in known:
            if (old["candidate"], old["changes"]) == (name, row["changes"]):
                row = old
        if "clean" not in row:
            base = preset(split.name, "ultragcn", reg).config
            config = base.replace(**changes, epochs_chosen=True, refit="no")
            row |= judge(split, config, trained)
        rows.append(row)
        print(line(row), flush=True)
        write(out, split, rows)
    return rows


def write(out: Path, split: Split, rows: list[dict[str, Any]], **more: str) -> None:
    content = {
        "command": COMMAND,
        "dataset": split.name,
        "metric": "ndcg@10 on valid",
        "epsilons": list(EPSILONS),
        "budget": BUDGET,
        **more,
        "candidates": rows,
    }
    out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def judge(split: Split, config: TrainConfig, trained: dict[TrainConfig, Factors]) -> dict[str, Any]:
    """Train, or take what was trained already, and attack on valid."""
    # Candidates that differ in their gauge alone come from one training.
    raw = config.replace(gauge="none", shrink=0.0)
    if raw not in trained:
        trained[raw] = train(split, raw).factors
    return attacked(split, gauged(trained[raw], config), "valid", EPSILONS)


def attacked(
    split: Split, factors: Factors, part: Part, epsilons: Sequence[float]
) -> dict[str, Any]:
    """NDCG@10: clean, under each attack, under the worst one, and with the worst for each user."""

    def quality(found: Factors) -> npt.NDArray[np.float64]:
        return evaluate(found, split, (10,), part=part).per_user["ndcg@10"]

    clean = round(float(quality(factors).mean()), 4)
    factors = fitted(factors, split)
    values = {
        name: [quality(attack.perturb(scaled(factors, size), e).factors) for e in epsilons]
        for name, (size, attack) in ensemble(split, factors).items()
    }
    attacks = {name: [round(float(v.mean()), 4) for v in row] for name, row in values.items()}
    least = np.min([list(row) for row in values.values()], axis=0)
    return {
        "clean": clean,
        "attacks": attacks,
        "worst": np.min(list(attacks.values()), axis=0).tolist(),
        "by_user": [round(float(v.mean()), 4) for v in least],
    }


def ensemble(split: Split, factors: Factors) -> dict[str, tuple[float, Attack]]:
    softmax = Softmax(split.train)
    bce = PassObjective(UltraGCN(split.train, item_weight=0.0, start=factors), "bce")
    bpr = PassObjective(BPRMF(split.train, start=factors, sampled_items=256), "bpr")
    return {
        "softmax fgm, 0.1": (0.1, FGM(softmax, relative=True)),
        "softmax fgm, 0.3": (0.3, FGM(softmax, relative=True)),
        "softmax fgm, 1": (1.0, FGM(softmax, relative=True)),
        "softmax pgd, 0.3": (0.3, PGD(softmax, steps=8, relative=True)),
        "bce fgm": (1.0, FGM(bce, relative=True)),
        "bpr fgm": (1.0, FGM(bpr, relative=True)),
        "bpr fgm, 0.1": (0.1, FGM(bpr, relative=True)),
    }


def scaled(factors: Factors, sharpness: float) -> Factors:
    """All scores times a constant."""
    return Factors(sharpness**0.5 * factors.users, sharpness**0.5 * factors.items)


def fitted(factors: Factors, split: Split, users: int = 512) -> Factors:
    """All scores times the constant at which the softmax of some users is least on train."""
    some = np.unique(np.linspace(0, split.n_users - 1, users).astype(np.int64))
    own = torch.from_numpy(split.train.csr()[some].toarray() > 0)
    some_users, own = some[own.any(dim=1).numpy()], own[own.any(dim=1)]
    scores = factors.users[torch.from_numpy(some_users)] @ factors.items.T
    mean = (scores * own).sum(dim=1) / own.sum(dim=1)
    sizes = torch.logspace(-1.5, 1.5, 31).tolist()
    losses = [float((torch.logsumexp(t * scores, dim=1) - t * mean).sum()) for t in sizes]
    return scaled(factors, sizes[int(np.argmin(losses))])


def on_test(split: Split, seeds: int) -> dict[str, Any]:
    """The robust preset beside the others, on test: to be looked at once, after choosing."""
    found: dict[str, Any] = {}
    for name in ("weight_decay", "two_to_inf", "robust"):
        runs = [seed_on_test(split, name, seed) for seed in range(seeds)]
        found[name] = {"seeds": runs} | {
            key: np.mean([run[key] for run in runs], axis=0).round(4).tolist()
            for key in ("clean", "worst", "by_user")
        }
    return found


def seed_on_test(split: Split, name: str, seed: int) -> dict[str, Any]:
    robust = name == "robust"
    chosen_for = preset(
        split.name, reg=None if robust else name, kind="robust" if robust else "tuned"
    )
    factors = train(split, chosen_for.config.replace(seed=seed, refit="no")).factors
    found = attacked(split, factors, "test", TEST_EPSILONS)
    print(line({"candidate": f"{name}, seed {seed}"} | found), flush=True)
    return found


def chosen(rows: list[dict[str, Any]]) -> dict[str, Any]:
    floor = KEPT * max(row["clean"] for row in rows)
    return max(
        (row for row in rows if row["clean"] >= floor),
        key=lambda row: float(np.mean([row["clean"], *row["worst"]])),
    )


def line(row: dict[str, Any]) -> str:
    return (
        f"{row['candidate']:48} clean {row['clean']:.4f}  worst {row['worst']}  "
        f"by user {row['by_user']}  {row['attacks']}"
    )


def write_preset(split: Split, best: dict[str, Any]) -> None:
    changes = dict(best["changes"])
    reg = changes.pop("reg")
    base = preset(split.name, "ultragcn", reg)
    defaults = TrainConfig(model="ultragcn").as_dict()
    settings = {
        key: value
        for key, value in base.config.replace(**changes).as_dict().items()
        if value != defaults[key] or key in ("dim", "epochs", "lr", "user_lr", "reg", "reg_weight")
    }
    content = {
        "config": settings | {"epochs_chosen": True},
        "found": {
            "how": "NDCG@10 on valid, mean of clean and of the worst of an ensemble of attacks at "
            f"sizes {EPSILONS}, among candidates with {KEPT:.0%} of the best clean value; trained "
            "on train alone",
            "command": COMMAND,
            "starts from": base.name,
            "valid": {key: best[key] for key in ("clean", "worst", "by_user", "attacks")},
            "tried": "results/robust_search.json",
        },
    }
    path = ROOT / "robustcf" / "presets" / f"{split.name}.ultragcn.robust.json"
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    print(path)


if __name__ == "__main__":
    main()
