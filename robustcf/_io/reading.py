"""Reading what may come from anybody: only plain files, only so many bytes, only sane JSON."""

from __future__ import annotations

import errno
import json
import math
import os
import stat
from pathlib import Path
from typing import Any

from robustcf.errors import InputError

#: No JSON file of a run comes near this; sixteen million bytes of brackets take some 400 MB.
MOST_JSON = 16 << 20
_MOST_DEPTH = 64


def open_plain(path: Path, *, follow: bool = False) -> int:
    """A descriptor to read a plain file: no pipe, device or folder, and no link unless told so.

    Neither opening nor reading it waits for anybody. In a folder from a stranger a link may lead to
    any file of the reader's, which is none of the stranger's business.

    Args:
        path: of the file.
        follow: whether it may be a link.

    Raises:
        InputError: it is not there, cannot be read, or is something else.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        if not follow and path.is_symlink():
            raise InputError(
                f"{path} is a link, and links in a run directory are not followed: put the file "
                "itself there"
            )
        descriptor = os.open(path, flags)
    except OSError as error:
        missing = error.errno in (errno.ENOENT, errno.ENOTDIR)
        why = "is not there (No such file)" if missing else f"cannot be read ({error.strerror})"
        raise InputError(f"{path} {why}") from error
    except ValueError as error:  # a NUL in the name
        raise InputError(f"{str(path)!r} is no name of a file ({error})") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InputError(f"{path} is no plain file: a file with content is expected")
    return descriptor


def read_plain(path: Path, most: int, *, follow: bool = False) -> bytes:
    """The bytes of a plain file, see :func:`open_plain`.

    Args:
        path: of the file.
        most: bytes that it may have.
        follow: whether it may be a link.

    Raises:
        InputError: it is no plain file, or larger.

    Example:
        >>> read_plain(Path("/dev/zero"), 10)
        Traceback (most recent call last):
        robustcf.errors.InputError: /dev/zero is no plain file: a file with content is expected
    """
    with os.fdopen(open_plain(path, follow=follow), "rb") as file:
        try:
            content = file.read(most + 1)
        except OSError as error:
            raise InputError(f"{path} cannot be read ({error.strerror})") from error
    if len(content) > most:
        raise InputError(f"{path} must have at most {most:,} bytes, got more: it is no such file")
    return content


def parse_json(content: str | bytes) -> Any:
    """What JSON text says; unlike Python's own reader, strictly JSON and no deeper than 64 levels.

    Raises:
        InputError: it is no JSON, has a key twice, a number that is not finite, or is too deep.

    Example:
        >>> parse_json('{"a": [1, 2.5]}')
        {'a': [1, 2.5]}
        >>> parse_json('{"a": NaN}')
        Traceback (most recent call last):
        robustcf.errors.InputError: NaN is no number of JSON
    """
    try:
        text = content.decode("utf-8") if isinstance(content, bytes) else content
        found = json.loads(
            text, parse_constant=_no_constant, parse_float=_finite, object_pairs_hook=_unique
        )
        _check_depth(found)
    except RecursionError as error:
        raise InputError(f"it is nested deeper than {_MOST_DEPTH} levels") from error
    except ValueError as error:
        # The text itself is not told: it may be a foreign file's.
        reason = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        raise InputError(reason) from error
    return found


def read_json(path: Path, *, follow: bool = False) -> dict[str, Any]:
    """The JSON object that a file holds.

    Args:
        path: of the file.
        follow: whether it may be a link.

    Raises:
        InputError: it is not there, or holds no JSON object of at most 16 MB.
    """
    content = read_plain(path, MOST_JSON, follow=follow)
    try:
        found = parse_json(content)
    except InputError as error:
        raise InputError(f"{path} is no readable JSON file ({error})") from error
    if not isinstance(found, dict):
        raise InputError(f"{path} must hold a JSON object, got {type(found).__name__}")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


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
    for _ in range(_MOST_DEPTH):
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
