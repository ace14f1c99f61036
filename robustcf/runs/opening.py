"""A recommender's run, opened without knowing which kind it is."""

from __future__ import annotations

import os
from pathlib import Path

from robustcf.runs.records import CONFIG, CONFIG_KIND, check_run, is_vote, read_record
from robustcf.runs.run import RunDir
from robustcf.runs.vote import VoteRun


def holds_vote(path: str | os.PathLike[str]) -> bool:
    """Whether the run at this path is one of a vote.

    Raises:
        InputError: there is no run at this path, or its configuration is damaged.
    """
    check_run(Path(path), RunDir.command)
    return is_vote(read_record(Path(path) / CONFIG, CONFIG_KIND).get("train"))


def open_recommender(
    path: str | os.PathLike[str], *, allow_unfinished: bool = False, allow_code: bool = False
) -> RunDir | VoteRun:
    """The run at this path: with embeddings, or of a vote. The arguments are those of RunDir."""
    if holds_vote(path):
        return VoteRun(path, allow_unfinished=allow_unfinished)
    return RunDir(path, allow_unfinished=allow_unfinished, allow_code=allow_code)
