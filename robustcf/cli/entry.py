"""The first module of the command: it handles signals while the others are imported.

It imports nothing slow. A signal during start-up, or after the command has ended, ends the process
with one line; while a command runs, :mod:`robustcf.cli.main` reports what is kept.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

#: The signals that stop a command, with an exit code of 128 plus their number.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command line and exit with its code."""
    heed(end)
    from robustcf.cli.main import main as run_and_exit

    run_and_exit(arguments)


def heed(handler: Callable[[int, object], None]) -> None:
    """Handle signals, except those that the caller ignores (nohup, background jobs)."""
    for number in SIGNALS:
        if number == signal.SIGTERM or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)


def end(number: int, frame: object) -> None:
    """End the process at once with one line, written past the buffers of Python."""
    if os.environ.get("RANK", "0") == "0":
        lines = {2: "robustcf: interrupted\n"}
        if "--json" in sys.argv:
            lines[1] = '{"error": "interrupted"}\n'
        for descriptor, line in lines.items():
            with suppress(OSError):
                os.write(descriptor, line.encode())
    os._exit(128 + number)
