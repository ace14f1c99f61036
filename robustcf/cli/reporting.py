"""Reporting: messages on stderr, and the outcome of a command on stdout as text or JSON.

A command returns a :class:`Report` and does not print on stdout itself. With ``--json``, stdout
holds exactly one JSON object; output of libraries goes to stderr.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, redirect_stdout, suppress
from dataclasses import dataclass
from typing import Any

import click

from robustcf._cpus import cpu_quota
from robustcf._distributed import job
from robustcf._io.text import aligned, harmless, wrapped
from robustcf.cli.kinds import ListCommand
from robustcf.errors import Interrupted, WriteError

#: Columns aligned for a terminal.
table = aligned


@dataclass(frozen=True)
class Report:
    """The outcome of a command, as a JSON object and as text.

    ``failed`` is one line on why the exit code is 1 although the command did its work.
    """

    data: Mapping[str, Any]
    text: str
    failed: str = ""


class Stopped(Exception):
    """A command was interrupted; for click's own exception, click prints an empty line."""


def say(line: str) -> None:
    """Write a line to stderr on the first rank; a failure to write is ignored."""
    if job().first:
        speak(line)


def speak(line: str) -> None:
    """Write a line to stderr on any rank."""
    with suppress(OSError):
        click.echo(harmless(line), err=True)


def _wrapped(text: str) -> str:
    """The text with long sentences on several lines; rows of tables have wide gaps and stay."""
    return "\n".join(line if "  " in line else wrapped(line) for line in text.split("\n"))


def shows_progress() -> bool:
    """Whether this is the first rank and stderr is a terminal."""
    return sys.stderr.isatty() and job().first


def command(
    name: str | None = None, *, threads: bool = True, kind: Any = ListCommand, **settings: Any
) -> Callable[[Callable[..., Report | None]], Any]:
    """Make a command of a function that returns its report: ``--threads``, ``--json``, ``--debug``.

    Args:
        name: the name of the command, if it is not that of the function.
        threads: whether the function runs with ``--threads``, which is not passed to it.
        kind: the class of the command.
        settings: other arguments of ``click.command``.
    """
    shared = [
        click.Option(["--json", "as_json"], is_flag=True, help="Print one JSON object on stdout."),
        click.Option(["--debug"], is_flag=True, help="Show the traceback of an error."),
    ]
    if threads:
        help_ = "CPU threads (default: OMP_NUM_THREADS, or the cores, fewer for small data)."
        shared.insert(0, click.Option(["--threads"], type=int, metavar="N", help=help_))

    def decorate(function: Callable[..., Report | None]) -> Any:
        @functools.wraps(function)
        def reported(*args: Any, as_json: bool, debug: bool, **kwargs: Any) -> None:
            try:
                used = _threads_used(kwargs.pop("threads")) if threads else nullcontext()
                with redirect_stdout(sys.stderr), used:
                    report = function(*args, **kwargs)
            except Interrupted as error:
                raise Stopped(str(error)) from error
            except KeyboardInterrupt as error:
                kept = "interrupted, what was finished before is kept: start it again"
                raise Stopped(kept) from error
            _tell(report, as_json=as_json)

        make: Any = click.command(name or function.__name__, cls=kind, **settings)
        made = make(reported)
        made.params += shared
        return made

    return decorate


def _threads_used(threads: int | None) -> AbstractContextManager[object]:
    if threads is None and cpu_quota() is None:
        return nullcontext()  # torch decides when it is loaded
    from robustcf._runtime import threads_used

    return threads_used(typed_threads(threads), exact=True)


def typed_threads(threads: int | None) -> int | None:
    """Return ``--threads``, at most the CPUs that may be used; a lower number is announced."""
    if threads is None:
        return None
    from robustcf._runtime import usable_threads

    return usable_threads(threads, lambda line: say(f"robustcf: {line}"))


def _tell(report: Report | None, *, as_json: bool) -> None:
    """Print a report on the first rank; None is that of a group with a subcommand."""
    if report is None and as_json:
        raise click.UsageError("--json belongs behind the subcommand")
    if report is None or not job().first:
        return
    try:
        click.echo(harmless(to_json(report.data) if as_json else _wrapped(report.text)))
    except BrokenPipeError:
        raise
    except OSError as error:
        reason = f"the output cannot be written ({error.strerror})"
        raise WriteError(f"{reason}: send it elsewhere; files were written") from error
    if report.failed:
        say(f"robustcf: {report.failed}")
        click.get_current_context().exit(1)


def to_json(data: Mapping[str, Any]) -> str:
    """Return one line of JSON; accepts numpy scalars and arrays, paths and tuples."""
    text = json.dumps(data, default=_plain, allow_nan=False, ensure_ascii=False)
    if harmless(text) != text:
        text = json.dumps(data, default=_plain, allow_nan=False)  # with JSON's escapes
    return text


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):  # numpy scalar or array, torch tensor
        return value.tolist()
    return dict(value) if isinstance(value, Mapping) else str(value)


def numbers(values: Iterable[float]) -> list[str]:
    """Return numbers with four decimals, the cells of a table."""
    return [f"{value:.4f}" for value in values]


def say_capped(ks: Sequence[int], n_items: int) -> None:
    """Announce cutoffs beyond the catalogue, which count all items."""
    beyond = sorted({k for k in ks if k > n_items})
    if beyond:
        words = " and ".join(map(str, beyond))
        say(f"robustcf: k {words} is beyond the catalogue: all {n_items:,} items count")
