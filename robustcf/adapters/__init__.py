"""Other libraries' factors: read, matched with interactions, checked, and made into a run.

``from_implicit``, ``from_cornac``, ``from_lenskit``, ``from_rectools``, ``from_lightfm``,
``from_recbole`` and ``from_torch`` take a trained model. :func:`read` takes files. All of them
return an :class:`Imported`; :func:`match` brings its rows and your pairs together, and
:func:`import_run` makes a run directory of both. No other library is imported here: its objects
are read through their attributes.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from robustcf.adapters.base import Imported
    from robustcf.adapters.cornac import from_cornac
    from robustcf.adapters.implicit import from_implicit
    from robustcf.adapters.lenskit import from_lenskit
    from robustcf.adapters.lightfm import from_lightfm
    from robustcf.adapters.matching import match
    from robustcf.adapters.pytorch import from_torch
    from robustcf.adapters.reading import read
    from robustcf.adapters.recbole import from_recbole
    from robustcf.adapters.rectools import from_rectools
    from robustcf.adapters.smelling import Smell, smell
    from robustcf.adapters.writing import import_run

__all__ = [
    "Imported",
    "Smell",
    "from_cornac",
    "from_implicit",
    "from_lenskit",
    "from_lightfm",
    "from_recbole",
    "from_rectools",
    "from_torch",
    "import_run",
    "match",
    "read",
    "smell",
]

_HOMES = {
    "Imported": "base",
    "Smell": "smelling",
    "from_torch": "pytorch",
    "import_run": "writing",
    "match": "matching",
    "read": "reading",
    "smell": "smelling",
}


def __getattr__(name: str) -> Any:
    # On demand: one adapter does not load the others.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOMES.get(name, name.removeprefix("from_"))
    return getattr(import_module(f"{__name__}.{home}"), name)
