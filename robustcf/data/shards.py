"""Shards: the users of one process out of several."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
import numpy.typing as npt

from robustcf._distributed import Ranks, Rows
from robustcf.data.interactions import Interactions
from robustcf.data.split import PARTS, Split


@dataclass(frozen=True, eq=False)
class Shard:
    """The pairs of the users of one process (a contiguous range), and totals of all processes."""

    everything: Interactions
    rows: Rows

    def __post_init__(self) -> None:
        if not self.rows.whole:
            # All ranks compute these together, now. Cached by hand: before Python 3.12, ranks that
            # are threads would wait for one lock of the property.
            for name in ("item_degrees", "warm_users"):
                vars(self)[name] = getattr(Shard, name).func(self)

    @classmethod
    def of(cls, pairs: Interactions, ranks: Ranks | None = None) -> Shard:
        """Return the shard of this process."""
        return cls(pairs, Rows.of(pairs.n_users, ranks))

    @property
    def ranks(self) -> Ranks:
        """The processes."""
        return self.rows.ranks

    @property
    def n_pairs(self) -> int:
        """Pairs of all users."""
        return len(self.everything)

    @cached_property
    def pairs(self) -> Interactions:
        """The pairs of the users of this process, numbered from 0."""
        if self.rows.whole:
            return self.everything
        return self.everything.between(self.rows.start, self.rows.stop)

    @cached_property
    def first_pair(self) -> int:
        """Number of pairs of all users before these."""
        return int(self.everything.indptr[self.rows.start])

    @cached_property
    def item_degrees(self) -> npt.NDArray[np.int64]:
        """Number of users of each item, of all processes."""
        if self.rows.whole:
            return self.pairs.item_degrees
        import torch  # not needed by a single process

        return np.asarray(self.ranks.sum(torch.tensor(self.pairs.item_degrees)))

    @cached_property
    def warm_users(self) -> npt.NDArray[np.int64]:
        """Ids of the users with pairs, of all processes, ascending."""
        own = np.flatnonzero(self.pairs.user_degrees) + self.rows.start
        return self.ranks.joined_array(own.astype(np.int64))


class SplitShard(Split):
    """The pairs of some users of a split, numbered from 0; evaluated in place of a split."""

    whole: Split
    rows: Rows

    def __init__(self, whole: Split, rows: Rows) -> None:
        shared = {each.name: getattr(whole, each.name) for each in fields(Split)}
        parts = {part: shared[part].between(rows.start, rows.stop) for part in PARTS}
        vars(self).update({**shared, **parts, "whole": whole, "rows": rows})
