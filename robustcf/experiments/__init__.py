"""Run folders, grids of runs (sweeps, poisonings) and comparisons."""

from __future__ import annotations

from typing import TYPE_CHECKING

from robustcf._lazy import lazy_names

if TYPE_CHECKING:
    from robustcf.experiments.run import RunConfig, RunDir

__all__ = ["RunConfig", "RunDir"]

# On demand: comparing saved curves and vision need this subpackage, but not all of training.
__getattr__, __dir__ = lazy_names(__name__, {"RunConfig": ".run", "RunDir": ".run"})
