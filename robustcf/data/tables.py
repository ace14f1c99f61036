"""Own data: tables of any label type, in CSV, TSV, Parquet, RecBole's ``.inter`` or ``.dat``."""

from __future__ import annotations

import csv
import io
import re
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from robustcf.data.interactions import Interactions, Labels, one_of_each
from robustcf.errors import DataError
from robustcf.support.bounded import (
    check_content,
    open_content,
    open_regular,
    read_content,
    size_of,
)
from robustcf.support.limits import check_expansion, how_to_raise, limits
from robustcf.support.naming import counted

if TYPE_CHECKING:
    import pandas as pd

# Suffix (without .gz) -> field separator; None for formats that are not text.
SEPARATORS: dict[str, str | None] = {
    ".csv": ",",
    ".tsv": "\t",
    ".inter": "\t",
    ".dat": "::",
    ".parquet": None,
}

# Compared without case, blanks and punctuation: "User-ID" is "userid".
USUAL_NAMES: dict[str, tuple[str, ...]] = {
    "user": (
        *("user", "userid", "uid", "useridx", "customer", "customerid", "visitor", "visitorid"),
        *("session", "sessionid", "memberid", "reviewerid"),
    ),
    "item": (
        *("item", "itemid", "iid", "itemidx", "movie", "movieid", "product", "productid"),
        *("asin", "parentasin", "businessid", "track", "trackid", "songid", "artist", "artistid"),
        *("book", "bookid", "isbn", "article", "articleid", "animeid", "gameid", "sku"),
    ),
    "rating": ("rating", "ratings", "bookrating", "score", "stars", "overall"),
    "time": (
        *("timestamp", "time", "ts", "date", "datetime", "unixreviewtime", "unixtime"),
        *("eventtime", "createdat"),
    ),
}
# Where the columns of a file without a header are, unless told otherwise.
_BY_POSITION = {"user": 0, "item": 1}
_MOVIELENS = {"user": 0, "item": 1, "rating": 2, "time": 3}

_MISSING = ["", "nan", "NaN"]
_LONGEST_LABEL = 1000
_LATEST = 2**63 - 1
_INTEGER_AS_TEXT = 4 * 21  # bytes: numpy makes room for 21 characters
_PARQUET_ROWS = 1 << 16  # read at once


@dataclass(frozen=True)
class Columns:
    """Which columns to read; None means: look for the usual names.

    A whole number names a column by position (from 0): the file is then taken to have no
    header line.
    """

    user: str | None = None
    item: str | None = None
    rating: str | None = None
    time: str | None = None

    @property
    def by_position(self) -> bool:
        """Whether columns are named by number."""
        given = [c for c in (self.user, self.item, self.rating, self.time) if c is not None]
        return bool(given) and all(name.isdecimal() for name in given)


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


class _Raw(NamedTuple):
    """What a reader hands over: a frame, its column for each role, and what was left out."""

    frame: pd.DataFrame
    found: dict[str, Any]
    notes: tuple[str, ...] = ()


def kind_of(path: Path) -> str:
    """The suffix that decides how a file is read, without a final ``.gz``; lower case."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] == ".gz":
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def read_table(path: Path, columns: Columns) -> Table:
    """Read the user, item, rating and time columns of a file.

    Labels are read as text and become integers only where that loses nothing: ``007`` and ``7``
    stay two labels. Rating and time are optional: where they were not asked for and do not hold
    what they should, they are left out and a note says so.

    Raises:
        DataError: unreadable or empty file, a column that is not there, a row without an id, more
            than the limits allow (:mod:`robustcf.support.limits`).
    """
    kind = kind_of(path)
    if kind not in SEPARATORS:
        raise DataError(
            f"{path}: cannot tell how to read it; expected a name that ends in .txt (adjacency), "
            f"{', '.join(SEPARATORS)}, each with .gz or without"
        )
    with _readable(path, kind):
        raw = (_parquet if SEPARATORS[kind] is None else _text)(path, kind, columns)
        return _table(str(path), raw, columns, path.stat().st_size)


def read_ratings(data: bytes, source: str) -> Table:
    r"""Parse MovieLens-100K's ``u.data``: user, item, rating, timestamp, separated by tabs.

    Example:
        >>> table = read_ratings(b"196\t242\t3\t881250949\n", "u.data")
        >>> table.users.labels.tolist(), table.items.labels.tolist(), table.ratings.tolist()
        ([196], [242], [3.0])
    """
    import pandas as pd

    with _readable(source, "ratings"):
        frame = pd.read_csv(io.BytesIO(data), sep="\t", header=None, names=list(USUAL_NAMES))
        raw = _Raw(frame, {role: role for role in USUAL_NAMES})
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


# --- reading --------------------------------------------------------------------------------


@contextmanager
def _readable(source: Path | str, kind: str) -> Iterator[None]:
    """Turn the many ways in which a reader can fail into one."""
    import pandas as pd

    try:
        yield
    except DataError:
        raise
    except pd.errors.EmptyDataError:
        raise DataError(
            f"{source}: the file is empty; expected a header line and one interaction a row"
        ) from None
    except (
        *(ValueError, TypeError, ArithmeticError, LookupError, AttributeError, RecursionError),
        *(NotImplementedError, OSError, EOFError, zlib.error, csv.Error),
    ) as error:
        # Parsers raise any of these for cells that are not what their column promised.
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{source}: not a readable {kind} file ({reason})") from error


def _parquet(path: Path, kind: str, columns: Columns) -> _Raw:
    import pyarrow
    import pyarrow.parquet

    with open_regular(path) as handle:
        size = size_of(handle)
        packed = path.suffix.lower() == ".gz"
        source = pyarrow.BufferReader(read_content(path)) if packed else handle
        schema = pyarrow.parquet.read_schema(source)
        repeated = {name for name in schema.names if schema.names.count(name) > 1}
        usable = [name for name in schema.names if name not in repeated]
        found = _find_columns(path, usable, columns)
        notes = _leave_nested_out(path, schema, found, columns)
        wanted = {name: schema.field(name).type for name in found.values() if name is not None}
        texts = [name for name, column in wanted.items() if _is_text(column)]
        source.seek(0)
        # Text is read as positions in a list of distinct labels: written out, a label of a
        # megabyte could be a terabyte.
        file = pyarrow.parquet.ParquetFile(source, read_dictionary=texts)
        _check_parquet(path, file.metadata, wanted, size)
        batches, total = [], 0
        for batch in file.iter_batches(_PARQUET_ROWS, columns=list(wanted)):
            total += batch.nbytes
            check_expansion(path, f"its columns {_listed(list(wanted))}", total, size)
            batches.append(batch)
    if not batches:
        raise _no_rows(path)
    # Without pandas' own metadata, which would turn a column back into the index it once was.
    frame = pyarrow.Table.from_batches(batches).unify_dictionaries()
    return _Raw(frame.to_pandas(ignore_metadata=True), found, notes)


def _is_text(column: Any) -> bool:
    from pyarrow import types

    return bool(types.is_string(column) or types.is_binary(column))


def _leave_nested_out(
    path: Path, schema: Any, found: dict[str, Any], columns: Columns
) -> tuple[str, ...]:
    """Refuse columns of lists, structs and maps; leave those out that nobody asked for."""
    from pyarrow import types

    notes = []
    for role, name in found.items():
        if name is None:
            continue
        kind = schema.field(name).type
        values = kind.value_type if types.is_dictionary(kind) else kind
        if types.is_nested(values):
            got = str(kind)[:80]
            problem = f"{path}: column {name[:60]!r} holds {got}, expected one plain value a row"
            if role in ("user", "item") or getattr(columns, role) is not None:
                raise DataError(f"{problem}; flatten it, or name another column")
            found[role] = None
            notes.append(f"the {role} column was left out: {problem}")
    return tuple(notes)


def _check_parquet(path: Path, metadata: Any, wanted: Mapping[str, Any], size: int) -> None:
    """Raise where the file says itself that its columns take more than it may become."""
    widths = 0
    for name, column in wanted.items():
        try:
            width = max(column.bit_width // 8, 1)
        except ValueError:  # of no fixed width: positions of labels, or offsets
            width = 4
        if width > 4 * _LONGEST_LABEL:
            raise DataError(f"{path}: column {name!r} holds {column}: far too wide for a label")
        widths += width
    groups = [metadata.row_group(n) for n in range(metadata.num_row_groups)]
    chunks = [group.column(n) for group in groups for n in range(group.num_columns)]
    stored = sum(
        chunk.total_uncompressed_size
        for chunk in chunks
        if chunk.path_in_schema.partition(".")[0] in wanted
    )
    what = f"columns {_listed(list(wanted))} of {metadata.num_rows:,} rows"
    check_expansion(path, what, max(widths * metadata.num_rows, stored), size)


def _text(path: Path, kind: str, columns: Columns) -> _Raw:
    import pandas as pd

    check_content(path, longest_line=limits().line_bytes)
    line = _first_line(path)
    separator = _separator(line, kind)
    _check_column_count(path, line, separator)
    options: dict[str, Any] = {
        "sep": separator,
        "engine": "python" if len(separator) > 1 else "c",
        "keep_default_na": False,
        "skipinitialspace": kind == ".csv",
        # RecBole and MovieLens never quote: there a quote is a character like any other.
        "quoting": csv.QUOTE_MINIMAL if kind in (".csv", ".tsv") else csv.QUOTE_NONE,
    }
    with _open_lines(path) as handle:
        first = pd.read_csv(handle, header=None, nrows=1, dtype=str, **options).iloc[0]
    cells = [str(cell) for cell in first]
    headerless = columns.by_position or kind == ".dat"  # .dat files (MovieLens) have no header
    if headerless:
        _refuse_header(path, cells, columns)
    header: list[Any] = list(range(len(cells))) if headerless else cells
    found = _find_columns(path, header, columns)
    with _open_lines(path) as handle, warnings.catch_warnings():
        # Of a column that holds numbers here and text there: it is looked at cell by cell below.
        warnings.simplefilter("ignore", pd.errors.DtypeWarning)
        frame = pd.read_csv(
            handle,
            header=None if headerless else 0,
            usecols=[name for name in found.values() if name is not None],
            # Ids as text, so that no label is changed by being taken for a number.
            dtype={found["user"]: str, found["item"]: str},
            na_values=_MISSING,
            **options,
        )
    return _Raw(frame, found)


def _open_lines(path: Path) -> BinaryIO:
    return open_content(path, longest_line=limits().line_bytes)


def _first_line(path: Path) -> bytes:
    with _open_lines(path) as handle:
        return handle.readline(limits().line_bytes + 1).partition(b"\r")[0]


def _check_column_count(path: Path, line: bytes, separator: str) -> None:
    count, most = line.count(separator.encode()) + 1, limits().columns
    if count > most:
        raise DataError(
            f"{path}: its first line has {count:,} columns, expected at most {most:,}; is this a "
            f"table of interactions? {how_to_raise('columns', count)}"
        )


def _separator(line: bytes, kind: str) -> str:
    """The usual separator of the format, or the one that the first line plainly uses instead."""
    usual = SEPARATORS[kind] or ","
    if usual.encode() in line or len(usual) > 1:
        return usual
    counts = {other: line.count(other.encode()) for other in (",", ";", "\t", "|")}
    best = max(counts, key=lambda other: counts[other])
    return best if counts[best] else usual


def _plain(name: object) -> str:
    """A column name without case, punctuation and RecBole's type (``user_id:token``)."""
    return re.sub(r"[^a-z0-9]", "", str(name).partition(":")[0].lower())


def _refuse_header(path: Path, cells: list[str], columns: Columns) -> None:
    usual = {name for names in USUAL_NAMES.values() for name in names}
    given = {columns.user, columns.item} - {None}
    if any(_plain(cell) in usual for cell in cells) or (given <= set(cells) - {""} and given):
        raise DataError(
            f"{path}: columns were given by number, which is for files without a header line, but "
            f"the first line looks like one ({_listed(cells)}): give the names instead"
        )


def _find_columns(path: Path, header: list[Any], columns: Columns) -> dict[str, Any]:
    return {role: _column_name(path, header, role, getattr(columns, role)) for role in USUAL_NAMES}


def _column_name(path: Path, header: list[Any], role: str, given: str | None) -> Any:
    """The file's own name (or position) of the column that plays a role, or None."""
    if header and isinstance(header[0], int):
        usual = _MOVIELENS if kind_of(path) == ".dat" and len(header) >= 4 else _BY_POSITION
        position = int(given) if given is not None else usual.get(role)
        if position is not None and position >= len(header):
            raise DataError(
                f"{path}: column {position} was asked for as the {role}, but the file has "
                f"{len(header)} columns (counted from 0)"
            )
        return position
    plain = {_plain(name): name for name in reversed(header)}
    if given is not None:
        exact = given if given in header else plain.get(_plain(given))
        if exact is None:
            raise DataError(
                f"{path}: has no column {given!r} for the {role}; its columns are {_listed(header)}"
            )
        return exact
    for name in USUAL_NAMES[role]:
        if name in plain:
            return plain[name]
    if role in ("user", "item"):
        raise DataError(
            f"{path}: found no {role} column; its columns are {_listed(header)}: name it with "
            f"{role}_col (--{role}-col), or give column numbers from 0 if there is no header line"
        )
    return None


def _short(name: object) -> str:
    """A name or a cell for a message: nobody reads a megabyte."""
    return repr(name[:60] + "..." if isinstance(name, str) and len(name) > 60 else name)


def _listed(header: list[Any]) -> str:
    names = [_short(name) for name in header[:13]]
    return ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")


# --- columns --------------------------------------------------------------------------------


def _no_rows(source: object) -> DataError:
    return DataError(f"{source}: the file has no rows; expected one interaction a row")


def _table(source: str, raw: _Raw, columns: Columns, file_bytes: int) -> Table:
    frame, found = raw.frame, raw.found
    if frame.empty:
        raise _no_rows(source)
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
            if len(label) > _LONGEST_LABEL or not label.isprintable():
                raise DataError(
                    f"{source}: the {role} label {label[:40]!r}... is longer than "
                    f"{_LONGEST_LABEL} characters or holds control characters such as a line "
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
    shown = "an empty cell" if cell != cell or cell is None else _short(str(cell))
    return DataError(
        f"{source}: column {str(column.name)!r} must hold {what}, got {shown} in data row "
        f"{row + 1}; {advice}"
    )
