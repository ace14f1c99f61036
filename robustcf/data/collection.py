"""Collections of tables: a file, a folder, a glob or a remote path, and their columns."""

from __future__ import annotations

import csv
import glob
import io
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from robustcf._io.limits import how_to_raise, limits
from robustcf.data.columns import Columns, find_columns, kind_of, listed, refuse_header
from robustcf.data.frames import separator_of
from robustcf.errors import DataError

KINDS = (".parquet", ".csv", ".tsv", ".inter")
_REMOTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_HIVE = re.compile(r"([^=/]+)=([^/]*)")


@dataclass(frozen=True, eq=False)
class Collection:
    """Files of one kind, in the order in which their rows are read.

    Args:
        source: what the user gave.
        kind: one of :data:`KINDS`.
        files: their paths, sorted; with the protocol in front where they are remote.
        hive: the keys of folders ``key=value`` on the way to the files.
        remote: the fsspec file system, or None for plain files.
        bytes: of all files together.
    """

    source: str
    kind: str
    files: tuple[str, ...]
    hive: tuple[str, ...]
    remote: Any
    bytes: int

    @property
    def name(self) -> str:
        """The last part of what the user gave, for messages."""
        return PurePosixPath(self.source.rstrip("/")).name or self.source

    def open(self, file: str) -> Any:
        """A file as a binary stream, unpacked where it is gzipped."""
        import gzip

        try:
            handle = open(file, "rb") if self.remote is None else self.remote.open(file, "rb")  # noqa: SIM115
        except OSError as error:
            raise DataError(f"{file}: cannot be read ({error})") from error
        return gzip.GzipFile(fileobj=handle) if file.lower().endswith(".gz") else handle


@dataclass(frozen=True)
class Roles:
    """The columns of a collection that play a role.

    Args:
        names: role -> the engine's name of its column, or None.
        types: role -> ``integer``, ``unsigned``, ``float``, ``text``, ``time``, ``date``.
        width: CSV: number of columns.
        separator: CSV: what stands between two cells.
        headed: CSV: whether the first line is one of names.
        notes: what was left out.
    """

    names: dict[str, str | None]
    types: dict[str, str]
    width: int = 0
    separator: str = ""
    headed: bool = True
    notes: tuple[str, ...] = ()


def find_collection(source: str) -> Collection:
    """The files behind a path: of a file, of a folder, of a glob, or remote (``s3://...``).

    Files and folders whose names begin with ``_`` or ``.`` are left out, as Spark and Hive do.

    Raises:
        DataError: there are none, or of several kinds.

    Example:
        >>> find_collection("no/such/folder")
        Traceback (most recent call last):
        robustcf.errors.DataError: no/such/folder: no such file or folder
    """
    remote = None
    if _REMOTE.match(source):
        found, remote, sizes, base = _remote(source)
    else:
        found, sizes, base = _local(source)
    pairs = sorted(
        (file, size) for file, size in zip(found, sizes, strict=True) if not _hidden(file, base)
    )
    known = [(file, size) for file, size in pairs if kind_of(Path(file)) in KINDS]
    if not known:
        others = f"; it holds {listed([_below(f, base) for f, _ in pairs])}" if pairs else ""
        raise DataError(
            f"{source}: expected files that end in {', '.join(KINDS)} (text also with .gz), found "
            f"none{others}"
        )
    kinds = sorted({kind_of(Path(file)) for file, _ in known})
    if len(kinds) > 1:
        raise DataError(
            f"{source}: expected files of one kind, got {' and '.join(kinds)}: give a glob such as "
            f"'{source.rstrip('/')}/*{kinds[0]}'"
        )
    for file, _ in known:
        if set(file.rpartition("://")[2]) & set("*?[") or "\n" in file:
            raise DataError(
                f"{file!r}: a name with *, ?, [ or a line break stands for other files: rename it"
            )
        if kinds[0] == ".parquet" and file.lower().endswith(".gz"):
            raise DataError(f"{file}: Parquet packs its columns itself: unpack the file")
    files = tuple(file for file, _ in known)
    size = sum(size for _, size in known)
    return Collection(source, kinds[0], files, _hive_keys(files, base), remote, size)


def _local(source: str) -> tuple[list[str], list[int], str]:
    path = Path(source).expanduser()
    if path.is_dir():
        base = str(path)
        found = [str(file) for file in path.rglob("*") if file.is_file()]
    elif path.is_file():
        base, found = str(path.parent), [str(path)]
    elif glob.has_magic(source):
        base = str(Path(*_before_magic(path)))
        found = [file for file in glob.glob(str(path), recursive=True) if os.path.isfile(file)]
    elif path.exists():
        raise DataError(f"{source}: expected files or a folder, got a pipe or a device")
    else:
        raise DataError(f"{source}: no such file or folder")
    found = [os.path.abspath(file) for file in found]
    return found, [os.path.getsize(file) for file in found], os.path.abspath(base)


def _before_magic(path: Path) -> list[str]:
    parts: list[str] = []
    for part in path.parts:
        if glob.has_magic(part):
            break
        parts.append(part)
    return parts or ["."]


def _remote(source: str) -> tuple[list[str], Any, list[int], str]:
    try:
        import fsspec

        system, path = fsspec.core.url_to_fs(source)
        if system.isdir(path):
            facts = system.find(path, detail=True)
        else:
            facts = system.glob(path, detail=True)
    except ImportError as error:
        raise DataError(
            f"{source}: remote paths need a package that is not there ({error}): install it"
        ) from error
    except (OSError, ValueError, NotImplementedError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{source}: cannot be listed ({reason})") from error
    plain = {name: fact for name, fact in facts.items() if fact.get("type") == "file"}
    if not plain:
        raise DataError(f"{source}: no such file or folder")
    found = [system.unstrip_protocol(name) for name in plain]
    base = system.unstrip_protocol(path.rstrip("/"))
    return found, system, [int(fact.get("size") or 0) for fact in plain.values()], base


def _below(file: str, base: str) -> str:
    return file.removeprefix(base).lstrip("/")


def _hidden(file: str, base: str) -> bool:
    return any(part.startswith(("_", ".")) for part in PurePosixPath(_below(file, base)).parts)


def _hive_keys(files: Iterable[str], base: str) -> tuple[str, ...]:
    """The keys of folders ``key=value``, the same for all files."""
    found = {
        tuple(
            match.group(1)
            for part in PurePosixPath(_below(file, base)).parts[:-1]
            if (match := _HIVE.fullmatch(part))
        )
        for file in files
    }
    if len(found) > 1:
        raise DataError(
            f"{base}: expected the same keys in the folders of all files (key=value), got "
            + " and ".join(sorted("/".join(keys) or "none" for keys in found))
        )
    return found.pop()


# --- columns --------------------------------------------------------------------------------


def find_roles(collection: Collection, columns: Columns) -> Roles:
    """Which columns play which role; all files must agree.

    Raises:
        DataError: a column is not there, has no plain values, or differs between two files.

    Cost: the first line, or the footer, of each file.
    """
    return (_parquet_roles if collection.kind == ".parquet" else _text_roles)(collection, columns)


def _parquet_roles(collection: Collection, columns: Columns) -> Roles:
    import pyarrow as pa
    import pyarrow.parquet as pq

    first: tuple[str, dict[str, str | None], dict[str, str]] | None = None
    notes: tuple[str, ...] = ()
    for file in collection.files:
        try:
            with collection.open(file) as handle:
                schema = pq.read_schema(pa.PythonFile(handle, mode="r"))
        except (pa.ArrowException, OSError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            raise DataError(f"{file}: not a readable Parquet file ({reason})") from error
        usable = [name for name in schema.names if schema.names.count(name) == 1]
        usable += [key for key in collection.hive if key not in usable]
        names: dict[str, str | None] = find_columns(Path(file), usable, columns)
        types = {
            role: _type_of(schema.field(name).type) if name in schema.names else "text"
            for role, name in names.items()
            if name is not None
        }
        told: list[str] = []
        for role, got in list(types.items()):
            refused = got.startswith("refused")
            wrong = refused or (role in ("user", "item") and got in ("time", "date"))
            if not wrong:
                continue
            kind = schema.field(names[role]).type
            problem = f"{file}: column {names[role]!r} holds {str(kind)[:80]}"
            if role in ("user", "item") or getattr(columns, role) is not None:
                raise DataError(f"{problem}, expected whole numbers or text: convert it")
            names[role] = None
            del types[role]
            told.append(f"the {role} column was left out: {problem}")
        if first is None:
            first, notes = (file, names, types), tuple(told)
        elif (names, types) != first[1:]:
            raise DataError(
                f"{collection.source}: files must have the same columns of the same types, but "
                f"{file} has {_words(names, types)} and {first[0]} has {_words(*first[1:])}"
            )
    if first is None:
        raise DataError(f"{collection.source}: no files")
    return Roles(first[1], first[2], notes=notes)


def _words(names: dict[str, str | None], types: dict[str, str]) -> str:
    return ", ".join(f"{name!r} ({types[role]})" for role, name in names.items() if name)


def _type_of(kind: Any) -> str:
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    tests = {
        "unsigned": types.is_uint64,
        "integer": types.is_integer,
        "float": types.is_floating,
        "text": lambda k: types.is_string(k) or types.is_large_string(k),
        "time": types.is_timestamp,
        "date": types.is_date,
    }
    for name, test in tests.items():
        if test(kind):
            return name
    return f"refused {kind}"


def _text_roles(collection: Collection, columns: Columns) -> Roles:
    headed = not columns.by_position
    first: tuple[str, list[str], str] | None = None
    for file in collection.files:
        with collection.open(file) as handle:
            try:
                line = handle.readline(limits().line_bytes + 1)
            except (OSError, EOFError, ValueError) as error:
                raise DataError(f"{file}: not a readable text file ({error})") from error
        if len(line) > limits().line_bytes:
            raise DataError(
                f"{file}: a line is longer than {limits().line_bytes:,} bytes; is this a text "
                f"file? {how_to_raise('line_bytes', 100 * limits().line_bytes)}"
            )
        if not line.strip():
            raise DataError(
                f"{file}: the file is empty; expected a header line and one interaction a row"
            )
        separator = separator_of(line, collection.kind)
        cells = _cells(file, line, separator, collection.kind)
        if len(cells) > limits().columns:
            raise DataError(
                f"{file}: its first line has {len(cells):,} columns, expected at most "
                f"{limits().columns:,}; {how_to_raise('columns', len(cells))}"
            )
        if not headed:
            refuse_header(Path(file), cells, columns)
        if first is None:
            first = file, cells, separator
        elif separator != first[2] or (
            cells != first[1] if headed else len(cells) != len(first[1])
        ):
            raise DataError(
                f"{collection.source}: files must have the same columns, but {file} begins with "
                f"{listed(cells)} and {first[0]} with {listed(first[1])}"
            )
    if first is None:
        raise DataError(f"{collection.source}: no files")
    file, cells, separator = first
    header: list[Any] = cells if headed else list(range(len(cells)))
    keys = [key for key in collection.hive if key not in cells] if headed else []
    found = find_columns(Path(file), [*header, *keys], columns)
    place = {name: f"c{n}" for n, name in reversed(list(enumerate(header)))}
    names = {role: None if name is None else place.get(name, name) for role, name in found.items()}
    types = {role: "text" for role, name in names.items() if name is not None}
    return Roles(names, types, len(cells), separator, headed)


def _cells(file: str, line: bytes, separator: str, kind: str) -> list[str]:
    try:
        text = line.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: its first line is not UTF-8 ({error}): convert it") from error
    reader = csv.reader(
        io.StringIO(text),
        delimiter=separator,
        quoting=csv.QUOTE_NONE if kind == ".inter" else csv.QUOTE_MINIMAL,
        skipinitialspace=kind == ".csv",
    )
    try:
        return next(reader)
    except csv.Error as error:
        raise DataError(f"{file}: its first line is no row of a table ({error})") from error
