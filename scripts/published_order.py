"""Were the published test pairs of Gowalla and Yelp2018 drawn at random?

    python scripts/published_order.py --data-dir DIR

Both sets come as NGCF published them: a line of items for each user, train and test apart, which
is said to be a random draw. Three counts say otherwise, none of which needs a model:

- how much the items' test counts scatter around their share of all pairs, next to a random draw;
- whether items are numbered as they first occur in the lines of train, user after user. Then the
  items that a user's line brings in are in the order of that line, also where lines come sorted;
- whether neighbours in that order are alike (cosine of the users of two items, this user left out),
  and whether the first test item is more like the end of the line than like its beginning.

If so, lines are ordered, by time or a substitute for it, and test is their end.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import numpy.typing as npt

from robustcf.data import Interactions, Split, load

Ids = npt.NDArray[np.int64]


def new_items(pairs: Interactions) -> dict[int, Ids]:
    """User -> the items that occur in no line before, ascending."""
    found: dict[int, Ids] = {}
    seen = -1
    for user in range(pairs.n_users):
        items = np.sort(pairs.items_of(user))
        new = items[items > seen].astype(np.int64)
        if len(new):
            found[user], seen = new, int(new[-1])
    return found


def scatter(split: Split) -> float:
    """Variance of the items' test counts around their share, in units of a random draw's."""
    test, known = split.test.item_degrees, split.train_full.item_degrees
    total = test + known
    share = test.sum() / total.sum()
    some = total >= 20
    expected = total[some] * share
    return float(np.mean((test[some] - expected) ** 2 / (expected * (1 - share))))


class Likeness:
    """Cosine of the users of two items in train."""

    def __init__(self, pairs: Interactions) -> None:
        self.columns: Any = pairs.csr().astype(np.float64).tocsc()
        self.degrees = np.maximum(pairs.item_degrees, 1)

    def of(self, a: int, b: int, *, shared: int) -> float:
        """Without ``shared`` users, who have both anyway."""
        both = self.columns[:, [a]].multiply(self.columns[:, [b]]).sum() - shared
        return float(both / (self.degrees[a] * self.degrees[b]) ** 0.5)


def report(split: Split, test: dict[int, list[int]], seed: int = 0) -> None:
    whole = split.train_full
    lines = new_items(whole)
    in_turn = sum(len(new) == new[-1] - new[0] + 1 for new in lines.values())
    print(f"{split}")
    print(f"  test counts of items scatter {scatter(split):.1f} times as a random draw's")
    print(f"  lines that bring in new items: {len(lines):,}; numbered in turn: {in_turn:,}")
    like, rng = Likeness(whole), np.random.default_rng(seed)
    near, far, gaps = [], [], []
    for user, new in lines.items():
        if len(new) < 10:
            continue
        at = int(rng.integers(len(new) - 1))
        other = int(rng.choice(np.delete(new, [at, at + 1])))
        near.append(like.of(new[at], new[at + 1], shared=1))
        far.append(like.of(new[at], other, shared=1))
        if test.get(user):
            first = test[user][0]
            ends = [[like.of(i, first, shared=0) for i in part] for part in (new[:5], new[-5:])]
            gaps.append(np.mean(ends[1]) - np.mean(ends[0]))
    print(f"  likeness of neighbours {np.mean(near):.4f}, of others {np.mean(far):.4f}")
    error = np.std(gaps) / len(gaps) ** 0.5
    print(
        f"  the first test item: {np.mean(gaps):+.4f} +- {error:.4f} more like the end of the line "
        f"than like its beginning ({len(gaps)} users)\n",
        flush=True,
    )


def lines_of(path: str) -> dict[int, list[int]]:
    """A published file as it is: items in its order."""
    with open(path, encoding="utf-8") as file:
        rows = ([int(word) for word in line.split()] for line in file)
        return {row[0]: row[1:] for row in rows if row}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--datasets", nargs="+", default=["gowalla", "yelp2018"])
    options = parser.parse_args()
    for name in options.datasets:
        split = load(name, data_dir=options.data_dir, download=False)
        report(split, lines_of(f"{options.data_dir}/{name}/test.txt"))


if __name__ == "__main__":
    main()
