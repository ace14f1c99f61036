"""Own data: tables of any label type, in CSV, TSV, Parquet, RecBole's ``.inter`` or ``.dat``."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from robustcf._io.limits import check_expansion
from robustcf._io.text import counted
from robustcf.data.columns import USUAL_NAMES, Columns, bad_cell, kind_of
from robustcf.data.frames import LONGEST_LABEL, RawTable, no_rows, read_frame, readable
from robustcf.data.interactions import Interactions, Labels, one_of_each
from robustcf.data.times import TimeUnit, read_times
from robustcf.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

_INTEGER_AS_TEXT = 4 * 21  # bytes: numpy makes room for 21 characters


class Coded(NamedTuple):
    """A label column: for each row a position in a list of distinct labels."""

    codes: npt.NDArray[np.intp]
    labels: Labels  # int64, or text (fixed-width)


@dataclass(frozen=True)
class Table:
    """Rows of one file or frame, in its order, with labels not yet turned into ids."""

    source: str
    users: Coded
    items: Coded
    ratings: npt.NDArray[np.float64] | None = None
    times: npt.NDArray[np.int64] | None = None
    notes: tuple[str, ...] = ()
    file_bytes: int = 0  # on disk: what it becomes is held against it
    time_unit: TimeUnit = "numbers"


def read_table(path: Path, columns: Columns) -> Table:
    """Read the user, item, rating and time columns of a file.

    Labels are read as text and become integers only where that loses nothing: ``007`` and ``7``
    stay two labels. Rating and time are optional: where they were not asked for and do not hold
    what they should, they are left out and a note says so.

    Raises:
        DataError: unreadable or empty file, a column that is not there, a row without an id, more
            than the limits allow (:mod:`robustcf._io.limits`).
    """
    with readable(path, kind_of(path)):
        return table_of(str(path), read_frame(path, columns), columns, path.stat().st_size)


def read_ratings(data: bytes, source: str) -> Table:
    r"""Parse MovieLens-100K's ``u.data``: user, item, rating, timestamp, separated by tabs.

    Example:
        >>> table = read_ratings(b"196\t242\t3\t881250949\n", "u.data")
        >>> table.users.labels.tolist(), table.items.labels.tolist(), table.ratings.tolist()
        ([196], [242], [3.0])
    """
    import pandas as pd

    with readable(source, "ratings"):
        frame = pd.read_csv(io.BytesIO(data), sep="\t", header=None, names=list(USUAL_NAMES))
        raw = RawTable(frame, {role: role for role in USUAL_NAMES})
        return table_of(source, raw, Columns(rating="rating"), len(data))


def of_ids(
    source: str,
    users: npt.NDArray[np.int64],
    items: npt.NDArray[np.int64],
    file_bytes: int = 0,
) -> Table:
    """A table whose labels are the ids of an adjacency file."""

    def coded(ids: npt.NDArray[np.int64]) -> Coded:
        labels, codes = np.unique(ids, return_inverse=True)
        return Coded(codes, labels)

    return Table(source, coded(users), coded(items), file_bytes=file_bytes)


def to_interactions(
    tables: Sequence[Table], min_rating: float | None = None
) -> tuple[list[Interactions], list[str]]:
    """Number the labels of all tables together, drop repeats, apply the rating threshold.

    Ids follow the order of the labels (numbers by value, text by code point), so they do not
    depend on the order of rows. Of the rows that repeat a pair one counts: the latest, or the
    first in the file where times are absent or tie. Its rating is the one held against
    ``min_rating``.

    Returns:
        One :class:`Interactions` a table, sharing ids and labels, and notes on what was dropped.
    """
    notes = [note for table in tables for note in table.notes]
    kept = [_rows_to_keep(table, min_rating, notes) for table in tables]
    for role in ("users", "items"):
        _check_joint_labels(tables, [getattr(table, role).labels for table in tables], role)
    user_labels, users = _number([t.users for t in tables], kept)
    item_labels, items = _number([t.items for t in tables], kept)
    sets = [
        Interactions(
            users[n],
            items[n],
            len(user_labels),
            len(item_labels),
            user_labels=user_labels,
            item_labels=item_labels,
            timestamps=None if table.times is None else table.times[rows],
            weights=None if table.ratings is None else table.ratings[rows],
        )
        for n, (table, rows) in enumerate(zip(tables, kept, strict=True))
    ]
    return sets, notes


def _rows_to_keep(table: Table, min_rating: float | None, notes: list[str]) -> npt.NDArray[np.intp]:
    pairs = table.users.codes.astype(np.int64) * len(table.items.labels) + table.items.codes
    kept = np.sort(one_of_each(pairs, table.times))
    name = Path(table.source).name
    if len(kept) < len(pairs):
        notes.append(f"{name}: {counted(len(pairs) - len(kept), 'repeated pair')} dropped")
    if min_rating is None:
        return kept
    if table.ratings is None:
        raise DataError(
            f"{table.source}: min_rating = {min_rating:g} needs a rating column and none was "
            "found; name it with rating_col (--rating-col)"
        )
    return kept[rated_at_least(table.source, table.ratings[kept], min_rating, notes)]


def rated_at_least(
    source: str, ratings: npt.NDArray[np.floating[Any]], min_rating: float, notes: list[str]
) -> npt.NDArray[np.bool_]:
    """Return which pairs are rated at least so much; adds a note on the others.

    Raises:
        DataError: no pair is.
    """
    enough: npt.NDArray[np.bool_] = ratings >= min_rating
    if not enough.any():
        raise DataError(
            f"{source}: no rating reaches min_rating = {min_rating:g}; the highest is "
            f"{ratings.max(initial=-np.inf):g}"
        )
    if not enough.all():
        low = counted(int((~enough).sum()), "pair")
        notes.append(f"{Path(source).name}: {low} rated below {min_rating:g} dropped")
    return enough


def _check_joint_labels(tables: Sequence[Table], labels: list[Labels], role: str) -> None:
    """Raise where labels of several files take too much in one array, as wide as the longest."""
    if all(label.dtype.kind != "U" for label in labels):
        return
    widths = [one.dtype.itemsize if one.dtype.kind == "U" else _INTEGER_AS_TEXT for one in labels]
    size = sum(table.file_bytes for table in tables)
    names = ", ".join(Path(table.source).name for table in tables)
    check_expansion(names, f"one array of all {role}", max(widths) * sum(map(len, labels)), size)


def _number(
    columns: list[Coded], kept: list[npt.NDArray[np.intp]]
) -> tuple[Labels, list[npt.NDArray[np.intp]]]:
    """The labels that are used, in order, and each column's rows as positions in that order."""
    codes = [column.codes[rows] for column, rows in zip(columns, kept, strict=True)]
    used = [np.unique(code) for code in codes]
    names = [column.labels[use] for column, use in zip(columns, used, strict=True)]
    if len({name.dtype.kind for name in names}) > 1:
        names = [name.astype(str) for name in names]  # numbers here, text there: text is both
    labels, position = np.unique(np.concatenate(names), return_inverse=True)
    ids = []
    start = 0
    for code, use in zip(codes, used, strict=True):
        ids.append(position[start + np.searchsorted(use, code)])
        start += len(use)
    return labels, ids


# --- columns --------------------------------------------------------------------------------


def table_of(source: str, raw: RawTable, columns: Columns, file_bytes: int) -> Table:
    """Read labels, ratings and times from the columns of a frame."""
    frame, found = raw.frame, raw.found
    if frame.empty:
        raise no_rows(source)
    notes = list(raw.notes)
    optional: dict[str, Any] = {"rating": None, "time": (None, "numbers")}
    for role, read in (("rating", _numbers), ("time", read_times)):
        if found[role] is not None:
            try:
                optional[role] = _read_column(source, frame[found[role]], role, read)
            except DataError as error:
                if getattr(columns, role) is not None:
                    raise
                notes.append(f"the {role} column was left out: {error}")
    times, time_unit = optional["time"]
    users, items = (
        _labels(source, frame[found[role]], role, file_bytes, raw.typed)
        for role in ("user", "item")
    )
    return Table(
        source, users, items, optional["rating"], times, tuple(notes), file_bytes, time_unit
    )


def _labels(source: str, column: pd.Series[Any], role: str, file_bytes: int, typed: bool) -> Coded:
    """A label column: distinct labels as int64 where that loses nothing, else as text."""
    import pandas as pd

    missing = column.isna().to_numpy()
    if missing.any():
        raise DataError(
            f"{source}: {int(missing.sum())} rows have no {role} id, the first is data row "
            f"{int(np.flatnonzero(missing)[0]) + 1}; fill them in or remove the rows"
        )
    codes, distinct = pd.factorize(column)
    labels = _int_labels(distinct, typed)
    if labels is None:
        texts = [_as_text(label) for label in distinct]
        for label in texts:
            if len(label) > LONGEST_LABEL or not label.isprintable():
                raise DataError(
                    f"{source}: the {role} label {label[:40]!r}... is longer than "
                    f"{LONGEST_LABEL} characters or holds control characters such as a line "
                    "break; is a quote left open, or is it another column?"
                )
        # numpy's text is as wide as the longest: one long label widens all.
        needed = 4 * max(map(len, texts)) * len(texts)
        check_expansion(source, f"an array of {len(texts):,} {role} labels", needed, file_bytes)
        # Text that differed before (b"a" and "a", say) must not be two labels after.
        labels, same = np.unique(np.array(texts), return_inverse=True)
        codes = same[codes]
    return Coded(codes, labels)


def _int_labels(distinct: Any, typed: bool) -> npt.NDArray[np.int64] | None:
    """Distinct labels as int64, or None where any of them would be changed by it.

    The text of a number becomes that number, unless the column is ``typed``.
    """
    values = np.asarray(distinct)
    if values.dtype.kind in "iu":
        fits = values.dtype.kind == "i" or values.size == 0 or values.max() <= 2**63 - 1
        return values.astype(np.int64) if fits else None
    if values.dtype.kind == "f":
        whole = bool((np.abs(values) < 2**53).all()) and bool((values % 1 == 0).all())
        return values.astype(np.int64) if whole else None
    kinds = (int, np.integer) if typed else (str,)
    try:
        numbers = [int(value) for value in values if isinstance(value, kinds)]
        array = np.array(numbers, dtype=np.int64)
    except (ValueError, OverflowError):
        return None
    same = len(array) == len(values) and (typed or list(map(str, numbers)) == list(values))
    return array if same else None


def _as_text(label: Any) -> str:
    if not isinstance(label, bytes):
        return str(label)
    try:
        text = label.decode()
    except UnicodeDecodeError:
        return label.hex()
    return text if text.isprintable() else label.hex()  # a binary id, a UUID say


def _read_column(
    source: str,
    column: pd.Series[Any],
    role: str,
    read: Callable[[str, pd.Series[Any]], Any],
) -> Any:
    import pandas as pd

    if isinstance(column.dtype, pd.CategoricalDtype):
        column = column.astype(object)
    try:
        return read(source, column)
    except DataError:
        raise
    except (TypeError, ValueError, ArithmeticError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(
            f"{source}: column {str(column.name)!r} holds {column.dtype}, which is no {role} "
            f"({reason}); use numbers"
        ) from error


def _numbers(source: str, column: pd.Series[Any]) -> npt.NDArray[np.float64]:
    import pandas as pd

    values = pd.to_numeric(column, errors="coerce")
    numbers = values.to_numpy(dtype=np.float64, na_value=np.nan)
    fine = np.abs(numbers) <= np.finfo(np.float32).max  # not for NaN
    if not fine.all():
        advice = "give each row a number of a magnitude below 3.4e38"
        raise bad_cell(source, column, ~fine, "numbers", advice)
    return numbers
