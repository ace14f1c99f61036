"""Two jobs whose arguments are slow to read, for a process that is stopped meanwhile.

``python -m tests.experiments.workers FOLDER`` writes ``FOLDER/begun`` when an argument is read.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import Any

from robustcf.experiments.grid import in_parallel


def read(folder: str) -> str:
    """What unpickling an argument calls."""
    Path(folder, "begun").touch()
    time.sleep(1.0)
    return folder


class Slow:
    """An argument that takes a second to read."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return read, (self.folder,)


def work(folder: str) -> None:
    """A piece of work that leaves a file."""
    Path(folder, "done").touch()


def stop(number: int, frame: object) -> None:
    """Stop as the command line does."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, stop)
    given = {str(n): (Slow(sys.argv[1]),) for n in range(4)}
    try:
        in_parallel(work, given, 1, lambda *_: None)
    except KeyboardInterrupt:
        sys.exit(7)
