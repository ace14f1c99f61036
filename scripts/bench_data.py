"""How long loading takes: the vectorised reader and the parsed cache next to a plain parser.

    python scripts/bench_data.py --dataset yelp2018 --data-dir DIR

Each way loads the same files to the same arrays; the ratio is measured in one run, best of
several rounds. Where the set is not on this machine, a synthetic file of Yelp2018's size is
made and parsed instead (no cache figures then).
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from robustcf._io.fetching import locate
from robustcf.data import load
from robustcf.data.catalog import get
from robustcf.data.id_lists import read_adjacency


def naive(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """What most public loaders do: a loop over lines and ids."""
    users: list[int] = []
    items: list[int] = []
    with path.open() as handle:
        for line in handle:
            numbers = [int(token) for token in line.split()]
            users.extend([numbers[0]] * (len(numbers) - 1))
            items.extend(numbers[1:])
    return np.array(users), np.array(items)


def best_of(rounds: int, action: Callable[[], object]) -> float:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


def stand_in(folder: Path) -> list[Path]:
    """A file with Yelp2018's number of users, items and training pairs."""
    rng = np.random.default_rng(0)
    path = folder / "train.txt"
    with path.open("w") as handle:
        for user in range(31_668):
            items = rng.choice(38_048, size=39, replace=False)
            handle.write(f"{user} {' '.join(map(str, items))}\n")
    return [path]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", default="yelp2018", choices=["yelp2018", "gowalla", "ml-1m"])
    parser.add_argument("--data-dir")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    options = parser.parse_args()

    manifest = get(options.dataset)
    found = [locate(manifest, files, options.data_dir) for files in manifest.parts.values()]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ROBUSTCF_CACHE"] = folder
        present = all(file is not None for file in found)
        paths = [f.path for f in found if f] if present else stand_in(Path(folder))

        for path in paths:  # the same answer first, then the clock
            raw = read_adjacency(path.read_bytes(), path.name)
            if not all(map(np.array_equal, naive(path), raw)):
                raise SystemExit(f"the two parsers differ on {path}")

        seconds = {
            "naive parser": best_of(options.rounds, lambda: [naive(path) for path in paths]),
            "vectorised parser": best_of(
                options.rounds,
                lambda: [read_adjacency(path.read_bytes(), path.name) for path in paths],
            ),
        }
        if present:

            def whole(cache: bool) -> Callable[[], object]:
                return lambda: load(options.dataset, options.data_dir, download=False, cache=cache)

            seconds["load, parsing the text"] = best_of(options.rounds, whole(cache=False))
            whole(cache=True)()
            seconds["load, from the cache"] = best_of(options.rounds, whole(cache=True))

    result = {
        "files": [path.name for path in paths],
        "dataset": options.dataset if present else "synthetic stand-in",
        "bytes": sum(f.path.stat().st_size for f in found if f) if present else None,
        "seconds": seconds,
        "naive over vectorised": seconds["naive parser"] / seconds["vectorised parser"],
    }
    if options.json:
        print(json.dumps(result))
        return
    print(f"{result['dataset']}: {', '.join(result['files'])}")
    for name, value in seconds.items():
        print(f"  {name:<24} {value:8.3f} s   {seconds['naive parser'] / value:6.1f} x")


if __name__ == "__main__":
    main()
