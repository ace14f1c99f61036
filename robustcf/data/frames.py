"""Files of rows as frames: CSV and its kin by pandas, Parquet by Arrow, within stated limits."""

from __future__ import annotations

import csv
import warnings
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from robustcf._io.limits import check_expansion, how_to_raise, limits
from robustcf._io.reading import (
    check_content,
    open_content,
    open_regular,
    read_content,
    size_of,
)
from robustcf._io.text import counted
from robustcf.data.columns import Columns, find_columns, kind_of, listed, refuse_header
from robustcf.errors import DataError

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
LONGEST_LABEL = 1000

_MISSING = ["", "nan", "NaN"]
_PARQUET_ROWS = 1 << 16  # read at once


class RawTable(NamedTuple):
    """What a reader hands over: a frame, its column for each role, and what was left out.

    Ids that are text may be numbers, as those of a CSV file; in a ``typed`` frame they are not.
    """

    frame: pd.DataFrame
    found: dict[str, Any]
    notes: tuple[str, ...] = ()
    typed: bool = False


def read_frame(path: Path, columns: Columns) -> RawTable:
    """Read the columns that play a role, as they are.

    Raises:
        DataError: a name that ends otherwise, a column that is not there, more than the limits
            allow (:mod:`robustcf._io.limits`); anything else is for :func:`readable`.
    """
    kind = kind_of(path)
    if kind not in SEPARATORS:
        raise DataError(
            f"{path}: cannot tell how to read it; expected a name that ends in .txt (adjacency), "
            f"{', '.join(SEPARATORS)}, each with .gz or without"
        )
    return (_parquet if SEPARATORS[kind] is None else _text)(path, kind, columns)


def no_rows(source: object, what: str = "file") -> DataError:
    """What to say of a file without rows."""
    return DataError(f"{source}: the {what} has no rows; expected one interaction per row")


@contextmanager
def readable(source: Path | str, kind: str) -> Iterator[None]:
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


def _parquet(path: Path, kind: str, columns: Columns) -> RawTable:
    import pyarrow
    import pyarrow.parquet

    with open_regular(path) as handle:
        size = size_of(handle)
        packed = path.suffix.lower() == ".gz"
        source = pyarrow.BufferReader(read_content(path)) if packed else handle
        schema = pyarrow.parquet.read_schema(source)
        repeated = {name for name in schema.names if schema.names.count(name) > 1}
        usable = [name for name in schema.names if name not in repeated]
        found = find_columns(path, usable, columns)
        notes = leave_nested_out(path, schema, found, columns)
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
            check_expansion(path, f"its columns {listed(list(wanted))}", total, size)
            batches.append(batch)
    if not batches:
        raise no_rows(path)
    # Without pandas' own metadata, which would turn a column back into the index it once was.
    frame = pyarrow.Table.from_batches(batches).unify_dictionaries()
    return RawTable(frame.to_pandas(ignore_metadata=True), found, notes)


def _is_text(column: Any) -> bool:
    from pyarrow import types

    return bool(types.is_string(column) or types.is_binary(column))


def leave_nested_out(
    path: Path | str, schema: Any, found: dict[str, Any], columns: Columns
) -> tuple[str, ...]:
    """Refuse columns of lists, structs and maps; leave out optional ones that were only guessed."""
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
        if width > 4 * LONGEST_LABEL:
            raise DataError(f"{path}: column {name!r} holds {column}: far too wide for a label")
        widths += width
    groups = [metadata.row_group(n) for n in range(metadata.num_row_groups)]
    chunks = [group.column(n) for group in groups for n in range(group.num_columns)]
    stored = sum(
        chunk.total_uncompressed_size
        for chunk in chunks
        if chunk.path_in_schema.partition(".")[0] in wanted
    )
    what = f"columns {listed(list(wanted))} of {metadata.num_rows:,} rows"
    check_expansion(path, what, max(widths * metadata.num_rows, stored), size)


def _text(path: Path, kind: str, columns: Columns) -> RawTable:
    import pandas as pd

    check_content(path, longest_line=limits().line_bytes)
    line = _first_line(path)
    separator = separator_of(line, kind)
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
        refuse_header(path, cells, columns)
    header: list[Any] = list(range(len(cells))) if headerless else cells
    found = find_columns(path, header, columns)
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
    notes: tuple[str, ...] = ()
    if kind == ".csv" and _has_blanks(path, separator.encode()):
        places = {role: header.index(found[role]) for role in ("user", "item")}
        notes = _merged_by_blanks(path, frame, found, places, options, headed=not headerless)
    return RawTable(frame, found, notes)


def _has_blanks(path: Path, separator: bytes) -> bool:
    """Whether a blank follows a separator or begins a line anywhere in a file."""
    with _open_lines(path) as handle:
        last = b"\n"
        while block := handle.read(1 << 20):
            text = last + block
            if separator + b" " in text or b"\n " in text or b"\r " in text:
                return True
            last = block[-1:]
    return False


def _merged_by_blanks(
    path: Path,
    frame: pd.DataFrame,
    found: Mapping[str, Any],
    places: Mapping[str, int],
    options: Mapping[str, Any],
    *,
    headed: bool,
) -> tuple[str, ...]:
    """Return a note for each label column where labels differ by unquoted blanks in front alone."""
    import pandas as pd

    raw_options = {**options, "skipinitialspace": False, "keep_default_na": False}
    try:
        with _open_lines(path) as handle:
            raw = pd.read_csv(
                handle,
                header=None,
                skiprows=1 if headed else 0,
                usecols=list(places.values()),
                dtype=str,
                **raw_options,
            )
    except (pd.errors.ParserError, pd.errors.EmptyDataError):
        return ()  # a quoted cell behind a blank: then blanks are a matter of style
    if len(raw) != len(frame):
        return ()
    notes = []
    for role, place in places.items():
        read, written = frame[found[role]].astype(str), raw[place]
        cut = (written != read) & written.str.match(r' +[^ "]')  # quoted ones are as they were
        merged = set(read[cut]) & set(read[~cut])
        if merged:
            notes.append(
                f"{path.name}: blanks in front of {counted(int(cut.sum()), role + ' cell')} "
                f"dropped, which made {counted(len(merged), 'label')} equal to another; quote "
                "cells whose blanks count"
            )
    return tuple(notes)


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


def separator_of(line: bytes, kind: str) -> str:
    """The usual separator of the format, or the one that the first line plainly uses instead."""
    usual = SEPARATORS[kind] or ","
    if usual.encode() in line or len(usual) > 1:
        return usual
    counts = {other: line.count(other.encode()) for other in (",", ";", "\t", "|")}
    best = max(counts, key=lambda other: counts[other])
    return best if counts[best] else usual
