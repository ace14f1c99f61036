"""Interactions over memory maps: columns stay on disk, labels are read on first use."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from robustcf.data.interactions import Ids, Interactions, Labels, same_ids, user_ranges
from robustcf.errors import DataError, WriteError

#: The columns of pairs, and their types.
COLUMNS: dict[str, Any] = {
    "user": np.int32, "item": np.int32, "time": np.int64, "weight": np.float32,
}  # fmt: skip
_NAMES = {"user": "users", "item": "items", "time": "timestamps", "weight": "weights"}
_SMALL_BYTES = 64 << 20  # larger merged columns are kept in a file

#: Returns pairs ``start`` to ``stop - 1`` of a column of :data:`COLUMNS`, or None if it is missing.
ReadColumn = Callable[[str, int, int], npt.NDArray[Any] | None]


class LabelSource:
    """Labels that are read on first use."""

    def __init__(self, read: Callable[[], Labels]) -> None:
        self._read = read

    @cached_property
    def array(self) -> Labels:
        """The labels."""
        return _frozen(self._read())


class MappedInteractions(Interactions):
    """A set of pairs whose columns are read on use, without a copy.

    Degrees of users are known without reading pairs; the items of one user need that user's only.

    Args:
        read: reads columns of pairs that are sorted by user, then item, each pair once.
        indptr: offsets of the users' pairs.
        first_user: number of the first user in the column of users.

    Example:
        >>> pairs = Interactions(np.array([0, 1, 1]), np.array([2, 0, 1]), n_users=2, n_items=3)
        >>> mapped = MappedInteractions.of(pairs)
        >>> mapped == pairs, mapped.items.base is pairs.items
        (True, True)
    """

    mapped = True

    def __init__(
        self,
        read: ReadColumn,
        indptr: npt.NDArray[np.int64],
        n_items: int,
        *,
        user_labels: LabelSource | None = None,
        item_labels: LabelSource | None = None,
        first_user: int = 0,
    ) -> None:
        labels = {"user_labels": user_labels, "item_labels": item_labels}
        # vars(), since the dataclass is frozen.
        vars(self).update(n_users=len(indptr) - 1, n_items=n_items, _labels=labels)
        vars(self).update(_read=read, _places=indptr, _first_user=first_user)

    _read: ReadColumn
    _places: npt.NDArray[np.int64]
    _labels: dict[str, LabelSource | None]
    _first_user: int

    @classmethod
    def of(cls, pairs: Interactions) -> MappedInteractions:
        """Return the same pairs over the same columns and labels."""
        if isinstance(pairs, cls):
            return pairs

        def read(name: str, start: int, stop: int) -> npt.NDArray[Any] | None:
            found: npt.NDArray[Any] | None = getattr(pairs, _NAMES[name])
            return None if found is None else found[start:stop]

        labels: dict[str, Any] = {
            kind: None if array is None else LabelSource(lambda array=array: array)  # type: ignore[misc]
            for kind in ("user_labels", "item_labels")
            for array in [getattr(pairs, kind)]
        }
        return cls(read, pairs.indptr, pairs.n_items, **labels)

    def __len__(self) -> int:
        return int(self._places[-1] - self._places[0])

    def _column(self, name: str) -> npt.NDArray[Any] | None:
        return self._read(name, int(self._places[0]), int(self._places[-1]))

    @cached_property
    def indptr(self) -> npt.NDArray[np.int64]:
        """See :attr:`Interactions.indptr`."""
        return self._places if self._places[0] == 0 else _frozen(self._places - self._places[0])

    @cached_property
    def user_degrees(self) -> npt.NDArray[np.int64]:
        """See :attr:`Interactions.user_degrees`."""
        return _frozen(np.diff(self._places))

    @cached_property
    def users(self) -> Ids:
        """The user of each pair, made from the degrees where users are renumbered."""
        found = self._column("user") if self._first_user == 0 else None
        if found is not None:
            return found
        return _frozen(np.repeat(np.arange(self.n_users, dtype=np.int32), self.user_degrees))

    @cached_property
    def items(self) -> Ids:
        """The item of each pair."""
        found = self._column("item")
        if found is None:
            raise DataError("a set of pairs needs a column 'item', got none")
        return found

    @cached_property
    def timestamps(self) -> npt.NDArray[np.integer[Any]] | None:
        """The time of each pair, or None."""
        return self._column("time")

    @cached_property
    def weights(self) -> npt.NDArray[np.floating[Any]] | None:
        """The weight of each pair, or None."""
        return self._column("weight")

    @property
    def user_labels(self) -> Labels | None:
        """The labels of the users, or None."""
        return getattr(self._labels["user_labels"], "array", None)

    @property
    def item_labels(self) -> Labels | None:
        """The labels of the items, or None."""
        return getattr(self._labels["item_labels"], "array", None)

    def label_source(self, kind: str) -> object:
        """See :meth:`Interactions.label_source`."""
        return self._labels[kind]

    def items_of(self, user: int) -> Ids:
        """See :meth:`Interactions.items_of`; reads the pairs of this user only."""
        return self.between(user, user + 1).items

    def _check_range(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= self.n_users:
            raise DataError(
                f"a range of users must lie in 0 to {self.n_users}, got {start} to {stop}"
            )

    def between(self, start: int, stop: int) -> Interactions:
        """See :meth:`Interactions.between`."""
        self._check_range(start, stop)
        users = self._labels["user_labels"]
        return MappedInteractions(
            self._read,
            self._places[start : stop + 1],
            self.n_items,
            user_labels=None if users is None else LabelSource(lambda: users.array[start:stop]),
            item_labels=self._labels["item_labels"],
            first_user=self._first_user + start,
        )

    def union(self, other: Interactions) -> Interactions:
        """See :meth:`Interactions.union`; merged on use."""
        same_ids("union", self, other)
        return MergedInteractions(self, MappedInteractions.of(other))


class MergedInteractions(MappedInteractions):
    """The union of two disjoint sets of pairs, merged on use.

    Whole columns are merged once, a block of users at a time, into an anonymous temporary file.
    """

    def __init__(self, left: MappedInteractions, right: MappedInteractions) -> None:
        places = _frozen(left.indptr + right.indptr)
        super().__init__(self._merged_column, places, left.n_items)
        vars(self).update(_both=(left, right), _merged={}, _labels=left._labels)

    _both: tuple[MappedInteractions, MappedInteractions]
    _merged: dict[str, npt.NDArray[Any]]

    def _merged_column(self, name: str, start: int, stop: int) -> npt.NDArray[Any] | None:
        if name not in ("user", "item") and any(p._read(name, 0, 0) is None for p in self._both):
            return None
        if name not in self._merged:
            self._merged[name] = joined(self._blocks(name), COLUMNS[name], len(self))
        return self._merged[name][start:stop]

    def _blocks(self, name: str) -> Iterator[npt.NDArray[Any]]:
        """Yield a column, one block of users after another."""
        for start, stop in user_ranges(self.indptr):
            rows, items, order = self._rows(np.arange(start, stop))
            if name in ("user", "item"):
                yield rows + start if name == "user" else items
            else:
                parts: list[Any] = [
                    part._read(name, int(part._places[start]), int(part._places[stop]))
                    for part in self._both
                ]
                yield np.concatenate(parts)[order]

    def _rows(
        self, users: npt.NDArray[np.integer[Any]]
    ) -> tuple[npt.NDArray[np.int64], Ids, npt.NDArray[np.intp]]:
        """Return the merged rows of some users, and the order that merges those of both sets."""
        parts = [part.rows(users) for part in self._both]
        rows, items = (np.concatenate([part[n] for part in parts]) for n in (0, 1))
        keys = rows * max(self.n_items, 1) + items
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        if np.any(keys[1:] == keys[:-1]):
            raise DataError("a pair is in both sets: remove it from one of the two")
        return rows[order], items[order], order

    def rows(self, users: npt.NDArray[np.integer[Any]]) -> tuple[npt.NDArray[np.int64], Ids]:
        """See :meth:`Interactions.rows`."""
        return self._rows(users)[:2]

    def items_of(self, user: int) -> Ids:
        """See :meth:`Interactions.items_of`."""
        self._check_range(user, user + 1)
        return self.rows(np.array([user]))[1]

    def between(self, start: int, stop: int) -> Interactions:
        """See :meth:`Interactions.between`."""
        left, right = (part.between(start, stop) for part in self._both)
        return left.union(right)


def _frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array.flags.writeable = False
    return array


def joined(
    blocks: Iterable[npt.NDArray[Any]], dtype: npt.DTypeLike, count: int
) -> npt.NDArray[Any]:
    """Return blocks as one array: in memory where it is small, else mapped from a nameless file."""
    wanted = np.dtype(dtype)
    parts = (np.ascontiguousarray(block, dtype=wanted) for block in blocks)
    if count * wanted.itemsize <= _SMALL_BYTES:
        array = np.concatenate([np.empty(0, dtype=wanted), *parts])
    else:
        try:
            with tempfile.TemporaryFile() as file:
                # Written, not mapped for writing, so that a full disk is an error and not a signal.
                file.writelines(part.data for part in parts)
                file.flush()
                array = np.asarray(np.memmap(file, dtype=wanted, mode="r"))
        except OSError as error:
            raise WriteError(
                f"{tempfile.gettempdir()} cannot take the merged pairs ({error.strerror or error})"
                ": set TMPDIR to a folder on a disk with room"
            ) from error
    if len(array) != count:
        raise DataError(f"expected {count:,} pairs, got {len(array):,}: a file is damaged")
    return _frozen(array)
