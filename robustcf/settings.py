"""Checks that every frozen configuration shares: known keys, sensible numbers."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Collection, Mapping
from typing import Any

from robustcf.errors import InputError


def check_known(kind: type, values: Mapping[str, Any]) -> None:
    """Raise for a key that the dataclass ``kind`` does not have, and suggest one that it has.

    Example:
        >>> @dataclasses.dataclass
        ... class Settings:
        ...     dim: int = 2
        >>> check_known(Settings, {"dmi": 3})
        Traceback (most recent call last):
        robustcf.errors.InputError: unknown setting 'dmi'; did you mean 'dim'?
    """
    names = [entry.name for entry in dataclasses.fields(kind)]
    for key in values:
        if key not in names:
            close = difflib.get_close_matches(key, names, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names)}"
            raise InputError(f"unknown setting {key!r}; {hint}")


def check_numbers(settings: Any, may_be_zero: Collection[str] = ()) -> None:
    """Raise unless every ``int`` is at least 1 and every ``float`` finite and not negative.

    Args:
        settings: an instance of a dataclass with annotations as text; None passes where the
            annotation allows it.
        may_be_zero: integers that may be 0.
    """
    for entry in dataclasses.fields(settings):
        value = getattr(settings, entry.name)
        kind = str(entry.type)
        if value is None and "None" in kind:
            continue
        if kind.startswith("int"):
            least = 0 if entry.name in may_be_zero else 1
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InputError(
                    f"{entry.name} must be an integer of at least {least}, got {value!r}"
                )
        elif kind.startswith("float"):
            good = isinstance(value, int | float) and not isinstance(value, bool)
            if not good or not math.isfinite(value) or value < 0:
                raise InputError(
                    f"{entry.name} must be a finite number and not negative, got {value!r}"
                )
