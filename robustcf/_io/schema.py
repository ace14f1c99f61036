"""Kinds of values in files, and one check that names file, key and value."""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from robustcf.errors import InputError

_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxdict, _SHORT.maxlist = 2, 3, 4
_SHORT.maxstring = _SHORT.maxother = 60
_MISSING = object()


@dataclass(frozen=True)
class Kind:
    """A kind of value."""

    words: str  # after "must be"
    fits: Callable[[Any], bool]  # whether a value is of this kind, its parts apart
    # Name, value and kind of each of its parts.
    parts: Callable[[Any], Iterator[tuple[str, Any, Kind]]] | None = None


def check_kind(where: object, value: Any, kind: Kind, key: str = "") -> None:
    """Raise an InputError unless a value of the file ``where`` and all its parts are of a kind.

    Example:
        >>> check_kind("a.json", {"epochs": "x"}, record({"epochs": whole()}))
        Traceback (most recent call last):
        robustcf.errors.InputError: a.json: epochs must be an integer of at least 0, got 'x'
    """
    if value is _MISSING or not kind.fits(value):
        got = "nothing" if value is _MISSING else shown(value)
        raise InputError(
            f"{f'{where}: ' if where else ''}{key or 'the content'} must be {kind.words}, got {got}"
        )
    for name, part, expected in kind.parts(value) if kind.parts is not None else ():
        dot = "" if not key or name.startswith("[") else "."
        check_kind(where, part, expected, f"{key}{dot}{name}")


def shown(value: object) -> str:
    """Return a value in a few words, however large."""
    try:
        return _SHORT.repr(value)
    except ValueError:  # Python does not spell numbers of more than some thousand digits
        return "a number of thousands of digits"


def _is_number(value: object) -> bool:
    try:
        return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]
    except OverflowError:
        return False


MOST_RATE = 1 + 1e-6
TEXT = Kind("text", lambda value: isinstance(value, str))
NAME = Kind("text that is not empty", lambda value: isinstance(value, str) and bool(value))
FLAG = Kind("true or false", lambda value: isinstance(value, bool))
NUMBER = Kind("a finite number", _is_number)
POSITIVE = Kind("a finite number above 0", lambda value: _is_number(value) and value > 0)
NOT_NEGATIVE = Kind("a finite number of at least 0", lambda v: _is_number(v) and v >= 0)
#: Of metrics; a mean of ones may round up.
RATE = Kind("a number in [0, 1]", lambda v: _is_number(v) and 0 <= v <= MOST_RATE)
OBJECT = Kind("an object", lambda value: isinstance(value, dict))
ABSENT = Kind("left out", lambda value: False)


def whole(least: int = 0, most: int = 2**63 - 1) -> Kind:
    """An integer of a range."""
    upper = "" if most >= 2**63 - 1 else f" and at most {most:,}"
    return Kind(
        f"an integer of at least {least}{upper}",
        lambda value: type(value) is int and least <= value <= most,
    )


def choice(*names: str) -> Kind:
    """One of some texts."""
    return Kind(
        f"one of {', '.join(names)}", lambda value: isinstance(value, str) and value in names
    )


def matching(words: str, pattern: str) -> Kind:
    """Text that a regular expression matches as a whole; ``words`` say what it is."""
    return Kind(
        words, lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None
    )


def nullable(kind: Kind) -> Kind:
    """That, or null."""

    def parts(value: Any) -> Iterator[tuple[str, Any, Kind]]:
        if value is not None and kind.parts is not None:
            yield from kind.parts(value)

    return Kind(f"{kind.words}, or null", lambda v: v is None or kind.fits(v), parts)


def either(first: Kind, second: Kind) -> Kind:
    """One kind or another; for kinds without parts."""
    return Kind(f"{first.words} or {second.words}", lambda v: first.fits(v) or second.fits(v))


def list_of(kind: Kind, least: int = 0, most: int | None = None) -> Kind:
    """A list of values of one kind."""
    count = f" of {least}," if least == most else f" of at least {least}," if least else ""

    def fits(value: Any) -> bool:
        return isinstance(value, list) and len(value) >= least and (not most or len(value) <= most)

    return Kind(
        f"a list{count} each {kind.words}",
        fits,
        lambda value: ((f"[{n}]", part, kind) for n, part in enumerate(value)),
    )


def record(
    required: Mapping[str, Kind],
    optional: Mapping[str, Kind] | None = None,
    others: Kind | None = None,
) -> Kind:
    """An object with keys of given kinds; ``others`` is the kind of all other values, or None."""
    known = {**required, **(optional or {})}

    def parts(value: Any) -> Iterator[tuple[str, Any, Kind]]:
        for key, kind in known.items():
            if key in required or key in value:
                yield key, value.get(key, _MISSING), kind
        if others is not None:
            for key, found in value.items():
                if key not in known:
                    yield shown(key).strip("'"), found, others

    return Kind("an object", OBJECT.fits, parts)
