"""One way to report: what a command says on stderr, and its outcome on stdout, as text or JSON.

A command returns a :class:`Report` and prints nothing on stdout itself. With ``--json``, stdout
holds exactly one JSON object; whatever a library prints meanwhile goes to stderr.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from typing import Any

import click

from robustcf._distributed import job
from robustcf._io.text import harmless
from robustcf.errors import Interrupted, WriteError


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


def say_capped(ks: Sequence[int], n_items: int) -> None:
    """One line on stderr for cutoffs beyond the catalogue: they count all items."""
    beyond = sorted({k for k in ks if k > n_items})
    if beyond:
        words = " and ".join(map(str, beyond))
        say(f"robustcf: k {words} is beyond the catalogue: all {n_items:,} items count")


def say_replaced(run: Any) -> None:
    """Say that a run took the place of one that had come to nothing."""
    if run.replaced:
        say(
            f"robustcf: {run.path} held a run that ended before its first checkpoint; it was "
            "written over"
        )
