"""Peak memory of each rank in training, next to the formula of the guide.

    torchrun --nproc-per-node 2 scripts/bench_rank_memory.py --users 200000 400000 800000

Users have 20 made-up pairs each; softmax MF with sampled items makes one epoch. What making the
pairs took is not counted: the peak is taken from there on.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
from pathlib import Path

import numpy as np

from robustcf._distributed import joined
from robustcf._runtime import set_threads
from robustcf.data.interactions import Interactions
from robustcf.data.split import Split
from robustcf.training import TrainConfig
from robustcf.training.fitting import fit_split

ITEMS, PAIRS, DIM, BLOCK = 20_000, 20, 64, 4096


def peak() -> float:
    """The most resident memory since it was last forgotten, in bytes (Linux)."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM"):
            return 1024.0 * int(line.split()[1])
    raise SystemExit("this system does not tell the peak of memory")


def forget() -> None:
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


def made_up(users: int) -> Split:
    rng = np.random.default_rng(0)
    first = rng.integers(ITEMS, size=users)
    items = np.sort((first[:, None] + np.arange(PAIRS) * 997) % ITEMS, axis=1).ravel()
    who = np.repeat(np.arange(users, dtype=np.int32), PAIRS)
    pairs = Interactions(who, items.astype(np.int32), users, ITEMS)
    none = pairs.take(np.zeros(0, dtype=np.intp))
    return Split("made up", pairs, none, none, valid_source="none")


def formula(users: int, pairs: int, ranks: int) -> float:
    """As in docs/guides/beyond-one-machine.md."""
    rows = 24 * DIM * (users / ranks + ITEMS)
    step = 4 * DIM * (BLOCK / ranks + ITEMS) + 64e6
    prepared = min(24 * pairs / ranks, 150e6)
    return rows + step + prepared + 16 * pairs / ranks + 8 * pairs + 16 * users


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--users", type=int, nargs="+", default=[200_000, 400_000, 800_000])
    options = parser.parse_args()
    set_threads(1)
    config = TrainConfig.of(
        model="softmax-mf", factors=DIM, epochs=1, sampled_items=256, block_users=BLOCK,
        init="normal", reg="none",
    )  # fmt: skip
    with joined() as team:
        forget()
        base = peak()
        for users in options.users:
            split = made_up(users)
            forget()
            fit_split(split, config)
            found = team.joined_array(np.array([peak()]))
            if team.first:
                expected = base + formula(users, len(split.train), team.size)
                figures = {
                    "ranks": team.size, "users": users, "pairs": len(split.train),
                    "measured MB": [round(each / 1e6) for each in found],
                    "formula MB": round(expected / 1e6),
                }  # fmt: skip
                print(json.dumps(figures), flush=True)
            del split


if __name__ == "__main__":
    main()
