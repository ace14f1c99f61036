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
    from robustcf.adapters.base import Imported
    from robustcf.adapters.cornac import from_cornac
    from robustcf.adapters.implicit import from_implicit
    from robustcf.adapters.joining import joined
    from robustcf.adapters.lenskit import from_lenskit
    from robustcf.adapters.lightfm import from_lightfm
    from robustcf.adapters.pytorch import from_torch
    from robustcf.adapters.reading import from_files
    from robustcf.adapters.recbole import from_recbole
    from robustcf.adapters.rectools import from_rectools

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

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Alignment": ".aligning",
        "Imported": ".base",
        "alignment": ".aligning",
        "from_cornac": ".cornac",
        "from_files": ".reading",
        "from_implicit": ".implicit",
        "from_lenskit": ".lenskit",
        "from_lightfm": ".lightfm",
        "from_recbole": ".recbole",
        "from_rectools": ".rectools",
        "from_torch": ".pytorch",
        "joined": ".joining",
    },
)
