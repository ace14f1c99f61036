"""Open runs and recommenders, alone or as one of several ranks that must agree."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from robustcf._distributed import job
from robustcf.data.split import Split
from robustcf.errors import InputError
from robustcf.recommender import Recommender, open_recommender

if TYPE_CHECKING:
    from robustcf.factors import Factors

Read = TypeVar("Read")


def open_shared(
    path: str,
    places: Mapping[str, Any],
    *,
    allow_unfinished: bool = False,
    allow_code: bool = False,
) -> Recommender:
    """Open a run or a saved recommender; ranks make sure that they have the same.

    ``places`` are those of ``RunDir.split``, for a run whose data were too large to keep; other
    arguments as in :func:`robustcf.recommender.open_recommender`.
    """
    how = {"allow_unfinished": allow_unfinished, "allow_code": allow_code}
    model = open_recommender(path, **how)
    if not model.has_interactions and (Path(path) / "config.json").is_file():
        # On demand: it brings all of training along.
        from robustcf.experiments.run import RunDir

        run = RunDir(path, allow_unfinished=allow_unfinished)
        split = in_turn(lambda: run.split(**places))
        model = open_recommender(path, interactions=split, **how)
    if model.kind != "factors":
        check_one_process()
    elif model.has_interactions:
        check_same(model.split, model.factors)
    return model


def in_turn(read: Callable[[], Read]) -> Read:
    """Call a function on the first rank, then on the others, which find its downloads cached."""
    team = job()
    found = read() if team.first else None
    team.text_from_first("there")
    return read() if found is None else found


def check_one_process() -> None:
    """Raise where several ranks are to deal with a recommender by vote."""
    if job().size > 1:
        raise InputError("a vote cannot be shared among processes: run it without torchrun")


def check_same(split: Split, factors: Factors | None = None, config: str = "") -> None:
    """Raise unless all ranks have the same data, embeddings and settings, by their fingerprints."""
    team = job()
    if team.size == 1:
        return
    team.agree("the data", split.fingerprint)
    team.agree("the configuration", config)
    for name, part in zip(("users", "items"), factors or (), strict=False):
        bits = part.contiguous().view(torch.uint8).numpy()
        team.agree(f"the embeddings of the {name}", hashlib.sha256(bits.tobytes()).hexdigest())
