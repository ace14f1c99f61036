"""Entry point: the command group, and how errors are reported.

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
from robustcf._checks import RENAMED, near
from robustcf._distributed import job, joined, launched
from robustcf.cli.entry import end, heed
from robustcf.cli.reporting import Stopped, say, speak, to_json
from robustcf.errors import IdleSettingError, RanksError, RobustcfError

_CODES = """Exit codes: 0 done; 1 failed, with the reason in one line; 2 wrong usage; 130 stopped
by Ctrl-C; 143 stopped by SIGTERM; 129 stopped by SIGHUP."""
# In the order of help; each in the module of its name, except for:
_COMMANDS = (
    *("datasets", "train", "tune", "import", "evaluate", "recommend", "attack", "certify"),
    *("audit", "harden", "report", "compare", "sweep", "poison", "detect", "norm", "vision"),
    *("fakes", "frontier", "submit", "verify", "leaderboard"),
)
_MODULES = {"import": "importing", "report": "audit"}
_MODULES |= dict.fromkeys(("submit", "verify"), "leaderboard")
#: Commands whose work several processes can share.
_SHARED = ("train", "evaluate", "attack", "certify", "audit")
# Seconds that a rank waits for the first one to report the reason of a failure.
_HEARD = 2.0
# Seconds that a rank which found the same error keeps quiet, at most, until the first has said it.
_HELD = 30.0
# Exit codes from here on name a signal.
_STOPPED = 128

# Signals that asked to stop.
_signals: list[int] = []
# Reasons of failure that were reported.
_told: list[str] = []


class _Commands(click.Group):
    """Commands that are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_COMMANDS, *self.commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return super().get_command(ctx, cmd_name)
        module = import_module(f"robustcf.cli.{_MODULES.get(cmd_name, cmd_name)}")
        command: click.Command = getattr(module, "import_" if cmd_name == "import" else cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0].startswith("-") or args[0] in self.list_commands(ctx):
            return super().resolve_command(ctx, args)
        hint = near(args[0], self.list_commands(ctx))
        raise click.UsageError(f"No such command {args[0]!r}{hint}", ctx)


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
    """Robust collaborative filtering: measure, certify and improve rankings under attack."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command line and exit with its code."""
    words = sys.argv[1:] if arguments is None else arguments
    if words:  # imported now, while a signal still ends the process at once
        cli.get_command(click.Context(cli), words[0])
    try:
        heed(_terminated)
        code = run(words)
        # After a reported failure, a signal (of torchrun, say) ends the process silently.
        heed(_leave if _told else end)
    except KeyboardInterrupt:
        code = _stop_code() if _told else _fail(words, "interrupted", _stop_code())
    sys.exit(_flushed(code))


def _terminated(number: int, frame: object) -> None:
    """Stop a command in the same orderly way by Ctrl-C, SIGTERM and SIGHUP."""
    _signals.append(number)
    raise KeyboardInterrupt(number)


def _leave(number: int, frame: object) -> None:
    os._exit(_STOPPED + number)


def _stop_code() -> int:
    return _STOPPED + (_signals[-1] if _signals else signal.SIGINT)


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
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except BrokenPipeError:  # the reader of our output has left (head, less)
        _discard(sys.stdout)
        return 1
    except RanksError as error:
        if not job().first:  # the first rank knows best what is kept, and reports it
            _wait(_HEARD)
        return _fail(arguments, str(error), 1, lost=True)
    except (Exception, KeyboardInterrupt) as error:
        return _fail(arguments, *_reason(error, arguments))


def _reason(error: BaseException, arguments: Sequence[str]) -> tuple[str, int]:
    """Return the message and the exit code of an error."""
    match error:
        case Stopped():
            return str(error), _stop_code()
        case click.exceptions.Abort() | KeyboardInterrupt():
            return "interrupted", _stop_code()
        case click.UsageError():
            where = error.ctx.command_path if error.ctx else "robustcf"
            words = error.format_message()
            if isinstance(error, click.NoSuchOption) and error.option_name[2:] in RENAMED:
                old = error.option_name
                words = f"No such option {old!r}: use --{RENAMED[old[2:]]}"
            return f"{words} (try '{where} --help')", error.exit_code
        case click.ClickException():
            return error.format_message(), error.exit_code
        case RobustcfError():
            return str(error), 2 if isinstance(error, IdleSettingError) else 1
        case OSError(errno=errno.ENOSPC, filename=None):  # of --help or --version
            return f"the output cannot be written ({error.strerror})", 1
        case OSError():
            return str(error), 1
        case MemoryError():
            return "there is not enough memory: ask for less, or use less data", 1
    if _signals:  # a library that was being imported made an error of its own of it
        return "interrupted", _stop_code()
    hint = "" if "--debug" in arguments else " (--debug shows where)"
    return f"internal error, {type(error).__name__}: {error}{hint}", 1


@contextmanager
def _together(arguments: Sequence[str]) -> Iterator[None]:
    """Join the processes that torchrun started, for commands that share their work."""
    if launched() == 1 or "--help" in arguments or "-h" in arguments:
        yield
        return
    name = next((word for word in arguments if not word.startswith("-")), "")
    if name not in _SHARED:
        advice = f"start it without torchrun, which is for {', '.join(_SHARED)}"
        raise click.UsageError(f"'robustcf {name}' runs in one process: {advice}")
    with joined() as team:
        if not team.first:
            warnings.simplefilter("ignore")  # the first rank shows the same ones
        try:
            yield
        except RanksError:
            raise
        except BaseException as error:
            # Before the other ranks find this one gone and report that instead.
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
        if job().size == 1 and not lost:  # torchrun stops the first rank as soon as this one ends
            with suppress(KeyboardInterrupt):
                time.sleep(_HELD)
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
    """Whether this process is the one of its job that reports a failure.

    ``lost`` means that the ranks did not find each other; then one per machine reports.
    """
    team = job()
    if team.size == 1 and launched() > 1:  # they have not found each other
        return os.environ.get("LOCAL_RANK" if lost else "RANK", "0") == "0"
    # After an interruption, only the first rank knows what is kept.
    return team.speaks() if team.first or code < _STOPPED else False
