"""Full-ranking evaluation: ours, the plain dense way, and implicit's ranking_metrics_at_k.

    python scripts/bench_evaluate.py --dataset ml-1m

All three rank the same factors with the same pairs masked, and compute NDCG@10 and what they
share; the values are printed next to the times, so that one sees they agree. (implicit's
"ndcg" divides by another ideal where a user has fewer than K test items, and its "precision"
is hits over min(K, test items).)
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

import numpy as np
import torch

from robustcf._runtime import set_threads
from robustcf.data import Split, load
from robustcf.factors import Factors
from robustcf.metrics import evaluate
from robustcf.models.spectral import spectral_factors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", nargs="*", default=["ml-1m", "yelp2018"])
    parser.add_argument("--data-dir", default=os.environ.get("ROBUSTCF_DATA"))
    parser.add_argument("--factors", type=int, default=64)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    threads = set_threads(options.threads)
    print(f"{threads} threads, best of {options.repeats}; NDCG@10 and, ours, 14 metrics in all\n")
    for name in options.dataset:
        split = load(name, data_dir=options.data_dir)
        U, V = spectral_factors(split.train_full, options.factors, np.random.default_rng(0))
        factors = Factors(torch.tensor(U), torch.tensor(V))
        ways: dict[str, Callable[[], float]] = {
            "robustcf.evaluate": lambda s=split, f=factors: evaluate(
                f, s, (10, 20), mask=("train", "valid")
            )["ndcg@10"],
            "plain dense": lambda s=split, f=factors: dense(f, s),
            "implicit": lambda s=split, f=factors: by_implicit(f, s, threads),
        }
        print(split)
        for label, way in ways.items():
            try:
                value, seconds = timed(way, options.repeats)
            except ImportError:
                print(f"  {label:20} not installed (extra 'bench')")
                continue
            print(f"  {label:20} {seconds:8.3f} s   ndcg@10 {value:.6f}")
        print()


def timed(way: Callable[[], float], repeats: int) -> tuple[float, float]:
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        value = way()
        times.append(time.perf_counter() - began)
    return value, min(times)


def dense(factors: Factors, split: Split) -> float:
    """Scores of some thousand users, a mask, torch.topk: what one writes first."""
    seen, relevant = split.train_full.csr(), split.test.csr()
    discounts = 1 / np.log2(np.arange(2, 12))
    ideal = np.cumsum(discounts)
    total, count = 0.0, 0
    for start in range(0, split.n_users, 2048):
        rows = slice(start, min(start + 2048, split.n_users))
        scores = factors.users[rows] @ factors.items.T
        mask = seen[rows].tocoo()
        scores[torch.tensor(mask.row).long(), torch.tensor(mask.col).long()] = -torch.inf
        top = scores.topk(10).indices.numpy()
        truth = relevant[rows].toarray() > 0
        hits = np.take_along_axis(truth, top, axis=1)
        sizes = truth.sum(axis=1)
        some = sizes > 0
        gains = (hits[some] * discounts).sum(axis=1)
        total += float((gains / ideal[np.minimum(sizes[some], 10) - 1]).sum())
        count += int(some.sum())
    return total / count


def by_implicit(factors: Factors, split: Split, threads: int) -> float:
    from implicit.cpu.matrix_factorization_base import MatrixFactorizationBase
    from implicit.evaluation import ranking_metrics_at_k

    class Given(MatrixFactorizationBase):
        def fit(self, *_: object, **__: object) -> None:
            raise NotImplementedError

        def save(self, *_: object) -> None:
            raise NotImplementedError

    model = Given(num_threads=threads)
    model.user_factors, model.item_factors = factors.users.numpy(), factors.items.numpy()
    found = ranking_metrics_at_k(
        model, split.train_full.csr().copy(), split.test.csr().copy(), K=10, show_progress=False,
        num_threads=threads,
    )  # fmt: skip
    return float(found["ndcg"])


if __name__ == "__main__":
    main()
