"""The first module of the command: it answers signals while the others are imported.

So it imports nothing that takes time. A signal during start-up, or after the command has ended,
ends the process with one line; while a command runs, :mod:`robustcf.cli.main` says what is kept.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

#: The signals that stop a command. Its exit code is 128 plus the number of the signal.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command line and exit with its code."""
    heed(end)
    from robustcf.cli.main import main as run_and_exit

    run_and_exit(arguments)


def heed(handler: Callable[[int, object], None]) -> None:
    """Have signals handled, but for those that the caller ignores (nohup, jobs in background)."""
    for number in SIGNALS:
        if number == signal.SIGTERM or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)


def end(number: int, frame: object) -> None:
    """End the process at once with one line: nothing is unfinished that could be kept."""
    if os.environ.get("RANK", "0") == "0":
        _write(2, "robustcf: interrupted\n")
        if "--json" in sys.argv:
            _write(1, '{"error": "interrupted"}\n')
    os._exit(128 + number)


def _write(descriptor: int, line: str) -> None:
    """Write past the buffers of Python, which may be in use or not be there yet."""
    with suppress(OSError):
        os.write(descriptor, line.encode())
