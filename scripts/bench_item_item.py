"""What item-item weights keep when they are cut, rounded or disturbed; size and time to recommend.

    python scripts/bench_item_item.py --data-dir DIR --set steam

NDCG@20 on test of weights fit on train and valid: as they are, in int8 with one scale per row, and
with Gaussian noise of a tenth and of all of each row's length. CPU time of top 20 for all users and
for one, next to factors and an ensemble. One thread, one run.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
from bench_defaults import SETS, pairs_of
from scipy.sparse import csr_matrix

from robustcf._runtime import set_threads
from robustcf.data import Split, split_pairs
from robustcf.metrics.evaluate import evaluate_rankings
from robustcf.models import ALS
from robustcf.models.ensemble import EnsembleScorer
from robustcf.models.factorized import FactorScorer
from robustcf.models.item_item import ItemItemScorer
from robustcf.models.neighbours import (
    cosine_weights,
    ease_weights,
    filter_weights,
    largest_weights,
    ridge_weights,
)


def changed(weights: Any, noise: float | None) -> csr_matrix:
    """Weights in int8 (None), or with noise of a share of each row's length."""
    W = csr_matrix(weights)
    rows = np.repeat(np.arange(W.shape[0]), np.diff(W.indptr))
    if noise is None:
        scale = np.full(W.shape[0], 1e-12)
        np.maximum.at(scale, rows, np.abs(W.data) / 127)
        W.data = np.rint(W.data / scale[rows]) * scale[rows]
    else:
        drawn = np.random.default_rng(0).standard_normal(W.nnz)
        lengths = [np.sqrt(np.bincount(rows, each**2, W.shape[0])) for each in (W.data, drawn)]
        W.data = W.data + noise * drawn * (lengths[0] / np.maximum(lengths[1], 1e-12))[rows]
    return csr_matrix((W.data.astype(np.float32), W.indices, W.indptr), W.shape)


def quality(scorer: Any, split: Split) -> float:
    return float(evaluate_rankings(scorer.rank, split, (20,))["ndcg@20"])


def times(scorer: Any, split: Split, one: int = 50) -> str:
    users, seen = np.arange(split.n_users), split.train_full
    began = time.process_time()
    scorer.top(users, 20, seen)
    every = time.process_time() - began
    began = time.process_time()
    for user in range(one):
        scorer.top(users[[user]], 20, seen)
    return f"all {every:.2f} s, one {(time.process_time() - began) / one * 1e3:.2f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir")
    parser.add_argument("--set", default="steam", choices=list(SETS))
    options = parser.parse_args()
    set_threads(1)
    split = split_pairs(options.set, pairs_of(options.set, 0, options.data_dir), 0)
    pairs, whole = split.train_full, ease_weights(split.train_full, 30.0)
    kept = {f"EASE, {k} kept": largest_weights(whole, k) for k in (20, 50, 100, 300)}
    kinds: dict[str, Any] = {
        "EASE": whole,
        **{name: own for name, own in kept.items() if own.nnz},
        "sparse-ease, 50 neighbours": ridge_weights(pairs, 17.0, 50),
        "item-knn": cosine_weights(pairs, 100),
        "graph-filter": filter_weights(pairs, 0.0),
    }
    for name, weights in kinds.items():
        found = [ItemItemScorer(pairs, own) for own in (weights, changed(weights, None))]
        found += [ItemItemScorer(pairs, changed(weights, noise)) for noise in (0.1, 1.0)]
        values = " ".join(f"{quality(scorer, split):.4f}" for scorer in found)
        mega = 4e-6 * (weights.size if isinstance(weights, np.ndarray) else 2 * weights.nnz)
        print(f"{name:28} {values}  {mega:.1f} MB, {times(found[0], split)}", flush=True)
    factors = FactorScorer(ALS(pairs, alpha=20.0, regularization=100.0).factors())
    both = ItemItemScorer(pairs, kinds["sparse-ease, 50 neighbours"]), factors
    for name, scorer in {"factors": factors, "ensemble": EnsembleScorer(both, 0.35)}.items():
        print(f"{name:28} {quality(scorer, split):.4f}  {times(scorer, split)}", flush=True)


if __name__ == "__main__":
    main()
