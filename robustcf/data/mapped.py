"""Interactions over memory maps: columns that stay where they are, labels that wait to be read."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from robustcf.data.interactions import Ids, Interactions, Labels, check_range, user_ranges
from robustcf.errors import DataError, WriteError

# The columns of pairs, and what they are.
COLUMNS: dict[str, type[np.generic]] = {
    "user": np.int32,
    "item": np.int32,
    "time": np.int64,
    "weight": np.float32,
}
# What is put together from pieces goes to memory up to this, and to a file beyond it.
_SMALL_BYTES = 64 << 20


class Columns(Protocol):
    """Where the columns of pairs lie, sorted by user, then item."""

    def column(self, name: str, start: int, stop: int) -> npt.NDArray[Any] | None:
        """Pairs ``start`` to ``stop - 1`` of a column of :data:`COLUMNS`; None: there is none."""


class LabelSource:
    """Labels that are read when they are first asked for.

    Args:
        read: reads them.

    Example:
        >>> source = LabelSource(lambda: np.array(["a", "b", "c"]))
        >>> source.between(1, 3).array.tolist()
        ['b', 'c']
    """

    def __init__(self, read: Callable[[], Labels]) -> None:
        """Nothing is read yet."""
        self._read = read

    @cached_property
    def array(self) -> Labels:
        """The labels."""
        labels = self._read()
        labels.flags.writeable = False
        return labels

    def between(self, start: int, stop: int) -> LabelSource:
        """Some of them, in one piece."""
        return LabelSource(lambda: self.array[start:stop])


class _Arrays:
    """Columns that are arrays already: those of an ordinary set of pairs."""

    def __init__(self, pairs: Interactions) -> None:
        self.pairs = pairs

    def column(self, name: str, start: int, stop: int) -> npt.NDArray[Any] | None:
        names = {"user": "users", "item": "items", "time": "timestamps", "weight": "weights"}
        found: npt.NDArray[Any] | None = getattr(self.pairs, names[name])
        return None if found is None else found[start:stop]


class MappedInteractions(Interactions):
    """A set of pairs whose columns are read from where they lie: nothing of them is copied.

    It is used like any :class:`Interactions`. What is asked for is what is read: users' degrees
    need no pairs, the items of one user need theirs alone.

    Args:
        columns: where the pairs lie, sorted by user, then item, each pair once.
        indptr: where each user's pairs begin and end in them, int64, one entry more than users.
        n_items: number of items.
        user_labels: the users' names, or None.
        item_labels: the items' names, or None.
        first_user: the number that the first of these users has in the column of users.

    Example:
        >>> pairs = Interactions(np.array([0, 1, 1]), np.array([2, 0, 1]), n_users=2, n_items=3)
        >>> mapped = MappedInteractions.of(pairs)
        >>> mapped == pairs, mapped.items.base is pairs.items
        (True, True)
    """

    def __init__(
        self,
        columns: Columns,
        indptr: npt.NDArray[np.int64],
        n_items: int,
        *,
        user_labels: LabelSource | None = None,
        item_labels: LabelSource | None = None,
        first_user: int = 0,
    ) -> None:
        """Keep what is given; nothing is read."""
        values = {
            "n_users": len(indptr) - 1,
            "n_items": n_items,
            "_columns": columns,
            "_places": indptr,
            "_labels": {"user_labels": user_labels, "item_labels": item_labels},
            "_first_user": first_user,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    _columns: Columns
    _places: npt.NDArray[np.int64]
    _labels: dict[str, LabelSource | None]
    _first_user: int

    @classmethod
    def of(cls, pairs: Interactions) -> MappedInteractions:
        """The same pairs; columns and labels are those of the other."""
        if isinstance(pairs, cls):
            return pairs
        labels = {
            kind: None if array is None else LabelSource(lambda array=array: array)  # type: ignore[misc]
            for kind in ("user_labels", "item_labels")
            for array in [getattr(pairs, kind)]
        }
        return cls(
            _Arrays(pairs),
            pairs.indptr,
            pairs.n_items,
            user_labels=labels["user_labels"],
            item_labels=labels["item_labels"],
        )

    def __len__(self) -> int:
        return int(self._places[-1] - self._places[0])

    def __repr__(self) -> str:
        return super().__repr__()

    def _column(self, name: str) -> npt.NDArray[Any] | None:
        return self._columns.column(name, int(self._places[0]), int(self._places[-1]))

    def has(self, name: str) -> bool:
        """Whether there is a column of this name."""
        return self._columns.column(name, int(self._places[0]), int(self._places[0])) is not None

    @cached_property
    def indptr(self) -> npt.NDArray[np.int64]:
        """See :attr:`Interactions.indptr`."""
        if self._places[0] == 0:
            return self._places
        indptr: npt.NDArray[np.int64] = self._places - self._places[0]
        indptr.flags.writeable = False
        return indptr

    @cached_property
    def user_degrees(self) -> npt.NDArray[np.int64]:
        """See :attr:`Interactions.user_degrees`."""
        degrees = np.diff(self._places)
        degrees.flags.writeable = False
        return degrees

    @cached_property
    def users(self) -> Ids:
        """The user of each pair; made from the users' degrees where they are numbered anew."""
        if self._first_user == 0:
            found = self._column("user")
            if found is not None:
                return found
        users = np.repeat(np.arange(self.n_users, dtype=np.int32), self.user_degrees)
        users.flags.writeable = False
        return users

    @cached_property
    def items(self) -> Ids:
        """The item of each pair."""
        found = self._column("item")
        if found is None:
            raise DataError("a set of pairs needs a column 'item', got none")
        return found

    @cached_property
    def timestamps(self) -> npt.NDArray[np.integer[Any]] | None:
        """When each pair came about, or None."""
        return self._column("time")

    @cached_property
    def weights(self) -> npt.NDArray[np.floating[Any]] | None:
        """A number for each pair, or None."""
        return self._column("weight")

    @cached_property
    def user_labels(self) -> Labels | None:
        """The users' names, read now, or None."""
        source = self._labels["user_labels"]
        return None if source is None else source.array

    @cached_property
    def item_labels(self) -> Labels | None:
        """The items' names, read now, or None."""
        source = self._labels["item_labels"]
        return None if source is None else source.array

    def label_source(self, kind: str) -> object:
        """See :meth:`Interactions.label_source`."""
        return self._labels[kind]

    def items_of(self, user: int) -> Ids:
        """See :meth:`Interactions.items_of`; reads the pairs of this user alone."""
        check_range(self, user, user + 1)
        begin, end = int(self._places[user]), int(self._places[user + 1])
        found = self._columns.column("item", begin, end)
        return np.empty(0, dtype=np.int32) if found is None else found

    def between(self, start: int, stop: int) -> Interactions:
        """See :meth:`Interactions.between`."""
        check_range(self, start, stop)
        users = self._labels["user_labels"]
        return MappedInteractions(
            self._columns,
            self._places[start : stop + 1],
            self.n_items,
            user_labels=None if users is None else users.between(start, stop),
            item_labels=self._labels["item_labels"],
            first_user=self._first_user + start,
        )

    def union(self, other: Interactions) -> Interactions:
        """Both sets of pairs, see :meth:`Interactions.union`; put together when asked for."""
        from robustcf.data.interactions import same_ids

        same_ids("union", self, other)
        return MergedInteractions(self, MappedInteractions.of(other))


class MergedInteractions(MappedInteractions):
    """Two sets of pairs as one, put together when and where somebody looks.

    The pairs of some users are merged from both. The columns as a whole are merged once, a block
    of users at a time, into a temporary file that has no name: memory of one block.

    Args:
        left: pairs.
        right: others of the same ids, none of them in ``left``.

    Example:
        >>> left = Interactions(np.array([0, 1]), np.array([2, 0]), n_users=2, n_items=3)
        >>> right = Interactions(np.array([1]), np.array([1]), n_users=2, n_items=3)
        >>> both = MergedInteractions(MappedInteractions.of(left), MappedInteractions.of(right))
        >>> both.items_of(1).tolist(), both == left.union(right)
        ([0, 1], True)
    """

    def __init__(self, left: MappedInteractions, right: MappedInteractions) -> None:
        """Keep both."""
        object.__setattr__(self, "_both", (left, right))
        object.__setattr__(self, "_merged", {})
        super().__init__(self, left.indptr + right.indptr, left.n_items)
        object.__setattr__(self, "_labels", left._labels)

    _both: tuple[MappedInteractions, MappedInteractions]
    _merged: dict[str, npt.NDArray[Any] | None]

    def _blocks(self, name: str) -> Iterator[npt.NDArray[Any]]:
        """A column, one block of users after another."""
        for start, stop in user_ranges(self.indptr):
            rows, items, order = self._rows(np.arange(start, stop))
            if name == "user":
                yield (rows + start).astype(np.int32)
            elif name == "item":
                yield items
            else:
                parts = [
                    part._columns.column(name, int(part._places[start]), int(part._places[stop]))
                    for part in self._both
                ]
                yield np.concatenate([part for part in parts if part is not None])[order]

    def _rows(
        self, users: npt.NDArray[np.integer[Any]]
    ) -> tuple[npt.NDArray[np.int64], Ids, npt.NDArray[np.intp]]:
        """Merged rows of some users, and how the rows of both come into their order."""
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
        rows, items, _ = self._rows(users)
        return rows, items

    def items_of(self, user: int) -> Ids:
        """See :meth:`Interactions.items_of`."""
        check_range(self, user, user + 1)
        return self.rows(np.array([user]))[1]

    def column(self, name: str, start: int, stop: int) -> npt.NDArray[Any] | None:
        """A column of the whole; merged when it is first asked for, each by itself."""
        if name not in self._merged:
            there = name in ("user", "item") or all(part.has(name) for part in self._both)
            blocks = self._blocks(name)
            self._merged[name] = joined(blocks, COLUMNS[name], len(self)) if there else None
        found = self._merged[name]
        return None if found is None else found[start:stop]

    def between(self, start: int, stop: int) -> Interactions:
        """See :meth:`Interactions.between`."""
        left, right = (part.between(start, stop) for part in self._both)
        return left.union(right)


def joined(
    blocks: Iterator[npt.NDArray[Any]], dtype: npt.DTypeLike, count: int
) -> npt.NDArray[Any]:
    """Blocks as one array: in memory where it is small, else mapped from a file without a name.

    Args:
        blocks: one after another.
        dtype: of the array.
        count: its length.

    Raises:
        WriteError: there is no room for the file.
        DataError: the blocks are longer or shorter together.

    Example:
        >>> joined(iter([np.arange(2), np.arange(3)]), np.int32, 5).tolist()
        [0, 1, 0, 1, 2]
    """
    wanted = np.dtype(dtype)
    parts = (np.ascontiguousarray(block, dtype=wanted) for block in blocks)
    if count * wanted.itemsize <= _SMALL_BYTES:
        array = np.concatenate([np.empty(0, dtype=wanted), *parts])
    else:
        array = _in_a_file(parts, wanted)
    if len(array) != count:
        raise DataError(f"expected {count:,} pairs, got {len(array):,}: a file is damaged")
    array.flags.writeable = False
    return array


def _in_a_file(parts: Iterator[npt.NDArray[Any]], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    try:
        with tempfile.TemporaryFile() as file:
            for part in parts:
                # Written, not mapped for writing: a full disk is then an error and no signal.
                file.write(part.data)
            file.flush()
            return np.asarray(np.memmap(file, dtype=dtype, mode="r"))
    except OSError as error:
        raise WriteError(
            f"{tempfile.gettempdir()} cannot take the pairs that are put together there "
            f"({os.strerror(error.errno) if error.errno else error}): set TMPDIR to a folder on a "
            "disk with room"
        ) from error
