"""Temporary files and folders that are known as such after a kill, and cleared when it is safe.

Whoever writes one holds a lock on it, which the system takes back when the process ends, however it
ends. One that nobody holds is a leftover. So two processes can write to one folder, and either may
clear it, without doing the other harm.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from robustcf.errors import InputError

try:
    import fcntl
except ImportError:  # Windows: nothing is locked there, and nothing is cleared
    fcntl = None  # type: ignore[assignment]

_ENDING = "robustcf-tmp"
_PATTERN = re.compile(rf"\..+\.[0-9a-f]{{16}}\.{_ENDING}", re.DOTALL)
# Folders that this process has looked through already.
_cleared: set[Path] = set()


def temporary_file(path: Path) -> tuple[int, Path]:
    """A new file next to where a path is to be: its descriptor, which holds its lock, and its name.

    Cost: the first time in a folder, leftovers of killed processes are cleared there.
    """
    _clear_once(path.parent)
    while True:
        name = _name_next_to(path)
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        if _lock(descriptor) is not False and _is_still(name, descriptor):
            return descriptor, name
        os.close(descriptor)  # somebody took it for a leftover before it was locked


@contextlib.contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """A new folder next to where a path is to be; if still there in the end, it is removed."""
    _clear_once(path.parent)
    while True:
        name = _name_next_to(path)
        name.mkdir(mode=0o700)
        descriptor = _open_folder(name)
        if descriptor is None or (_lock(descriptor) is not False and _is_still(name, descriptor)):
            break
        os.close(descriptor)
    try:
        yield name
    finally:
        if descriptor is not None:
            os.close(descriptor)
        shutil.rmtree(name, ignore_errors=True)


def put_aside(path: Path) -> Path:
    """Rename something to a name that counts as a leftover."""
    name = _name_next_to(path)
    os.rename(path, name)
    return name


def is_leftover(path: Path) -> bool:
    """Whether a name is one of temporary files and folders."""
    return _PATTERN.fullmatch(path.name) is not None


def clear_leftovers(folder: Path, name: str | None = None) -> list[Path]:
    """Remove temporary files and folders that nobody is writing any more.

    Args:
        folder: where; what lies in its folders is left alone.
        name: only those that were to become this; None for all.

    Returns:
        What was removed.

    Cost: one look at the names in the folder.
    """
    removed: list[Path] = []
    if fcntl is None:
        return removed
    try:
        found = [
            path
            for path in folder.iterdir()
            if is_leftover(path) and (name is None or _stem_of(path) == _shortened(name))
        ]
    except OSError:
        return removed
    for path in found:
        with contextlib.suppress(OSError):
            if _remove_if_free(path):
                removed.append(path)
    return removed


@contextlib.contextmanager
def alone_in(folder: Path, what: str) -> Iterator[None]:
    """Keep other processes that ask for the same out of a folder; no file is made for it.

    Args:
        folder: that is there.
        what: who is at work, for the error of the others.

    Raises:
        InputError: somebody else is at work in it.
    """
    descriptor = _open_folder(folder)
    try:
        if descriptor is not None and _lock(descriptor) is False:
            raise InputError(f"{what} is at work in {folder}: wait for it to end, or stop it")
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


@contextlib.contextmanager
def claimed(path: Path, what: str) -> Iterator[None]:
    """Keep other processes from making the same path, which need not be there yet.

    Args:
        path: what will be made; its parent is there.
        what: who makes it, for the error of the others.

    Raises:
        InputError: another process is making it.
    """
    # The same for all processes, and by its ending a leftover when a process was killed.
    digest = hashlib.sha256(os.fsencode(path.name)).hexdigest()[:16]
    name = path.parent / f".{_shortened(path.name)}.{digest}.{_ENDING}"
    while True:
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
        if _lock(descriptor) is False:
            os.close(descriptor)
            raise InputError(f"{what} is making {path}: wait for it to end, or stop it")
        if _is_still(name, descriptor):
            break
        os.close(descriptor)  # its former owner removed it before it was locked
    try:
        yield
    finally:
        name.unlink(missing_ok=True)
        os.close(descriptor)


def _name_next_to(path: Path) -> Path:
    return path.parent / f".{_shortened(path.name)}.{secrets.token_hex(8)}.{_ENDING}"


def _shortened(name: str) -> str:
    # Names have at most 255 bytes.
    return os.fsdecode(os.fsencode(name)[:200])


def _stem_of(leftover: Path) -> str:
    """The beginning of the name that something temporary was to have."""
    return leftover.name[1:].rsplit(".", 2)[0]


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


def _open_folder(folder: Path) -> int | None:
    if fcntl is None:
        return None
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY)


def _lock(descriptor: int) -> bool | None:
    """Whether the lock is ours now; None where this file system has none."""
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
    """Whether a name still means what was opened by it."""
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(descriptor))
    except FileNotFoundError:
        return False
