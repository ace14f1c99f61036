"""Tables of interactions: labels, ratings and times of a frame, turned into Interactions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from robustcf._io.limits import check_expansion
from robustcf._io.text import counted
from robustcf.data.columns import Columns, bad_cell
from robustcf.data.interactions import Interactions, Labels, one_of_each
from robustcf.data.times import TimeUnit, read_times
from robustcf.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

LONGEST_LABEL = 1000
_INTEGER_AS_TEXT = 4 * 21  # bytes: numpy makes room for 21 characters


class RawTable(NamedTuple):
    """A frame, its column for each role, and notes on columns left out."""

    frame: pd.DataFrame
    found: dict[str, Any]
    notes: tuple[str, ...] = ()
    typed: bool = False  # text is never a number, unlike text from a CSV file


class Coded(NamedTuple):
    """A label column: the position of each row in a list of distinct labels."""

    codes: npt.NDArray[np.intp]
    labels: Labels  # int64, or text (fixed-width)


@dataclass(frozen=True)
class Table:
    """Rows of one file or frame, in its order; labels are not ids yet."""

    source: str
    users: Coded
    items: Coded
    file_bytes: int  # the limits of memory are in proportion to it
    ratings: npt.NDArray[np.float64] | None = None
    times: npt.NDArray[np.int64] | None = None
    time_unit: TimeUnit = "numbers"
    notes: tuple[str, ...] = ()


class RowFilter:
    """Count of the dropped rows of a source: repeats of a pair, and ratings below the least.

    ``wanted`` ends the message where there are no ratings.
    """

    def __init__(
        self,
        source: str,
        min_rating: float | None,
        *,
        rated: bool,
        wanted: str = "a rating column and none was found; name it with rating_col (--rating-col)",
    ) -> None:
        if min_rating is not None and not rated:
            raise DataError(f"{source}: min_rating = {min_rating:g} needs {wanted}")
        self.source, self.min_rating = source, min_rating
        self.repeated = self._low = self._kept = 0
        self._highest = -np.inf

    def enough(self, ratings: npt.NDArray[np.floating[Any]] | None, count: int) -> Any:
        """Return the mask of rows with the least rating, or a slice of all."""
        if self.min_rating is None or ratings is None:
            self._kept += count
            return slice(None)
        enough: npt.NDArray[np.bool_] = ratings >= self.min_rating
        kept = int(enough.sum())
        self._kept, self._low = self._kept + kept, self._low + count - kept
        self._highest = float(ratings.max(initial=self._highest))
        return enough

    def notes(self) -> list[str]:
        """Return notes on dropped rows; raises where no row is left."""
        least = f"{self.min_rating:g}" if self.min_rating is not None else ""
        if least and not self._kept:
            highest = f"the highest is {self._highest:g}"
            raise DataError(f"{self.source}: no rating reaches min_rating = {least}; {highest}")
        low = f" rated below {least}"
        counts = ((self.repeated, "repeated pair", ""), (self._low, "pair", low))
        name = Path(self.source).name or self.source
        return [f"{name}: {counted(n, what)}{how} dropped" for n, what, how in counts if n]


def to_interactions(
    tables: Sequence[Table], min_rating: float | None = None
) -> tuple[list[Interactions], list[str]]:
    """Number the labels of all tables together, drop repeats and low ratings; also returns notes.

    Ids follow the order of the labels (numbers by value, text by code point). Of the rows of one
    pair the latest is kept, or the first where times are absent or tie.
    """
    notes = [note for table in tables for note in table.notes]
    kept = [_rows_to_keep(table, min_rating, notes) for table in tables]
    user_labels, users = _number(tables, "users", kept)
    item_labels, items = _number(tables, "items", kept)
    sets = [
        Interactions(
            users[n],
            items[n],
            len(user_labels),
            len(item_labels),
            user_labels,
            item_labels,
            timestamps=None if table.times is None else table.times[rows],
            weights=None if table.ratings is None else table.ratings[rows],
        )
        for n, (table, rows) in enumerate(zip(tables, kept, strict=True))
    ]
    return sets, notes


def _rows_to_keep(table: Table, min_rating: float | None, notes: list[str]) -> npt.NDArray[np.intp]:
    rows = RowFilter(table.source, min_rating, rated=table.ratings is not None)
    pairs = table.users.codes.astype(np.int64) * len(table.items.labels) + table.items.codes
    kept = np.sort(one_of_each(pairs, table.times))
    rows.repeated = len(pairs) - len(kept)
    enough = rows.enough(None if table.ratings is None else table.ratings[kept], len(kept))
    notes += rows.notes()
    return np.asarray(kept[enough])


def _number(
    tables: Sequence[Table], role: str, kept: list[npt.NDArray[np.intp]]
) -> tuple[Labels, list[npt.NDArray[np.intp]]]:
    """Return the labels that are used, in order, and each table's rows as positions in them."""
    columns: list[Coded] = [getattr(table, role) for table in tables]
    types = [column.labels.dtype for column in columns]
    if any(one.kind == "U" for one in types):  # the array is as wide as the longest label of all
        width = max(one.itemsize if one.kind == "U" else _INTEGER_AS_TEXT for one in types)
        needed = width * sum(len(column.labels) for column in columns)
        sources = ", ".join(Path(table.source).name for table in tables)
        size = sum(table.file_bytes for table in tables)
        check_expansion(sources, f"one array of all {role}", needed, size)
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


def no_rows(source: object, what: str = "file") -> DataError:
    """Return the error for a file without rows."""
    return DataError(f"{source}: the {what} has no rows; expected one interaction per row")


def leave_nested_out(
    path: Path | str, schema: Any, found: dict[str, Any], columns: Columns
) -> tuple[str, ...]:
    """Refuse nested columns, or leave them out where they are optional; returns notes."""
    from pyarrow import types

    notes = []
    for role, name in found.items():
        if name is None:
            continue
        kind = schema.field(name).type
        if types.is_nested(kind.value_type if types.is_dictionary(kind) else kind):
            got = str(kind)[:80]
            problem = f"{path}: column {name[:60]!r} holds {got}, expected one plain value per row"
            notes.append(columns.left_out(role, problem, "flatten it, or name another column"))
            found[role] = None
    return tuple(notes)


def table_of(source: str, raw: RawTable, columns: Columns, file_bytes: int) -> Table:
    """Read labels, ratings and times from the columns of a frame.

    Labels become integers only if none changes: ``007`` and ``7`` stay two labels. A rating or time
    column that the caller did not name is left out with a note if it cannot be read.
    """
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
                if columns.must_have(role):
                    raise
                notes.append(f"the {role} column was left out: {error}")
    users, items = (
        _labels(source, frame[found[role]], role, file_bytes, raw.typed)
        for role in ("user", "item")
    )
    times, unit = optional["time"]
    return Table(source, users, items, file_bytes, optional["rating"], times, unit, tuple(notes))


def check_label(source: str, role: str, label: str) -> None:
    """Raise for a label that is too long or has control characters."""
    if len(label) > LONGEST_LABEL or not label.isprintable():
        raise DataError(
            f"{source}: the {role} label {label[:40]!r}... is longer than {LONGEST_LABEL} "
            "characters or has control characters; is a quote left open, or is it another column?"
        )


def _labels(source: str, column: pd.Series[Any], role: str, file_bytes: int, typed: bool) -> Coded:
    import pandas as pd

    missing = column.isna().to_numpy()
    if missing.any():
        raise DataError(
            f"{source}: {int(missing.sum())} rows have no {role} id, the first is data row "
            f"{int(np.flatnonzero(missing)[0]) + 1}; fill them in or remove the rows"
        )
    codes, distinct = pd.factorize(column)
    labels = whole_numbers(distinct, typed)
    if labels is None:
        texts = [_as_text(label) for label in distinct]
        for label in texts:
            check_label(source, role, label)
        # numpy's text is as wide as the longest: one long label widens all.
        needed = 4 * max(map(len, texts)) * len(texts)
        check_expansion(source, f"an array of {len(texts):,} {role} labels", needed, file_bytes)
        # b"a" and "a" are one label.
        labels, same = np.unique(np.array(texts), return_inverse=True)
        codes = same[codes]
    return Coded(codes, labels)


def whole_numbers(distinct: Any, typed: bool) -> npt.NDArray[np.int64] | None:
    """Return distinct labels as int64, or None where that would change any of them."""
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
    source: str, column: pd.Series[Any], role: str, read: Callable[[str, pd.Series[Any]], Any]
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
            f"{source}: column {str(column.name)!r} holds {column.dtype}, expected a {role} "
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
