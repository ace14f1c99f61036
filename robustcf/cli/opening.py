"""A recommender that a command is given: a saved one or a run, the same on all ranks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from robustcf._distributed import job
from robustcf.cli.options import Command
from robustcf.errors import InputError

if TYPE_CHECKING:
    from robustcf.data import Split
    from robustcf.factors import Factors
    from robustcf.recommender import Recommender

Read = TypeVar("Read")


def in_turn(read: Callable[[], Read]) -> Read:
    """What a function returns, called by the first rank and then by the others.

    For what is fetched and cached on the way: the others find it.
    """
    team = job()
    found = read() if team.first else None
    team.text_from_first("there")
    return read() if found is None else found


@dataclass(frozen=True)
class OpenedRun:
    """A folder that a command was given, and where the user says that its data are.

    Args:
        path: the folder of a run, or of a saved recommender.
        allow_unfinished: whether its training may have been interrupted.
        places: arguments of ``RunBase.split``, for a run that does not
            have its interactions with it.
    """

    path: str
    allow_unfinished: bool
    places: Mapping[str, Any]

    def recommender(self, *, allow_code: bool = False) -> Recommender:
        """Open it; ranks make sure that they have the same."""
        from robustcf.recommender import open_recommender

        how = {"allow_unfinished": self.allow_unfinished, "allow_code": allow_code}
        model = open_recommender(self.path, **how)
        if not model.has_interactions and (Path(self.path) / "config.json").is_file():
            model = open_recommender(self.path, interactions=self._data(), **how)
        if model.kind != "factors":
            check_one_process()
        elif model.has_interactions:
            check_same(model.split, model.factors)
        return model

    def _data(self) -> Split:
        """Load the data of a run that was too large to keep them, as it was trained."""
        from robustcf.experiments import RunDir

        run = RunDir(self.path, allow_unfinished=self.allow_unfinished)
        return in_turn(lambda: run.split(**self.places))


def check_one_process() -> None:
    """Raise where several ranks are to deal with a recommender by vote."""
    if job().size > 1:
        raise InputError(
            "a recommender by vote has nothing to share among processes: run the command without "
            "torchrun"
        )


def check_same(split: Split, factors: Factors | None = None, config: str = "") -> None:
    """Raise unless all ranks have the same data, embeddings and settings, by their fingerprints."""
    team = job()
    if team.size == 1:
        return
    import hashlib

    import torch

    team.agree("the data", split.fingerprint)
    team.agree("the configuration", config)
    for name, part in zip(("users", "items"), factors or (), strict=False):
        bits = part.contiguous().view(torch.uint8).numpy()
        team.agree(f"the embeddings of the {name}", hashlib.sha256(bits.tobytes()).hexdigest())


unfinished_option = click.option(
    "--allow-unfinished",
    is_flag=True,
    help="Use a run whose training was interrupted, as it is.",
)
code_option = click.option(
    "--allow-code",
    is_flag=True,
    help="Import the modules that the run names, if it was trained with code from outside.",
)
PLACE_OPTIONS: tuple[Callable[[Command], Command], ...] = (
    click.option(
        "--data-dir", metavar="DIR", help="Where named data are, for a run without interactions."
    ),
    click.option("--download", is_flag=True, help="Fetch data that are missing."),
    click.option(
        "--dataset", metavar="PATH", help="Where a prepared set is now, for a run without "
        "interactions.",
    ),
)  # fmt: skip


def opens_run(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the argument RUN and all that concerns opening it, as one ``opened``."""
    names = ["data_dir", "download", "dataset"]

    @functools.wraps(function)
    def command(*args: Any, run: str, allow_unfinished: bool, **kwargs: Any) -> Any:
        places = {name: kwargs.pop(name) for name in names}
        return function(*args, opened=OpenedRun(run, allow_unfinished, places), **kwargs)

    for option in reversed((click.argument("run"), unfinished_option, *PLACE_OPTIONS)):
        command = option(command)
    return command
