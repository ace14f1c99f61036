"""How long a sweep of attacks takes on a trained run: fgm on bce and softmax, and auto.

    python scripts/bench_attacks.py --dataset ml-1m --data-dir DIR
    python scripts/bench_attacks.py --run RUN     # a run that is there already

A sweep is 20 sizes of attack, each evaluated on all test pairs (14 metrics, every user's value
kept). Training and loading are not part of the times. auto takes 50 steps for each size
with labels and 10 without and is timed at fewer sizes (--auto-sizes); its time grows in proportion.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import numpy as np

from robustcf._runtime import set_threads
from robustcf.cli.main import run as robustcf
from robustcf.recommender import Recommender, open_recommender
from robustcf.robustness import Threat, measure
from robustcf.robustness.table import AUTO
from robustcf.robustness.threat import UNITS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", nargs="*", default=["ml-1m"])
    parser.add_argument("--run", type=Path, help="attack this run instead of training one")
    parser.add_argument("--data-dir", default=os.environ.get("ROBUSTCF_DATA"))
    parser.add_argument("--sizes", type=int, default=20, help="epsilons of a sweep")
    parser.add_argument("--auto-sizes", type=int, default=5, help="epsilons for auto; 0: leave out")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path, help="write the times as JSON")
    options = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        paths = [options.run] if options.run else []
        for name in [] if options.run else options.dataset:
            paths.append(Path(folder) / name)
            where = ["--data-dir", options.data_dir] if options.data_dir else []
            if robustcf(["train", "--dataset", name, "--out", str(paths[-1]), *where]):
                raise SystemExit(1)
        for path in paths:
            model = open_recommender(path)
            found[model.split.name] = times(model, options)
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def times(model: Recommender, options: argparse.Namespace) -> dict[str, float]:
    threads = set_threads(options.threads)
    print(f"{model.split}\n{model.factors}, {threads} threads")
    seconds = {}

    def sweep(attack: str, unit: str, count: int) -> None:
        sizes = np.linspace(0, 0.2, count).tolist()
        began = time.perf_counter()
        # The weights of an objective belong to the price of an attack, its control does not.
        curve = measure(model, attack, Threat(unit=unit), sizes, control=False).curve
        label = f"{attack.replace('-', ' ')} {unit}"
        seconds[label] = round(time.perf_counter() - began, 2)
        ends = f"ndcg@10 {curve['ndcg@10'][0]:.4f} to {curve['ndcg@10'][-1]:.4f}"
        print(f"  {label:24} {count:3} sizes {seconds[label]:8.2f} s   {ends}", flush=True)

    for attack in ("fgm-bce", "fgm-softmax"):
        for unit in reversed(UNITS):
            sweep(attack, unit, options.sizes)
    if options.auto_sizes:
        sweep(AUTO, "own", options.auto_sizes)
    return seconds


if __name__ == "__main__":
    main()
