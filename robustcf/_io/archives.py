"""Reading one member of a zip or tar archive, in memory.

Nothing is ever unpacked to disk by the name an archive gives it, so a hostile name has nowhere
to go; an archive that carries one is refused all the same, because nobody honest made it.
"""

from __future__ import annotations

import gzip
import re
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from robustcf._io.bounded import open_regular, open_zip, size_of
from robustcf._io.limits import check_expansion, limits
from robustcf.errors import DataError

_GZIP = b"\x1f\x8b"


def read_member(archive: Path, member: str) -> bytes:
    """The bytes of one file inside a ``.zip``, ``.tar``, ``.tar.gz`` or ``.tgz``.

    Raises:
        DataError: unreadable archive, a name that leads out of the archive, no such member, or
            more in it than the limits allow (:mod:`robustcf._io.limits`).
    """
    with _readable(archive), open_regular(archive) as handle:
        size = size_of(handle)
        if zipfile.is_zipfile(handle):
            with open_zip(handle, archive) as zipped:
                _check_names(archive, zipped.namelist())
                _check_member(archive, zipped.namelist(), member)
                check_expansion(archive, f"{member!r}", zipped.getinfo(member).file_size, size)
                return zipped.read(member)
        with _open_tar(handle, archive, size) as tar:
            entries = {entry.name: entry for entry in _entries(tar, archive)}
            _check_member(archive, list(entries), member)
            entry = entries[member]
            check_expansion(archive, f"{member!r}", entry.size, size)
            content = tar.extractfile(entry) if entry.isfile() else None
            if content is None:
                raise DataError(f"{archive}: {member!r} is not a regular file")
            return content.read()


def read_members(archive: Path, wanted: Callable[[str], bool]) -> dict[str, bytes]:
    """The bytes of every regular file whose name is wanted, in one pass over the archive.

    Raises:
        DataError: unreadable archive, a name in it that leads out of it, or more in it than the
            limits allow (:mod:`robustcf._io.limits`).
    """
    total = 0
    contents = {}
    with _readable(archive), open_regular(archive) as handle:
        size = size_of(handle)
        if zipfile.is_zipfile(handle):
            with open_zip(handle, archive) as zipped:
                _check_names(archive, zipped.namelist())
                chosen = [
                    entry
                    for entry in zipped.infolist()
                    if not entry.filename.endswith("/") and wanted(entry.filename)
                ]
                total = sum(entry.file_size for entry in chosen)
                check_expansion(archive, "what is read of it", total, size)
                return {entry.filename: zipped.read(entry) for entry in chosen}
        with _open_tar(handle, archive, size) as tar:
            for entry in _entries(tar, archive):
                if entry.isfile() and wanted(entry.name):
                    # A sparse member declares more than it holds: zeros cost the archive nothing.
                    total += entry.size
                    check_expansion(archive, "what is read of it", total, size)
                    content = tar.extractfile(entry)
                    contents[entry.name] = content.read() if content else b""
    return contents


def _open_tar(handle: BinaryIO, archive: Path, size: int) -> tarfile.TarFile:
    """A tar archive, plain or gzipped, out of which no more comes than the limits allow."""
    handle.seek(0)
    packed = handle.read(2) == _GZIP
    handle.seek(0)
    if not packed:
        return tarfile.open(fileobj=handle, mode="r:")
    return tarfile.open(fileobj=_Unpacked(handle, archive, size), mode="r:")


def _entries(tar: tarfile.TarFile, archive: Path) -> Iterator[tarfile.TarInfo]:
    for entry in tar:
        if entry.size < 0:  # the next entry would begin before this one: round and round
            raise DataError(f"{archive}: {entry.name[:60]!r} declares a negative size; refused")
        _check_names(archive, [entry.name])
        yield entry


class _Unpacked(gzip.GzipFile):
    """The content of a gzipped archive; going too far in it is an error."""

    def __init__(self, handle: BinaryIO, archive: Path, size: int) -> None:
        super().__init__(fileobj=handle, mode="rb")
        self.archive, self.size = archive, size

    def read(self, size: int | None = -1) -> bytes:
        # tarfile never asks for all there is, but for what a header declares.
        room = limits().allowance(self.size) + 1
        content = super().read(room if size is None or size < 0 else min(size, room))
        self._check(self.tell())
        return content

    def seek(self, offset: int, whence: int = 0) -> int:
        self._check(offset)
        return super().seek(offset, whence)

    def _check(self, position: int) -> None:
        check_expansion(self.archive, "its content, unpacked,", position, self.size)


@contextmanager
def _readable(archive: Path) -> Iterator[None]:
    try:
        yield
    except DataError:
        raise
    except (
        zipfile.BadZipFile, tarfile.TarError, OSError, EOFError, zlib.error, ValueError,
        OverflowError, NotImplementedError, RuntimeError, struct.error
    ) as error:  # fmt: skip
        # The libraries raise all of these for damaged, encrypted or exotic archives.
        reason = " ".join(str(error).split())[:200]
        raise DataError(
            f"{archive}: not a readable zip or tar archive ({reason}); delete it and fetch it again"
        ) from error


def _check_names(archive: Path, names: list[str]) -> None:
    for name in names:
        path = PurePosixPath(name.replace("\\", "/"))
        has_drive = re.match(r"[A-Za-z]:", name) is not None
        if path.is_absolute() or ".." in path.parts or has_drive:
            raise DataError(
                f"{archive}: holds the name {name!r}, which leads out of the archive; refused: "
                "take the archive from a source you trust"
            )


def _check_member(archive: Path, names: list[str], member: str) -> None:
    if member not in names:
        some = ", ".join(repr(name) for name in names[:5])
        raise DataError(f"{archive}: has no member {member!r}; it holds {some or 'nothing'}")
