"""Run directories: what a run writes, how it is opened again, what it was attacked with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from robustcf.runs.run import RunDir
    from robustcf.runs.vote import VoteRun

__all__ = ["RunDir", "VoteRun"]


def __getattr__(name: str) -> Any:
    # On demand: comparing saved curves and vision want this subpackage, but not all of training.
    if name == "RunDir":
        from robustcf.runs.run import RunDir

        return RunDir
    if name == "VoteRun":
        from robustcf.runs.vote import VoteRun

        return VoteRun
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
