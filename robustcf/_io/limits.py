"""Limits on sizes: how much memory, time and text a file may ask for.

A few bytes on disk can stand for any number in memory (compression, a declared size, a line without
end). The limits are far beyond honest files; raise them in Python with :func:`raised_limits`, or
with the environment variable ``ROBUSTCF_LIMITS``.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from robustcf._checks import check_integer, check_known
from robustcf.errors import DataError, InputError

VARIABLE = "ROBUSTCF_LIMITS"

# Fixed limits. As many brackets as this take some 400 MB.
MOST_JSON = 16 << 20
MOST_JSON_DEPTH = 64
# For files parsed in a child process: bytes of its answer and of a header, number of arrays, types
# of arrays (text of up to 1,000 characters), and the patience of the parent, as a multiple of the
# child's CPU seconds, for busy machines.
MOST_ANSWER = 16 << 20
MOST_HEADER = 64 << 20
MOST_ARRAYS = 100_000
NUMBERS = re.compile(r"[<|](f[248]|[iu][1248]|b1)")
TYPES = re.compile(rf"bfloat16|{NUMBERS.pattern}|<U(1000|[1-9]\d{{0,2}})")
PATIENCE = 20


@dataclass(frozen=True)
class Limits:
    """The limits, as positive integers.

    Example:
        >>> Limits(expansion=50, small_bytes=1000).allowance(10)
        1000
    """

    expansion: int = 50  # bytes in memory per byte on disk ...
    small_bytes: int = 64 << 20  # ... or so many bytes, where that is more
    line_bytes: int = 1 << 20  # of a table; a user's line of adjacency text may have 16 times that
    columns: int = 10_000  # of a table
    image_pixels: int = 1 << 24  # of one image
    download_bytes: int = 1 << 30  # where no manifest tells the size
    reader_bytes: int = 512 << 20  # memory of a process that parses a file, or 12 times its size
    reader_seconds: int = 5  # CPU time of that process, and a second per 20 MB of the file

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            check_integer(f"the limit {name}", value)

    def allowance(self, size: int) -> int:
        """Return how many bytes a file of ``size`` bytes may become."""
        return max(self.small_bytes, self.expansion * size)

    def reader_allowance(self, size: int) -> int:
        """Return the memory that the parser of a file of ``size`` bytes may take."""
        return max(self.reader_bytes, 12 * size)

    def reader_time(self, size: int) -> int:
        """Return the CPU seconds that the parser of a file of ``size`` bytes may take."""
        return self.reader_seconds + size // 20_000_000


_raised: ContextVar[Limits | None] = ContextVar("limits", default=None)


def limits() -> Limits:
    """Return the limits in force: raised ones, those of ``ROBUSTCF_LIMITS``, or the defaults.

    The variable holds words ``name=number``, separated by blanks or commas.
    """
    if (raised := _raised.get()) is not None:
        return raised
    changes = {}
    for word in os.environ.get(VARIABLE, "").replace(",", " ").split():
        name, _, number = word.partition("=")
        if not re.fullmatch("[0-9]{1,18}", number):
            raise InputError(f"{VARIABLE}: expected words like columns=20000, got {word[:60]!r}")
        changes[name] = int(number)
    check_known(Limits, changes)
    return Limits(**changes)


@contextmanager
def raised_limits(**changes: int) -> Iterator[None]:
    """Raise limits on files for a block of code; the guide on data lists their names.

    Example:
        >>> with raised_limits(columns=20_000):
        ...     limits().columns
        20000
    """
    check_known(Limits, changes)
    token = _raised.set(dataclasses.replace(limits(), **changes))
    try:
        yield
    finally:
        _raised.reset(token)


def how_to_raise(name: str, value: int) -> str:
    """Return the end of a refusal: how to read the file all the same."""
    return f"if you trust it, raise the limit: {VARIABLE}={name}={value}"


def check_expansion(source: object, what: str, needed: int, size: int) -> None:
    """Raise a DataError where ``what`` of a file takes ``needed`` bytes, beyond its allowance."""
    held = limits()
    if needed > held.allowance(size):
        raise DataError(
            f"{source}: {what} takes at least {needed:,} bytes in memory, expected at most "
            f"{held.expansion} times the file's {size:,} bytes (or {held.small_bytes:,}); "
            + how_to_raise("expansion", -(-needed // max(size, 1)))
        )
