"""Reading one member of a zip or tar archive, in memory.

Nothing is ever unpacked to disk by the name an archive gives it, so a hostile name has nowhere
to go; an archive that carries one is refused all the same, because nobody honest made it.
"""

from __future__ import annotations

import re
import tarfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from robustcf.errors import DataError


def read_member(archive: Path, member: str) -> bytes:
    """The bytes of one file inside a ``.zip``, ``.tar``, ``.tar.gz`` or ``.tgz``.

    Raises:
        DataError: unreadable archive, a name that leads out of the archive, no such member.
    """
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as zipped:
                _check_names(archive, zipped.namelist(), member)
                return zipped.read(member)
        with tarfile.open(archive) as tar:
            _check_names(archive, tar.getnames(), member)
            handle = tar.extractfile(member)
            if handle is None:
                raise DataError(f"{archive}: {member!r} is not a regular file")
            return handle.read()
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error) as error:
        raise DataError(
            f"{archive}: not a readable zip or tar archive ({error}); delete it and fetch it again"
        ) from error


def _check_names(archive: Path, names: list[str], member: str) -> None:
    for name in names:
        path = PurePosixPath(name.replace("\\", "/"))
        has_drive = re.match(r"[A-Za-z]:", name) is not None
        if path.is_absolute() or ".." in path.parts or has_drive:
            raise DataError(
                f"{archive}: holds the name {name!r}, which leads out of the archive; refused: "
                "take the archive from a source you trust"
            )
    if member not in names:
        some = ", ".join(repr(name) for name in names[:5])
        raise DataError(f"{archive}: has no member {member!r}; it holds {some or 'nothing'}")
