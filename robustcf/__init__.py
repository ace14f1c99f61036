"""Robust collaborative filtering: measure, prove and improve how rankings hold under attack.

Example:
    >>> import robustcf
    >>> model = robustcf.train(robustcf.load("demo"), "als", factors=16)
    >>> model.recommend(0, k=2).columns.tolist()
    ['user', 'rank', 'item', 'score']

Names are imported when they are first asked for, so ``import robustcf`` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from robustcf._cpus import let_waiting_threads_sleep
from robustcf._lazy import lazy_names

if TYPE_CHECKING:
    from robustcf.auditing.audit import audit
    from robustcf.data.loading import load
    from robustcf.estimators import two_to_inf
    from robustcf.experiments.in_memory import compare, sweep
    from robustcf.recommender import Recommender
    from robustcf.recommender import open_recommender as open
    from robustcf.regularizers import TwoToInf
    from robustcf.robustness.hardening import harden
    from robustcf.robustness.measuring import certify, measure
    from robustcf.robustness.threat import Threat
    from robustcf.training.front import train

__version__ = "1.0.0"

# Before torch or numpy can be loaded: they read these variables once.
let_waiting_threads_sleep()

__all__ = [
    "Recommender",
    "Threat",
    "TwoToInf",
    "audit",
    "certify",
    "compare",
    "harden",
    "load",
    "measure",
    "open",
    "sweep",
    "train",
    "two_to_inf",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Recommender": ".recommender",
        "Threat": ".robustness.threat",
        "TwoToInf": ".regularizers",
        "audit": ".auditing.audit",
        "certify": ".robustness.measuring",
        "compare": ".experiments.in_memory",
        "harden": ".robustness.hardening",
        "load": ".data.loading",
        "measure": ".robustness.measuring",
        "open": ".recommender.saved:open_recommender",
        "sweep": ".experiments.in_memory",
        "train": ".training.front",
        "two_to_inf": ".estimators",
    },
)
