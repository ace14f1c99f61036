"""Read plain files within limits: bytes, JSON, packed text, numpy arrays, members of archives.

Files may come from strangers. Only regular files are opened, without waiting, nothing grows in
memory beyond :mod:`robustcf._io.limits`, and nothing is unpacked to disk or unpickled.
"""

from __future__ import annotations

import ast
import errno
import gzip
import io
import json
import math
import os
import re
import stat
import struct
import sys
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO

from robustcf._io.limits import MOST_JSON, MOST_JSON_DEPTH, check_expansion, how_to_raise
from robustcf.errors import DataError, InputError

if TYPE_CHECKING:
    import numpy.typing as npt

_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}
_BLOCK = 1 << 18
# O_NONBLOCK: opening a pipe would wait for a writer.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)

#: What numpy and zipfile raise, between them, for files that are damaged or of another kind.
UNREADABLE = (
    *(OSError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError, EOFError),
    *(SyntaxError, NotImplementedError, RuntimeError, MemoryError),
    *(zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError),
)
_LONGEST_HEADER = 10_000  # as numpy's own limit
_ENTRY_BYTES = 24  # of an entry of a sparse matrix: value, row and column
_VECTORS = 8  # on each side of a matrix: estimators multiply it by several


# --- plain files ------------------------------------------------------------------------------


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file, or a link to one; a DataError for anything else, or an OSError."""
    return os.fdopen(_descriptor(path), "rb")


def _descriptor(path: Path) -> int:
    descriptor = os.open(path, _FLAGS)
    kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
    if kind != stat.S_IFREG:
        os.close(descriptor)
        raise _irregular(path, kind)
    return descriptor


def is_regular(path: Path) -> bool:
    """Return whether a path is a regular file; a DataError for a pipe, a socket or a device."""
    kind = stat.S_IFMT(path.stat().st_mode) if path.exists() else stat.S_IFDIR
    if kind not in (stat.S_IFREG, stat.S_IFDIR):
        raise _irregular(path, kind)
    return kind == stat.S_IFREG


def _irregular(path: Path, kind: int) -> DataError:
    got = _KINDS.get(kind, "something else")
    return DataError(f"{path}: expected a regular file, got {got}; copy its content into a file")


def open_plain(path: Path, *, follow: bool = False) -> int:
    """Return a descriptor of a regular file, or raise an InputError.

    Links are refused unless ``follow``: in a stranger's folder, they may lead anywhere.
    """
    try:
        if not follow and path.is_symlink():
            raise InputError(f"{path} is a link, which is not followed: put the file itself there")
        return _descriptor(path)
    except InputError:
        raise
    except OSError as error:
        missing = error.errno in (errno.ENOENT, errno.ENOTDIR)
        why = "is not there (No such file)" if missing else f"cannot be read ({error.strerror})"
        raise InputError(f"{path} {why}") from error
    except ValueError as error:  # a NUL in the name
        raise InputError(f"{str(path)!r} is not a name of a file ({error})") from error


def read_plain(path: Path, most: int = MOST_JSON, *, follow: bool = False) -> bytes:
    """Return the content of a plain file of at most ``most`` bytes, see :func:`open_plain`."""
    with os.fdopen(open_plain(path, follow=follow), "rb") as file:
        try:
            content = file.read(most + 1)
        except OSError as error:
            raise InputError(f"{path} cannot be read ({error.strerror})") from error
    if len(content) > most:
        raise InputError(f"{path} must have at most {most:,} bytes, got more")
    return content


def size_of(handle: BinaryIO) -> int:
    """Return the bytes of an open file on disk."""
    return os.fstat(handle.fileno()).st_size


# --- JSON -------------------------------------------------------------------------------------


def parse_json(content: str | bytes) -> Any:
    """Parse strict JSON, or raise an InputError: finite numbers, unique keys, at most 64 levels.

    Example:
        >>> parse_json('{"a": NaN}')
        Traceback (most recent call last):
        robustcf.errors.InputError: NaN is not a number of JSON
    """
    try:
        text = content.decode("utf-8") if isinstance(content, bytes) else content
        found = json.loads(
            text, parse_constant=_no_constant, parse_float=_finite, object_pairs_hook=_unique
        )
        _check_depth(found)
    except RecursionError as error:
        raise InputError(f"it is nested deeper than {MOST_JSON_DEPTH} levels") from error
    except ValueError as error:
        # The text itself is not quoted: it may be a foreign file's.
        reason = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        raise InputError(reason) from error
    return found


def read_json(path: Path, *, follow: bool = False) -> dict[str, Any]:
    """Return the JSON object in a file of at most 16 MB, see :func:`read_plain`."""
    content = read_plain(path, MOST_JSON, follow=follow)
    try:
        found = parse_json(content)
    except InputError as error:
        raise InputError(f"{path} is not a readable JSON file ({error})") from error
    if not isinstance(found, dict):
        raise InputError(f"{path} must hold a JSON object, got {type(found).__name__}")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number of JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is too large")
    return number


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found


def _check_depth(found: Any) -> None:
    level = [found]
    for _ in range(MOST_JSON_DEPTH):
        level = [
            part
            for value in level
            if isinstance(value, dict | list)
            for part in (value.values() if isinstance(value, dict) else value)
            if isinstance(part, dict | list)
        ]
        if not level:
            return
    raise RecursionError


# --- text, perhaps packed ---------------------------------------------------------------------


class _Bounded(io.RawIOBase):
    """Passes a stream on, and raises where it or one of its lines grows beyond a limit."""

    def __init__(self, path: Path, line: int | None, packed: bool | None = None) -> None:
        self.on_disk, self.path, self.line = open_regular(path), path, line
        self.packed = path.suffix.lower() == ".gz" if packed is None else packed
        self.inner: Any = gzip.GzipFile(fileobj=self.on_disk) if self.packed else self.on_disk
        self.size = size_of(self.on_disk)
        self.read_so_far = self.since_line_end = 0

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        if not self.closed:
            self.inner.close()
            self.on_disk.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        block: bytes = self.inner.read(min(len(buffer), _BLOCK))
        self.read_so_far += len(block)
        if self.packed:
            check_expansion(self.path, "its content, unpacked,", self.read_so_far, self.size)
        if self.line is not None:
            self._watch_lines(block, self.line)
        buffer[: len(block)] = block
        return len(block)

    def _watch_lines(self, block: bytes, longest: int) -> None:
        # Blocks are shorter than the limit, so a line that is too long spans several of them.
        ends = [block.find(mark) for mark in (b"\n", b"\r")]
        first = min((end for end in ends if end >= 0), default=len(block))
        if self.since_line_end + first > longest:
            raise DataError(
                f"{self.path}: a line is longer than {longest:,} bytes; expected text with a line "
                f"per row; {how_to_raise('line_bytes', 100 * longest)}"
            )
        last = max(block.rfind(b"\n"), block.rfind(b"\r"))
        self.since_line_end = len(block) - last - 1 + (self.since_line_end if last < 0 else 0)


def open_content(path: Path, *, longest_line: int | None = None) -> BinaryIO:
    """Open a file's content as a stream; ``.gz`` is unpacked on the way, a block at a time.

    Reading raises a DataError where a packed file grows beyond its allowance, or a line beyond
    ``longest_line`` bytes.
    """
    return io.BufferedReader(_Bounded(path, longest_line), _BLOCK)


def check_content(path: Path, *, longest_line: int | None = None) -> None:
    """Read a packed file once and keep nothing, so that a refusal comes before any parsing."""
    if path.suffix.lower() == ".gz":
        with open_content(path, longest_line=longest_line) as handle:
            while handle.read(_BLOCK):
                pass


def check_first_line(path: Path, longest: int) -> None:
    """Raise where the first line is too long; no more of the file is read."""
    with open_content(path, longest_line=longest) as handle:
        while (piece := handle.readline(_BLOCK)) and not piece.endswith(b"\n"):
            pass


def read_content(path: Path, *, longest_line: int | None = None) -> bytes:
    """Return all of :func:`open_content`."""
    with open_content(path, longest_line=longest_line) as handle:
        return handle.read()


# --- arrays -----------------------------------------------------------------------------------


@contextmanager
def quiet_headers() -> Iterator[None]:
    """Suppress numpy's warning about headers that Python 2 wrote."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Reading `\.npy` or `\.npz` file", UserWarning)
        yield


def array_header(handle: Any, source: object, available: int) -> tuple[tuple[int, ...], bool, str]:
    """Return shape, order and type of an array of ``available`` bytes, as its header says.

    Raises:
        DataError: it declares objects or records, or more values than there are bytes for.
        ValueError, SyntaxError: there is no such header.
    """
    start = handle.read(8)
    if start[:6] != b"\x93NUMPY" or start[6] not in (1, 2, 3):
        raise ValueError("expected a header of numpy")
    length = int.from_bytes(handle.read(2 if start[6] == 1 else 4), "little")
    if length > _LONGEST_HEADER:
        raise ValueError(f"expected a header of at most {_LONGEST_HEADER:,} bytes, got {length:,}")
    text = handle.read(length).decode("utf-8" if start[6] == 3 else "latin-1")
    header = ast.literal_eval(re.sub(r"(?<=\d)L\b", "", text).strip())  # Python 2 wrote 3L
    shape, fortran, kind = (header[name] for name in ("shape", "fortran_order", "descr"))
    if "O" in str(kind):
        raise DataError(
            f"{source}: an array of objects, which is a pickle: refused; save numbers and text "
            "without pickle"
        )
    sizes = re.fullmatch(r"[<>|=]?([biufcUSVmM])(\d{1,9})(\[\w+\])?", str(kind))
    if not isinstance(shape, tuple) or any(type(n) is not int or n < 0 for n in shape) or not sizes:
        raise DataError(
            f"{source}: its header declares the type {str(kind)[:60]!r} and the shape "
            f"{str(shape)[:60]}; expected numbers or text, and sizes that are not negative"
        )
    declared = math.prod(shape) * int(sizes[2]) * (4 if sizes[1] == "U" else 1)
    follow = max(available - handle.tell(), 0)
    if declared > follow:
        raise DataError(
            f"{source}: its header declares {declared:,} bytes of values, but at most {follow:,} "
            "follow; the file is damaged: make it again"
        )
    return shape, bool(fortran), str(kind)


def read_array(path: Path) -> npt.NDArray[Any]:
    """Return the array of an ``.npy`` file; :data:`UNREADABLE` lists the errors."""
    with open_regular(path) as handle:
        array_header(handle, path, size_of(handle))
        handle.seek(0)
        return array_values(handle, path)


def read_arrays_of(
    path: Path, wanted: Collection[str] | None = None
) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of an ``.npz`` file by name, all or those ``wanted``; as above."""
    found = {}
    with open_regular(path) as handle, open_zip(handle, path) as archive:
        members = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
        if wanted is not None:
            members = {name: entry for name, entry in members.items() if name in wanted}
        total = sum(member.file_size for member in members.values())
        check_expansion(
            path, f"what it holds ({', '.join(sorted(members)[:8])})", total, size_of(handle)
        )
        for name, member in members.items():
            with archive.open(member) as stream:
                array_header(stream, f"{path}: {name}", member.file_size)
            with archive.open(member) as stream:
                found[name] = array_values(stream, f"{path}: {name}")
    return found


@quiet_headers()
def array_values(stream: Any, source: object) -> npt.NDArray[Any]:
    """Return an array whose header is sound; refuse impossible characters."""
    import numpy as np

    array: npt.NDArray[Any] = np.lib.format.read_array(stream, allow_pickle=False)
    if array.dtype.kind == "U" and array.size:
        codes = np.frombuffer(array.astype(array.dtype.newbyteorder("<")).tobytes(), "<u4")
        if codes.max(initial=0) > sys.maxunicode or ((codes >= 0xD800) & (codes < 0xE000)).any():
            raise DataError(f"{source}: holds text of impossible characters; it is damaged")
    return array


def check_sparse(source: object, rows: int, columns: int, entries: int, size: int) -> None:
    """Raise where a sparse matrix, and vectors to multiply it by, take more than a file allows."""
    needed = _ENTRY_BYTES * entries + _VECTORS * 8 * (rows + columns)
    what = f"a {rows:,} x {columns:,} matrix of {entries:,} entries, with vectors on each side,"
    check_expansion(source, what, needed, size)


# --- archives ---------------------------------------------------------------------------------


def open_zip(handle: BinaryIO, source: object) -> zipfile.ZipFile:
    """Open a zip archive of stored or deflated members; others unpack without bound."""
    archive = zipfile.ZipFile(handle)
    for member in archive.infolist():
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise DataError(
                f"{source}: {member.filename[:60]!r} is packed by method {member.compress_type}, "
                "expected none or deflate; pack it again"
            )
    return archive


def read_member(archive: Path, member: str) -> bytes:
    """Return the content of one file inside a ``.zip``, ``.tar``, ``.tar.gz`` or ``.tgz``."""
    names: list[str] = []

    def wanted(name: str) -> bool:
        names.append(name)
        return name == member

    found = read_members(archive, wanted)
    if member not in found:
        if member in names or f"{member}/" in names:
            raise DataError(f"{archive}: {member!r} is not a regular file")
        some = ", ".join(repr(name) for name in names[:5])
        raise DataError(f"{archive}: has no member {member!r}; it holds {some or 'nothing'}")
    return found[member]


def read_members(archive: Path, wanted: Callable[[str], bool]) -> dict[str, bytes]:
    """Return the content of every regular file whose name is wanted, in one pass.

    Raises:
        DataError: unreadable archive, a name in it that leads out of it, or more in it than the
            limits allow.
    """
    import tarfile  # not for the child that parses a model file

    contents, total = {}, 0
    try:
        with open_regular(archive) as handle:
            size = size_of(handle)
            opened = _zip_entries if zipfile.is_zipfile(handle) else _tar_entries
            for name, declared, read in opened(handle, archive, size):
                path = PurePosixPath(name.replace("\\", "/"))
                if path.is_absolute() or ".." in path.parts or re.match(r"[A-Za-z]:", name):
                    raise DataError(
                        f"{archive}: holds the name {name!r}, which leads out of the archive; "
                        "refused: take the archive from a source you trust"
                    )
                if wanted(name) and read is not None:
                    # A sparse member of a tar declares more than it holds.
                    total += declared
                    check_expansion(archive, "the wanted content", total, size)
                    contents[name] = read()
    except DataError:
        raise
    except (*UNREADABLE, tarfile.TarError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(
            f"{archive}: not a readable zip or tar archive ({reason}); delete it and fetch it again"
        ) from error
    return contents


_Entry = tuple[str, int, Callable[[], bytes] | None]  # the last is None for folders and links


def _zip_entries(handle: BinaryIO, archive: Path, size: int) -> Iterator[_Entry]:
    with open_zip(handle, archive) as zipped:
        for entry in zipped.infolist():
            read = None if entry.is_dir() else lambda entry=entry: zipped.read(entry)
            yield entry.filename, entry.file_size, read


def _tar_entries(handle: BinaryIO, archive: Path, size: int) -> Iterator[_Entry]:
    import tarfile

    handle.seek(0)
    packed = handle.read(2) == b"\x1f\x8b"
    # As a stream: nothing is read twice, so no header leads back to an earlier one.
    content = io.BufferedReader(_Bounded(archive, None, packed), _BLOCK)
    with content, tarfile.open(fileobj=content, mode="r|", bufsize=_BLOCK) as tar:
        for entry in tar:
            if entry.size < 0:
                raise DataError(f"{archive}: {entry.name[:60]!r} declares a negative size; refused")
            file = tar.extractfile(entry) if entry.isfile() else None
            yield entry.name, entry.size, None if file is None else file.read
