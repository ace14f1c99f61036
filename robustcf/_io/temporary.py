"""Locks, and temporary files and folders that are cleared when it is safe.

The writer of a temporary file holds a lock on it, which ends with its process. A temporary file
without a lock is a leftover, which any process may clear.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from robustcf.errors import InputError

try:
    import fcntl
except ImportError:  # Windows: nothing is locked there, and nothing is cleared
    fcntl = None  # type: ignore[assignment]

_ENDING = "robustcf-tmp"
_PATTERN = re.compile(rf"\..+\.[0-9a-f]{{16}}\.{_ENDING}", re.DOTALL)
# Seconds between two tries of a lock.
_POLL = 0.05
# Folders that this process has cleared already.
_cleared: set[Path] = set()


def temporary_file(path: Path) -> tuple[int, Path]:
    """Make a file next to a path and clear leftovers; return its locked descriptor and name."""
    _clear_once(path.parent)
    while True:
        name = _name_next_to(path)
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        if _lock(descriptor) is not False and _is_still(name, descriptor):
            return descriptor, name
        os.close(descriptor)  # another process took it for a leftover before it was locked


@contextlib.contextmanager
def temporary_folder(path: Path, sole: str | None = None) -> Iterator[Path]:
    """Make a folder next to a path, to be renamed to it; it is removed if still there in the end.

    ``sole`` names the maker of such folders, for the InputError of others, and allows one at a time
    per path; None allows any number.
    """
    _clear_once(path.parent)
    while True:
        name = _name_next_to(path, hashlib.sha256(os.fsencode(path.name)) if sole else None)
        if sole is not None:
            with contextlib.suppress(FileNotFoundError):
                if not _remove_if_free(name) and name.exists():
                    raise InputError(f"{sole} is making {path}: wait for it to end, or stop it")
        try:
            name.mkdir(mode=0o700)
            descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY) if fcntl else None
        except (FileExistsError, FileNotFoundError):
            if sole is None:
                raise
            continue  # another process made it, or took it for a leftover
        if descriptor is None or (_lock(descriptor) is not False and _is_still(name, descriptor)):
            break
        os.close(descriptor)
    try:
        yield name
    finally:
        # Once it has its place, the name may be that of another process's folder.
        if descriptor is None or _is_still(name, descriptor):
            shutil.rmtree(name, ignore_errors=True)
        if descriptor is not None:
            os.close(descriptor)


def put_aside(path: Path) -> Path:
    """Rename something to a name that counts as a leftover."""
    name = _name_next_to(path)
    os.rename(path, name)
    return name


def is_leftover(path: Path) -> bool:
    """Return whether a name is one of temporary files and folders."""
    return _PATTERN.fullmatch(path.name) is not None


def clear_leftovers(folder: Path, name: str | None = None) -> list[Path]:
    """Remove and return leftovers of killed processes in a folder (for one target ``name``)."""
    removed: list[Path] = []
    found: list[Path] = []
    if fcntl is not None:
        with contextlib.suppress(OSError):
            found = [path for path in folder.iterdir() if is_leftover(path)]
    for path in found:
        stem = path.name[1:].rsplit(".", 2)[0]
        with contextlib.suppress(OSError):
            if (name is None or stem == _shortened(name)) and _remove_if_free(path):
                removed.append(path)
    return removed


@contextlib.contextmanager
def alone_in(folder: Path, what: str, *, file: str = "", wait: float = 0.0) -> Iterator[None]:
    """Keep other processes that ask for the same out of a folder.

    Args:
        folder: an existing one.
        what: this process, for the InputError of the others.
        file: a file in the folder to lock, for network file systems; empty for the folder itself.
        wait: seconds to wait for the others.
    """
    deadline = time.monotonic() + wait
    descriptor = None
    if fcntl is not None:
        flags = os.O_RDWR | os.O_CREAT if file else os.O_RDONLY | os.O_DIRECTORY
        descriptor = os.open(folder / file, flags, 0o644)
    try:
        while descriptor is not None and _lock(descriptor) is False:
            if time.monotonic() >= deadline:
                raise InputError(f"{what} is at work in {folder}: wait for it to end, or stop it")
            time.sleep(_POLL)
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _name_next_to(path: Path, digest: Any = None) -> Path:
    token = secrets.token_hex(8) if digest is None else digest.hexdigest()[:16]
    return path.parent / f".{_shortened(path.name)}.{token}.{_ENDING}"


def _shortened(name: str) -> str:
    # Names have at most 255 bytes.
    return os.fsdecode(os.fsencode(name)[:200])


def _clear_once(folder: Path) -> None:
    where = Path(os.path.abspath(folder))
    if where not in _cleared:
        _cleared.add(where)
        clear_leftovers(where)


def _remove_if_free(path: Path) -> bool:
    if path.is_symlink():
        path.unlink()
        return True
    is_folder = path.is_dir()
    # Reading a pipe would wait; locking wants a file open for writing on network file systems.
    flags = os.O_RDONLY | os.O_DIRECTORY if is_folder else os.O_RDWR | os.O_NONBLOCK
    descriptor = os.open(path, flags)
    try:
        if not _lock(descriptor) or not _is_still(path, descriptor):
            return False
        if is_folder:
            shutil.rmtree(path)
        else:
            path.unlink()
        return True
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool | None:
    """Return whether the lock is ours now; None where this file system has none."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _is_still(path: Path, descriptor: int) -> bool:
    """Return whether a name still leads to the opened file."""
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(descriptor))
    except FileNotFoundError:
        return False
