"""Time to a given quality: softmax MF, UltraGCN two ways, implicit's ALS and BPR, in one run.

    pip install 'robustcf[bench]'
    python scripts/bench_training.py --dataset ml-1m

Every method is evaluated on test (NDCG@20) after some epochs; evaluating is not counted as time.
The table gives, for a list of qualities, the seconds each method needed. `pairs`, the published
procedure, takes hours: a slice of its steps is timed, the seconds per epoch follow from it, and
its epochs to a quality are those of the official log (86 to 0.2642 on ml-1m); a row made that way
says "extrapolated". Nothing is chosen by these evaluations: they only say how fast.

"start alone" is `--init smooth --epochs 0`, the spectral start before any epoch, at a few
dimensions, each timed by itself.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from typing import Any

# implicit asks for this: its own threads and those of OpenBLAS get in each other's way.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import torch

from robustcf._runtime import set_threads
from robustcf.data import Interactions, Split, load
from robustcf.factors import Factors
from robustcf.metrics import evaluate
from robustcf.objectives import Batches
from robustcf.regularizers import Accumulator
from robustcf.training import TrainConfig
from robustcf.training.fitting import build_model, build_objective, build_regularizer
from robustcf.training.loop import Optimizer, Stop, fit
from robustcf.training.optim import Adam
from robustcf.training.presets import preset

Curve = list[tuple[float, float, float]]  # seconds, Recall@20, NDCG@20

# Epochs the official code needed, from its released logs (chosen on test).
OFFICIAL_EPOCHS = {"ml-1m": 86, "yelp2018": 60}
OFFICIAL = {
    "ml-1m": {"factors": 128, "negatives": 200, "negative_weight": 200.0, "item_weight": 1e-3},
    "yelp2018": {"factors": 64, "negatives": 800, "negative_weight": 300.0, "item_weight": 5e-4},
}
ALS = {"ml-1m": (10.0, 2.0), "yelp2018": (1.0, 10.0)}  # regularization, alpha


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", default="ml-1m", choices=sorted(OFFICIAL))
    parser.add_argument("--data-dir", default=os.environ.get("ROBUSTCF_DATA"))
    parser.add_argument("--threads", type=int, help="default: all cores")
    parser.add_argument("--slice", type=int, default=6, help="timed steps of pairs")
    parser.add_argument(
        "--without", nargs="*", default=[], choices=["rows", "softmax", "implicit", "pairs"],
        help="leave out what takes long",
    )  # fmt: skip
    parser.add_argument("--qualities", type=float, nargs="*")
    parser.add_argument("--json", help="write the curves to this file too")
    options = parser.parse_args()
    threads = set_threads(options.threads)
    split = load(options.dataset, data_dir=options.data_dir)
    config = preset(options.dataset, "ultragcn").config
    pairs = split.train_full if split.valid_source == "carved" else split.train
    print(f"{split}\n{threads} threads; learnt from {len(pairs):,} pairs\n")

    curves: dict[str, Curve] = {"start alone": start_curve(split, pairs, config)}
    if "softmax" not in options.without:
        softmax = preset(options.dataset, "softmax-mf").config
        curves["softmax MF"] = rows_curve(split, pairs, softmax)
        floor_of_softmax(pairs, softmax)
    if "rows" not in options.without:
        curves["rows"] = rows_curve(split, pairs, config)
    for short in () if "rows" in options.without else (0.25, 0.5):
        few = max(2, round(config.epochs * short))
        label = f"rows, {few} epochs planned"
        curves[label] = rows_curve(split, pairs, config.replace(epochs=few))
    try:
        if "implicit" in options.without:
            raise ImportError
        curves["implicit ALS"] = als_curve(split, pairs, options.dataset, threads)
        curves["implicit BPR"] = bpr_curve(split, pairs, threads)
    except ImportError:
        print("implicit is left out, or not installed (extra 'bench')\n")
    seconds = None
    if "pairs" not in options.without:
        seconds = pairs_seconds(pairs, options.dataset, options.slice)
    report(split, curves, seconds, options)


def on_test(factors: Factors, split: Split) -> tuple[float, float]:
    found = evaluate(factors, split, (20,))
    return found["recall@20"], found["ndcg@20"]


def start_curve(split: Split, pairs: Interactions, config: TrainConfig) -> Curve:
    """The smooth start at growing dimensions, no epoch made."""
    curve: Curve = []
    for dim in (16, 32, 64, 128, 256):
        began = time.perf_counter()
        factors = build_model(config.replace(factors=dim, init="smooth"), pairs).factors()
        curve.append((time.perf_counter() - began, *on_test(factors, split)))
    return curve


def rows_curve(split: Split, pairs: Interactions, config: TrainConfig) -> Curve:
    """An evaluation after every epoch; the clock stands still meanwhile."""
    began, away = time.perf_counter(), 0.0
    curve: Curve = []

    def watch(factors: Factors) -> float:
        nonlocal away
        paused = time.perf_counter()
        curve.append((paused - began - away, *on_test(factors, split)))
        away += time.perf_counter() - paused
        return float(len(curve))

    fit(
        build_model(config, pairs),
        Batches(build_objective(config, pairs), config.batching, seed=config.seed),
        Stop(config.epochs, watch),
        reg=build_regularizer(config),
        reg_weight=config.reg.settings.weight,
        optimizer=Optimizer(config.lr, config.user_lr, config.schedule),
    )
    return curve


def floor_of_softmax(pairs: Interactions, config: TrainConfig, steps: int = 4) -> None:
    """The gradient of a step next to its three products and its exponentials alone."""
    model, objective = build_model(config, pairs), build_objective(config, pairs)
    batches = Batches(objective, config.batching, seed=config.seed)
    U, V = model.scored()
    ratios = []
    for number, batch in enumerate(batches.epoch(0)):
        began = time.perf_counter()
        objective.gradient(batch, U, V)
        whole = time.perf_counter() - began
        u, to_items = U[batch.users], torch.zeros_like(V)
        scores, to_users = V.new_empty(len(V), len(u)), torch.zeros_like(u)
        scores.zero_()
        began = time.perf_counter()
        torch.mm(V, u.T, out=scores)
        scores.exp_()
        torch.mm(scores.T, V, out=to_users)
        torch.mm(scores, u, out=to_items)
        ratios.append((whole, time.perf_counter() - began))
        if number == steps:
            break
    taken, floor = (float(np.median([pair[n] for pair in ratios[1:]])) for n in (0, 1))
    print(
        f"softmax, {config.model.settings.factors} factors: {taken * 1e3:.0f} ms per step of "
        f"{config.batching.block_users} users, its products and exponentials alone "
        f"{floor * 1e3:.0f} ms: {taken / floor:.2f} times\n"
    )


def pairs_seconds(pairs: Interactions, dataset: str, steps: int) -> float:
    """Seconds that an epoch of the published procedure takes, from a slice of its steps."""
    options: dict[str, Any] = OFFICIAL[dataset]
    config = TrainConfig.of(
        model="ultragcn",
        batching="pairs",
        init="normal",
        reg_weight=5e-5,
        lr=1e-3,
        user_lr=None,
        **options,
    )
    model, reg = build_model(config, pairs), build_regularizer(config)
    batches = Batches(build_objective(config, pairs), config.batching, seed=config.seed)
    users, items = Adam(model.users), Adam(model.items)
    times = []
    for number, batch in enumerate(batches.epoch(0)):
        began = time.perf_counter()
        gradient = batches.objective.gradient(batch, model.users, model.items)
        into = Accumulator(gradient.users, gradient.items, weight=5e-5)
        reg.add_gradient(model.users, model.items, into)
        users.step(gradient.users, 1e-3)
        items.step(gradient.items, 1e-3)
        times.append(time.perf_counter() - began)
        if number == steps:
            break
    return float(np.median(times[1:])) * batches.n_steps  # the first one warms up


def _implicit_factors(model: Any) -> Factors:
    U, V = np.asarray(model.user_factors), np.asarray(model.item_factors)
    return Factors(torch.tensor(U), torch.tensor(V))


def als_curve(split: Split, pairs: Interactions, dataset: str, threads: int) -> Curve:
    from implicit.als import AlternatingLeastSquares

    regularization, alpha = ALS[dataset]
    return _implicit_curve(
        split,
        pairs,
        AlternatingLeastSquares(
            factors=64, regularization=regularization, alpha=alpha, iterations=15,
            num_threads=threads, random_state=0,
        ),
    )  # fmt: skip


def bpr_curve(split: Split, pairs: Interactions, threads: int) -> Curve:
    from implicit.bpr import BayesianPersonalizedRanking

    return _implicit_curve(
        split,
        pairs,
        BayesianPersonalizedRanking(
            factors=64, learning_rate=0.05, regularization=0.01, iterations=100,
            num_threads=threads, random_state=0,
        ),
        every=10,
    )  # fmt: skip


def _implicit_curve(split: Split, pairs: Interactions, model: Any, every: int = 1) -> Curve:
    curve: Curve = []
    began, away = time.perf_counter(), 0.0

    def watch(iteration: int, *_: Any) -> None:
        nonlocal away
        paused = time.perf_counter()
        if (iteration + 1) % every == 0:
            curve.append((paused - began - away, *on_test(_implicit_factors(model), split)))
        away += time.perf_counter() - paused

    matrix = pairs.csr().copy()  # implicit wants writable arrays
    try:
        model.fit(matrix, show_progress=False, callback=watch)
    except TypeError:  # a version without callbacks: fit anew for a few lengths
        for length in (1, 2, 4, 8, model.iterations):
            model.iterations = length
            began = time.perf_counter()
            model.fit(matrix, show_progress=False)
            seconds = time.perf_counter() - began
            curve.append((seconds, *on_test(_implicit_factors(model), split)))
    return curve


def seconds_to(curve: Curve, quality: float) -> float:
    return min((s for s, _, ndcg in curve if ndcg >= quality), default=math.inf)


def report(
    split: Split, curves: dict[str, Curve], seconds: float | None, options: argparse.Namespace
) -> None:
    print("best of each (test; the epoch is the best one SEEN here, not a chosen one)")
    for name, curve in curves.items():
        second, recall, ndcg = max(curve, key=lambda point: point[2])
        print(f"  {name:28} Recall@20 {recall:.4f}  NDCG@20 {ndcg:.4f}  after {second:7.1f} s")
    top = max(ndcg for curve in curves.values() for _, _, ndcg in curve)
    als = [ndcg for _, _, ndcg in curves.get("implicit ALS", [])]
    given = options.qualities or sorted(
        {round(q, 4) for q in (*als, *(top * f for f in (0.9, 0.95, 0.98, 0.99, 1.0)))}
    )
    print("\nseconds to reach an NDCG@20 on test (- : not reached)")
    print("  " + "NDCG@20".ljust(10) + "".join(f"{name:>30}" for name in curves))
    for quality in given:
        cells = [seconds_to(curve, quality) for curve in curves.values()]
        text = "".join(f"{'-' if math.isinf(c) else f'{c:.2f}':>30}" for c in cells)
        print(f"  {quality:<10.4f}{text}")
    if als:
        mine = [curve for name, curve in curves.items() if "implicit" not in name]
        behind = [
            quality
            for quality in als
            if min(seconds_to(curve, quality) for curve in mine)
            >= seconds_to(curves["implicit ALS"], quality)
        ]
        print(
            "\nahead of implicit ALS at every quality it reaches"
            if not behind
            else f"\nbehind implicit ALS at {', '.join(f'{quality:.4f}' for quality in behind)}"
        )
    if seconds is not None:
        report_pairs(curves, seconds, options)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"curves": curves, "pairs_seconds_per_epoch": seconds}, file, indent=2)


def report_pairs(curves: dict[str, Curve], seconds: float, options: argparse.Namespace) -> None:
    epochs = OFFICIAL_EPOCHS[options.dataset]
    published = seconds * epochs
    print(
        f"\npairs: {seconds:.0f} s per epoch, measured on a slice of {options.slice} steps; "
        f"{epochs} epochs (official log) = {published / 3600:.1f} hours, extrapolated"
    )
    reference = {"ml-1m": 0.2642, "yelp2018": 0.0558}[options.dataset]
    rows = [seconds_to(curve, reference) for name, curve in curves.items() if "rows" in name]
    ours = min(rows, default=math.inf)
    if math.isinf(ours):
        print(f"rows do not reach the official NDCG@20 {reference} (chosen on test) here")
    else:
        print(
            f"rows reach its NDCG@20 {reference} in {ours:.1f} s: "
            f"{published / ours:.0f} times faster"
        )


if __name__ == "__main__":
    main()
