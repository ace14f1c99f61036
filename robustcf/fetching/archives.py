"""Reading one member of a zip or tar archive, in memory.

Nothing is ever unpacked to disk by the name an archive gives it, so a hostile name has nowhere
to go; an archive that carries one is refused all the same, because nobody honest made it.
"""

from __future__ import annotations

import gzip
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from robustcf.errors import DataError


def read_member(archive: Path, member: str) -> bytes:
    """The bytes of one file inside a ``.zip``, ``.tar``, ``.tar.gz`` or ``.tgz``.

    Raises:
        DataError: unreadable archive, a name that leads out of the archive, no such member.
    """
    with _readable(archive):
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as zipped:
                _check_names(archive, zipped.namelist())
                _check_member(archive, zipped.namelist(), member)
                return zipped.read(member)
        with tarfile.open(archive) as tar:
            _check_names(archive, tar.getnames())
            _check_member(archive, tar.getnames(), member)
            handle = tar.extractfile(member)
            if handle is None:
                raise DataError(f"{archive}: {member!r} is not a regular file")
            return handle.read()


def read_members(archive: Path, wanted: Callable[[str], bool]) -> dict[str, bytes]:
    """The bytes of every regular file whose name is wanted, in one pass over the archive.

    Raises:
        DataError: unreadable archive, or a name in it that leads out of it.
    """
    with _readable(archive):
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as zipped:
                names = zipped.namelist()
                _check_names(archive, names)
                chosen = (name for name in names if not name.endswith("/") and wanted(name))
                return {name: zipped.read(name) for name in chosen}
        contents = {}
        with tarfile.open(archive) as tar:
            for entry in tar:
                _check_names(archive, [entry.name])
                if entry.isfile() and wanted(entry.name):
                    handle = tar.extractfile(entry)
                    contents[entry.name] = handle.read() if handle else b""
        return contents


@contextmanager
def _readable(archive: Path) -> Iterator[None]:
    try:
        yield
    except (
        zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error
    ) as error:  # fmt: skip
        raise DataError(
            f"{archive}: not a readable zip or tar archive ({error}); delete it and fetch it again"
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
