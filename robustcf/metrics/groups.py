"""Groups of users and items: metrics by group with intervals, and how exposure is shared.

Exposure of an item is the sum of 1 / log2(rank + 1) over the lists that it is in. Its share of all
exposure, next to its share of the training pairs, says whether it is recommended in proportion
(doi:10.1145/3219819.3220088).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from robustcf._checks import check_choice
from robustcf.data.interactions import Interactions
from robustcf.errors import InputError
from robustcf.metrics.topk import TopItems

Ids = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]

#: Groups that are made from the training pairs.
MADE = ("activity", "popularity", "time")
_SMOOTHING = 0.01  # of calibration, as published
_NEW = 0.75  # the latest quarter by first interaction is new


@dataclass(frozen=True, eq=False)
class Groups:
    """A partition of users or of items; ids with the code -1 are in no group.

    Args:
        kind: ``user`` or ``item``.
        by: what it divides by.
        names: the groups.
        codes: the number of its group for each id.

    Example:
        >>> pairs = Interactions.from_csr(np.array([[1, 1, 1], [1, 0, 0], [1, 1, 0]]))
        >>> groups = Groups.made("activity", pairs)[0]
        >>> [groups.names[code] for code in groups.codes]
        ['high activity', 'low activity', 'middle activity']
    """

    kind: str
    by: str
    names: tuple[str, ...]
    codes: Ids

    @classmethod
    def made(cls, by: str, pairs: Interactions) -> list[Groups]:
        """Make groups from training pairs.

        ``activity``: thirds of the users by their number of pairs. ``popularity``: items that have
        together the first, second and last third of the pairs (head, middle, tail). ``time``: new
        users and new items, the latest quarter by first interaction.
        """
        check_choice("by", by, MADE)
        if by == "activity":
            counts = pairs.user_degrees
            cuts = np.quantile(counts, (1 / 3, 2 / 3))
            names = ("low activity", "middle activity", "high activity")
            return [cls("user", by, names, np.searchsorted(cuts, counts).astype(np.int64))]
        if by == "popularity":
            counts = pairs.item_degrees.astype(np.float64)
            order = np.argsort(-counts, kind="stable")
            before = np.cumsum(counts[order]) - counts[order]
            codes = np.zeros(len(counts), dtype=np.int64)
            codes[order] = np.minimum(2, 3 * before // max(1.0, counts.sum()))
            return [cls("item", by, ("head", "middle", "tail"), codes)]
        if pairs.timestamps is None:
            raise InputError("groups by time need interactions with a time column")
        found = []
        for kind, ids, count in (
            ("user", pairs.users, pairs.n_users),
            ("item", pairs.items, pairs.n_items),
        ):
            first = np.full(count, np.iinfo(np.int64).max)
            np.minimum.at(first, ids, pairs.timestamps)
            known = np.bincount(ids, minlength=count) > 0
            cut = np.quantile(first[known], _NEW, method="lower")
            codes = np.where(known, (first > cut).astype(np.int64), -1)
            found.append(cls(kind, by, (f"established {kind}s", f"new {kind}s"), codes))
        return found

    @classmethod
    def of(cls, kind: str, groups: Mapping[Any, Any], index: Any, by: str = "") -> Groups:
        """Make groups of a dict of label -> group; ``index`` finds the ids of labels.

        Unlisted ids are in no group.
        """
        check_choice("kind", kind, ("user", "item"))
        ids = np.array([index.find(label) for label in groups], dtype=np.int64)
        if not (ids >= 0).any():
            first = next(iter(groups), None)
            raise InputError(f"the groups name none of the {kind}s; the first label is {first!r}")
        texts = [str(group) for group in groups.values()]
        names, codes = np.unique(np.array(texts, dtype=str), return_inverse=True)
        found = np.full(index.count, -1, dtype=np.int64)
        found[ids[ids >= 0]] = codes[ids >= 0]
        return cls(kind, by or f"{kind} groups", tuple(names.tolist()), found)

    def __iter__(self) -> Iterator[tuple[str, npt.NDArray[np.bool_]]]:
        """Yield each group that has members, with the mask of its ids."""
        for number, name in enumerate(self.names):
            members = self.codes == number
            if members.any():
                yield name, members

    def taken(self, ids: Ids) -> Groups:
        """Return the groups of some ids, in their order."""
        return Groups(self.kind, self.by, self.names, self.codes[ids])


class Estimate(NamedTuple):
    """A mean over users and its 95 % interval (Student); None where there are too few users."""

    value: float | None
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, values: Values) -> Estimate:
        """Return the mean of values and its interval.

        Example:
            >>> Estimate.of(np.array([0.0, 1.0, 0.5])).value
            0.5
        """
        if len(values) < 2:
            return cls(float(values[0]) if len(values) else None)
        from scipy.stats import t  # slow to import

        mean = float(values.mean())
        reach = float(t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5)
        return cls(mean, mean - reach, mean + reach)

    def __str__(self) -> str:
        if self.value is None:
            return "-"
        if self.low is None:
            return f"{self.value:.3f}"
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True)
class GroupValue:
    """A metric of one group: of users, or of the relevant items of one group of items.

    ``users`` is the number of users that it is a mean over; ``size`` the members of the group.
    """

    kind: str
    by: str
    group: str
    size: int
    users: int
    metric: str
    value: float | None
    low: float | None
    high: float | None
    epsilon: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return asdict(self)


def by_group(
    groups: Sequence[Groups],
    metrics: Mapping[str, tuple[Ids, Values]],
    ranked: Mapping[str, Mapping[str, tuple[Ids, Values]]] | None = None,
    epsilon: float | None = None,
) -> list[GroupValue]:
    """Return metrics by group.

    Args:
        groups: the partitions.
        metrics: name -> users and their values, for groups of users.
        ranked: name of a group of items -> the same, counting the items of that group alone.
        epsilon: attack size that the values were measured at.
    """
    rows = []
    for partition in groups:
        for name, members in partition:
            own = metrics if partition.kind == "user" else (ranked or {}).get(name, {})
            for metric, (users, values) in own.items():
                kept = values[members[users]] if partition.kind == "user" else values
                told = (partition.kind, partition.by, name, int(members.sum()), len(kept), metric)
                rows.append(GroupValue(*told, *Estimate.of(kept), epsilon))
    return rows


def overlap(left: TopItems, right: TopItems) -> Values:
    """Return the share of each list on the left that is in the list on the right.

    Example:
        >>> overlap(np.array([[1, 2], [3, -1], [-1, -1]]), np.array([[2, 5], [3, 9], [1, 2]]))
        array([0.5, 1. , 1. ])
    """
    real = left >= 0
    found = (left[:, :, None] == right[:, None, :]).any(axis=2) & real
    counts = real.sum(axis=1)
    return np.where(counts > 0, found.sum(axis=1) / np.maximum(counts, 1), 1.0)


def exposure(top: TopItems, n_items: int) -> Values:
    """Return each item's exposure in top lists.

    Example:
        >>> exposure(np.array([[0, 1], [0, -1]]), 3).round(2)
        array([2.  , 0.63, 0.  ])
    """
    weights = np.broadcast_to(1 / np.log2(np.arange(2, top.shape[1] + 2)), top.shape)
    real = top >= 0
    return np.asarray(np.bincount(top[real], weights[real], minlength=n_items), dtype=np.float64)


def shares(values: npt.NDArray[Any], groups: Groups) -> dict[str, float]:
    """Return each group's share of a sum over ids, 0 to 1.

    Example:
        >>> groups = Groups("item", "", ("a", "b"), np.array([0, 1, 1]))
        >>> shares(np.array([1.0, 1.0, 2.0]), groups)
        {'a': 0.25, 'b': 0.75}
    """
    total = float(values.sum()) or 1.0
    return {name: float(values[members].sum()) / total for name, members in groups}


def gini(values: npt.NDArray[Any]) -> float:
    """Return the Gini coefficient of values of at least 0: 0 where equal, near 1 where one has all.

    The mean difference of two of them over twice the mean.

    Example:
        >>> gini(np.array([1, 1, 1])), gini(np.array([0, 0, 1])).__round__(4)
        (0.0, 0.6667)
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    count, total = len(ordered), float(ordered.sum())
    if not total:
        return 0.0
    places = 2 * np.arange(1, count + 1) - count - 1
    return float((places * ordered).sum() / (count * total))


def average_popularity(top: TopItems, counts: npt.NDArray[Any]) -> float:
    """Return the mean, over users, of the mean number of training pairs of recommended items (ARP).

    Example:
        >>> average_popularity(np.array([[0, 1], [1, -1]]), np.array([4, 2]))
        2.5
    """
    real = top >= 0
    sums = np.where(real, np.asarray(counts)[top], 0).sum(axis=1)
    listed = real.any(axis=1)
    return float((sums[listed] / real[listed].sum(axis=1)).mean()) if listed.any() else 0.0


def calibration(top: TopItems, users: Ids, history: Interactions, groups: Groups) -> Values:
    """Return each user's divergence of recommended from own shares of item groups; 0 is calibrated.

    KL(p || 0.99 q + 0.01 p), with p the shares of groups in the history and q in the list
    (doi:10.1145/3240323.3240372). Users without a history or list are left out.
    """
    n_groups = len(groups.names)

    def told(rows: Ids, items: npt.NDArray[Any]) -> Values:
        codes = groups.codes[items]
        keys = rows[codes >= 0] * n_groups + codes[codes >= 0]
        counts = np.bincount(keys, minlength=len(users) * n_groups)
        return counts.reshape(-1, n_groups).astype(np.float64)

    rows, places = np.nonzero(top >= 0)
    p, q = told(*history.rows(users)), told(rows, top[rows, places])
    both = (p.sum(axis=1) > 0) & (q.sum(axis=1) > 0)
    p, q = (part[both] / part[both].sum(axis=1, keepdims=True) for part in (p, q))
    mixed = (1 - _SMOOTHING) * q + _SMOOTHING * p
    logs = np.log(np.where(p > 0, p, 1.0) / np.where(p > 0, mixed, 1.0))
    return np.asarray((p * logs).sum(axis=1))
