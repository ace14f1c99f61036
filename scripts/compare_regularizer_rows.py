"""How many rows the two-to-infinity penalty should average over: trained, judged on valid.

    python scripts/compare_regularizer_rows.py --dataset ml-1m

For each number of rows the weight is searched on the same grid; the best NDCG@10 on valid is
printed with the norm it ends at, and the time per epoch with and without the penalty.
"""

from __future__ import annotations

import argparse
import os
import time

from robustcf._runtime import set_threads
from robustcf.data import Interactions, load
from robustcf.objectives import Batches
from robustcf.training import TrainConfig
from robustcf.training.fitting import build_model, build_objective, build_regularizer, fit_split
from robustcf.training.loop import Optimizer, Stop, fit, two_to_inf
from robustcf.training.presets import preset


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", default="ml-1m")
    parser.add_argument("--data-dir", default=os.environ.get("ROBUSTCF_DATA"))
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 8, 32])
    parser.add_argument("--weights", type=float, nargs="*", default=[1e-4, 3e-4, 1e-3])
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--times-only", action="store_true")
    options = parser.parse_args()
    set_threads(options.threads)
    split = load(options.dataset, data_dir=options.data_dir)
    base = preset(split.name, "ultragcn", "two_to_inf").config.replace(refit="no")
    base = base.replace(epochs_chosen=True, epochs=options.epochs or base.epochs)

    plain = epoch_seconds(split.train, base.replace(reg="none"))
    print(f"{split}\nno penalty: {plain:.3f} s per epoch")
    for estimator in ("exact", "twinest"):
        for rows in options.rows if estimator == "exact" else [1]:
            config = base.replace(reg_top=rows, estimator=estimator)
            seconds = epoch_seconds(split.train, config)
            more = f"{seconds / plain - 1:+.1%}"
            print(f"{estimator}, {rows:2d} rows: {seconds:.3f} s per epoch, {more}")
    if options.times_only:
        return
    for rows in options.rows:
        for weight in options.weights:
            trained = fit_split(split, base.replace(reg_top=rows, reg_weight=weight))
            valid = trained.valid
            assert valid is not None
            print(
                f"rows {rows:2d}, weight {weight:.0e}: valid NDCG@10 {valid['ndcg@10']:.4f}, "
                f"Recall@20 {valid['recall@20']:.4f}, norm {two_to_inf(trained.factors):.0f}",
                flush=True,
            )


def epoch_seconds(pairs: Interactions, config: TrainConfig, epochs: int = 3) -> float:
    """The fastest of a few epochs."""
    model = build_model(config, pairs)
    batches = Batches(build_objective(config, pairs), config.batching, seed=config.seed)
    times = []
    for _ in range(epochs + 1):
        began = time.perf_counter()
        fit(
            model,
            batches,
            Stop(1),
            reg=build_regularizer(config),
            reg_weight=config.reg.settings.weight,
            optimizer=Optimizer(lr=1e-3),
        )
        times.append(time.perf_counter() - began)
    return min(times[1:])  # the first one warms up: it makes the weights of the blocks


if __name__ == "__main__":
    main()
