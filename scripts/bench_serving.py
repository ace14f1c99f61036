"""Serving: single recommendations by label, all users at once, and new users.

    python scripts/bench_serving.py --dataset ml-1m --data-dir DIR
    python scripts/bench_serving.py --calls 2000            # the embedded demo data

Trains the default model, saves it, opens it, and asks it as a service would. Next to each figure
stands that of implicit's ``recommend`` on the same embeddings, in the same run.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable

import numpy as np

import robustcf
from robustcf._runtime import set_threads


def times(ask: Callable[[int], object], calls: int) -> np.ndarray:
    """Milliseconds of each call."""
    found = np.empty(calls)
    for n in range(calls):
        began = time.perf_counter()
        ask(n)
        found[n] = (time.perf_counter() - began) * 1e3
    return found


def resident() -> float:
    """Megabytes of memory that the process has now."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", default="demo")
    parser.add_argument("--data-dir")
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    set_threads(options.threads)
    split = robustcf.load(options.dataset, data_dir=options.data_dir)
    model = robustcf.train(split, threads=options.threads, minutes=None)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        model.save(f"{folder}/model")
        saved = time.perf_counter()
        model = robustcf.open(f"{folder}/model")
        opened = time.perf_counter() - saved
        print(f"{model!r}\nsaved in {saved - began:.2f} s, opened in {opened:.2f} s")
    labels = np.arange(model.n_users) if model.user_labels is None else model.user_labels
    users = labels[np.random.default_rng(0).integers(0, len(labels), options.calls)].tolist()

    def one(n: int) -> object:
        return model.recommend(users[n], k=10)

    times(one, min(1000, options.calls))
    before = resident()
    found = times(one, options.calls)
    grown = resident() - before
    print(
        f"one user by label, a DataFrame: median {np.median(found):.2f} ms, 99 % within "
        f"{np.quantile(found, 0.99):.2f} ms; {options.calls:,} calls, memory grew by {grown:.1f} MB"
    )
    theirs = implicit_model(model)
    if theirs is not None:
        seen = model.split.train_full.csr()
        rows = {label: n for n, label in enumerate(labels.tolist())}

        def other(n: int) -> object:
            row = rows[users[n]]
            return theirs.recommend(row, seen[row], N=10)

        few = min(2000, options.calls)
        ratio = np.median(times(one, few)) / np.median(times(other, few))
        print(f"{ratio:.2f} times as long as implicit's recommend (ids, no table, exact ties)")
    began = time.perf_counter()
    table = model.recommend(k=10)
    seconds = time.perf_counter() - began
    print(f"all {model.n_users:,} users: {seconds:.2f} s for {len(table):,} rows")
    items = table["item"].drop_duplicates().tolist()
    new = times(lambda n: model.recommend(items=items[n : n + 5], k=10), 20)
    print(f"a new user with 5 items: median {np.median(new):.1f} ms")


def implicit_model(model: robustcf.Recommender) -> object:
    """An implicit model with the same embeddings, or None where implicit is not installed."""
    try:
        from implicit.cpu.matrix_factorization_base import MatrixFactorizationBase
    except ImportError:
        return None
    theirs = type("Plain", (MatrixFactorizationBase,), {"fit": None, "save": None})()
    theirs.user_factors, theirs.item_factors = (part.float().numpy() for part in model.factors)
    return theirs


if __name__ == "__main__":
    main()
