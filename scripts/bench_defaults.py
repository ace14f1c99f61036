"""What a user gets without any option, against tuned baselines, on sets that differ.

    python scripts/bench_defaults.py --data-dir DIR
    python scripts/bench_defaults.py --data-dir DIR --sets ml-100k demo --seeds 0 1 2 --out FILE

For each set and split seed: the search behind ``robustcf train --dataset FILE`` with its refit, and
baselines whose settings are chosen on the same validation pairs from a grid and which are then fit
again on train and valid: ALS of the package implicit, exact EASE, item-kNN and popularity. NDCG@20
on test, and the mean difference to the best baseline (of each seed, by validation) with its
standard error over users, paired. Times are of one run each, side by side.

"To the quality of ALS" is the time until a search has tried settings that are as good on validation
data as the tuned ALS, and the time that ALS's grid takes up to its best setting. The search trains
for each of its validation parts, the grid for one; both are judged on all of them.

Sets are cut anew for each seed. Parts of larger sets have their users drawn, then a 5-core.

    python scripts/bench_defaults.py --data-dir DIR --presets citeulike-a citeulike-t

judges the presets instead: what ``robustcf train --dataset NAME`` gives on the set's own split, one
training, against the same baselines.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from robustcf._runtime import set_threads
from robustcf.data import Interactions, Split, k_core, load, split_pairs
from robustcf.factors import Factors
from robustcf.metrics.evaluate import evaluate, evaluate_rankings
from robustcf.training import TrainConfig
from robustcf.training.fitting import fit_split
from robustcf.training.presets import preset
from robustcf.training.search import search, validation_parts

METRIC = "ndcg@20"
#: Generated: every user draws items by their popularity, so that nothing else can be learnt.
POPULARITY = "popularity"
# Name -> source (a set, a file below --data-dir), users drawn (None: all), least pairs of a user
# and an item.
SETS: dict[str, tuple[str, int | None, int]] = {
    "ml-100k": ("ml-100k", None, 1),
    "demo": ("demo", None, 1),
    "citeulike-a": ("citeulike-a", None, 1),
    "citeulike-t": ("citeulike-t", None, 1),
    "gowalla, 5,000 users": ("gowalla", 5_000, 5),
    "gowalla, 1,000 users": ("gowalla", 1_000, 3),
    "yelp2018, 5,000 users": ("yelp2018", 5_000, 5),
    "yelp2018, 500 users": ("yelp2018", 500, 2),
    "ml-1m, 1,500 users": ("ml-1m", 1_500, 5),
    "ml-1m, 500 users": ("ml-1m", 500, 1),
    "steam": ("steam/interactions.csv", None, 1),
    "steam, 20-core": ("steam/interactions.csv", None, 20),
    "beauty": ("beauty/interactions.csv", None, 1),
    "beauty, 10-core": ("beauty/interactions.csv", None, 10),
    "beauty, 5,000 users": ("beauty/interactions.csv", 5_000, 3),
    "popularity alone": (POPULARITY, None, 1),
    "ml-100k, 3 to 9 items": ("ml-100k", None, 1),
    "steam, 3 to 9 items": ("steam/interactions.csv", None, 1),
    "ml-100k, copied users": ("ml-100k", None, 1),
}
Scores = Callable[[Any], Any]
Fit = Callable[[Interactions, Any], "Factors | Scores"]


def few_items(pairs: Interactions, rng: np.random.Generator) -> Interactions:
    """3 to 9 pairs of each user."""
    order = np.lexsort((rng.random(len(pairs)), pairs.users))
    place = np.arange(len(pairs)) - pairs.indptr[pairs.users[order]]
    kept = np.zeros(len(pairs), dtype=bool)
    kept[order] = place < rng.integers(3, 10, pairs.n_users)[pairs.users[order]]
    return k_core(pairs.take(kept), 1)


def copied_users(pairs: Interactions, rng: np.random.Generator) -> Interactions:
    """A twentieth of the users ten times each."""
    chosen = rng.choice(pairs.n_users, pairs.n_users // 20, replace=False)
    rows = np.concatenate([np.arange(pairs.n_users), np.repeat(chosen, 9)])
    return Interactions.from_csr(pairs.csr()[rows])


VARIED = {"3 to 9 items": few_items, "copied users": copied_users}


def pairs_of(name: str, seed: int, data_dir: str | None) -> Interactions:
    """All pairs of a set, or those of some of its users."""
    variant = name.rpartition(", ")[2]
    if variant in VARIED:
        whole = pairs_of(name.removesuffix(f", {variant}"), seed, data_dir)
        return VARIED[variant](whole, np.random.default_rng(seed))
    source, users, core = SETS[name]
    if source == POPULARITY:
        rng, shares = np.random.default_rng(seed), 1.0 / np.arange(1, 801)
        drawn = rng.choice(800, (2_000, 20), p=shares / shares.sum())  # repeated pairs count once
        rows = np.repeat(np.arange(2_000), 20)
        return k_core(Interactions.from_pairs(rows, drawn.ravel(), 2_000, 800)[0], 1)
    if "/" in source:
        split = load(Path(data_dir or ".") / source)
    else:
        split = load(source, data_dir=data_dir)
    R = split.train_full.csr() + split.test.csr()
    if users is not None:
        drawn = np.random.default_rng(seed).choice(R.shape[0], users, replace=False)
        R = R[np.sort(drawn)]
    rows, columns = R.nonzero()
    pairs, _ = Interactions.from_pairs(rows, columns, *R.shape)
    return k_core(pairs, core) if core > 1 else k_core(pairs, 1)


def popularity(train_pairs: Interactions, _: Any) -> Factors:
    degrees = torch.from_numpy(train_pairs.item_degrees.astype(np.float32))[:, None]
    return Factors(torch.ones(train_pairs.n_users, 1), degrees)


def ease(train_pairs: Interactions, ridge: float) -> Scores:
    """R B of Steck's B = I - P diag(P)^-1, P = (R^T R + ridge I)^-1, for items a user has not.

    Up to each user's own items these are -R P diag(P)^-1, and R P = K R with
    K = (R R^T + ridge I)^-1: only the smaller side's matrix is inverted.
    """
    # Single precision halves the memory where the matrices would fill it.
    dtype = np.float64 if min(train_pairs.n_users, train_pairs.n_items) <= 12_000 else np.float32
    R = train_pairs.csr().astype(dtype)
    by_users = train_pairs.n_users < train_pairs.n_items
    gram = torch.from_numpy((R @ R.T if by_users else R.T @ R).toarray())
    gram.diagonal().add_(ridge)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(gram)).numpy()
    if by_users:
        explained = np.asarray(R.multiply(inverse @ R).sum(axis=0)).ravel()
        diagonal = (1.0 - explained) / ridge
        return lambda users: -(inverse[users] @ R) / diagonal
    return lambda users: -(R[users] @ inverse) / np.diag(inverse)


def item_knn(train_pairs: Interactions, neighbours: int) -> Scores:
    R = train_pairs.csr().astype(np.float64)
    roots = 1.0 / np.sqrt(np.maximum(train_pairs.item_degrees, 1))
    S = (R.T @ R).multiply(roots[:, None]).multiply(roots).tocsc()
    S.setdiag(0.0)
    for start, stop in zip(S.indptr, S.indptr[1:], strict=False):
        here = S.data[start:stop]  # the items that are like one
        if len(here) > neighbours:
            here[here < np.partition(here, -neighbours)[-neighbours]] = 0.0
    S = S.tocsr()
    return lambda users: (R[users] @ S).toarray()


def implicit_als(train_pairs: Interactions, setting: tuple[int, float, float]) -> Factors:
    from implicit.cpu.als import AlternatingLeastSquares

    dim, reg, alpha = setting
    model = AlternatingLeastSquares(
        dim, regularization=reg, alpha=alpha, iterations=15, random_state=0,
        num_threads=torch.get_num_threads(),
    )  # fmt: skip
    model.fit(train_pairs.csr().astype(np.float32), show_progress=False)
    return Factors(torch.from_numpy(model.user_factors), torch.from_numpy(model.item_factors))


ALS = "ALS (implicit)"
GRIDS: dict[str, tuple[Fit, list[Any]]] = {
    "popularity": (popularity, [None]),
    "item-kNN": (item_knn, [20, 100, 500]),
    "EASE": (ease, [10.0, 30.0, 100.0, 300.0, 1000.0]),
    ALS: (
        implicit_als,
        [(d, r, a) for d in (64, 256) for r in (1.0, 10.0, 30.0, 100.0) for a in (5.0, 20.0)],
    ),
}
# Of the dense matrix: EASE is left out where users and items are more than this.
MOST_ROWS = 26_000
BLOCK = 512


def rivals_of(split: Split) -> list[str]:
    """The baselines that fit in memory and whose package is there."""
    rivals = [name for name in GRIDS if name != "EASE"]
    if "EASE" in GRIDS and min(split.n_users, split.n_items) <= MOST_ROWS:
        rivals.append("EASE")
    if ALS in rivals and importlib.util.find_spec("implicit") is None:
        print("implicit is not installed (extra 'bench'): ALS is left out")
        rivals.remove(ALS)
    return rivals


def judge(model: Factors | Scores, split: Split, part: str = "test") -> Any:
    """Metrics of factors, or of any scores: ties go to the lower item id, as everywhere."""
    if isinstance(model, Factors):
        return evaluate(model, split, (20,), part=part)

    def rank(users: Any, k: int, seen: Interactions | None) -> Any:
        found = np.full((len(users), min(k, split.n_items)), -1)
        known = None if seen is None else seen.csr()
        for start in range(0, len(users), BLOCK):
            block = users[start : start + BLOCK]
            scores = np.asarray(model(block))
            if known is not None:
                scores[known[block].nonzero()] = -np.inf
            top = torch.sort(torch.from_numpy(scores), dim=1, descending=True, stable=True)[1]
            found[start : start + BLOCK] = top[:, :k]
        return found

    return evaluate_rankings(rank, split, (20,), part=part)


def baseline(split: Split, name: str) -> dict[str, Any]:
    """The best of a grid on valid, fit again on train and valid, on test."""
    fit, grid = GRIDS[name]
    began = time.perf_counter()
    values, after = [], []
    for setting in grid:
        values.append(on_valid(fit, setting, split))
        after.append(time.perf_counter() - began)
    best = int(np.argmax(values))
    chosen = time.perf_counter()
    report = judge(fit(split.train_full, grid[best]), split)
    return {
        "setting": grid[best],
        "valid": values[best],
        "test": report[METRIC],
        "per_user": report.per_user[METRIC],
        "seconds": time.perf_counter() - began,
        "fit_seconds": time.perf_counter() - chosen,
        "to_best": after[best],
    }


def on_valid(fit: Fit, setting: Any, split: Split) -> float:
    return judge(fit(split.train, setting), split, "valid")[METRIC]


def to_quality_of(name: str, split: Split, result: dict[str, dict[str, Any]]) -> list[float | None]:
    """Seconds of the search until it is as good on valid as a baseline, and the baseline's own."""
    fit, rival = GRIDS[name][0], result[name]
    wanted = np.mean([on_valid(fit, rival["setting"], p) for p in validation_parts(split, 0)])
    spent = 0.0
    for trial in result["default"]["trials"]:
        spent += trial.seconds
        if trial.value is not None and trial.value >= wanted:
            return [spent, rival["to_best"]]
    return [None, rival["to_best"]]


def default(split: Split, minutes: float) -> dict[str, Any]:
    """What `robustcf train --dataset FILE` does."""
    began = time.perf_counter()
    found = search(split, minutes=minutes)
    fitted = trained(split, found.config)
    return fitted | {
        "setting": found.settings,
        "valid": found.best.value,
        "seconds": time.perf_counter() - began,
        "trials": found.trials,
    }


def of_preset(split: Split) -> dict[str, Any]:
    """What `robustcf train --dataset NAME` does where the set has a preset."""
    tuned = preset(split.name)
    return trained(split, tuned.config) | {"setting": tuned.name, "valid": None}


def trained(split: Split, config: TrainConfig) -> dict[str, Any]:
    began = time.perf_counter()
    report = fit_split(split, config).evaluate((20,))
    seconds = time.perf_counter() - began
    return {
        "test": report[METRIC],
        "per_user": report.per_user[METRIC],
        "seconds": seconds,
        "fit_seconds": seconds,
    }


def judged(results: list[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Means over the seeds, and the paired difference to the baseline that is best on valid."""
    names = list(results[0])
    gaps = []
    for result in results:
        rivals = [name for name in names if name != "default"]
        best = max(rivals, key=lambda name: result[name]["valid"])
        gaps.append(result["default"]["per_user"] - result[best]["per_user"])
    every = np.concatenate(gaps)
    return {
        **{name: float(np.mean([r[name]["test"] for r in results])) for name in names},
        "difference": float(np.mean([gap.mean() for gap in gaps])),
        "error": float(every.std() / len(every) ** 0.5),
        "seconds": {name: float(np.mean([r[name]["seconds"] for r in results])) for name in names},
        "fit_seconds": {
            name: float(np.mean([r[name]["fit_seconds"] for r in results])) for name in names
        },
        "settings": {name: [r[name]["setting"] for r in results] for name in names},
        "to_als": [r["default"]["to_als"] for r in results if "to_als" in r["default"]],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir")
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=list(SETS))
    parser.add_argument("--presets", nargs="+", metavar="NAME", help="these sets' presets instead")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--minutes", type=float, default=5.0, help="of each search, at most")
    parser.add_argument(
        "--baselines", nargs="+", choices=list(GRIDS), help="to compare with; default: all"
    )
    parser.add_argument(
        "--ridges", nargs="+", type=float, help="of EASE; each costs an inverse of the smaller side"
    )
    parser.add_argument("--threads", type=int, help="default: all cores")
    parser.add_argument("--out", help="JSON, written after each set")
    options = parser.parse_args()
    set_threads(options.threads)
    if options.ridges:
        GRIDS["EASE"] = ease, options.ridges
    for name in set(GRIDS) - set(options.baselines or GRIDS):
        del GRIDS[name]
    table: dict[str, Any] = {}
    for name in options.presets or options.sets:
        results = list(
            of_the_set(name, options) if options.presets else of_each_seed(name, options)
        )
        table[name] = judged(results)
        show(name, table[name])
        if options.out:
            Path(options.out).write_text(json.dumps(table, indent=1) + "\n")


Results = Iterator[dict[str, dict[str, Any]]]


def of_each_seed(name: str, options: argparse.Namespace) -> Results:
    for seed in options.seeds:
        split = split_pairs(name, pairs_of(name, seed, options.data_dir), seed)
        result = {"default": default(split, options.minutes)} | rivals(split)
        if ALS in result:
            result["default"]["to_als"] = to_quality_of(ALS, split, result)
        yield result


def of_the_set(name: str, options: argparse.Namespace) -> Results:
    split = load(name, data_dir=options.data_dir)
    yield {"default": of_preset(split)} | rivals(split)


def rivals(split: Split) -> dict[str, dict[str, Any]]:
    size = f"{split.n_users:,} x {split.n_items:,}, {split.n_interactions:,} pairs"
    print(f"{split.name} ({size})", flush=True)
    return {name: baseline(split, name) for name in rivals_of(split)}


def show(name: str, row: dict[str, Any]) -> None:
    names = list(row["seconds"])
    print(f"{name}\n  " + "  ".join(f"{n} {row[n]:.4f}" for n in names))
    print(f"  default - best on valid: {row['difference']:+.4f} +- {row['error']:.4f}")
    for what in ("seconds", "fit_seconds"):
        print(f"  {what}: " + ", ".join(f"{n} {s:.1f}" for n, s in row[what].items()))
    for ours, theirs in row["to_als"]:
        reached = "never" if ours is None else f"{ours:.2f} s"
        print(f"  to the quality of ALS: {reached}; ALS {theirs:.2f} s")
    print("  " + json.dumps(row["settings"]), flush=True)


if __name__ == "__main__":
    main()
