"""Certified reach: to how many users fake accounts can show an item, or from how many take it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from robustcf._checks import check_integer
from robustcf._io.text import aligned, rows_table
from robustcf.data.interactions import ITEM_GROUPS, item_group
from robustcf.data.split import Split
from robustcf.errors import InputError
from robustcf.models.voting.certificate import Reach

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from robustcf.models.voting.voters import Served

Ids = npt.NDArray[np.int64]

# Bits that are kept for sets of items; beyond, their bound is the sum of single ones.
_MOST_BITS = 1 << 33


@dataclass(frozen=True, eq=False)
class CertifiedReach:
    """Bounds on the users to whom an item can be shown with fake accounts, and who must keep it.

    Args:
        dataset: name of the data.
        fakes: numbers of fake accounts.
        ks: numbers of places of a list.
        lacking: per item, users who lack it in train, validation and test.
        reached: k -> fakes x items: at most so many of them can be shown the item.
        shown: k -> per item: users to whom it is recommended today.
        kept: k -> fakes x items: at least so many of these must still see it.
        groups: name -> ids of items, see :func:`~robustcf.data.interactions.item_group`.
        together: k -> group -> fakes: users to whom any of the worst set of ``targets`` items can
            be shown, at most.
        targets: the size of that set.
        n_users: all users.
    """

    dataset: str
    fakes: tuple[int, ...]
    ks: tuple[int, ...]
    lacking: Ids
    reached: Mapping[int, Ids]
    shown: Mapping[int, Ids]
    kept: Mapping[int, Ids]
    groups: Mapping[str, Ids]
    together: Mapping[int, Mapping[str, list[int]]]
    targets: int
    n_users: int

    def of(self, items: Sequence[int] | Ids, k: int) -> list[int]:
        """Return how many users can at most be shown any of some items: the sum, or all users."""
        ids = np.asarray(items, dtype=np.int64)
        if k not in self.reached or len(ids) == 0 or ids.min() < 0 or ids.max() >= self._n_items:
            raise InputError(f"expected ids of items and one of {self.ks}, got {items!r} and {k}")
        return [min(self.n_users, int(n)) for n in self.reached[k][:, ids].sum(axis=1)]

    def worst(self, group: str, k: int) -> list[int]:
        """Return the largest reach of an item of a group per number of fakes, in users."""
        return [int(n) for n in self.reached[k][:, self._group(group)].max(axis=1)]

    def staying(self, group: str, k: int) -> list[float]:
        """Return the share of today's recommendations of a group's items that must stay."""
        items = self._group(group)
        shown = max(1, int(self.shown[k][items].sum()))
        return [float(n) / shown for n in self.kept[k][:, items].sum(axis=1)]

    def _group(self, name: str) -> Ids:
        if name not in self.groups:
            raise InputError(f"group must be one of {', '.join(self.groups)}, got {name!r}")
        return self.groups[name]

    @property
    def _n_items(self) -> int:
        return len(self.lacking)

    def to_frame(self) -> pd.DataFrame:
        """Return one row per group, cutoff and number of fakes."""
        import pandas as pd

        return pd.DataFrame(self.rows())

    def rows(self) -> list[dict[str, Any]]:
        """Return the table: counts of users, and shares of today's recommendations that stay."""
        found = []
        for k in self.ks:
            for group, items in self.groups.items():
                worst, staying = self.worst(group, k), self.staying(group, k)
                for n, fakes in enumerate(self.fakes):
                    item = int(items[np.argmax(self.reached[k][n, items])])
                    found.append(
                        {
                            "k": k,
                            "items": group,
                            "fakes": fakes,
                            "worst item": item,
                            "users": worst[n],
                            "share": worst[n] / max(1, int(self.lacking[item])),
                            "median item": int(np.median(self.reached[k][n, items])),
                            f"worst {self.targets}": self.together[k][group][n],
                            "shown today": int(self.shown[k][items].sum()),
                            "must stay": staying[n],
                        }
                    )
        return found

    def plot(self, path: str | Path | None = None) -> Figure | Path:
        """Draw the worst item of each group against the number of fakes, at the first cutoff."""
        from robustcf._io.plots import Line, Panel, plot_panels

        k = self.ks[0]
        lines = [
            Line(f"worst {group} item", self.fakes, np.array([self.worst(group, k)]), "bound")
            for group in self.groups
        ]
        name = f"users who can see it, at most (first {k}, {self.dataset})"
        return plot_panels([[Panel(lines, "fake accounts", name)]], path)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON: the table, and the counts of every item."""
        return {
            "dataset": self.dataset,
            "n_users": self.n_users,
            "fakes": list(self.fakes),
            "groups": self.rows(),
            "items": {
                "lacking": self.lacking.tolist(),
                **{f"shown@{k}": self.shown[k].tolist() for k in self.ks},
                **{f"reached@{k}": self.reached[k].tolist() for k in self.ks},
                **{f"kept@{k}": self.kept[k].tolist() for k in self.ks},
            },
        }

    def _table(self) -> tuple[list[str], list[list[str]]]:
        table = [
            [
                f"{100 * value:.1f} %" if isinstance(value, float) else f"{value}"
                for name, value in row.items()
                if name != "worst item"
            ]
            for row in self.rows()
        ]
        return [name for name in self.rows()[0] if name != "worst item"], table

    def lines(self) -> list[str]:
        """Return the table for a terminal, and what its columns mean."""
        header, rows = self._table()
        return [
            aligned(header, rows, left=(1,)),
            f"users: of {self.n_users:,}, at most so many can be shown the worst item of the group "
            "(share: of",
            f"those who lack it), its median item, any of its worst {self.targets}; must stay: of "
            "the recommendations",
            "that its items have today, at least this share",
        ]

    def __repr__(self) -> str:
        return f"CertifiedReach({self.dataset}, fakes {list(self.fakes)}, first {list(self.ks)})"

    def _repr_html_(self) -> str:
        return rows_table(*self._table(), "users who can be shown an item, at most")


class ReachCount:
    """Counts the users of :class:`CertifiedReach`, block by block."""

    def __init__(
        self, split: Split, fakes: tuple[int, ...], ks: tuple[int, ...], targets: int
    ) -> None:
        self.split, self.fakes, self.ks = split, fakes, ks
        self.targets = check_integer("targets", targets)
        size = (len(fakes), split.n_items)
        self.lacking = np.zeros(split.n_items, dtype=np.int64)
        self.shown = {k: np.zeros(split.n_items, dtype=np.int64) for k in ks}
        self.reached = {k: np.zeros(size, dtype=np.int64) for k in ks}
        self.kept = {k: np.zeros(size, dtype=np.int64) for k in ks}
        bits = split.n_users * split.n_items * len(fakes) * len(ks)
        self._bits: dict[tuple[int, int], list[npt.NDArray[np.uint8]]] | None = (
            {(k, n): [] for k in ks for n in range(len(fakes))} if bits <= _MOST_BITS else None
        )

    def add(self, users: Ids, served: Served) -> None:
        """Count the users of a block."""
        parts = (self.split.train, self.split.valid, self.split.test)
        lacks = ~np.logical_or.reduce([part.csr()[users].toarray() > 0 for part in parts])
        self.lacking += lacks.sum(axis=0)
        for k, today in zip(self.ks, served.reach(0, self.ks), strict=True):
            self.shown[k] += today.kept.sum(axis=0)
        for n, number in enumerate(self.fakes):
            found: list[Reach] = served.reach(number, self.ks)
            for k, each in zip(self.ks, found, strict=True):
                able = each.reached & lacks
                self.reached[k][n] += able.sum(axis=0)
                self.kept[k][n] += each.kept.sum(axis=0)
                if self._bits is not None:
                    self._bits[k, n].append(np.packbits(able, axis=1))

    def result(self, degrees: Ids) -> CertifiedReach:
        """Return the bounds; ``degrees`` are the numbers of accounts per item."""
        groups = {kind: item_group(degrees, kind) for kind in ITEM_GROUPS}
        together = {
            k: {
                kind: [self._set(k, n, items) for n in range(len(self.fakes))]
                for kind, items in groups.items()
            }
            for k in self.ks
        }
        return CertifiedReach(
            self.split.name,
            self.fakes,
            self.ks,
            self.lacking,
            self.reached,
            self.shown,
            self.kept,
            groups,
            together,
            self.targets,
            self.split.n_users,
        )

    def _set(self, k: int, number: int, items: Ids) -> int:
        """Bound the users that any of the worst set of items reaches.

        The number of users is submodular: for any set S that of the best set is at most that of S
        and the largest gains of single items on top of it. S grows greedily, the best bound counts.
        """
        counts = self.reached[k][number, items]
        largest = min(self.targets, len(items))
        bound = min(self.split.n_users, int(np.sort(counts)[::-1][:largest].sum()))
        if self._bits is None:
            return bound
        # users x items of the group, unpacked a block at a time
        able = np.concatenate(
            [
                np.unpackbits(block, axis=1, count=self.split.n_items)[:, items].astype(bool)
                for block in self._bits[k, number]
            ]
        )
        covered = np.zeros(len(able), dtype=bool)
        for _ in range(largest):
            covered |= able[:, int(np.argmax(able[~covered].sum(axis=0)))]
            gains = np.sort(able[~covered].sum(axis=0))[::-1][:largest]
            bound = min(bound, int(covered.sum() + gains.sum()))
        return bound
