"""The formats of data files: :data:`FORMATS` for own files, :data:`PUBLISHED` for named sets."""

from __future__ import annotations

import csv
import io
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np

from robustcf._io.limits import check_expansion, how_to_raise, limits
from robustcf._io.reading import (
    check_content,
    check_first_line,
    open_content,
    open_regular,
    read_content,
    size_of,
)
from robustcf._io.text import counted
from robustcf.data import id_lists
from robustcf.data.columns import USUAL_NAMES, Columns, find_columns, kind_of, listed, refuse_header
from robustcf.data.tables import (
    LONGEST_LABEL,
    Coded,
    RawTable,
    Table,
    leave_nested_out,
    no_rows,
    table_of,
)
from robustcf.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

MISSING = ("", "nan", "NaN")  # cells that are empty
_PARQUET_ROWS = 1 << 16  # read at once


@dataclass(frozen=True)
class Format:
    """How files of a suffix are read.

    To add a format, write a reader and enter its suffix in :data:`FORMATS`.
    """

    read: Callable[[Path, Columns], Table]
    separator: str = ""  # of a text table
    quoted: bool = False  # whether cells may be in quotes
    blanks: bool = False  # whether blanks in front of cells are dropped
    headed: bool = True  # whether the first line holds names
    large: bool = False  # whether robustcf.data.prepare takes it

    def separator_in(self, line: bytes) -> str:
        """Return the separator, or another one that the first line uses instead."""
        usual = self.separator
        if usual.encode() in line or len(usual) > 1:
            return usual
        counts = {other: line.count(other.encode()) for other in (",", ";", "\t", "|")}
        best = max(counts, key=lambda other: counts[other])
        return best if counts[best] else usual

    @property
    def quoting(self) -> Any:
        """The option of the parsers of csv and pandas."""
        return csv.QUOTE_MINIMAL if self.quoted else csv.QUOTE_NONE


def read_table(path: Path, columns: Columns) -> Table:
    """Read the user, item, rating and time columns of a file, within the limits."""
    kind = kind_of(path)
    if kind not in FORMATS:
        raise DataError(
            f"{path}: cannot tell how to read it; expected a name that ends in "
            f"{', '.join(FORMATS)}, each with .gz or without"
        )
    with readable(path, kind):
        return FORMATS[kind].read(path, columns)


class FirstLine(NamedTuple):
    """What the first line of a text table tells: its names, or positions without a header."""

    separator: str
    header: list[Any]
    headed: bool


def first_line(path: Path, line: bytes, form: Format, columns: Columns) -> FirstLine:
    """Return separator and columns of a text table, by its first line."""
    separator = form.separator_in(line)
    options: dict[str, Any] = {"quoting": form.quoting, "skipinitialspace": form.blanks}
    try:
        text = line.decode("utf-8-sig").rstrip("\r\n")
        single = len(separator) == 1
        reader = csv.reader([text], delimiter=separator, **options) if single else None
        cells = text.split(separator) if reader is None else next(reader)
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: its first line is not a row of UTF-8 text ({error})") from error
    if len(cells) > limits().columns:
        raise DataError(
            f"{path}: its first line has {len(cells):,} columns, expected at most "
            f"{limits().columns:,}; is this a table of interactions? "
            f"{how_to_raise('columns', len(cells))}"
        )
    headed = form.headed and not columns.by_position
    if not headed:
        refuse_header(path, cells, columns)
    return FirstLine(separator, cells if headed else list(range(len(cells))), headed)


def refuse_endless_line(path: Path) -> None:
    """Refuse a file of one endless line before its checksum is computed, which reads it all."""
    form = FORMATS.get(kind_of(path))
    if form is not None and form.read is not _parquet:
        longest = limits().line_bytes if form.separator else id_lists.longest_line()
        with suppress(OSError, EOFError, zlib.error):  # the reader says it better
            check_first_line(path, longest)


@contextmanager
def readable(source: Path | str, kind: str) -> Iterator[None]:
    """Turn all errors of a reader into a DataError."""
    import pandas as pd

    try:
        yield
    except DataError:
        raise
    except pd.errors.EmptyDataError:
        raise empty_file(source) from None
    except (
        *(ValueError, TypeError, ArithmeticError, LookupError, AttributeError, RecursionError),
        *(NotImplementedError, OSError, EOFError, zlib.error, csv.Error),
    ) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{source}: not a readable {kind} file ({reason})") from error


def empty_file(source: object) -> DataError:
    """Return the error for a text table without a line."""
    return DataError(f"{source}: the file is empty; expected a header and one interaction per row")


def _parquet(path: Path, columns: Columns) -> Table:
    import pyarrow
    import pyarrow.parquet

    from robustcf._io.sandbox import read_apart

    with open_regular(path) as handle:
        size = size_of(handle)
        packed = path.suffix.lower() == ".gz"
        content = read_content(path) if packed else None
        # In a process of its own, since pyarrow aborts on contradictory metadata.
        read_apart("robustcf._io.parquet:check_parquet", [content or path])
        source = handle if content is None else pyarrow.BufferReader(content)
        schema = pyarrow.parquet.read_schema(source)
        usable = [name for name in schema.names if schema.names.count(name) == 1]
        found = find_columns(path, usable, columns)
        notes = leave_nested_out(path, schema, found, columns)
        wanted = {name: schema.field(name).type for name in found.values() if name is not None}
        texts = [name for name, column in wanted.items() if _is_text(column)]
        source.seek(0)
        # Text is read as positions in a list of distinct labels: a long one is stored once.
        file = pyarrow.parquet.ParquetFile(source, read_dictionary=texts)
        _check_parquet(path, file.metadata, wanted, size)
        batches, total = [], 0
        for batch in file.iter_batches(_PARQUET_ROWS, columns=list(wanted)):
            total += batch.nbytes
            check_expansion(path, f"its columns {listed(list(wanted))}", total, size)
            batches.append(batch)
    if not batches:
        raise no_rows(path)
    # Without pandas' metadata, which would turn a column into an index.
    frame = pyarrow.Table.from_batches(batches).unify_dictionaries().to_pandas(ignore_metadata=True)
    return table_of(str(path), RawTable(frame, found, notes), columns, path.stat().st_size)


def _is_text(column: Any) -> bool:
    from pyarrow import types

    return bool(types.is_string(column) or types.is_binary(column))


def _check_parquet(path: Path, metadata: Any, wanted: Mapping[str, Any], size: int) -> None:
    """Raise where the metadata say that the columns take more memory than allowed."""
    widths = 0
    for name, column in wanted.items():
        try:
            width = max(column.bit_width // 8, 1)
        except ValueError:  # no fixed width: positions of labels, or offsets
            width = 4
        if width > 4 * LONGEST_LABEL:
            raise DataError(f"{path}: column {name!r} holds {column}, too wide for a label")
        widths += width
    groups = [metadata.row_group(n) for n in range(metadata.num_row_groups)]
    stored = sum(
        chunk.total_uncompressed_size
        for group in groups
        for chunk in map(group.column, range(group.num_columns))
        if chunk.path_in_schema.partition(".")[0] in wanted
    )
    what = f"columns {listed(list(wanted))} of {metadata.num_rows:,} rows"
    check_expansion(path, what, max(widths * metadata.num_rows, stored), size)


def _text(path: Path, columns: Columns) -> Table:
    import pandas as pd

    form = FORMATS[kind_of(path)]
    check_content(path, longest_line=limits().line_bytes)
    with _open_lines(path) as handle:
        line = next((text for text in iter(handle.readline, b"") if text.strip()), b"")
    if not line:
        raise empty_file(path)
    separator, header, headed = first_line(
        path, line.lstrip(b"\r\n").partition(b"\r")[0], form, columns
    )
    found = find_columns(path, header, columns)
    options: dict[str, Any] = {
        "sep": separator,
        "engine": "python" if len(separator) > 1 else "c",
        "keep_default_na": False,
        "skipinitialspace": form.blanks,
        "quoting": form.quoting,
    }
    with _open_lines(path) as handle, warnings.catch_warnings():
        # Columns that mix numbers and text are checked cell by cell later.
        warnings.simplefilter("ignore", pd.errors.DtypeWarning)
        frame = pd.read_csv(
            handle,
            header=0 if headed else None,
            usecols=[name for name in found.values() if name is not None],
            # As text, so that no id is changed into a number.
            dtype={found["user"]: str, found["item"]: str},
            na_values=MISSING,
            **options,
        )
    notes: tuple[str, ...] = ()
    if form.blanks and _has_blanks(path, separator.encode()):
        places = {role: header.index(found[role]) for role in ("user", "item")}
        read = {role: frame[found[role]].astype(str) for role in places}
        notes = _merged_by_blanks(path, read, places, options | {"skiprows": int(headed)})
    return table_of(str(path), RawTable(frame, found, notes), columns, path.stat().st_size)


def _open_lines(path: Path) -> BinaryIO:
    return open_content(path, longest_line=limits().line_bytes)


def _has_blanks(path: Path, separator: bytes) -> bool:
    """Return whether a blank follows a separator or begins a line in a file."""
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
    read: Mapping[str, pd.Series[Any]],
    places: Mapping[str, int],
    options: Mapping[str, Any],
) -> tuple[str, ...]:
    """Return a note per label column with labels that differ by unquoted leading blanks only."""
    import pandas as pd

    as_written = {**options, "header": None, "skipinitialspace": False, "dtype": str}
    try:
        with _open_lines(path) as handle:
            raw = pd.read_csv(handle, usecols=list(places.values()), **as_written)
    except (pd.errors.ParserError, pd.errors.EmptyDataError):
        return ()  # quoted cells after blanks: the blanks are style
    notes = []
    for role, place in places.items():
        if len(raw) != len(read[role]):
            return ()
        cut = (raw[place] != read[role]) & raw[place].str.match(r' +[^ "]')  # not of quoted cells
        merged = set(read[role][cut]) & set(read[role][~cut])
        if merged:
            notes.append(
                f"{path.name}: leading blanks of {counted(int(cut.sum()), role + ' cell')} dropped;"
                f" {counted(len(merged), 'label')} became equal to others; quote cells to keep them"
            )
    return tuple(notes)


def _adjacency(path: Path, columns: Columns) -> Table:
    data = read_content(path, longest_line=id_lists.longest_line())
    pairs = id_lists.read_adjacency(data, str(path))
    users, items = (
        Coded(codes, labels)
        for ids in pairs
        for labels, codes in [np.unique(ids, return_inverse=True)]
    )
    return Table(str(path), users, items, path.stat().st_size)


def read_ratings(data: bytes, source: str) -> Table:
    """Parse MovieLens-100K's ``u.data``: user, item, rating, timestamp, separated by tabs."""
    import pandas as pd

    with readable(source, "ratings"):
        frame = pd.read_csv(io.BytesIO(data), sep="\t", header=None, names=list(USUAL_NAMES))
        raw = RawTable(frame, {role: role for role in USUAL_NAMES})
        return table_of(source, raw, Columns(rating="rating"), len(data))


#: Suffix (without ``.gz``) -> how own files are read.
FORMATS: dict[str, Format] = {
    ".csv": Format(_text, ",", quoted=True, blanks=True, large=True),
    ".tsv": Format(_text, "\t", quoted=True, large=True),
    ".inter": Format(_text, "\t", large=True),  # RecBole
    ".dat": Format(_text, "::", headed=False),  # MovieLens
    ".parquet": Format(_parquet, large=True),
    ".txt": Format(_adjacency),  # "user item item ..." per line
}

#: Format in a manifest -> reader of a file of a named set.
PUBLISHED: dict[str, Callable[[bytes, str], id_lists.RawPairs]] = {
    "adjacency": id_lists.read_adjacency,
    "counted-lists": id_lists.read_counted_lists,
    "json-lists": id_lists.read_json_lists,
}
#: Formats with ratings and times.
PUBLISHED_TABLES: dict[str, Callable[[bytes, str], Table]] = {"ratings-tsv": read_ratings}
