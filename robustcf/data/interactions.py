"""Interactions and Split: the two things every other room knows about data."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from robustcf.errors import DataError

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

# Any integers are accepted; what an Interactions holds is int32, see _MAX_ID.
Ids = npt.NDArray[np.integer[Any]]
Labels = npt.NDArray[Any]
ValidSource = Literal["published", "carved", "none"]

# Ids are stored as int32: half the memory of int64, and no catalogue comes near 2**31 users.
_MAX_ID = np.iinfo(np.int32).max

# Label arrays that have been checked and frozen: parts of a split share them, and checking means
# sorting. Held weakly, so an entry lives exactly as long as its array.
_checked_labels: WeakValueDictionary[int, Labels] = WeakValueDictionary()


@dataclass(frozen=True, eq=False)
class Interactions:
    """An immutable set of (user, item) pairs with contiguous ids from 0.

    The pairs are kept sorted by user, then item, whatever order they come in: the same set is
    always the same arrays, so a seeded split does not depend on the order of lines in a file.

    Args:
        users: user id of each pair, integers in ``[0, n_users)``.
        items: item id of each pair, integers in ``[0, n_items)``.
        n_users: number of users; ids without a pair are allowed (cold users).
        n_items: number of items.
        user_labels: the original name of each user (length ``n_users``, no repeats), or None.
        item_labels: the original name of each item, or None.
        timestamps: when each pair came about (int64, larger is later, in any unit), or None.
        weights: a finite number for each pair, a rating say, or None.

    Raises:
        DataError: if any of the above does not hold, or a pair occurs twice.

    Cost: one sort of the pairs when they are not sorted already; 8 bytes a pair.

    Example:
        >>> import numpy as np
        >>> x = Interactions(np.array([1, 0, 1]), np.array([2, 0, 0]), n_users=2, n_items=3)
        >>> x.users.tolist(), x.items.tolist(), len(x)
        ([0, 1, 1], [0, 0, 2], 3)
        >>> x.csr().toarray()
        array([[1., 0., 0.],
               [1., 0., 1.]], dtype=float32)
    """

    users: Ids
    items: Ids
    n_users: int
    n_items: int
    user_labels: Labels | None = None
    item_labels: Labels | None = None
    timestamps: npt.NDArray[np.integer[Any]] | None = None
    weights: npt.NDArray[np.floating[Any]] | None = None

    def __post_init__(self) -> None:
        for name, count in (("n_users", self.n_users), ("n_items", self.n_items)):
            if not isinstance(count, int | np.integer) or not 0 <= count <= _MAX_ID + 1:
                raise DataError(f"{name} must be an integer from 0 to 2147483648, got {count!r}")
        users = _ids("user", self.users, self.n_users)
        items = _ids("item", self.items, self.n_items)
        if users.shape != items.shape:
            raise DataError(
                f"users and items must have the same length, got {len(users)} and {len(items)}"
            )
        timestamps = _column("timestamps", self.timestamps, np.int64, len(users))
        weights = _column("weights", self.weights, np.float32, len(users))

        keys = users.astype(np.int64) * max(self.n_items, 1) + items
        if np.any(keys[1:] <= keys[:-1]):
            order = np.argsort(keys, kind="stable")
            keys = keys[order]
            repeated = np.flatnonzero(keys[1:] == keys[:-1])
            if len(repeated):
                user, item = divmod(int(keys[repeated[0]]), max(self.n_items, 1))
                raise DataError(
                    f"{len(repeated)} pairs occur more than once, the first is user {user}, item "
                    f"{item}; each (user, item) may occur once: build with "
                    "Interactions.from_pairs(...), which drops repeats and counts them"
                )
            users, items = users[order], items[order]
            timestamps = None if timestamps is None else timestamps[order]
            weights = None if weights is None else weights[order]

        frozen = {
            "users": users,
            "items": items,
            "timestamps": timestamps,
            "weights": weights,
            "user_labels": _labels("user", self.user_labels, self.n_users),
            "item_labels": _labels("item", self.item_labels, self.n_items),
        }
        for name, array in frozen.items():
            object.__setattr__(self, name, None if array is None else _read_only(array))

    @classmethod
    def from_pairs(
        cls,
        users: npt.ArrayLike,
        items: npt.ArrayLike,
        n_users: int,
        n_items: int,
        *,
        timestamps: npt.ArrayLike | None = None,
        weights: npt.ArrayLike | None = None,
        user_labels: Labels | None = None,
        item_labels: Labels | None = None,
    ) -> tuple[Interactions, int]:
        """Build from pairs that may repeat; returns the set and the number of repeats dropped.

        Of the repeats of a pair the latest by timestamp is kept (the first given where
        timestamps are absent or equal).

        Example:
            >>> x, dropped = Interactions.from_pairs([0, 0, 1], [1, 1, 0], 2, 2)
            >>> len(x), dropped
            (2, 1)
        """
        user_ids = _ids("user", users, n_users)
        item_ids = _ids("item", items, n_items)
        if user_ids.shape != item_ids.shape:
            raise DataError(
                "users and items must have the same length, got "
                f"{len(user_ids)} and {len(item_ids)}"
            )
        times = _column("timestamps", timestamps, np.int64, len(user_ids))
        values = _column("weights", weights, np.float32, len(user_ids))
        kept = one_of_each(user_ids.astype(np.int64) * max(n_items, 1) + item_ids, times)
        built = cls(
            user_ids[kept],
            item_ids[kept],
            n_users,
            n_items,
            user_labels=user_labels,
            item_labels=item_labels,
            timestamps=None if times is None else times[kept],
            weights=None if values is None else values[kept],
        )
        return built, len(user_ids) - len(kept)

    def __len__(self) -> int:
        return len(self.users)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Interactions):
            return NotImplemented
        return (self.n_users, self.n_items) == (other.n_users, other.n_items) and all(
            _same(getattr(self, name), getattr(other, name))
            for name in ("users", "items", "timestamps", "weights", "user_labels", "item_labels")
        )

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        # Through the constructor, so that a copy or an unpickled one is frozen as well.
        return Interactions, tuple(getattr(self, entry.name) for entry in fields(self))

    def __repr__(self) -> str:
        return f"Interactions({len(self):,} pairs, {self.n_users:,} users x {self.n_items:,} items)"

    @property
    def density(self) -> float:
        """Pairs divided by ``n_users * n_items`` (0 for an empty matrix)."""
        cells = self.n_users * self.n_items
        return len(self) / cells if cells else 0.0

    @cached_property
    def user_degrees(self) -> npt.NDArray[np.int64]:
        """Number of items of each user, length ``n_users``."""
        return _read_only(np.bincount(self.users, minlength=self.n_users))

    @cached_property
    def item_degrees(self) -> npt.NDArray[np.int64]:
        """Number of users of each item, length ``n_items``."""
        return _read_only(np.bincount(self.items, minlength=self.n_items))

    @cached_property
    def indptr(self) -> npt.NDArray[np.int64]:
        """Where each user's pairs begin and end: ``items[indptr[u]:indptr[u + 1]]`` are u's."""
        return _read_only(np.concatenate(([0], np.cumsum(self.user_degrees))))

    def items_of(self, user: int) -> Ids:
        """The items of one user, ascending.

        Example:
            >>> Interactions.from_pairs([0, 1, 1], [2, 2, 0], 2, 3)[0].items_of(1).tolist()
            [0, 2]
        """
        if not 0 <= user < self.n_users:
            raise DataError(f"user must be in [0, {self.n_users}), got {user}")
        return self.items[self.indptr[user] : self.indptr[user + 1]]

    def csr(self) -> csr_matrix:
        """The 0/1 matrix (float32, users x items), built once and then shared: do not write to it.

        Cost: 8 bytes a pair more, once.
        """
        return self._csr

    @cached_property
    def _csr(self) -> csr_matrix:
        from scipy.sparse import csr_matrix

        matrix = csr_matrix(
            (np.ones(len(self), dtype=np.float32), self.items, self.indptr),
            shape=(self.n_users, self.n_items),
        )
        matrix.data.flags.writeable = False
        matrix.has_sorted_indices = True
        matrix.has_canonical_format = True
        return matrix

    def take(self, chosen: npt.NDArray[np.bool_] | npt.NDArray[np.intp]) -> Interactions:
        """The chosen pairs (a mask, or positions) with the same ids and labels."""
        return Interactions(
            self.users[chosen],
            self.items[chosen],
            self.n_users,
            self.n_items,
            user_labels=self.user_labels,
            item_labels=self.item_labels,
            timestamps=None if self.timestamps is None else self.timestamps[chosen],
            weights=None if self.weights is None else self.weights[chosen],
        )

    def union(self, other: Interactions) -> Interactions:
        """Both sets of pairs; they must share ids and have no pair in common.

        Timestamps and weights survive where both sides have them.
        """
        _same_ids("union", self, other)

        def joined(name: str) -> npt.NDArray[Any] | None:
            left, right = getattr(self, name), getattr(other, name)
            return None if left is None or right is None else np.concatenate((left, right))

        return Interactions(
            np.concatenate((self.users, other.users)),
            np.concatenate((self.items, other.items)),
            self.n_users,
            self.n_items,
            user_labels=self.user_labels,
            item_labels=self.item_labels,
            timestamps=joined("timestamps"),
            weights=joined("weights"),
        )


@dataclass(frozen=True, eq=False)
class Split:
    """A data set cut into train, valid and test, with what is to be said about it.

    Args:
        name: what the set is called in tables and runs.
        train: pairs to learn from.
        valid: pairs to choose epochs and hyper-parameters on; may be empty.
        test: pairs to report on, never to choose by; may be empty.
        valid_source: ``published`` when the validation pairs come in a file of their own,
            ``carved`` when they were taken out of the published training pairs, ``none``.
            Evaluation protocols differ by it: carved pairs were in everybody else's train file.
        notes: what was dropped or changed on the way, in sentences for a person.
        sources: file name -> sha256 of what was read (empty for generated sets).

    Raises:
        DataError: if the parts differ in ids or labels, share a pair, or train is empty.

    Example:
        >>> from robustcf.data import load
        >>> split = load("demo")
        >>> split.train.n_users, split.train.n_items
        (2000, 1500)
    """

    name: str
    train: Interactions
    valid: Interactions
    test: Interactions
    valid_source: ValidSource = "carved"
    notes: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sources", MappingProxyType(dict(self.sources)))
        object.__setattr__(self, "notes", tuple(self.notes))
        parts = {"train": self.train, "valid": self.valid, "test": self.test}
        if len(self.train) == 0:
            raise DataError(f"{self.name}: train has no interactions; at least one is needed")
        for name, part in list(parts.items())[1:]:
            _same_ids(f"{self.name}: train and {name}", self.train, part)
        for left, right in (("train", "valid"), ("train", "test"), ("valid", "test")):
            _disjoint(self.name, left, parts[left], right, parts[right])

    @property
    def n_users(self) -> int:
        """Number of users, the same in all parts."""
        return self.train.n_users

    @property
    def n_items(self) -> int:
        """Number of items, the same in all parts."""
        return self.train.n_items

    @property
    def user_labels(self) -> Labels | None:
        """Original user names, or None."""
        return self.train.user_labels

    @property
    def item_labels(self) -> Labels | None:
        """Original item names, or None."""
        return self.train.item_labels

    @property
    def n_interactions(self) -> int:
        """Pairs in all three parts."""
        return len(self.train) + len(self.valid) + len(self.test)

    @cached_property
    def train_full(self) -> Interactions:
        """Train and valid together: what a final refit learns from."""
        return self.train.union(self.valid)

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of sizes and pairs: equal for two splits exactly when their pairs are equal.

        It is what a run records, so that a result can be traced to the very pairs behind it.
        """
        digest = hashlib.sha256(f"{self.n_users},{self.n_items}".encode())
        for part in (self.train, self.valid, self.test):
            digest.update(f";{len(part)};".encode())
            digest.update(part.users.astype("<i4", copy=False).tobytes())
            digest.update(part.items.astype("<i4", copy=False).tobytes())
        return digest.hexdigest()

    def __reduce__(self) -> tuple[Any, ...]:
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return Split, tuple({**values, "sources": dict(self.sources)}.values())

    def __repr__(self) -> str:
        return (
            f"Split({self.name!r}, {self.n_users:,} users x {self.n_items:,} items, "
            f"train {len(self.train):,}, valid {len(self.valid):,}, test {len(self.test):,})"
        )


def one_of_each(
    keys: npt.NDArray[np.int64], times: npt.NDArray[np.int64] | None
) -> npt.NDArray[np.intp]:
    """Where each distinct key is kept: its latest place, or the first where times tie or lack."""
    if times is None:
        order = np.argsort(keys, kind="stable")
    else:
        # ~t is -t - 1: descending in time without the overflow of -t.
        order = np.lexsort((np.arange(len(keys)), ~times, keys))
    first = np.ones(len(keys), dtype=bool)
    first[1:] = keys[order[1:]] != keys[order[:-1]]
    return order[first]


def _read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if array.flags.writeable:
        if array.base is not None:  # a view: freezing it would leave its owner writable
            array = array.copy()
        array.flags.writeable = False
    return array


def _ids(kind: str, values: npt.ArrayLike, count: int) -> Ids:
    array = np.asarray(values)
    if array.ndim != 1:
        raise DataError(f"{kind} ids must be one-dimensional, got shape {array.shape}")
    if array.size == 0:
        return np.empty(0, dtype=np.int32)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        where = int(np.flatnonzero(~np.isfinite(array))[0])
        raise DataError(
            f"{kind} ids must be integers, got {array[where]} at position {where}; "
            "drop or repair the rows without an id"
        )
    if array.dtype.kind not in "iu":
        raise DataError(f"{kind} ids must be integers, got dtype {array.dtype}")
    low, high = int(array.min()), int(array.max())
    if low < 0:
        raise DataError(
            f"{kind} ids must not be negative, got {low} at position {int(array.argmin())}"
        )
    if high >= count or high > _MAX_ID:
        raise DataError(
            f"{kind} ids must be below n_{kind}s = {count}, got {high} at position "
            f"{int(array.argmax())}"
        )
    # A copy, so that nobody else holds a writable view of what is frozen afterwards.
    return np.array(array, dtype=np.int32)


def _column(
    name: str, values: npt.ArrayLike | None, dtype: type[np.generic], length: int
) -> npt.NDArray[Any] | None:
    if values is None:
        return None
    array = np.asarray(values)
    if array.shape != (length,):
        raise DataError(f"{name} must have one entry a pair ({length}), got shape {array.shape}")
    if array.dtype.kind not in "iuf":
        raise DataError(f"{name} must be numbers, got dtype {array.dtype}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        where = int(np.flatnonzero(~np.isfinite(array))[0])
        raise DataError(f"{name} must be finite, got {array[where]} at position {where}")
    if dtype is np.int64 and array.dtype.kind == "f" and np.any(array != np.floor(array)):
        raise DataError(f"{name} must be whole numbers, got fractions; scale them first")
    largest = float(np.abs(array.astype(np.float64)).max()) if length else 0.0
    limit = 2.0**63 if dtype is np.int64 else float(np.finfo(np.float32).max)
    if largest > limit or (largest == limit and array.dtype.kind != "i"):
        raise DataError(f"{name} must fit into {np.dtype(dtype)}, got a magnitude of {largest:g}")
    return np.array(array, dtype=dtype)


def _labels(kind: str, values: Labels | None, count: int) -> Labels | None:
    if values is None or _checked_labels.get(id(values)) is values:
        return values
    array = np.array(values)
    if array.dtype.kind == "O" and all(isinstance(label, str) for label in array.flat):
        array = array.astype(str)
    if array.dtype.kind not in "iuU" or array.ndim != 1:
        raise DataError(
            f"{kind} labels must be a one-dimensional array of integers or strings, got shape "
            f"{array.shape} and dtype {array.dtype}"
        )
    if len(array) != count:
        raise DataError(f"{kind} labels must have length n_{kind}s = {count}, got {len(array)}")
    ordered = np.sort(array)
    repeated = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(repeated):
        raise DataError(f"{kind} labels must differ, got {ordered[repeated[0]]!r} more than once")
    array.flags.writeable = False
    _checked_labels[id(array)] = array
    return array


def _same(left: npt.NDArray[Any] | None, right: npt.NDArray[Any] | None) -> bool:
    if left is None or right is None:
        return left is right
    return bool(np.array_equal(left, right))


def _same_ids(what: str, left: Interactions, right: Interactions) -> None:
    if (left.n_users, left.n_items) != (right.n_users, right.n_items):
        raise DataError(
            f"{what} must have the same users and items, got {left.n_users} x {left.n_items} and "
            f"{right.n_users} x {right.n_items}"
        )
    for kind in ("user_labels", "item_labels"):
        mine, theirs = getattr(left, kind), getattr(right, kind)
        if mine is not theirs and not _same(mine, theirs):
            raise DataError(f"{what} must have the same {kind.replace('_', ' ')}")


def _disjoint(name: str, left: str, a: Interactions, right: str, b: Interactions) -> None:
    if len(a) == 0 or len(b) == 0:
        return
    n_items = max(a.n_items, 1)
    keys_a = a.users.astype(np.int64) * n_items + a.items
    keys_b = b.users.astype(np.int64) * n_items + b.items
    # Both are sorted, so looking the smaller up in the larger beats a set intersection.
    small, large = (keys_a, keys_b) if len(keys_a) < len(keys_b) else (keys_b, keys_a)
    places = np.minimum(np.searchsorted(large, small), len(large) - 1)
    shared = small[large[places] == small]
    if len(shared):
        user, item = divmod(int(shared[0]), n_items)
        raise DataError(
            f"{name}: {len(shared)} pairs are in both {left} and {right}, the first is user "
            f"{_label_of(a.user_labels, user)}, item {_label_of(a.item_labels, item)}; "
            "remove them from one of the two"
        )


def _label_of(labels: Labels | None, index: int) -> str:
    return str(index) if labels is None else repr(labels[index].item())
