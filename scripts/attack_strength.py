"""Is the headline attack the strongest known? Against more effort, other attacks, and transfer.

    python scripts/attack_strength.py --data-dir DIR --threads 2

Models of three data sets, trained as their presets say, attacked on test with the labels known, one
perturbation for all users, sizes in each row's own length; with stored users, or through the
fold-in. Next to the headline (`auto`): more
steps; as many more starts; the smooth NDCG (`cutoff`); one step on a softmax; a plain attack that
shares no code with it, written below from the idea alone (push the relevant items below the k-th
score, dense scores, autograd); and the perturbation of the same model of another seed, rotated to
this one. The last column is how much more the strongest of these takes than the headline, as a
share of the clean quality: it should be at most 1 %.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robustcf._runtime import set_threads
from robustcf.attacks import Pairwise
from robustcf.attacks.pairwise import STEPS
from robustcf.data import load
from robustcf.factors import Factors
from robustcf.recommender import Recommender
from robustcf.robustness import Threat, measure
from robustcf.training.fitting import fit_split
from robustcf.training.presets import preset

# Data set, model (None for the preset's own), kind of preset, and how users are served.
MODELS: tuple[tuple[str, str | None, str, str], ...] = (
    ("demo", "ultragcn", "tuned", "stored"),
    ("demo", None, "robust", "fold-in"),
    ("ml-1m", "softmax-mf", "tuned", "stored"),
    ("ml-1m", None, "robust", "stored"),
    ("ml-1m", None, "robust", "fold-in"),
    ("ml-100k", "ultragcn", "tuned", "stored"),
    ("ml-100k", "softmax-mf", "tuned", "stored"),
)
METRIC = "ndcg@10"
K = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--sizes", type=float, nargs="+", default=[0.02, 0.05, 0.1])
    parser.add_argument("--sets", nargs="+", help="these data sets only")
    parser.add_argument("--effort", type=int, default=10, help="times the steps, and the starts")
    parser.add_argument("--out", type=Path, default=Path("results/attack_strength.json"))
    options = parser.parse_args()
    set_threads(options.threads)
    rows = []
    for dataset, model, kind, serve in MODELS:
        if options.sets and dataset not in options.sets:
            continue
        chosen = preset(dataset, model, kind=kind)
        split = load(dataset, data_dir=options.data_dir, download=False)
        target, other = (
            fit_split(split, chosen.config.replace(seed=seed)).recommender().serving(serve)
            for seed in (0, 1)
        )
        found = judged(target, other, options.sizes, options.effort)
        rows.append({"model": f"{dataset}: {chosen.name}, {serve}", **found})
        print(line(rows[-1]), flush=True)
    content = {"metric": METRIC, "sizes": options.sizes, "effort": options.effort, "models": rows}
    options.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def judged(
    target: Recommender, other: Recommender, sizes: list[float], effort: int
) -> dict[str, Any]:
    """What each attack leaves at each size, and how far the headline is from the least."""

    def left(attack: str, **options: Any) -> list[float]:
        result = measure(target, attack, epsilons=sizes, ks=(K,), control=False, **options)
        return [round(float(value), 4) for value in result.curve[METRIC]]

    headline = measure(target, "auto", epsilons=sizes, ks=(K,), control=False)
    found = {
        f"{effort} x steps": left("pairwise", steps=effort * STEPS),
        f"{effort} starts": left("pairwise", restarts=effort),
        "cutoff": left("cutoff"),
        "fgm-softmax": left("fgm-softmax", threat=Threat(knowledge="labels")),
        "independent": [round(independent(target, size), 4) for size in sizes],
        "transfer": [round(transferred(target, other, size), 4) for size in sizes],
    }
    quoted = [round(float(value), 4) for value in headline.curve[METRIC]]
    clean = float(target.evaluate((K,))[METRIC])
    least = np.min(list(found.values()), axis=0)
    return {
        "clean": round(clean, 4),
        "headline": quoted,
        **found,
        "missed": [round(float(a - b) / clean, 4) for a, b in zip(quoted, least, strict=True)],
    }


def line(row: dict[str, Any]) -> str:
    shown = "  ".join(f"{name} {value}" for name, value in row.items() if name != "model")
    return f"{row['model']}: {shown}"


def independent(target: Recommender, size: float, steps: int = 40, stride: float = 0.25) -> float:
    """A plain projected ascent on dense scores; what its best step leaves of the mean NDCG@10."""
    U, V = (part.double() for part in target.factors)
    # Users who are not stored move with the items of their histories, by a linear map.
    mixed, P = None, V.new_empty(0)
    if target.histories is not None:
        mixed = target.histories.sums(torch.eye(len(V), dtype=torch.float64))
        P = target.arrays.users[:-2].double()
    reach = [size * part.norm(dim=1, keepdim=True) for part in (U, V)]
    users = np.flatnonzero(target.relevant.user_degrees)
    own = torch.from_numpy(target.relevant.csr()[users].toarray()).bool()
    hidden = torch.zeros_like(own)
    if target.seen is not None:
        hidden = torch.from_numpy(target.seen.csr()[users].toarray()).bool()
    ids = torch.from_numpy(users)
    moved = [torch.zeros_like(U), torch.zeros_like(V)]
    best = 1.0
    for _ in range(steps):
        spots = [part.clone().requires_grad_() for part in moved]
        value = 0.0
        for n in range(0, len(ids), 1024):
            rows = slice(n, n + 1024)
            own_ids = ids[rows]
            step = spots[0][own_ids] if mixed is None else mixed[own_ids] @ spots[1] @ P
            scores = (U[own_ids] + step) @ (V + spots[1]).T
            loss, gained = _pushed_down(scores, own[rows], hidden[rows])
            value += gained
            loss.backward()
        best = min(best, value / len(ids))
        for place, spot in enumerate(spots):
            if spot.grad is None:
                continue
            away = -spot.grad / spot.grad.norm(dim=1, keepdim=True).clamp_min(1e-300)
            new = moved[place] + stride * reach[place] * away
            length = new.norm(dim=1, keepdim=True).clamp_min(1e-300)
            moved[place] = new * (reach[place] / length).clamp(max=1.0)
    return best


def transferred(target: Recommender, other: Recommender, size: float) -> float:
    """What is left under the headline's perturbation of another model, rotated to this one."""
    how = Threat().on(other).options(other)
    attacked = Pairwise(other.relevant, other.seen, K, **how).perturb(other.arrays, size).factors
    left, _, right = torch.linalg.svd(other.factors.items.T @ target.factors.items)
    moved = []
    for own, before, after in zip(target.factors, other.factors, attacked, strict=True):
        lengths = before.norm(dim=1, keepdim=True).clamp_min(1e-30)
        shares = (after - before) @ (left @ right) / lengths
        moved.append(own + own.norm(dim=1, keepdim=True) * shares)
    factors = Factors(*moved)
    if target.histories is not None:
        factors = target.histories.factors(Factors(target.arrays.users, factors.items))
    return float(target.evaluate((K,), factors)[METRIC])


def _pushed_down(scores: Tensor, own: Tensor, hidden: Tensor) -> tuple[Tensor, float]:
    """How far relevant items are above the k-th score, softly; and the sum of NDCG@10."""
    open_scores = scores.masked_fill(hidden, -torch.inf)
    top = open_scores.topk(K, dim=1)
    hits = own.gather(1, top.indices).double()
    discounts = 1 / torch.log2(torch.arange(2, K + 2, dtype=torch.float64))
    counts = own.sum(dim=1).clamp(max=K)
    ideal = torch.cumsum(discounts, 0)[counts - 1]
    value = float(((hits * discounts).sum(dim=1) / ideal).sum())
    bar = top.values[:, -1:]
    width = 0.1 * (top.values[:, :1] - bar).detach().clamp_min(1e-9)
    above = torch.sigmoid((scores - bar) / width) * own
    loss: Tensor = (above.sum(dim=1) / ideal).sum()
    return loss, value


if __name__ == "__main__":
    main()
