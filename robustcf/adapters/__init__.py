"""Other libraries' factors as recommenders.

``from_implicit``, ``from_cornac``, ``from_lenskit``, ``from_rectools``, ``from_lightfm``,
``from_recbole`` and ``from_torch`` take a trained model, :func:`from_files` takes files, each with
the interactions that it was fit on, and return a :class:`robustcf.Recommender`. No other library is
imported here: its objects are read through their attributes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from robustcf._lazy import lazy_names

if TYPE_CHECKING:
    from robustcf.adapters.aligning import Alignment, alignment
    from robustcf.adapters.imported import Imported, joined
    from robustcf.adapters.libraries import (
        from_cornac,
        from_implicit,
        from_lenskit,
        from_lightfm,
        from_recbole,
        from_rectools,
        from_torch,
    )
    from robustcf.adapters.reading import from_files

__all__ = [
    "Alignment",
    "Imported",
    "alignment",
    "from_cornac",
    "from_files",
    "from_implicit",
    "from_lenskit",
    "from_lightfm",
    "from_recbole",
    "from_rectools",
    "from_torch",
    "joined",
]

_HOMES = dict.fromkeys(__all__, ".libraries")
_HOMES |= {"Alignment": ".aligning", "alignment": ".aligning", "from_files": ".reading"}
_HOMES |= {"Imported": ".imported", "joined": ".imported"}
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
