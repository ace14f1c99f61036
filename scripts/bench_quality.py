"""Quality and cost of the known data sets' models, by the command that a user would run.

    python scripts/bench_quality.py --data-dir DIR --out results/quality.json

Each row trains with the preset of its set, as ``robustcf train`` does, and looks at test once.
Settings and epochs were chosen on valid. CPU time is of the whole training, all threads together;
memory is the process's peak. An existing file is resumed: rows in it are not measured again.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import time
from pathlib import Path
from typing import Any

import robustcf
from robustcf._io.files import write_json

# Shown name -> data set and the options of `robustcf train`.
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "MovieLens-1M, softmax MF, the default": ("ml-1m", {}),
    "MovieLens-1M, UltraGCN, weight decay": ("ml-1m", {"model": "ultragcn"}),
    "MovieLens-1M, UltraGCN, two_to_inf": ("ml-1m", {"reg": "two_to_inf"}),
    "MovieLens-1M, BPR-MF": ("ml-1m", {"model": "bpr-mf"}),
    "MovieLens-1M, robust preset": ("ml-1m", {"preset": "robust"}),
    "CiteULike-a, softmax MF, the default": ("citeulike-a", {}),
    "CiteULike-t, softmax MF, the default": ("citeulike-t", {}),
    "Yelp2018, softmax MF, the default": ("yelp2018", {}),
    "Yelp2018, UltraGCN, weight decay": ("yelp2018", {"model": "ultragcn"}),
    "Yelp2018, robust preset": ("yelp2018", {"preset": "robust"}),
    "Gowalla, UltraGCN, weight decay, the default": ("gowalla", {}),
    "Gowalla, softmax MF": ("gowalla", {"model": "softmax-mf"}),
}


def measured(
    dataset: str, options: dict[str, Any], data_dir: str | None, threads: int | None
) -> Any:
    split = robustcf.load(dataset, data_dir=data_dir)
    began = time.process_time()
    model = robustcf.train(split, **options, threads=threads, progress=False)
    seconds = time.process_time() - began
    found = model.evaluate(ks=(20,))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    words = [f"robustcf train --dataset {dataset}", *(f"--{k} {v}" for k, v in options.items())]
    return {
        "command": " ".join(words),
        "version": robustcf.__version__,
        "recall@20": round(float(found["recall@20"]), 4),
        "ndcg@20": round(float(found["ndcg@20"]), 4),
        "CPU seconds": round(seconds, 1),
        "peak GB": round(peak, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir")
    parser.add_argument("--threads", type=int, help="default: all cores")
    parser.add_argument("--only", nargs="+", choices=sorted({name for name, _ in ROWS.values()}))
    parser.add_argument("--out", type=Path, default=Path("results/quality.json"))
    options = parser.parse_args()
    found = json.loads(options.out.read_text()) if options.out.exists() else {}
    for name, (dataset, how) in ROWS.items():
        if name in found or (options.only and dataset not in options.only):
            continue
        # A process of its own, so that its peak of memory is this training's.
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            found[name] = pool.apply(measured, (dataset, how, options.data_dir, options.threads))
        write_json(options.out, found)
        print(name, found[name], flush=True)


if __name__ == "__main__":
    main()
