"""This tree against another checkout of robustcf, version 0.1 say, in one run on one machine.

    python scripts/bench_versions.py --other DIR --data-dir DIR

Both trees do the same jobs in turn, each in a process of its own, through the command line, which
both versions have. An epoch is `train_seconds` of a training over its epochs, the start of the
factors included. The other jobs are whole commands, the start of Python and the loading of data
included: an evaluation, fgm on softmax at 20 sizes with control and pictures, a certificate with
radii and picture. `start` is the command line doing nothing. "same" says whether both trees came to
the same NDCG@10. On an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MODELS = ("ultragcn", "bpr-mf")
METRIC = "ndcg@10"
SIZES = [f"{0.2 * number / 19:.4f}" for number in range(20)]


class Tree:
    """A checkout: the folder `path` has the package in it; runs and cache go to `work`."""

    def __init__(self, path: Path, work: Path, threads: int) -> None:
        """Check that Python takes the package from there."""
        work.mkdir()
        own = {"PYTHONPATH": str(path), "ROBUSTCF_CACHE": str(work / "cache")}
        own["OMP_NUM_THREADS"] = str(threads)
        # Outside of both trees: Python would take a package out of the folder it starts in.
        self.how: dict[str, Any] = {"cwd": work, "env": os.environ | own}
        asked = [sys.executable, "-c", "import robustcf; print(robustcf.__file__)"]
        found = subprocess.run(asked, **self.how, capture_output=True, text=True).stdout.strip()
        if not Path(found).is_relative_to(path):
            raise SystemExit(f"{path} has no package robustcf: Python takes {found or 'none'}")

    def run(self, *words: str) -> tuple[float, Any]:
        """A command: its seconds (of an epoch, where it trains), and the metric it reports."""
        asked = [sys.executable, "-m", "robustcf", *words]
        began = time.perf_counter()
        done = subprocess.run(asked, **self.how, capture_output=True, text=True)
        seconds = time.perf_counter() - began
        if done.returncode:
            raise SystemExit(f"{self.how['cwd']}: robustcf {' '.join(words)}\n{done.stderr}")
        found = json.loads(done.stdout) if "--json" in words else {}
        if "train_seconds" in found:
            seconds = found["train_seconds"] / found["epochs"]
        return seconds, found.get("test", found).get(METRIC)


def jobs(dataset: str, repeat: int, options: argparse.Namespace) -> dict[str, list[str]]:
    """What is measured -> the command."""
    train = ["train", "--dataset", dataset, "--threads", str(options.threads), "--json"]
    train += ["--data-dir", options.data_dir] if options.data_dir and dataset != "demo" else []
    # The number of epochs is not to be chosen: nothing but learning is timed.
    train += ["--epochs", str(options.epochs), "--set", "epochs_chosen=true", "--refit", "yes"]
    runs = {model: f"{dataset}-{model}-{repeat}" for model in MODELS}
    trained, sizes = runs["ultragcn"], ["--relative", "--json", "--epsilons"]
    return {
        **{f"{m}, an epoch": [*train, "--model", m, "--out", runs[m]] for m in MODELS},
        "start": ["--version"],
        "evaluate": ["evaluate", trained, "--json"],
        "fgm on softmax, 20 sizes": ["attack", trained, "--objective", "softmax", *sizes, *SIZES],
        "certificate": ["certify", trained, *sizes, *SIZES[:5]],
    }


def compare(trees: dict[str, Tree], dataset: str, options: argparse.Namespace) -> None:
    """All jobs of a data set, and their table: medians, and this over other."""
    found: dict[str, dict[str, list[Any]]] = {}
    for repeat in range(options.repeats):
        # The first to run meets a colder machine, so they take turns.
        turns = list(trees)[:: -1 if repeat % 2 else 1]
        for job, words in jobs(dataset, repeat, options).items():
            for name in turns:
                done = trees[name].run(*words)
                found.setdefault(job, {}).setdefault(name, []).append(done)
    print(f"\n{dataset:26}{'this':>10}{'other':>10}{'this / other':>14}{'same':>6}")
    for job, by_tree in found.items():
        this, other = (statistics.median(s for s, _ in by_tree[name]) for name in trees)
        results = [[value for _, value in by_tree[name]] for name in trees]
        same = "-" if results[0][0] is None else "yes" if results[0] == results[1] else "no"
        print(f"{job:26}{this:10.3f}{other:10.3f}{this / other:14.2f}{same:>6}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--other", type=Path, help="a folder with another package robustcf in it")
    parser.add_argument("--datasets", nargs="+", help="default: demo, and ml-1m with --data-dir")
    parser.add_argument("--data-dir", default=os.environ.get("ROBUSTCF_DATA"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=5, help="of a training")
    options = parser.parse_args()
    if options.other is None:
        print("nothing to compare with: give --other DIR")
        return
    options.data_dir = options.data_dir and os.path.abspath(options.data_dir)
    paths = {"this": ROOT, "other": options.other.resolve()}
    print(*(f"{name}: {path}" for name, path in paths.items()), sep="\n")
    print(f"seconds, medians of {options.repeats}, {options.threads} threads")
    with tempfile.TemporaryDirectory() as folder:
        trees = {n: Tree(path, Path(folder) / n, options.threads) for n, path in paths.items()}
        for dataset in options.datasets or ["demo", *(["ml-1m"] if options.data_dir else [])]:
            compare(trees, dataset, options)


if __name__ == "__main__":
    main()
