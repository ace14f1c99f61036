"""Packages whose names are imported when they are first asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package whose names live in other modules.

    Args:
        package: its ``__name__``.
        homes: name -> the module it lives in; relative to the package where it begins with a dot,
            ``module:other`` where it is called ``other`` there, and ``module:`` for the module.

    Example:
        >>> get, names = lazy_names("robustcf", {"Split": "robustcf.data.split"})
        >>> get("Split").__name__, "Split" in names()
        ('Split', True)
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home, colon, other = homes[name].partition(":")
        module = import_module(home, package)
        found = module if colon and not other else getattr(module, other or name)
        setattr(sys.modules[package], name, found)  # so that the next look-up is a plain one
        return found

    return get, lambda: sorted({*homes, *vars(sys.modules[package]).get("__all__", ())})
