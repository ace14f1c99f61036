"""Own data: tables of any label type, in CSV, TSV, Parquet, RecBole's ``.inter`` or ``.dat``."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from robustcf.data.columns import USUAL_NAMES, Columns, kind_of, short
from robustcf.data.frames import LONGEST_LABEL, RawTable, no_rows, read_frame, readable
from robustcf.data.interactions import Interactions, Labels, one_of_each
from robustcf.errors import DataError
from robustcf.support.limits import check_expansion
from robustcf.support.naming import counted

if TYPE_CHECKING:
    import pandas as pd

_LATEST = 2**63 - 1
_INTEGER_AS_TEXT = 4 * 21  # bytes: numpy makes room for 21 characters


class Coded(NamedTuple):
    """A label column: for each row a position in a list of distinct labels."""

    codes: npt.NDArray[np.intp]
    labels: Labels  # int64, or text (fixed-width)


@dataclass(frozen=True)
class Table:
    """Rows of one file, in its order, with labels not yet turned into ids."""

    source: str
    users: Coded
    items: Coded
    ratings: npt.NDArray[np.float64] | None = None
    times: npt.NDArray[np.int64] | None = None
    notes: tuple[str, ...] = ()
    file_bytes: int = 0  # on disk: what it becomes is held against it


def read_table(path: Path, columns: Columns) -> Table:
    """Read the user, item, rating and time columns of a file.

    Labels are read as text and become integers only where that loses nothing: ``007`` and ``7``
    stay two labels. Rating and time are optional: where they were not asked for and do not hold
    what they should, they are left out and a note says so.

    Raises:
        DataError: unreadable or empty file, a column that is not there, a row without an id, more
            than the limits allow (:mod:`robustcf.support.limits`).
    """
    with readable(path, kind_of(path)):
        return _table(str(path), read_frame(path, columns), columns, path.stat().st_size)


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
        return _table(source, raw, Columns(rating="rating"), len(data))


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
    enough = table.ratings[kept] >= min_rating
    if not enough.any():
        raise DataError(
            f"{table.source}: no rating reaches min_rating = {min_rating:g}; the highest is "
            f"{table.ratings.max():g}"
        )
    if not enough.all():
        notes.append(
            f"{name}: {counted(int((~enough).sum()), 'pair')} rated below {min_rating:g} dropped"
        )
    return kept[enough]


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


def _table(source: str, raw: RawTable, columns: Columns, file_bytes: int) -> Table:
    frame, found = raw.frame, raw.found
    if frame.empty:
        raise no_rows(source)
    notes = list(raw.notes)
    optional: dict[str, npt.NDArray[Any] | None] = {"rating": None, "time": None}
    for role, read in (("rating", _numbers), ("time", _times)):
        if found[role] is not None:
            try:
                optional[role] = _read_column(source, frame[found[role]], role, read)
            except DataError as error:
                if getattr(columns, role) is not None:
                    raise
                notes.append(f"the {role} column was left out: {error}")
    return Table(
        source,
        _labels(source, frame[found["user"]], "user", file_bytes),
        _labels(source, frame[found["item"]], "item", file_bytes),
        optional["rating"],
        optional["time"],
        tuple(notes),
        file_bytes,
    )


def _labels(source: str, column: pd.Series[Any], role: str, file_bytes: int) -> Coded:
    """A label column: distinct labels as int64 where that loses nothing, else as text."""
    import pandas as pd

    missing = column.isna().to_numpy()
    if missing.any():
        raise DataError(
            f"{source}: {int(missing.sum())} rows have no {role} id, the first is data row "
            f"{int(np.flatnonzero(missing)[0]) + 1}; fill them in or remove the rows"
        )
    codes, distinct = pd.factorize(column)
    labels = _int_labels(distinct)
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


def _int_labels(distinct: Any) -> npt.NDArray[np.int64] | None:
    """Distinct labels as int64, or None where any of them would be changed by it."""
    values = np.asarray(distinct)
    if values.dtype.kind in "iu":
        fits = values.dtype.kind == "i" or values.size == 0 or values.max() <= 2**63 - 1
        return values.astype(np.int64) if fits else None
    if values.dtype.kind == "f":
        whole = bool((np.abs(values) < 2**53).all()) and bool((values % 1 == 0).all())
        return values.astype(np.int64) if whole else None
    try:
        numbers = [int(value) for value in values if isinstance(value, str)]
        array = np.array(numbers, dtype=np.int64)
    except (ValueError, OverflowError):
        return None
    if len(array) != len(values) or any(map(str.__ne__, map(str, numbers), values)):
        return None
    return array


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
    read: Callable[[str, pd.Series[Any]], npt.NDArray[Any]],
) -> npt.NDArray[Any]:
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
        raise _bad_cell(source, column, ~fine, "numbers", advice)
    return numbers


def _times(source: str, column: pd.Series[Any]) -> npt.NDArray[np.int64]:
    """Whole numbers as they are, fractions and ISO dates in microseconds: order is what counts."""
    import pandas as pd

    no_number = np.ones(len(column), dtype=bool)
    if not pd.api.types.is_datetime64_any_dtype(column.dtype):
        numbers = pd.to_numeric(column, errors="coerce")
        whole = pd.api.types.is_integer_dtype(numbers.dtype) and not numbers.isna().any()
        if whole and not (numbers > _LATEST).any():
            return numbers.to_numpy(dtype=np.int64)
        values = numbers.to_numpy(dtype=np.float64, na_value=np.nan)
        if np.isfinite(values).all():
            with np.errstate(over="ignore"):
                micro = values if (values % 1 == 0).all() else np.round(values * 1e6)
            too_large = ~(np.abs(micro) < 2.0**63)
            if too_large.any():
                raise _bad_cell(source, column, too_large, "times", "use smaller numbers")
            return np.asarray(micro).astype(np.int64)
        no_number = ~np.isfinite(values)
        if pd.api.types.is_numeric_dtype(column.dtype):
            advice = "give each row a time"
            raise _bad_cell(source, column, no_number, "times", advice)
    # ISO only: 01/02/2024 is two days, depending on who reads it.
    texts = column.astype(str) if column.dtype == object else column  # numbers here, dates there
    dates = pd.to_datetime(texts, errors="coerce", utc=True, format="ISO8601")
    no_date = dates.isna().to_numpy()
    if no_date.any():
        neither = no_date & no_number
        what = "use numbers, or ISO dates such as 2024-05-01 12:30"
        raise _bad_cell(source, column, neither if neither.any() else no_date, "times", what)
    naive = dates.dt.tz_localize(None).to_numpy(dtype="datetime64[us]")
    return np.asarray(naive).astype(np.int64)


def _bad_cell(
    source: str, column: pd.Series[Any], bad: npt.NDArray[np.bool_], what: str, advice: str
) -> DataError:
    row = int(np.flatnonzero(bad)[0])
    cell = column.iloc[row]
    shown = "an empty cell" if cell != cell or cell is None else short(str(cell))
    return DataError(
        f"{source}: column {str(column.name)!r} must hold {what}, got {shown} in data row "
        f"{row + 1}; {advice}"
    )
