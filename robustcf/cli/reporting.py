"""One way to report: what a command says on stderr, and its outcome on stdout, as text or JSON.

A command returns a :class:`Report` and prints nothing on stdout itself. With ``--json``, stdout
holds exactly one JSON object; whatever a library prints meanwhile goes to stderr.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from typing import Any

import click

from robustcf._cpus import cpu_quota
from robustcf._distributed import job
from robustcf._io.text import aligned, harmless
from robustcf.cli.kinds import ListCommand
from robustcf.errors import Interrupted, WriteError

#: Columns aligned for a terminal.
table = aligned


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
    """Write a line to stderr on the first rank; work goes on where it cannot be written."""
    if job().first:
        speak(line)


def speak(line: str) -> None:
    """Write a line to stderr, whatever the rank."""
    with suppress(OSError):
        click.echo(harmless(line), err=True)


def shows_progress() -> bool:
    """Whether this is the first rank and stderr is a terminal."""
    return sys.stderr.isatty() and job().first


def command(
    name: str | None = None, *, threads: bool = True, kind: Any = ListCommand, **settings: Any
) -> Callable[[Callable[..., Report | None]], Any]:
    """Make a command of a function that returns its report: ``--threads``, ``--json``, ``--debug``.

    Args:
        name: the name of the command, if it is not that of the function.
        threads: whether the function runs with ``--threads``, which it does not get itself.
        kind: the class of the command.
        settings: of the command.
    """
    shared = [
        click.Option(["--json", "as_json"], is_flag=True, help="Print one JSON object on stdout."),
        click.Option(["--debug"], is_flag=True, help="Show the traceback of an error."),
    ]
    if threads:
        help_ = "CPU threads (default: OMP_NUM_THREADS, or the cores, fewer for small data)."
        shared.insert(0, click.Option(["--threads"], type=int, metavar="N", help=help_))

    def decorate(function: Callable[..., Report | None]) -> Any:
        run = _threaded(function) if threads else function
        make: Any = click.command(name or function.__name__, cls=kind, **settings)
        made = make(_reported(run))
        made.params += shared
        return made

    return decorate


def _reported(function: Callable[..., Report | None]) -> Callable[..., None]:
    @functools.wraps(function)
    def command(*args: Any, as_json: bool, debug: bool, **kwargs: Any) -> None:
        try:
            with redirect_stdout(sys.stderr):
                report = function(*args, **kwargs)
        except Interrupted as error:
            raise Stopped(str(error)) from error
        except KeyboardInterrupt as error:
            kept = "interrupted, what was finished before is kept: start it again"
            raise Stopped(kept) from error
        if report is None and as_json:  # a group that hands over to a subcommand
            raise click.UsageError("--json belongs behind the subcommand")
        if report is not None and job().first:
            _print(to_json(report.data) if as_json else report.text)
            if report.failed:
                say(f"robustcf: {report.failed}")
                click.get_current_context().exit(1)

    return command


def _threaded(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def command(*args: Any, threads: int | None, **kwargs: Any) -> Any:
        if threads is None and cpu_quota() is None:
            return function(*args, **kwargs)  # torch, when it is loaded, knows the rest
        from robustcf._runtime import threads_used

        with threads_used(typed_threads(threads), exact=True):
            return function(*args, **kwargs)

    return command


def typed_threads(threads: int | None) -> int | None:
    """Return ``--threads`` as typed, at most the CPUs that may be used; says so on stderr."""
    if threads is None:
        return None
    from robustcf._runtime import usable_threads

    return usable_threads(threads, lambda line: say(f"robustcf: {line}"))


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


def to_json(data: Mapping[str, Any]) -> str:
    """Return one line of JSON; numpy scalars and arrays, paths and tuples are understood."""
    text = json.dumps(data, default=_plain, allow_nan=False, ensure_ascii=False)
    if harmless(text) != text:
        text = json.dumps(data, default=_plain, allow_nan=False)  # all as JSON spells it
    return text


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):  # numpy scalar or array, torch tensor
        return value.tolist()
    return dict(value) if isinstance(value, Mapping) else str(value)


def numbers(values: Iterable[float]) -> list[str]:
    """Return numbers with four decimals, the cells of a table."""
    return [f"{value:.4f}" for value in values]


def say_capped(ks: Sequence[int], n_items: int) -> None:
    """Say which cutoffs are beyond the catalogue: they count all items."""
    beyond = sorted({k for k in ks if k > n_items})
    if beyond:
        words = " and ".join(map(str, beyond))
        say(f"robustcf: k {words} is beyond the catalogue: all {n_items:,} items count")
