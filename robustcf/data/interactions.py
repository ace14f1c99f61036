"""Interactions: an immutable set of (user, item) pairs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from robustcf._checks import check_choice
from robustcf.errors import DataError

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

Ids = npt.NDArray[np.integer[Any]]
Labels = npt.NDArray[Any]
_Columns = tuple[Any, ...]  # users, items, timestamps, weights

_MAX_ID = np.iinfo(np.int32).max  # ids are stored as int32, in half the memory of int64
BLOCK_PAIRS = 1 << 22  # pairs counted or checked at once
#: Groups of items by popularity: fifths of those with pairs.
ITEM_GROUPS = ("rare", "middle", "popular")

# Label arrays that were checked (sorted) and frozen; the splits of a set share them. Held weakly,
# so that an entry lives as long as its array.
_checked_labels: WeakValueDictionary[int, Labels] = WeakValueDictionary()


@dataclass(frozen=True, eq=False)
class Interactions:
    """An immutable set of (user, item) pairs with contiguous ids from 0.

    The pairs are sorted by user, then item, so a seeded split does not depend on their order.

    Args:
        users: user id of each pair, integers in ``[0, n_users)``.
        items: item id of each pair, integers in ``[0, n_items)``.
        n_users: number of users; ids without a pair are allowed (cold users).
        n_items: number of items.
        user_labels: the original name of each user, no repeats, or None.
        item_labels: the original name of each item, or None.
        timestamps: time of each pair (int64, larger is later, in any unit), or None.
        weights: a finite number for each pair, a rating say, or None.

    Cost: one sort of the pairs when they are not sorted already; 8 bytes per pair.

    Example:
        >>> import numpy as np
        >>> x = Interactions(np.array([1, 0, 1]), np.array([2, 0, 0]), n_users=2, n_items=3)
        >>> x.csr().toarray()
        array([[1., 0., 0.],
               [1., 0., 1.]], dtype=float32)
    """

    #: Whether the pairs stay on disk until they are used.
    mapped: ClassVar[bool] = False

    users: Ids
    items: Ids
    n_users: int
    n_items: int
    user_labels: Labels | None = None
    item_labels: Labels | None = None
    timestamps: npt.NDArray[np.integer[Any]] | None = None
    weights: npt.NDArray[np.floating[Any]] | None = None

    def __post_init__(self) -> None:
        sizes = self.n_users, self.n_items
        columns = _checked(self.users, self.items, *sizes, self.timestamps, self.weights)
        keys = _keys(columns, self.n_items)
        if np.any(keys[1:] <= keys[:-1]):
            order = np.argsort(keys, kind="stable")
            keys = keys[order]
            repeated = np.flatnonzero(keys[1:] == keys[:-1])
            if len(repeated):
                user, item = divmod(int(keys[repeated[0]]), max(self.n_items, 1))
                raise DataError(
                    f"{len(repeated)} pairs occur more than once, the first is user {user}, item "
                    f"{item}: build with Interactions.from_pairs(...), which drops repeats"
                )
            columns = _taken(columns, order)
        arrays = dict(zip(("users", "items", "timestamps", "weights"), columns, strict=True))
        for kind, count in (("user", self.n_users), ("item", self.n_items)):
            labels = getattr(self, f"{kind}_labels")
            if labels is not None:
                arrays[f"{kind}_labels"] = checked_labels(kind, labels, count)
        for name, array in arrays.items():
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

        Of the repeats of a pair the latest is kept (the first where times are absent or equal).

        Example:
            >>> Interactions.from_pairs([0, 0, 1], [1, 1, 0], 2, 2)
            (Interactions(2 pairs, 2 users x 2 items), 1)
        """
        columns = _checked(users, items, n_users, n_items, timestamps, weights)
        keys = _keys(columns, n_items)
        kept = one_of_each(keys, columns[2])
        user_ids, item_ids, *others = _taken(columns, kept)
        built = cls(user_ids, item_ids, n_users, n_items, user_labels, item_labels, *others)
        return built, len(keys) - len(kept)

    @classmethod
    def from_csr(
        cls, matrix: Any, *, user_labels: Labels | None = None, item_labels: Labels | None = None
    ) -> Interactions:
        """Build from a users x items matrix (scipy or numpy) of finite numbers of at least 0.

        Every nonzero entry is a pair; entries of one cell add up; values other than 1 are weights.

        Example:
            >>> Interactions.from_csr(np.array([[0, 1], [1, 1]]))
            Interactions(3 pairs, 2 users x 2 items)
        """
        coo = _sparse(matrix)
        values = np.asarray(coo.data)
        bad = ~(np.isfinite(values) & (values >= 0))
        if bad.any():
            raise DataError(
                "a matrix of interactions must hold finite numbers of at least 0, got "
                f"{values[bad][0]}: repair the entry, or set it to 0"
            )
        there = values != 0
        weights = None if bool((values[there] == 1).all()) else values[there]
        rows, columns, (n_users, n_items) = coo.row[there], coo.col[there], coo.shape
        return cls(rows, columns, n_users, n_items, user_labels, item_labels, weights=weights)

    def __len__(self) -> int:
        return len(self.users)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Interactions):
            return NotImplemented
        return all(_same(getattr(self, f.name), getattr(other, f.name)) for f in fields(self))

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        # Through the constructor, so that a copy or an unpickled one is frozen as well.
        return Interactions, tuple(getattr(self, entry.name) for entry in fields(self))

    def __repr__(self) -> str:
        return f"Interactions({sized(len(self), self.n_users, self.n_items)})"

    @property
    def density(self) -> float:
        """Pairs divided by ``n_users * n_items`` (0 for an empty matrix)."""
        cells = self.n_users * self.n_items
        return len(self) / cells if cells else 0.0

    @cached_property
    def user_degrees(self) -> npt.NDArray[np.int64]:
        """Number of items of each user, length ``n_users``."""
        return _read_only(_counts(self.users, self.n_users))

    @cached_property
    def item_degrees(self) -> npt.NDArray[np.int64]:
        """Number of users of each item, length ``n_items``."""
        return _read_only(_counts(self.items, self.n_items))

    @cached_property
    def indptr(self) -> npt.NDArray[np.int64]:
        """Offsets of users: ``items[indptr[u]:indptr[u + 1]]`` are the items of user u."""
        return _read_only(np.concatenate(([0], np.cumsum(self.user_degrees))))

    def items_of(self, user: int) -> Ids:
        """Return the items of one user, ascending."""
        if not 0 <= user < self.n_users:
            raise DataError(f"user must be in [0, {self.n_users}), got {user}")
        return self.items[self.indptr[user] : self.indptr[user + 1]]

    def rows(self, users: npt.NDArray[np.integer[Any]]) -> tuple[npt.NDArray[np.int64], Ids]:
        """Return the pairs of some users as (position in ``users``, item), items ascending.

        Example:
            >>> pairs = Interactions.from_pairs([0, 1, 1], [2, 0, 1], 2, 3)[0]
            >>> [part.tolist() for part in pairs.rows(np.array([1, 0]))]
            [[0, 0, 1], [0, 1, 2]]
        """
        begin, counts = self.indptr[users], self.user_degrees[users]
        rows = np.repeat(np.arange(len(users)), counts)
        ends = np.cumsum(counts)
        within = np.arange(len(rows)) - np.repeat(ends - counts, counts)
        return rows, self.items[np.repeat(begin, counts) + within]

    def csr_of(self, users: npt.NDArray[np.integer[Any]]) -> csr_matrix:
        """Return some rows of :meth:`csr` without building the rest."""
        _, items = self.rows(users)
        ends = np.concatenate(([0], np.cumsum(self.user_degrees[users])))
        return csr_over(np.ones(len(items), dtype=np.float32), items, ends, self.n_items)

    def between(self, start: int, stop: int) -> Interactions:
        """Return the pairs of users ``start`` to ``stop - 1`` as views, users numbered from 0.

        Example:
            >>> pairs = Interactions.from_pairs([0, 1, 2], [2, 0, 1], 3, 3)[0].between(1, 3)
            >>> pairs.users.tolist(), pairs.items.tolist()
            ([0, 1], [0, 1])
        """
        from robustcf.data.large.mapped import MappedInteractions  # is a subclass of this

        return MappedInteractions.of(self).between(start, stop)

    def label_source(self, kind: str) -> object:
        """Return the source of ``user_labels`` or ``item_labels``, without reading it."""
        return getattr(self, kind)

    def csr(self) -> csr_matrix:
        """Return the 0/1 matrix (float32, users x items), built once and shared: read only."""
        return self._csr

    @cached_property
    def _csr(self) -> csr_matrix:
        ones = _read_only(np.ones(len(self), dtype=np.float32))
        return csr_over(ones, self.items, self.indptr, self.n_items)

    def take(self, chosen: npt.NDArray[np.bool_] | npt.NDArray[np.intp]) -> Interactions:
        """Return the chosen pairs (a mask, or positions) with the same ids and labels."""
        return self._with(_taken(self._arrays, chosen))

    def union(self, other: Interactions) -> Interactions:
        """Return both sets of pairs; they must share ids and have no pair in common.

        Timestamps and weights survive where both sides have them.
        """
        same_ids("union", self, other)
        columns = zip(self._arrays, other._arrays, strict=True)
        return self._with(
            tuple(None if a is None or b is None else np.concatenate((a, b)) for a, b in columns)
        )

    @property
    def _arrays(self) -> _Columns:
        return self.users, self.items, self.timestamps, self.weights

    def _with(self, columns: _Columns) -> Interactions:
        users, items, *others = columns
        labels = self.user_labels, self.item_labels
        return Interactions(users, items, self.n_users, self.n_items, *labels, *others)


def sized(pairs: int, users: int, items: int) -> str:
    """Return the sizes of a set of pairs in words."""
    return f"{pairs:,} pairs, {users:,} users x {items:,} items"


def user_ranges(
    indptr: npt.NDArray[np.int64], most: int = BLOCK_PAIRS
) -> Iterator[tuple[int, int]]:
    """Yield ranges of users with at most ``most`` pairs together, or one user with more."""
    start, n_users = 0, len(indptr) - 1
    while start < n_users:
        stop = int(np.searchsorted(indptr, indptr[start] + most, side="right")) - 1
        stop = min(max(stop, start + 1), n_users)
        yield start, stop
        start = stop


def csr_over(
    values: npt.NDArray[np.float32], items: Ids, indptr: npt.NDArray[np.int64], n_items: int
) -> csr_matrix:
    """Return a matrix over the arrays of sorted pairs, without the copies that scipy makes."""
    from scipy.sparse import csr_matrix

    shape: Any = (len(indptr) - 1, n_items)
    matrix: csr_matrix = csr_matrix(shape, dtype=np.float32)
    # Both of one type, as scipy's products need them.
    index = np.int32 if max(len(items), n_items) <= _MAX_ID else np.int64
    matrix.data, matrix.indices = values, items.astype(index, copy=False)
    matrix.indptr = indptr.astype(index, copy=False)
    matrix.has_sorted_indices = matrix.has_canonical_format = True
    return matrix


def one_of_each(
    keys: npt.NDArray[np.int64], times: npt.NDArray[np.int64] | None
) -> npt.NDArray[np.intp]:
    """Return the position of each distinct key: the latest, or the first without times."""
    # A stable sort. ~t is -t - 1: descending in time without the overflow of -t.
    order = np.lexsort((keys,) if times is None else (~times, keys))
    first = np.ones(len(keys), dtype=bool)
    first[1:] = keys[order[1:]] != keys[order[:-1]]
    return order[first]


def _keys(columns: _Columns, n_items: int) -> npt.NDArray[np.int64]:
    keys: npt.NDArray[np.int64] = columns[0].astype(np.int64) * max(n_items, 1) + columns[1]
    return keys


def _taken(columns: _Columns, chosen: npt.NDArray[Any]) -> _Columns:
    return tuple(None if column is None else column[chosen] for column in columns)


def _sparse(matrix: Any) -> Any:
    """Return a matrix as scipy coordinates, each cell once."""
    from scipy.sparse import coo_matrix, issparse

    if not issparse(matrix):
        try:
            matrix = np.asarray(matrix)
        except (ValueError, TypeError, RuntimeError) as error:
            # Rows of several lengths; a tensor that is sparse, on a GPU or part of a graph.
            raise DataError(
                "interactions must be a users x items matrix, scipy or numpy, got a "
                f"{type(matrix).__name__} that numpy cannot read ({error}): convert it"
            ) from error
    if matrix.ndim != 2 or matrix.dtype.kind not in "biuf":
        raise DataError(
            "interactions must be a users x items matrix of numbers, scipy or numpy, got "
            f"{matrix.dtype} of shape {matrix.shape}"
        )
    # Scipy lacks half precision and foreign byte orders; sums may be too large for a small type.
    wide = {"i": np.int64, "u": np.uint64, "f": np.float64, "b": np.bool_}[matrix.dtype.kind]
    # By way of CSR, where entries of one cell are added up.
    return coo_matrix(coo_matrix(matrix.astype(wide)).tocsr())


def _counts(ids: Ids, count: int) -> npt.NDArray[np.int64]:
    # A block at a time, since numpy counts a copy of eight bytes per id.
    found = np.zeros(count, dtype=np.int64)
    for start in range(0, len(ids), BLOCK_PAIRS):
        found += np.bincount(ids[start : start + BLOCK_PAIRS], minlength=count)
    return found


def _read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if array.flags.writeable:
        if array.base is not None:  # a view: freezing it would leave its owner writable
            array = array.copy()
        array.flags.writeable = False
    return array


def _checked(
    users: npt.ArrayLike,
    items: npt.ArrayLike,
    n_users: int,
    n_items: int,
    timestamps: npt.ArrayLike | None,
    weights: npt.ArrayLike | None,
) -> _Columns:
    for name, count in (("n_users", n_users), ("n_items", n_items)):
        if not isinstance(count, int | np.integer) or not 0 <= count <= _MAX_ID + 1:
            raise DataError(f"{name} must be an integer from 0 to 2147483648, got {count!r}")
    user_ids, item_ids = _ids("user", users, n_users), _ids("item", items, n_items)
    if user_ids.shape != item_ids.shape:
        raise DataError(
            f"users and items must have the same length, got {len(user_ids)} and {len(item_ids)}"
        )
    times = _column("timestamps", timestamps, np.int64, len(user_ids))
    return user_ids, item_ids, times, _column("weights", weights, np.float32, len(user_ids))


def _ids(kind: str, values: npt.ArrayLike, count: int) -> Ids:
    array = np.asarray(values)
    if array.ndim != 1:
        raise DataError(f"{kind} ids must be one-dimensional, got shape {array.shape}")
    if array.size == 0:
        return np.empty(0, dtype=np.int32)
    if array.dtype.kind not in "iu":
        missing = array.dtype.kind == "f" and not np.isfinite(array).all()
        advice = "; drop or repair the rows without an id" if missing else ""
        raise DataError(f"{kind} ids must be integers, got dtype {array.dtype}{advice}")
    where = int(array.argmin() if array.min() < 0 else array.argmax())
    if not 0 <= array[where] < min(count, _MAX_ID + 1):
        raise DataError(
            f"{kind} ids must be at least 0 and below n_{kind}s = {count}, got {array[where]} at "
            f"position {where}"
        )
    # A copy: the array is frozen afterwards, and the caller's must stay writable.
    return np.array(array, dtype=np.int32)


def _column(
    name: str, values: npt.ArrayLike | None, dtype: type[np.generic], length: int
) -> npt.NDArray[Any] | None:
    if values is None:
        return None
    array = np.asarray(values)
    if array.shape != (length,):
        raise DataError(f"{name} must have one entry per pair ({length}), got shape {array.shape}")
    if array.dtype.kind not in "iuf":
        raise DataError(f"{name} must be numbers, got dtype {array.dtype}")
    bad = np.flatnonzero(~np.isfinite(array))
    if len(bad):
        raise DataError(f"{name} must be finite, got {array[bad[0]]} at position {bad[0]}")
    if dtype is np.int64 and array.dtype.kind == "f" and np.any(array != np.floor(array)):
        raise DataError(f"{name} must be whole numbers, got fractions; scale them first")
    largest = float(np.abs(array.astype(np.float64)).max()) if length else 0.0
    limit = 2.0**63 if dtype is np.int64 else float(np.finfo(np.float32).max)
    if largest > limit or (largest == limit and array.dtype.kind != "i"):
        raise DataError(f"{name} must fit into {np.dtype(dtype)}, got a magnitude of {largest:g}")
    return np.array(array, dtype=dtype)


def checked_labels(kind: str, values: Labels, count: int) -> Labels:
    """Return labels as a frozen array of ``count`` integers or texts, no two alike."""
    if _checked_labels.get(id(values)) is values:
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
        raise DataError(
            f"{kind} labels must differ, got {ordered[repeated[0]].item()!r} more than once"
        )
    array.flags.writeable = False
    _checked_labels[id(array)] = array
    return array


def _same(left: Any, right: Any) -> bool:
    if left is None or right is None:
        return left is right
    return bool(np.array_equal(left, right))


def same_ids(what: str, left: Interactions, right: Interactions) -> None:
    """Raise unless two sets of pairs have the same users and items, in number and labels."""
    if (left.n_users, left.n_items) != (right.n_users, right.n_items):
        raise DataError(
            f"{what} must have the same users and items, got {left.n_users} x {left.n_items} and "
            f"{right.n_users} x {right.n_items}"
        )
    for kind in ("user_labels", "item_labels"):
        shared = left.label_source(kind) is right.label_source(kind)  # need not be read
        if not shared and not _same(getattr(left, kind), getattr(right, kind)):
            raise DataError(f"{what} must have the same {kind.replace('_', ' ')}")


def item_group(degrees: npt.NDArray[np.int64], kind: str, least: int = 1) -> npt.NDArray[np.int64]:
    """Return the rarest, middle or most popular fifth of the items with pairs, at least ``least``.

    Example:
        >>> item_group(np.array([9, 0, 1, 5, 3, 7]), "popular").tolist()
        [0]
    """
    check_choice("the group of items", kind, ITEM_GROUPS)
    there = np.flatnonzero(degrees)
    ranked = there[np.argsort(degrees[there], kind="stable")]
    size = min(len(ranked), max(least, len(ranked) // 5))
    begin = {"rare": 0, "middle": (len(ranked) - size) // 2, "popular": len(ranked) - size}
    return ranked[begin[kind] : begin[kind] + size]
