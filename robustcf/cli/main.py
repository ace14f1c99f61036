"""Entry point: the command group, and what becomes of errors.

Exit codes: 0 done, 1 failed with a one-line reason (``--debug`` shows the traceback), 2 wrong
usage, 130 stopped by Ctrl-C, 143 stopped by SIGTERM, 129 stopped by SIGHUP.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import TextIO

import click

from robustcf import __version__
from robustcf._distributed import job, joined, launched
from robustcf.cli.entry import end, heed
from robustcf.cli.reporting import Stopped, say, speak, to_json
from robustcf.errors import IdleSettingError, RanksError, RobustcfError

_CODES = """Exit codes: 0 done; 1 failed, with the reason in one line; 2 wrong usage; 130 stopped
by Ctrl-C; 143 stopped by SIGTERM; 129 stopped by SIGHUP."""


# Command -> the module that has it, under the command's name or, for ``import``, ``import_``.
_COMMANDS = {
    name: name
    for name in (
        *("datasets", "train", "tune", "import", "evaluate", "recommend", "attack", "certify"),
        *("audit", "harden", "report", "compare", "sweep", "poison", "detect", "norm", "vision"),
    )
} | {"import": "importing", "report": "audit"}


class _Commands(click.Group):
    """Commands that are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_COMMANDS, *self.commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return super().get_command(ctx, cmd_name)
        module = import_module(f"robustcf.cli.{_COMMANDS[cmd_name]}")
        command: click.Command = getattr(module, "import_" if cmd_name == "import" else cmd_name)
        return command


def commands_of(group: click.Group) -> dict[str, click.Command]:
    """Return all commands of a group, imported, by name."""
    context = click.Context(group)
    found = {name: group.get_command(context, name) for name in group.list_commands(context)}
    return {name: command for name, command in found.items() if command is not None}


@click.group(
    cls=_Commands,
    epilog=_CODES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="robustcf")
def cli() -> None:
    """Robust collaborative filtering: measure, prove and improve how rankings hold under attack."""


#: Commands whose work several processes can share.
SHARED = ("train", "evaluate", "attack", "certify", "audit")
# Seconds that a rank waits for the first one to say what went wrong.
_HEARD = 2.0
# Exit codes from here on tell a signal.
_STOPPED = 128

# Signals that asked to stop.
_signals: list[int] = []
# Why this command failed, once that has been said.
_told: list[str] = []


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command line and exit with its code."""
    words = sys.argv[1:] if arguments is None else arguments
    if words:  # imported now, while a signal still ends the process at once
        cli.get_command(click.Context(cli), words[0])
    try:
        heed(_terminated)
        code = run(words)
        # The reason has been said: torchrun, say, stops a rank that is about to end anyway.
        heed(_leave if _told else end)
    except KeyboardInterrupt:
        code = _stop_code() if _told else _fail(words, "interrupted", _stop_code())
    sys.exit(_flushed(code))


def _terminated(number: int, frame: object) -> None:
    """Stop a command in the same orderly way by Ctrl-C, SIGTERM and SIGHUP."""
    _signals.append(number)
    raise KeyboardInterrupt


def _leave(number: int, frame: object) -> None:
    """End the process at once without another word."""
    os._exit(128 + number)


def _flushed(code: int) -> int:
    """Write out the buffers now: at its end, Python would fail with a traceback."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError as error:
            _discard(stream)
            if code == 0 and not isinstance(error, BrokenPipeError):
                say(f"robustcf: the output cannot be written ({error.strerror})")
            code = code or 1
    return code


def _discard(stream: TextIO) -> None:
    """Discard buffered output silently."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def run(arguments: Sequence[str]) -> int:
    """Run a command line; returns the exit code instead of exiting."""
    _told.clear()
    try:
        with _together(arguments):
            # Outside standalone mode click hands back the code of --help and --version as a value.
            code = cli.main(list(arguments), prog_name="robustcf", standalone_mode=False)
            return code if isinstance(code, int) else 0
    except Stopped as error:
        return _fail(arguments, str(error), _stop_code())
    except (click.exceptions.Abort, KeyboardInterrupt):
        return _fail(arguments, "interrupted", _stop_code())
    except RanksError as error:
        # The first rank knows best what is kept: if it is still there, it speaks.
        if not job().first:
            _wait(_HEARD)
        return _fail(arguments, str(error), 1, lost=True)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else "robustcf"
        return _fail(arguments, f"{error.format_message()} (try '{where} --help')", error.exit_code)
    except click.ClickException as error:
        return _fail(arguments, error.format_message(), error.exit_code)
    except BrokenPipeError:
        # The reader of our output has left (head, less).
        _discard(sys.stdout)
        return 1
    except IdleSettingError as error:
        return _fail(arguments, str(error), 2)
    except RobustcfError as error:
        return _fail(arguments, str(error), 1)
    except OSError as error:
        # Files have names: without one, it is what --help or --version print.
        nameless = error.errno == errno.ENOSPC and error.filename is None
        words = f"the output cannot be written ({error.strerror})" if nameless else str(error)
        return _fail(arguments, words, 1)
    except MemoryError:
        return _fail(arguments, "there is not enough memory: ask for less, or use less data", 1)
    except Exception as error:
        reason = f"internal error, {type(error).__name__}: {error}"
        hint = "" if "--debug" in arguments else " (--debug shows where)"
        return _fail(arguments, reason + hint, 1)


@contextmanager
def _together(arguments: Sequence[str]) -> Iterator[None]:
    """Join the processes that torchrun started, for commands that share their work."""
    if launched() == 1 or "--help" in arguments or "-h" in arguments:
        yield
        return
    name = next((word for word in arguments if not word.startswith("-")), "")
    if name not in SHARED:
        raise click.UsageError(
            f"'robustcf {name}' runs in one process: start it without torchrun, which is for "
            f"{', '.join(SHARED)}"
        )
    with joined() as team:
        if not team.first:
            warnings.simplefilter("ignore")  # the first rank has the same to say
        try:
            yield
        except RanksError:
            raise
        except BaseException as error:
            # Before the others find this rank gone: the reason is here, not there.
            _speaks(_STOPPED if isinstance(error, Stopped | KeyboardInterrupt) else 1)
            raise


def _wait(seconds: float) -> None:
    """Sleep through signals: torchrun sends one as soon as one rank has ended."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        with suppress(KeyboardInterrupt):
            time.sleep(left)


def _fail(arguments: Sequence[str], reason: str, code: int, *, lost: bool = False) -> int:
    line = " ".join(reason.split())
    if not _speaks(code, lost=lost):
        return code
    if "--debug" in arguments and code == 1:
        traceback.print_exc()
    _told.append(line)
    speak(f"robustcf: {line}")
    if "--json" in arguments:
        with suppress(OSError):
            click.echo(to_json({"error": line}))
    return code


def _speaks(code: int, *, lost: bool = False) -> bool:
    """Whether this process is the one of its job that says what went wrong.

    Args:
        code: its exit code.
        lost: whether the ranks did not find each other; then one speaks on each machine.
    """
    team = job()
    if team.size == 1 and launched() > 1:  # they have not found each other
        return os.environ.get("LOCAL_RANK" if lost else "RANK", "0") == "0"
    # Who was stopped tells what is kept, which is the first rank's to know.
    return team.speaks() if team.first or code < _STOPPED else False


def _stop_code() -> int:
    """128 and the number of the signal, as in shells: 143 for SIGTERM, 130 for Ctrl-C."""
    return 128 + (_signals[-1] if _signals else signal.SIGINT)
