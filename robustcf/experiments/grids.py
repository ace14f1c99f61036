"""What all grids of trainings share: one at a time in a folder, a plan that stays, jobs.

Killed at any time and started again, a grid goes on where it was: each part of its work is in a
file of its own, whole or not there.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, TypeVar

from robustcf._cpus import cpus
from robustcf._io.files import read_json, unwritable, write_json
from robustcf._io.schema import Kind, check_kind, shown
from robustcf._io.temporary import alone_in
from robustcf.errors import InputError, Interrupted

Result = TypeVar("Result")

#: The signals that ask a process to stop.
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def make_folder(folder: Path) -> None:
    """Make a folder where there is none.

    Raises:
        WriteError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(folder, error) from error


def check_jobs(jobs: int) -> None:
    """Raise unless jobs are between 1 and the cores of this machine."""
    cores = os.cpu_count() or 1
    if isinstance(jobs, bool) or not isinstance(jobs, int) or not 1 <= jobs <= cores:
        raise InputError(f"jobs must be between 1 and the number of cores, {cores}, got {jobs!r}")


def threads_per_job(jobs: int, n_users: int | None = None, n_items: int | None = None) -> int:
    """Return the threads of each job unless the user gives a number: the CPUs, shared by the jobs.

    At most :func:`robustcf._runtime.threads_for` the size of the data, where that is known.

    Example:
        >>> threads_per_job(1, 50, 100), threads_per_job(10_000)
        (1, 1)
    """
    from robustcf._runtime import default_threads, threads_for

    most = default_threads()
    if n_users is not None and n_items is not None:
        most = threads_for(n_users, n_items)
    return max(1, min(most, cpus() // max(1, jobs)))


def kept_plan(path: Path, kind: Kind, what: str) -> dict[str, Any] | None:
    """The plan that a file holds, or None where there is no file.

    Args:
        path: of the file.
        kind: what such a plan holds.
        what: that is planned, in a word.

    Raises:
        InputError: the file is no such plan.
    """
    if not path.is_file():
        return None
    try:
        kept = read_json(path)
        check_kind(path, kept, kind)
    except InputError as error:
        raise InputError(
            f"{path} is no plan of a {what} ({error}): choose another --out"
        ) from error
    return kept


def keep_plan(
    path: Path, kept: Mapping[str, Any] | None, asked: Mapping[str, Any], what: str
) -> None:
    """Write a plan into its folder, or raise where another one is there.

    Args:
        path: of the file.
        kept: what is there, or None.
        asked: what is asked for now.
        what: that is planned, in a word.
    """
    if kept is None:
        write_json(path, asked)
        return
    asked = json.loads(json.dumps(asked))
    for key in dict.fromkeys((*kept, *asked)):
        if kept.get(key) != asked.get(key):
            raise InputError(
                f"{path.parent} holds a {what} with {key[:60]} {_brief(kept.get(key))}, not "
                f"{_brief(asked.get(key))}: choose another --out, or ask for what it was begun with"
            )


def _brief(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 200 else shown(value)


def in_parallel(
    work: Callable[..., Result],
    arguments: Mapping[str, tuple[Any, ...]],
    jobs: int,
    done: Callable[[str, Result], None],
) -> None:
    """Do work in fresh processes; Ctrl-C, SIGTERM and SIGHUP stop them all, without tracebacks.

    Args:
        work: a function of a module, which processes can import.
        arguments: name of a piece of work -> what the function gets.
        jobs: processes at a time.
        done: called with the name and the result of each piece that is done.
    """
    others = multiprocessing.active_children()
    # Fresh processes: torch's threads do not survive a fork.
    pool = ProcessPoolExecutor(
        jobs, mp_context=multiprocessing.get_context("spawn"), initializer=_begin_worker
    )
    try:
        with _starting_workers():
            tasks = {
                pool.submit(_do_piece, work, *given): name for name, given in arguments.items()
            }
        for task in as_completed(tasks):
            done(tasks[task], task.result())
    except KeyboardInterrupt:
        # Ctrl-C in a terminal reaches them all; SIGTERM does not, and is never ignored there.
        for worker in multiprocessing.active_children():
            if worker not in others and worker.pid is not None:
                with suppress(OSError):
                    os.kill(worker.pid, signal.SIGTERM)
        raise
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _starting_workers() -> Iterator[None]:
    """Start processes that keep signals pending until :func:`_begin_worker`.

    A signal to this process waits for the end of the block: it must know the processes it stops.
    """
    resource_tracker.ensure_running()  # starting it would end the blocking
    waiting: list[int] = []
    former: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in filter(_heeded, STOPS):
            former[number] = signal.signal(number, lambda given, _: waiting.append(given))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)  # processes inherit it
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for number, handler in former.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        for given in waiting[:1]:
            signal.raise_signal(given)


def _heeded(number: signal.Signals) -> bool:
    """Whether a signal stops this process: nohup and shells in the background ignore some."""
    return number == signal.SIGTERM or signal.getsignal(number) != signal.SIG_IGN


@dataclass
class _Worker:
    """What the handler of signals needs to know of its process."""

    busy: bool = False
    stopped: bool = False


_worker = _Worker()


def _begin_worker() -> None:
    """Let signals stop a piece of work, and do nothing to a process that has none."""
    for number in filter(_heeded, STOPS):
        signal.signal(number, _stop_worker)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)


def _stop_worker(number: int, frame: object) -> None:
    first, _worker.stopped = not _worker.stopped, True
    if first and _worker.busy:
        raise KeyboardInterrupt


def _do_piece(work: Callable[..., Result], *given: Any) -> Result:
    """Do one piece of work, unless the process was told to stop."""
    _worker.busy = True
    try:
        if _worker.stopped:
            raise KeyboardInterrupt
        return work(*given)
    finally:
        _worker.busy = False


@contextmanager
def goes_on(folder: Path) -> Iterator[None]:
    """Say of an interrupted grid that it can go on."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise Interrupted(
            f"interrupted, {folder} keeps what is done: go on with the same command"
        ) from error


@contextmanager
def alone(folder: Path, what: str) -> Iterator[None]:
    """Raise where somebody else is at work in this folder."""
    with alone_in(folder, f"another {what}", file=".lock"):
        yield


def compact_json(values: Mapping[str, Any]) -> bytes:
    """Indented JSON with every list of numbers on one line.

    Example:
        >>> print(compact_json({"a": [1, 2.5]}).decode(), end="")
        {
         "a": [1, 2.5]
        }
    """
    text = json.dumps(values, indent=1, allow_nan=False)
    # Texts are found as well, so that brackets in them stay as they are.
    flat = re.sub(r'"(?:[^"\\]|\\.)*"|\[[-+\d.e,\s]*\]', _on_one_line, text)
    return (flat + "\n").encode()


def _on_one_line(found: re.Match[str]) -> str:
    part = found[0]
    return part if part[0] == '"' else f"[{' '.join(part[1:-1].split())}]"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown.

    Example:
        >>> print(markdown(["a", "b"], [["1", "2"]]))
        | a | b |
        | --- | --- |
        | 1 | 2 |
    """
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
