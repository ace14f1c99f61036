"""Run directories: what a training writes, how it goes on, what it was attacked with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from robustcf._lazy import lazy_names

if TYPE_CHECKING:
    from robustcf.experiments.config import RunConfig
    from robustcf.experiments.run import RunDir

__all__ = ["RunConfig", "RunDir"]

# On demand: comparing saved curves and vision want this subpackage, but not all of training.
__getattr__, __dir__ = lazy_names(__name__, {"RunConfig": ".config", "RunDir": ".run"})
