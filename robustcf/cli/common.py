"""What every command shares: ``--json``, ``--debug``, and one way to report.

A command returns a :class:`Report` and prints nothing on stdout itself. With ``--json``, stdout
holds exactly one JSON object; whatever a library prints meanwhile goes to stderr.
"""

from __future__ import annotations

import functools
import json
import os
import re
import sys
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from robustcf.errors import InputError, Interrupted, WriteError
from robustcf.support.ranks import job
from robustcf.support.reading import parse_json
from robustcf.support.tables import Table, meant

if TYPE_CHECKING:
    from robustcf.data import Split
    from robustcf.factors import Factors
    from robustcf.runs import RunDir
    from robustcf.runs.vote import VoteRun

# Unicode's categories of control, format, surrogate and other characters that nobody sees.
_UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
Command = TypeVar("Command", bound=Callable[..., Any])
Read = TypeVar("Read")


@dataclass(frozen=True)
class Report:
    """The outcome of a command: for programs (a JSON object) and for people (text).

    ``failed`` is why the exit code is 1 although the command did its work: one line.
    """

    data: Mapping[str, Any]
    text: str
    failed: str = ""


class Stopped(Exception):
    """A command was stopped from outside; click would print an empty line for its own exception."""


def say(line: str) -> None:
    """A line on stderr; where it cannot be written, nobody reads it, and work goes on.

    Of several ranks the first one speaks.
    """
    if job().first:
        speak(line)


def speak(line: str) -> None:
    """:func:`say`, whatever the rank."""
    with suppress(OSError):
        click.echo(harmless(line), err=True)


def shows_progress() -> bool:
    """Whether somebody watches: a terminal, and the rank that speaks."""
    return sys.stderr.isatty() and job().first


def in_turn(read: Callable[[], Read]) -> Read:
    """What a function returns, called by the first rank and then by the others.

    For what is fetched and cached on the way: the others find it.
    """
    team = job()
    found = read() if team.first else None
    team.text_from_first("there")
    return read() if found is None else found


def harmless(text: str) -> str:
    r"""Text with its control characters spelt out, but for ends of lines and tabs.

    Labels, names and messages may be a stranger's: none of them may steer the terminal, turn
    around what is written on it, or be impossible to write.

    Example:
        >>> harmless("a" + chr(27) + "[2J")
        'a\\x1b[2J'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        mark.encode("unicode_escape").decode()
        if unicodedata.category(mark) in _UNSEEN and mark not in "\n\t"
        else mark
        for mark in text
    )


def reports(function: Callable[..., Report | None]) -> Callable[..., None]:
    """Give a command ``--json`` and ``--debug``, and print the report that it returns."""

    @click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
    @click.option(
        "--debug", is_flag=True, expose_value=False, help="Show the traceback of an error."
    )
    @functools.wraps(function)
    def command(*args: Any, as_json: bool, **kwargs: Any) -> None:
        try:
            with redirect_stdout(sys.stderr):
                report = function(*args, **kwargs)
        except Interrupted as error:
            raise Stopped(str(error)) from error
        except KeyboardInterrupt as error:
            raise Stopped(
                "interrupted, what was finished before is kept: start it again"
            ) from error
        if report is not None and not job().first:
            return
        if report is not None:
            _print(to_json(report.data) if as_json else report.text)
            if report.failed:
                say(f"robustcf: {report.failed}")
                click.get_current_context().exit(1)
        elif as_json:  # a group that hands over to a subcommand has nothing to say itself
            raise click.UsageError("--json belongs behind the subcommand")

    return command


def _print(text: str) -> None:
    try:
        click.echo(harmless(text))
    except BrokenPipeError:
        raise
    except OSError as error:
        raise WriteError(
            f"the output cannot be written ({error.strerror}): send it to another place; what the "
            "command wrote into files is there"
        ) from error


class NameOf(click.ParamType):  # type: ignore[type-arg]
    """A name out of a table, or ``module:Class`` of the user's own.

    Args:
        table: where the names are.
        others: more names that the option takes.
        elsewhere: name -> what to use for it instead, where it has another place.
    """

    name = "name"

    def __init__(
        self, table: Table[Any], *others: str, elsewhere: Mapping[str, str] | None = None
    ) -> None:
        """Keep the names; no class is imported."""
        self.table, self.others, self.elsewhere = table, others, elsewhere or {}

    @property
    def names(self) -> list[str]:
        """All names, without those of entry points."""
        return [*self.table, *self.others]

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """The names, as help shows them."""
        return f"[{'|'.join(self.names)}|module:Class]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name, if there is such an entry; its class is imported later."""
        if value not in self.names and ":" not in value and not self._is_entry_point(value):
            if value in self.elsewhere:
                self.fail(f"for {value!r} use {self.elsewhere[value]}.", param, ctx)
            known, other = ", ".join(self.names), meant(value)
            hint = f" Did you mean {other}?" if other else ""
            self.fail(f"{value!r} is not one of {known}, or module:Class.{hint}", param, ctx)
        return str(value)

    def _is_entry_point(self, value: str) -> bool:
        from importlib.metadata import entry_points

        return any(point.name == value for point in entry_points(group=self.table.group))


class ListCommand(click.Command):
    """A command whose repeatable options take many values at once: ``--epsilons 0 0.1 0.2``.

    Options that may go without their value take the next word only where it is one of their
    choices: ``--relative RUN`` is ``--relative`` and an argument.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Spell ``--name a b c`` as ``--name a --name b --name c`` before click reads it."""
        lists = {
            spelling
            for parameter in self.params
            if isinstance(parameter, click.Option) and parameter.multiple
            for spelling in parameter.opts
        }
        optional = {
            spelling: parameter
            for parameter in self.params
            if isinstance(parameter, click.Option) and parameter.metavar == "[own]"
            for spelling in parameter.opts
        }
        spelled: list[str] = []
        current = ""
        words = list(args)
        for place, word in enumerate(words):
            if word in optional and words[place + 1 : place + 2] != ["own"]:
                word = f"{word}={optional[word].flag_value}"
            if word.startswith("-") and not _is_number(word):
                spelled.append(word)
                current = word if word in lists else ""
            elif current and spelled[-1] != current:
                spelled += [current, word]
            else:
                spelled.append(word)
        return super().parse_args(ctx, spelled)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def to_json(data: Mapping[str, Any]) -> str:
    """One JSON object on one line; numpy scalars and arrays, paths and tuples are understood."""
    text = json.dumps(data, default=_plain, allow_nan=False, ensure_ascii=False)
    if harmless(text) != text:
        text = json.dumps(data, default=_plain, allow_nan=False)  # all as JSON spells it
    return text


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):  # numpy scalar or array, torch tensor
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    return str(value)


def table(header: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> str:
    """Columns aligned with blanks: those in ``left`` to the left, numbers to the right."""
    widths = [max(len(row[n]) for row in (header, *rows)) for n in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        aligned = (
            cell.ljust(width) if n in left else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join(aligned).rstrip()

    return "\n".join(map(line, (header, *rows)))


_SHARE = click.FloatRange(0, 1, min_open=True, max_open=True)
eval_users_option = click.option(
    "--eval-users",
    type=click.IntRange(min=1),
    metavar="N",
    help="Evaluate on a seeded sample of N users (default: all, or as a prepared set says).",
)
_DATA_OPTIONS: tuple[Callable[[Command], Command], ...] = (
    click.option("--data-dir", metavar="DIR", help="Look here first, and download to here."),
    click.option(
        "--download/--no-download",
        default=None,
        help="Fetch a missing file (the default, but with --resume).",
    ),
    click.option("--user-col", metavar="COL", help="Own table: user column (name, or number)."),
    click.option("--item-col", metavar="COL", help="Own table: item column."),
    click.option("--rating-col", metavar="COL", help="Own table: rating column."),
    click.option("--time-col", metavar="COL", help="Own table: time column."),
    click.option("--min-rating", type=float, help="Keep pairs rated at least this."),
    click.option(
        "--k-core",
        type=click.IntRange(min=1),
        metavar="K",
        help="Own data: users and items with at least K pairs.",
    ),
    click.option(
        "--split",
        type=click.Choice(["random", "leave-one-out"]),
        help="Own data: how to hold out (default random).",
    ),
    click.option("--test-ratio", type=_SHARE, help="Own data: share for test (default 0.1)."),
    click.option("--valid-ratio", type=_SHARE, help="Own data: share for valid (default 0.1)."),
    click.option("--valid-file", metavar="FILE", help="Own data: a file for valid."),
    click.option("--test-file", metavar="FILE", help="Own data: a file for test."),
    eval_users_option,
)
_DATA_NAMES = (
    *("data_dir", "download", "user_col", "item_col", "rating_col", "time_col", "min_rating"),
    *("k_core", "split", "test_ratio", "valid_ratio", "valid_file", "test_file", "eval_users"),
)


def data_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of ``robustcf.data.load``; the command gets them as one dict, ``data``.

    What was not given is None there: see :func:`load_arguments`.
    """

    @functools.wraps(function)
    def command(*args: Any, **kwargs: Any) -> Any:
        data = {name: kwargs.pop(name) for name in _DATA_NAMES}
        return function(*args, data=data, **kwargs)

    for option in reversed(_DATA_OPTIONS):
        command = option(command)
    return command


def own_table_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add those options of ``robustcf.data.load`` that say how a table is read and split."""
    places = ("data_dir", "download", "valid_file", "test_file")
    for name, option in reversed(list(zip(_DATA_NAMES, _DATA_OPTIONS, strict=True))):
        if name not in places:
            function = option(function)
    return function


class Bytes(click.ParamType):  # type: ignore[type-arg]
    """An amount of memory: ``4GB``, ``1500MB`` or a number of bytes."""

    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """As a number of bytes; GB are those of 2**30."""
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d{1,12}(?:\.\d{1,6})?)\s*([KMGT]?)i?B?", str(value), re.IGNORECASE)
        if match is None:
            self.fail(f"{value!r} is no amount of memory such as 4GB or 1500MB", param, ctx)
        power = " KMGT".index(match.group(2).upper() or " ")
        return int(float(match.group(1)) * 1024**power)


budget_option = click.option(
    "--budget",
    type=click.Choice(["row", "frobenius", "spectral"]),
    default="row",
    show_default=True,
    help="The norm that epsilon bounds, for each factor.",
)


def _unit_options(words: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """``--relative [own]`` and ``--absolute``; the command gets ``unit``, or None for neither."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @click.option(
            "--relative",
            type=click.Choice(["median", "own"]),
            is_flag=False,
            flag_value="median",
            metavar="[own]",
            help=words,
        )
        @click.option("--absolute", is_flag=True, help="Sizes as they are.")
        @functools.wraps(function)
        def command(*args: Any, relative: str | None, absolute: bool, **kwargs: Any) -> Any:
            if relative and absolute:
                raise click.UsageError("--relative and --absolute exclude each other: give one")
            unit = "own" if relative == "own" else "relative"
            return function(*args, unit="absolute" if absolute else unit, **kwargs)

        return command

    return decorate


unit_options = _unit_options(
    "Sizes in units of the factors' own size (median row norm, Frobenius or spectral norm, by the "
    "budget), which compares models of different scale: the default. With own: each row's size in "
    "its own length."
)
row_unit_options = _unit_options(
    "Sizes in median row norms of the factors: the default. With own: each row's size in its own "
    "length."
)
side_option = click.option(
    "--side",
    type=click.Choice(["both", "users", "items"]),
    default="both",
    show_default=True,
    help="Which factors are perturbed.",
)
cutoffs_option = click.option(
    "--k", "ks", type=click.IntRange(min=1), multiple=True, metavar="K...",
    help="Cutoffs of the metrics (default 10 20); beyond the catalogue: all items.",
)  # fmt: skip


def say_capped(ks: Sequence[int], n_items: int) -> None:
    """One line on stderr for cutoffs beyond the catalogue: they count all items."""
    beyond = sorted({k for k in ks if k > n_items})
    if beyond:
        words = " and ".join(map(str, beyond))
        say(f"robustcf: k {words} is beyond the catalogue: all {n_items:,} items count")


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


def _not_empty(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and not value.strip():
        raise click.BadParameter("must be a name, got an empty one")
    return value


def out_option(what: str, metavar: str = "DIR", *, required: bool = False) -> Callable[..., Any]:
    """``--out``: where a command writes; an empty name is refused."""
    return click.option("--out", metavar=metavar, required=required, callback=_not_empty, help=what)


#: Seeds are numbers of 63 bits.
SEED = click.IntRange(0, 2**63 - 1)


def load_arguments(
    dataset: str, data: Mapping[str, Any], split_seed: int
) -> tuple[str, dict[str, Any]]:
    """The arguments of ``robustcf.data.load`` from what was typed: paths that stay valid."""
    from robustcf.data.catalog import find
    from robustcf.data.layout import manifest_of

    options = {"download": True} | {k: value for k, value in data.items() if value is not None}
    options["seed"] = split_seed
    if find(dataset) is None and os.path.exists(os.path.expanduser(dataset)):
        dataset = os.path.abspath(os.path.expanduser(dataset))
        # The manifest has the checksums of a prepared set, and a run that of the manifest.
        dataset = os.fspath(manifest_of(Path(dataset)) or dataset)
    for key in ("data_dir", "valid_file", "test_file"):
        if key in options:
            options[key] = os.path.abspath(os.path.expanduser(options[key]))
    return dataset, options


def parse_settings(settings: Sequence[str]) -> dict[str, Any]:
    """``KEY=VALUE`` words as training settings; values are read as JSON where they are JSON."""
    values = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals:
            raise click.UsageError(f"--set needs KEY=VALUE, got {setting!r}")
        try:
            values[key.replace("-", "_")] = parse_json(text)
        except InputError:
            values[key.replace("-", "_")] = text
    return values


def say_replaced(run: Any) -> None:
    """Say that a run took the place of one that had come to nothing."""
    if run.replaced:
        say(
            f"robustcf: {run.path} held a run that ended before its first checkpoint; it was "
            "written over"
        )


def free_folder(name: str) -> Path:
    """A folder in ``runs/`` that is not there yet."""
    folder, number = Path("runs") / name, 1
    while folder.exists():
        number += 1
        folder = Path("runs") / f"{name}-{number}"
    return folder
