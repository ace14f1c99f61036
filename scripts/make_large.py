"""A large table of interactions with power laws, as a folder of Parquet files, a block at a time.

    python scripts/make_large.py DIR --pairs 100000000 --users 1000000 --items 100000

The rows are those of a log: ordered by time, users mixed, some pairs more than once. Users draw
items from a taste of their own (one of 50 groups of items) or from the whole catalogue, so that
there is something to learn. Users are numbers without order, items are text. Memory: one block of
a million rows. The same seed gives the same rows.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

_BLOCK = 1_000_000
_FILE_BLOCKS = 10
_GROUPS = 50
_OWN_TASTE = 0.7
_FIRST_SECOND = 1_500_000_000
# 10^8 different pairs come from this many rows per pair.
_ROWS_PER_PAIR = 1.24
_SCRAMBLE, _LABELS = 0x9E3779B97F4A7C15, 1 << 40


def power_law(
    rng: np.random.Generator, size: int, n: int, exponent: float, flat: float
) -> npt.NDArray[np.int64]:
    """Ranks from 0 to n - 1, rank r with a probability near ``(r + flat) ** -exponent``."""
    rest = 1.0 - exponent
    low, high = flat**rest, (n + flat) ** rest
    ranks = (low + rng.random(size) * (high - low)) ** (1.0 / rest) - flat
    return np.minimum(ranks.astype(np.int64), n - 1)


def block(
    seed: int, number: int, size: int, users: int, items: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The users and items of one block of rows; depends on the seed and its number alone."""
    rng = np.random.default_rng([seed, number])
    who = power_law(rng, size, users, 0.6, 100.0)
    what = power_law(rng, size, items, 0.9, 50.0)
    group = (who * 7919) % _GROUPS
    own = what - what % _GROUPS + group
    taste = (rng.random(size) < _OWN_TASTE) & (own < items)
    return who, np.where(taste, own, what)


def main() -> None:
    """Write the files and say what they are."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pairs", type=int, default=100_000_000, help="different pairs, about")
    parser.add_argument("--users", type=int, default=1_000_000)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--ratings", action="store_true", help="a rating column too")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    given.folder.mkdir(parents=True)
    rows = int(given.pairs * _ROWS_PER_PAIR)
    texts = np.array([f"item-{n * 48271 % 2147483647:010d}" for n in range(given.items)])
    dictionary = pa.array(texts)
    began = time.perf_counter()
    writer, files = None, 0
    for number, start in enumerate(range(0, rows, _BLOCK)):
        size = min(_BLOCK, rows - start)
        who, what = block(given.seed, number, size, given.users, given.items)
        labels = (who.astype(np.uint64) * np.uint64(_SCRAMBLE)) % np.uint64(_LABELS)
        columns = {
            "user_id": pa.array(labels.astype(np.int64)),
            "item_id": pa.DictionaryArray.from_arrays(pa.array(what.astype(np.int32)), dictionary),
            "timestamp": pa.array(_FIRST_SECOND + np.arange(start, start + size)),
        }
        if given.ratings:
            columns["rating"] = pa.array(((who * 31 + what * 17) % 5 + 1).astype(np.int8))
        table = pa.table(columns)
        if number % _FILE_BLOCKS == 0:
            if writer is not None:
                writer.close()
            path = given.folder / f"part-{files:05d}.parquet"
            writer, files = pq.ParquetWriter(path, table.schema, compression="snappy"), files + 1
        if writer is not None:
            writer.write_table(table)
    if writer is not None:
        writer.close()
    size = sum(path.stat().st_size for path in given.folder.iterdir())
    print(
        json.dumps(
            {
                "folder": str(given.folder),
                "files": files,
                "rows": rows,
                "bytes": size,
                "seconds": round(time.perf_counter() - began, 1),
            }
        )
    )


if __name__ == "__main__":
    main()
