"""Reading files that anybody may have made: regular files only, and no more than limits allow."""

from __future__ import annotations

import gzip
import io
import os
import stat
import struct
import sys
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from robustcf._io.limits import check_expansion, how_to_raise, limits
from robustcf.errors import DataError

_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}
_BLOCK = 1 << 18

# What numpy and zipfile raise, between them, for files that are damaged or of another kind.
UNREADABLE = (
    *(OSError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError, EOFError),
    *(SyntaxError, NotImplementedError, RuntimeError, MemoryError),
    *(zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError),
)
_ENTRY_BYTES = 24  # of an entry of a sparse matrix: value, row and column
_VECTORS = 8  # on each side of a matrix: estimators multiply it by several


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading; anything else is refused, and never waited for.

    Raises:
        DataError: it is a pipe, a socket, a device or a folder.
        OSError: it cannot be opened.
    """
    # O_NONBLOCK: opening a pipe waits for somebody who writes to it. Files do not mind.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
    if kind != stat.S_IFREG:
        os.close(descriptor)
        raise DataError(
            f"{path}: expected a regular file, got {_KINDS.get(kind, 'something else')}; remove it "
            "or copy its content into a file"
        )
    return os.fdopen(descriptor, "rb")


def size_of(handle: BinaryIO) -> int:
    """Bytes of an open file on disk."""
    return os.fstat(handle.fileno()).st_size


class _Bounded(io.RawIOBase):
    """Counts what is read from another stream, and stops where it grows beyond a limit."""

    def __init__(
        self, inner: Any, on_disk: BinaryIO, path: Path, most: int | None, line: int | None
    ) -> None:
        self.inner, self.on_disk, self.path = inner, on_disk, path
        self.most, self.line = most, line
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
        if self.most is not None and self.read_so_far > self.most:
            what = "its content, unpacked,"
            check_expansion(self.path, what, self.read_so_far, size_of(self.on_disk))
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
                f"{self.path}: a line is longer than {longest:,} bytes; is this a text file, with "
                f"a line for each row? {how_to_raise('line_bytes', 100 * longest)}"
            )
        last = max(block.rfind(b"\n"), block.rfind(b"\r"))
        self.since_line_end = (
            self.since_line_end + len(block) if last < 0 else len(block) - last - 1
        )


def open_content(path: Path, *, longest_line: int | None = None) -> BinaryIO:
    """A file's content as a stream; the content of a ``.gz`` file is unpacked on the way.

    Args:
        path: a regular file.
        longest_line: refuse lines of more bytes; None for lines of any length.

    Raises:
        DataError: not a regular file. Reading raises it where a packed file grows beyond its
            allowance, or a line beyond ``longest_line``.
        OSError: it cannot be opened.

    Cost: memory for a block of it.
    """
    handle = open_regular(path)
    packed = path.suffix.lower() == ".gz"
    inner: Any = gzip.GzipFile(fileobj=handle) if packed else handle
    most = limits().allowance(size_of(handle)) if packed else None
    raw = _Bounded(inner, handle, path, most, longest_line)
    return io.BufferedReader(raw, _BLOCK)


def check_content(path: Path, *, longest_line: int | None = None) -> None:
    """Read a packed file once and keep nothing, so that a refusal comes before any parsing.

    Raises:
        DataError: as :func:`open_content`.

    Cost: unpacks the file; nothing for one that is not packed.
    """
    if path.suffix.lower() == ".gz":
        with open_content(path, longest_line=longest_line) as handle:
            while handle.read(_BLOCK):
                pass


def check_first_line(path: Path, longest: int) -> None:
    """Raise where the first line is too long, and so look at no more of a file of one line.

    Raises:
        DataError: as :func:`open_content`.
    """
    with open_content(path, longest_line=longest) as handle:
        while (piece := handle.readline(_BLOCK)) and not piece.endswith(b"\n"):
            pass


def read_content(path: Path, *, longest_line: int | None = None) -> bytes:
    """All of :func:`open_content`."""
    with open_content(path, longest_line=longest_line) as handle:
        return handle.read()


def open_zip(handle: BinaryIO, source: object) -> zipfile.ZipFile:
    """A zip archive all of whose members are stored, or packed in the usual way.

    Other ways of packing are refused: of these, zipfile unpacks a block at once, whatever it grows
    to.

    Raises:
        DataError: a member is packed otherwise.
        zipfile.BadZipFile: it is none.
    """
    archive = zipfile.ZipFile(handle)
    for member in archive.infolist():
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise DataError(
                f"{source}: {member.filename[:60]!r} is packed by method {member.compress_type}, "
                "expected none or deflate; pack it again"
            )
    return archive


@contextmanager
def quiet_headers() -> Iterator[None]:
    """Numpy reads headers that Python 2 wrote, or that are odd like these, and warns: it need not.

    What is wrong with a file is an error, and what is not needs no words.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Reading `\.npy` or `\.npz` file", UserWarning)
        yield


def check_array(handle: BinaryIO, source: object, available: int) -> None:
    """Read the header of a numpy array, and raise where it declares more than can follow.

    Args:
        handle: at the beginning of the array.
        source: for messages.
        available: bytes from there to the end, header and all.

    Raises:
        DataError: the header declares more values than there are bytes for, or objects.
        ValueError: there is no such header.
    """
    version = np.lib.format.read_magic(handle)
    if version == (1, 0):
        shape, _, dtype = np.lib.format.read_array_header_1_0(handle)
    else:
        shape, _, dtype = np.lib.format.read_array_header_2_0(handle)
    if dtype.hasobject:
        raise DataError(
            f"{source}: an array of objects, which is a pickle: refused; save numbers and text "
            "without pickle"
        )
    if any(length < 0 for length in shape):
        raise DataError(f"{source}: its header declares the shape {shape}; expected no negatives")
    declared = dtype.itemsize
    for length in shape:
        declared *= length  # Python's integers: no product is too large
    follow = max(available - handle.tell(), 0)
    if declared > follow:
        raise DataError(
            f"{source}: its header declares {declared:,} bytes of values, but at most {follow:,} "
            "follow; the file is damaged: make it again"
        )


@quiet_headers()
def read_array(path: Path) -> npt.NDArray[Any]:
    """The array of an ``.npy`` file; nothing is unpickled.

    Raises:
        DataError: not a regular file, or its header declares what is not there.
        ValueError, OSError: it is no such file.
    """
    with open_regular(path) as handle:
        check_array(handle, path, size_of(handle))
        handle.seek(0)
        return _real_text(np.lib.format.read_array(handle, allow_pickle=False), path)


def _real_text(array: npt.NDArray[Any], source: object) -> npt.NDArray[Any]:
    """The array; text in it must be text: numpy takes any four bytes for a character."""
    if array.dtype.kind == "U" and array.size:
        codes = np.frombuffer(array.astype(array.dtype.newbyteorder("<")).tobytes(), "<u4")
        if codes.max(initial=0) > sys.maxunicode or ((codes >= 0xD800) & (codes < 0xE000)).any():
            raise DataError(f"{source}: holds text of impossible characters; it is damaged")
    return array


@quiet_headers()
def read_arrays_of(
    path: Path, wanted: Collection[str] | None = None
) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an ``.npz`` file by name; nothing is unpickled.

    Args:
        path: a regular file.
        wanted: leave others alone; None for all.

    Raises:
        DataError: not a regular file, more than the limits allow, or a header that declares what
            is not there.
        UNREADABLE: it is no such file.
    """
    found = {}
    with open_regular(path) as handle, open_zip(handle, path) as archive:
        size = size_of(handle)
        members = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
        if wanted is not None:
            members = {name: entry for name, entry in members.items() if name in wanted}
        total = sum(member.file_size for member in members.values())
        check_expansion(path, f"what it holds ({', '.join(sorted(members)[:8])})", total, size)
        for name, member in members.items():
            with archive.open(member) as stream:
                check_array(stream, f"{path}: {name}", member.file_size)  # type: ignore[arg-type]
            with archive.open(member) as stream:
                array = np.lib.format.read_array(stream, allow_pickle=False)
            found[name] = _real_text(array, f"{path}: {name}")
    return found


def check_sparse(source: object, rows: int, columns: int, entries: int, size: int) -> None:
    """Raise where a sparse matrix takes more than its file allows.

    Counted are its entries, and eight vectors on each side: estimators need some.

    Args:
        source: the file, for the message.
        rows: of the matrix.
        columns: likewise.
        entries: stored ones.
        size: bytes of the file.

    Raises:
        DataError: they are more than the limits allow.
    """
    needed = _ENTRY_BYTES * entries + _VECTORS * 8 * (rows + columns)
    what = f"a {rows:,} x {columns:,} matrix of {entries:,} entries, with vectors on each side,"
    check_expansion(source, what, needed, size)
