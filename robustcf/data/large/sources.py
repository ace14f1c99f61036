"""Collections of tables: a file, a folder, a glob or a remote path, and their columns."""

from __future__ import annotations

import glob
import gzip
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from robustcf._io.limits import how_to_raise, limits
from robustcf.data.columns import Columns, find_columns, kind_of, listed
from robustcf.data.formats import FORMATS, Format, empty_file, first_line
from robustcf.errors import DataError

_REMOTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_HIVE = re.compile(r"([^=/]+)=([^/]*)")


@dataclass(frozen=True, eq=False)
class Collection:
    """Files of one kind, in the order in which their rows are read."""

    source: str  # the given path
    kind: str  # a suffix of FORMATS
    files: tuple[str, ...]  # sorted; remote ones begin with their protocol
    hive: tuple[str, ...]  # the keys of parent folders key=value
    remote: Any  # the fsspec file system, or None

    @property
    def name(self) -> str:
        """The last part of the source, for messages."""
        return PurePosixPath(self.source.rstrip("/")).name or self.source

    @property
    def format(self) -> Format:
        """How the files are read."""
        return FORMATS[self.kind]

    @contextmanager
    def open(self, file: str) -> Iterator[Any]:
        """Open a file as a binary stream, unpacked if its name ends in .gz."""
        import pyarrow as pa

        try:
            opened = open if self.remote is None else self.remote.open
            with opened(file, "rb") as handle:
                packed = file.lower().endswith(".gz")
                yield gzip.GzipFile(fileobj=handle) if packed else handle
        except (pa.ArrowException, OSError, EOFError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            raise DataError(f"{file}: not a readable {self.kind} file ({reason})") from error


@dataclass(frozen=True)
class Roles:
    """The columns of a collection by role."""

    names: dict[str, str | None]  # role -> the column's name in DuckDB
    types: dict[str, str]  # role -> integer, unsigned, float, text, time, date
    width: int = 0  # number of columns of a text table
    separator: str = ""
    headed: bool = True  # whether the first line holds names
    notes: tuple[str, ...] = ()


def find_collection(source: str) -> Collection:
    """Return the files of a file, a folder, a glob, or a remote path (``s3://...``).

    Files and folders whose names begin with ``_`` or ``.`` are left out, as Spark and Hive do.
    """
    found, base, remote = (_remote if _REMOTE.match(source) else _local)(source)
    below = {file: PurePosixPath(file.removeprefix(base).lstrip("/")).parts for file in found}
    shown = sorted(
        file for file in found if not any(part.startswith(("_", ".")) for part in below[file])
    )
    allowed = [kind for kind, form in FORMATS.items() if form.large]
    files = [file for file in shown if kind_of(Path(file)) in allowed]
    if not files:
        others = f"; it holds {listed(['/'.join(below[file]) for file in shown])}"
        raise DataError(
            f"{source}: expected files that end in {', '.join(allowed)} (text also with .gz), "
            f"found none{others if shown else ''}"
        )
    kinds = sorted({kind_of(Path(file)) for file in files})
    if len(kinds) > 1:
        raise DataError(
            f"{source}: expected files of one kind, got {' and '.join(kinds)}: give a glob such as "
            f"'{source.rstrip('/')}/*{kinds[0]}'"
        )
    for file in files:
        if set(file.rpartition("://")[2]) & set("*?[") or "\n" in file:
            raise DataError(f"{file!r}: a name with *, ?, [ or a line break is a glob: rename it")
        if kinds[0] == ".parquet" and file.lower().endswith(".gz"):
            raise DataError(f"{file}: Parquet packs its columns itself: unpack the file")
    hive = {tuple(m[1] for part in below[f][:-1] if (m := _HIVE.fullmatch(part))) for f in files}
    if len(hive) > 1:
        raise DataError(
            f"{base}: expected the same keys in the folders of all files (key=value), got "
            + " and ".join(sorted("/".join(keys) or "none" for keys in hive))
        )
    return Collection(source, kinds[0], tuple(files), hive.pop(), remote)


def _local(source: str) -> tuple[list[str], str, Any]:
    """Return the files, the folder that they are below, and no file system."""
    path = Path(source).expanduser()
    if path.is_dir():
        base, found = path, [str(file) for file in path.rglob("*") if file.is_file()]
    elif path.is_file():
        base, found = path.parent, [str(path)]
    elif glob.has_magic(source):
        base = path
        while glob.has_magic(str(base)):
            base = base.parent
        found = [file for file in glob.glob(str(path), recursive=True) if os.path.isfile(file)]
    elif path.exists():
        raise DataError(f"{source}: expected files or a folder, got a pipe or a device")
    else:
        raise DataError(f"{source}: no such file or folder")
    return [os.path.abspath(file) for file in found], os.path.abspath(base), None


def _remote(source: str) -> tuple[list[str], str, Any]:
    """Return the files, the folder that they are below, and the file system."""
    try:
        import fsspec

        system, path = fsspec.core.url_to_fs(source)
        facts = (system.find if system.isdir(path) else system.glob)(path, detail=True)
    except ImportError as error:
        raise DataError(
            f"{source}: remote paths need a package that is missing ({error}): install it"
        ) from error
    except (OSError, ValueError, NotImplementedError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{source}: cannot be listed ({reason})") from error
    plain = [name for name, fact in facts.items() if fact.get("type") == "file"]
    if not plain:
        raise DataError(f"{source}: no such file or folder")
    base = system.unstrip_protocol(path.rstrip("/"))
    return [system.unstrip_protocol(name) for name in plain], base, system


def find_roles(collection: Collection, columns: Columns) -> Roles:
    """Return the column of each role, by the first line or the footer of each file."""
    read = _parquet_roles if collection.kind == ".parquet" else _text_roles
    first, *others = collection.files
    roles, shown = read(collection, first, columns)
    for file in others:
        found, got = read(collection, file, columns)
        if replace(found, notes=()) != replace(roles, notes=()):
            raise DataError(
                f"{collection.source}: files must have the same columns of the same types, but "
                f"{file} has {got} and {first} has {shown}"
            )
    return roles


def _parquet_roles(collection: Collection, file: str, columns: Columns) -> tuple[Roles, str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with collection.open(file) as handle:
        schema = pq.read_schema(pa.PythonFile(handle, mode="r"))
    usable = [name for name in schema.names if schema.names.count(name) == 1]
    usable += [key for key in collection.hive if key not in usable]
    names: dict[str, str | None] = find_columns(Path(file), usable, columns)
    types, notes = {}, []
    for role, name in names.items():
        if name is None:
            continue
        kind = schema.field(name).type if name in schema.names else pa.string()
        found = _type_of(kind)
        if found is None or (role in ("user", "item") and found in ("time", "date")):
            problem = f"{file}: column {name!r} holds {str(kind)[:80]}"
            notes.append(columns.left_out(role, problem, "convert it to whole numbers or text"))
            names[role] = None
        else:
            types[role] = found
    shown = ", ".join(f"{names[role]!r} ({found})" for role, found in types.items())
    return Roles(names, types, notes=tuple(notes)), shown


def _type_of(kind: Any) -> str | None:
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
    return next((name for name, test in tests.items() if test(kind)), None)


def _text_roles(collection: Collection, file: str, columns: Columns) -> tuple[Roles, str]:
    with collection.open(file) as handle:
        line = handle.readline(limits().line_bytes + 1)
    if len(line) > limits().line_bytes:
        raise DataError(
            f"{file}: a line is longer than {limits().line_bytes:,} bytes; is this a text file? "
            f"{how_to_raise('line_bytes', 100 * limits().line_bytes)}"
        )
    if not line.strip():
        raise empty_file(file)
    separator, header, headed = first_line(Path(file), line, collection.format, columns)
    keys = [key for key in collection.hive if key not in header] if headed else []
    found = find_columns(Path(file), [*header, *keys], columns)
    place = {name: f"c{n}" for n, name in reversed(list(enumerate(header)))}
    names = {role: None if name is None else place.get(name, name) for role, name in found.items()}
    types = {role: "text" for role, name in names.items() if name is not None}
    return Roles(names, types, len(header), separator, headed), f"{listed(header)}, {separator!r}"
