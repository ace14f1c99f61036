"""A run that a command is given: opened, with its data, the same on all ranks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from robustcf.cli.options import Command
from robustcf.errors import InputError
from robustcf.support.ranks import job

if TYPE_CHECKING:
    from robustcf.data import Split
    from robustcf.factors import Factors
    from robustcf.runs import RunDir
    from robustcf.runs.vote import VoteRun

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
    """A run that a command was given, and what the user said about where its data are.

    Args:
        path: the run directory.
        allow_unfinished: whether its training may have been interrupted.
        places: the arguments of :meth:`robustcf.runs.base.RunBase.split`.
    """

    path: str
    allow_unfinished: bool
    places: Mapping[str, Any]

    def trained(self, *, allow_code: bool = False) -> RunDir:
        """The run of a recommender; an error unless it is finished, before any data are read."""
        from robustcf.runs import RunDir

        run = RunDir(self.path, allow_unfinished=self.allow_unfinished, allow_code=allow_code)
        run.factors()
        return run

    def recommender(self, *, allow_code: bool = False) -> RunDir | VoteRun:
        """The run of a recommender of either kind; an error unless it is finished."""
        from robustcf.runs.opening import holds_vote
        from robustcf.runs.vote import VoteRun

        if not holds_vote(self.path):
            return self.trained(allow_code=allow_code)
        check_one_process()
        run = VoteRun(self.path, allow_unfinished=self.allow_unfinished)
        run.check_finished()
        return run

    def split(self, run: RunDir | VoteRun) -> Split:
        """Its data; ranks make sure that they have the same, and the same run."""
        from robustcf.runs import RunDir

        split = in_turn(lambda: run.split(**self.places))
        check_same(split, run.factors() if isinstance(run, RunDir) else None)
        return split


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
    help="Import the modules that the run names, if it was trained with code of somebody's own.",
)
PLACE_OPTIONS: tuple[Callable[[Command], Command], ...] = (
    click.option("--data-dir", metavar="DIR", help="Look here first for the data of the run."),
    click.option("--download", is_flag=True, help="Fetch data of the run that are missing."),
    click.option(
        "--dataset", metavar="PATH", help="Own data: where they are now, if they have moved."
    ),
)
_FILE_OPTIONS: tuple[Callable[[Command], Command], ...] = (
    click.option("--valid-file", metavar="FILE", help="Own data: likewise the file for valid."),
    click.option("--test-file", metavar="FILE", help="Own data: likewise the file for test."),
)


def opens_run(*, own_parts: bool = True) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the argument RUN and all that concerns opening it, as one ``opened``.

    Args:
        own_parts: whether valid and test can be files of their own.
    """
    options = (*PLACE_OPTIONS, *(_FILE_OPTIONS if own_parts else ()))
    names = ["data_dir", "download", "dataset", *(["valid_file", "test_file"] * own_parts)]

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def command(*args: Any, run: str, allow_unfinished: bool, **kwargs: Any) -> Any:
            places = {name: kwargs.pop(name) for name in names}
            opened = OpenedRun(run, allow_unfinished, places)
            return function(*args, opened=opened, **kwargs)

        for option in reversed((click.argument("run"), unfinished_option, *options)):
            command = option(command)
        return command

    return decorate
