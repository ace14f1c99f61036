"""Data sets as immutable interactions: named ones, your own, and generated ones.

Example:
    >>> from robustcf.data import load
    >>> load("demo")
    Split('demo', 2,000 users x 1,500 items, train 80,846, valid 9,067, test 10,087)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from robustcf._lazy import lazy_names

if TYPE_CHECKING:
    from robustcf._io.limits import raised_limits
    from robustcf.data.holdout import k_core, split_pairs
    from robustcf.data.interactions import Interactions
    from robustcf.data.large.prepare import prepare
    from robustcf.data.loading import load
    from robustcf.data.split import EvaluationProtocol, Split
    from robustcf.data.synthetic import checkerboard, demo

__all__ = [
    "EvaluationProtocol",
    "Interactions",
    "Split",
    "checkerboard",
    "demo",
    "k_core",
    "load",
    "prepare",
    "raised_limits",
    "split_pairs",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Interactions": ".interactions",
        "load": ".loading",
        "prepare": ".large.prepare",
        "raised_limits": "robustcf._io.limits",
        "EvaluationProtocol": ".split",
        "Split": ".split",
        "k_core": ".holdout",
        "split_pairs": ".holdout",
        "checkerboard": ".synthetic",
        "demo": ".synthetic",
    },
)
