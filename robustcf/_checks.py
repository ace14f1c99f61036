"""Checks of numbers, choices and settings: one place, one wording."""

from __future__ import annotations

import dataclasses
import difflib
import math
import numbers
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from robustcf._io.schema import shown
from robustcf.errors import InputError

#: Integers fit into 64 bits; those that count something, into 32. Settings fit into float32.
MOST_INTEGER, MOST_COUNT, _MOST_NUMBER = 2**63 - 1, 2**31 - 1, 1e30

#: Settings that have a new name, by their former ones.
RENAMED = {
    "dim": "factors",
    "unobserved": "alpha",
    "ridge": "regularization",
    "sweeps": "iterations",
}


def check_integer(name: str, value: object, least: int = 1, most: int = MOST_INTEGER) -> int:
    """Return ``value`` as an int in a range, or raise.

    Example:
        >>> check_integer("k", 0)
        Traceback (most recent call last):
        robustcf.errors.InputError: k must be an integer of at least 1, got 0
    """
    upper = ""
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        number = int(value)
        if least <= number <= most:
            return number
        upper = f" and at most {most}" if number > most else ""
    raise InputError(f"{name} must be an integer of at least {least}{upper}, got {shown(value)}")


def check_number(name: str, value: object, *, positive: bool = False) -> float:
    """Return ``value`` as a finite float that is not negative (or is positive), or raise.

    Example:
        >>> check_number("lr", 0.0, positive=True)
        Traceback (most recent call last):
        robustcf.errors.InputError: lr must be a finite number and positive, got 0.0
    """
    number = math.nan
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:  # an integer beyond all floats
            number = math.inf
    if not math.isfinite(number) or number < 0 or (positive and number == 0):
        wanted = "positive" if positive else "not negative"
        raise InputError(f"{name} must be a finite number and {wanted}, got {shown(value)}")
    return number


def check_choice(name: str, value: object, allowed: Iterable[str]) -> None:
    """Raise unless ``value`` is one of the allowed names."""
    known = tuple(allowed)
    if not isinstance(value, str) or value not in known:
        hint = near(value, known)
        raise InputError(f"{name} must be one of {', '.join(known)}, got {shown(value)}{hint}")


def near(word: object, known: Iterable[str]) -> str:
    """Return the end of a message: the known word that may be meant, if one is close.

    Example:
        >>> near("alz", ["als", "ease"]), near("x", ["als"])
        ("; did you mean 'als'?", '')
    """
    close = difflib.get_close_matches(str(word), list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def check_list(name: str, value: object) -> tuple[Any, ...]:
    """Return the entries of a list, a tuple or an array; raise for a single value."""
    several = isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)
    if not several or getattr(value, "ndim", 1) == 0:
        advice = f": give [{value!r}]" if isinstance(value, numbers.Number) else ""
        raise InputError(f"{name} must be a list, got {value!r}{advice}")
    return tuple(value)  # type: ignore[arg-type]


def check_cutoff(name: str, k: object) -> int:
    """Return a number of places in a ranking; more places than items are all items."""
    return check_integer(name, k, 1, MOST_COUNT)


def check_cutoffs(ks: Sequence[int]) -> tuple[int, ...]:
    """Return cutoffs in ascending order, each once, or raise."""
    cutoffs = tuple(sorted({check_cutoff("every cutoff", k) for k in check_list("ks", ks)}))
    if not cutoffs:
        raise InputError("ks must name at least one cutoff, got none")
    return cutoffs


def check_epsilons(epsilons: Sequence[float]) -> tuple[float, ...]:
    """Return epsilons as floats, finite, not negative and strictly ascending, or raise."""
    given = check_list("epsilons", epsilons)
    try:
        sizes = tuple(float(epsilon) for epsilon in given)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"epsilons must be numbers, got {shown(list(given))}") from error
    if not sizes:
        raise InputError("epsilons must name at least one attack size, got none")
    for epsilon in sizes:
        if not math.isfinite(epsilon) or epsilon < 0:
            raise InputError(f"epsilons must be finite and not negative, got {epsilon}")
    if any(b <= a for a, b in pairwise(sizes)):
        told = ", ".join(f"{size:g}" for size in sizes)
        raise InputError(f"epsilons must be strictly ascending, got {told}: sort them")
    return sizes


def check_known(kind: type, values: Mapping[str, Any]) -> None:
    """Raise for a key that the dataclass ``kind`` does not have, and suggest one that it has."""
    names = [entry.name for entry in dataclasses.fields(kind)]
    for key in values:
        if key not in names:
            raise InputError(unknown_setting(key, names))


def unknown_setting(key: str, names: Collection[str]) -> str:
    """Return the message for an unknown setting; a former name suggests its new one."""
    new = RENAMED.get(key)
    hint = near(new if new in names else key, names)
    return f"unknown setting {key!r}{hint or '; known: ' + ', '.join(names)}"


def check_numbers(settings: Any, may_be_zero: Collection[str] = (), prefix: str = "") -> None:
    """Raise unless every ``int`` is at least 1 and every ``float`` finite and not negative.

    ``settings`` is of a dataclass. ``bool`` and ``str`` are checked too, and None passes where the
    annotation allows it. Numbers of numpy become Python's own, which JSON can hold.
    ``prefix`` comes before the names in messages.
    """
    for entry in dataclasses.fields(settings):
        value, name = getattr(settings, entry.name), prefix + entry.name
        kind = entry.type.__name__ if isinstance(entry.type, type) else str(entry.type)
        if value is None and "None" in kind:
            continue
        plain: Any = value
        if kind.startswith("int"):
            most = MOST_INTEGER if entry.name == "seed" else MOST_COUNT
            plain = check_integer(name, value, 0 if entry.name in may_be_zero else 1, most)
        elif kind.startswith("float"):
            plain = check_number(name, value)
            if plain > _MOST_NUMBER:
                raise InputError(f"{name} must be at most {_MOST_NUMBER:g}, got {shown(value)}")
            if 0 < plain < 1 / _MOST_NUMBER:  # its quotients overflow
                least = f"0 or at least {1 / _MOST_NUMBER:g}"
                raise InputError(f"{name} must be {least}, got {shown(value)}")
            if type(value) is int and plain <= 2**53:
                plain = value  # stays whole; torch takes no larger integers
        elif kind == "bool" and not isinstance(value, bool):
            raise InputError(f"{name} must be true or false, got {shown(value)}")
        elif kind.startswith("str") and not isinstance(value, str | None):
            raise InputError(f"{name} must be text, got {shown(value)}")
        if type(plain) is not type(value):
            object.__setattr__(settings, entry.name, plain)
