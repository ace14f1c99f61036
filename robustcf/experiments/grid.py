"""Grids of trainings: a plan that its folder keeps, cells in one process or several, tables.

A grid that was stopped or killed resumes with the same command. Each result is a file of its own,
written whole or not at all.
"""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import re
import shlex
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from robustcf._checks import check_integer
from robustcf._cpus import cpus
from robustcf._io.files import csv_bytes, read_json, unwritable, write_bytes, write_json
from robustcf._io.plots import Panel, plot_panels
from robustcf._io.progress import bar
from robustcf._io.schema import check_kind, record, shown, whole
from robustcf._io.temporary import alone_in
from robustcf._io.text import counted
from robustcf._registry import MODELS
from robustcf._runtime import MOST_THREADS, environment, threads_for
from robustcf.data import Split, load
from robustcf.data.catalog import find
from robustcf.errors import InputError, Interrupted

# The fingerprint says what the data are; where they are does not matter.
_PLACES = ("data_dir", "download")
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Beyond this a mean over thousands of users says nothing, and files stay small.
_DIGITS = 7

Array = npt.NDArray[np.float64]
PlanT = TypeVar("PlanT", bound="Plan")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Plan(ABC):
    """The settings that decide the results of a grid, apart from the content of the data.

    Args:
        dataset: a name or a path.
        data: further arguments of :func:`robustcf.data.load`.
        models: what is trained.
        preset: the kind of preset that training settings come from.
        changes: training settings that differ from the preset.
        seeds: of training.
        threads: torch threads per training; another number may round differently. None: as in an
            earlier call in the same folder, else by the size of the data, shared by the jobs.

    Raises:
        InputError: a value is unknown, repeated or out of range, or a list is empty.
    """

    #: The grid in messages, its command, and one of its steps.
    grid: ClassVar[str]
    verb: ClassVar[str]
    step: ClassVar[str]
    #: Fields that must be non-empty lists of unique values.
    lists: ClassVar[tuple[str, ...]] = ("models", "seeds")

    dataset: str
    data: Mapping[str, Any] = field(default_factory=dict)
    models: tuple[str, ...] = ()
    preset: str = "tuned"
    changes: Mapping[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] = (0, 1, 2)
    threads: int | None = 1

    def __post_init__(self) -> None:
        for name in self.lists:
            check_unique(name, getattr(self, name))
        for seed in self.seeds:
            check_integer("every seed", seed, 0)
        if self.threads is not None:
            check_integer("threads", self.threads, 1, MOST_THREADS)
        for model in self.models:
            self.check_model(model)

    def check_model(self, model: str) -> None:
        """Raise for a model that the grid does not know."""
        MODELS[model]

    @abstractmethod
    def cells(self) -> Sequence[Any]:
        """Return all pieces of work, in order; each has a unique ``name``."""

    @abstractmethod
    def steps(self) -> Sequence[Any]:
        """Return the steps of each cell."""

    @abstractmethod
    def complete(self, folder: Path, cell: Any, split: Split) -> Iterator[str]:
        """Do the missing steps of a cell, and name each one that is done."""

    @abstractmethod
    def own_words(self) -> list[str]:
        """Return the options of the command that other grids do not have."""

    def pinned(self, split: Split) -> dict[str, Any]:
        """Return other facts that must stay; raise where the plan does not fit the data."""
        return {"fingerprint": split.fingerprint}

    @property
    def named(self) -> tuple[str, ...]:
        """The models that the command names."""
        return self.models

    @property
    def data_name(self) -> str:
        """The name of the data, by which presets are found."""
        manifest = find(self.dataset)
        return Path(self.dataset).name if manifest is None else manifest.name

    def identity(self) -> dict[str, Any]:
        """Return the plan in plain values, without the place of the data."""
        plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self), default=str))
        plain["data"] = {key: v for key, v in plain["data"].items() if key not in _PLACES}
        return plain

    def facts(self, split: Split) -> dict[str, Any]:
        """Return the first entries of the table of results."""
        return {
            "format": f"robustcf {self.grid} 1",
            "plan": self.identity(),
            "fingerprint": split.fingerprint,
            "environment": environment() | {"threads": self.threads},
        }

    def command(self) -> str | None:
        """Return the equivalent command, without the place of the data.

        None where the seeds are not 0, 1, ..., which the command cannot express.
        """
        if list(self.seeds) != list(range(len(self.seeds))):
            return None
        words = ["robustcf", self.verb, "--dataset", Path(self.dataset).name]
        words += ["--model", *self.named, *self.own_words()]
        words += ["--preset", self.preset, "--seeds", str(len(self.seeds))]
        for key, value in self.changes.items():
            words += ["--set", f"{key}={json.dumps(value)}"]
        for key, value in self.identity()["data"].items():
            words += [f"--{'split-seed' if key == 'seed' else key.replace('_', '-')}", str(value)]
        return shlex.join([*words, "--threads", str(self.threads), "--out", "DIR"])

    def made(self, *lines: str) -> str:
        """Return the end of a report: these lines, then seeds, command, threads and versions."""
        command, packages = self.command(), environment()["packages"]
        listed = [
            *lines,
            f"{counted(len(self.seeds), 'seed')}: {', '.join(map(str, self.seeds))}.",
            *([] if command is None else [f"Command: `{command}`"]),
            f"Threads per training: {self.threads}. Versions: "
            f"{', '.join(f'{name} {version}' for name, version in packages.items())}.",
        ]
        return bullets(listed)


def check_unique(name: str, values: Sequence[object]) -> None:
    """Raise unless a list is non-empty and its values differ."""
    if not values or len(set(values)) != len(values):
        raise InputError(f"{name} must be a non-empty list of unique values, got {list(values)}")


def make_folder(folder: Path) -> None:
    """Make a folder if it is missing; raise :class:`WriteError` where it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(folder, error) from error


def run_grid(
    plan: PlanT,
    folder: Path,
    summarize: Callable[[PlanT, Split], Result],
    *,
    work: Path | None = None,
    split: Split | None = None,
    jobs: int = 1,
    progress: bool | None = False,
) -> Result:
    """Do the missing cells of a grid, then summarize.

    Args:
        plan: its models, data, seeds and settings.
        folder: keeps the plan; one process at a time works in it.
        summarize: called with the plan, its threads filled in, and the data.
        work: where cells write; ``folder`` by default.
        split: the data, where they are in memory already; other processes load them.
        jobs: cells at a time, each in a process of its own. Results do not depend on it.
        progress: whether to show a bar; None: in a terminal and in a notebook.

    Raises:
        InputError: the plan does not fit the data; the folder holds a grid of another plan or of
            other data; another process is at work in it; or there are more jobs than cores.
        Interrupted: by a signal; finished steps are kept.
    """
    check_integer("jobs", jobs, 1, os.cpu_count() or 1)
    split = load(plan.dataset, **plan.data) if split is None else split
    path = folder / f"{plan.verb}.json"
    pinned = plan.pinned(split)
    if plan.threads is None:
        shared = max(1, min(threads_for(split.n_users, split.n_items), cpus() // jobs))
        kept = _kept_plan(path, plan.grid) or {"threads": shared}
        plan = dataclasses.replace(plan, threads=kept["threads"])
    home = folder if work is None else work
    make_folder(folder)
    with alone_in(folder, f"another {plan.grid}", file=".lock"):
        keep_plan(path, plan.identity() | pinned, plan.grid)
        cells = plan.cells()
        try:
            with bar(len(cells) * len(plan.steps()), plan.grid, plan.step, progress) as steps:

                def done(words: str, count: int) -> None:
                    steps.update(count)
                    steps.set_postfix_str(words)

                if jobs == 1:
                    for cell in cells:
                        for step in plan.complete(home, cell, split):
                            done(f"{cell.name}: {step}", 1)
                else:
                    in_parallel(_complete, {c.name: (plan, home, c) for c in cells}, jobs, done)
            return summarize(plan, split)
        except KeyboardInterrupt as error:
            raise Interrupted(
                f"interrupted, {folder} keeps what is done: go on with the same command"
            ) from error


def _complete(plan: Plan, home: Path, cell: Any) -> int:
    return len(list(plan.complete(home, cell, load(plan.dataset, **plan.data))))


def _kept_plan(path: Path, grid: str) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        kept = read_json(path)
        check_kind(path, kept, record({"threads": whole(1)}))
    except InputError as error:
        raise InputError(
            f"{path} is not the plan of a {grid} ({error}): choose another --out"
        ) from error
    return kept


def keep_plan(path: Path, asked: Mapping[str, Any], grid: str) -> None:
    """Write a plan into its folder, or raise where the folder has another one."""
    kept = _kept_plan(path, grid)
    if kept is None:
        write_json(path, asked)
        return
    asked = json.loads(json.dumps(asked))
    for key in dict.fromkeys((*kept, *asked)):
        if kept.get(key) != asked.get(key):
            before, now = (
                text if len(text := str(value)) <= 200 else shown(value)
                for value in (kept.get(key), asked.get(key))
            )
            raise InputError(
                f"{path.parent} holds a {grid} with {key[:60]} {before}, not {now}: choose another "
                "--out, or repeat its settings"
            )


# --- several processes ------------------------------------------------------------------------


def in_parallel(
    work: Callable[..., Result],
    arguments: Mapping[str, tuple[Any, ...]],
    jobs: int,
    done: Callable[[str, Result], None],
) -> None:
    """Do work in fresh processes; Ctrl-C, SIGTERM and SIGHUP stop them all, without tracebacks.

    ``work`` must be importable; ``arguments`` are by the name of a piece of work; ``done`` gets the
    name and the result of each finished piece.
    """
    others = multiprocessing.active_children()
    # Fresh processes: torch's threads do not survive a fork.
    pool = ProcessPoolExecutor(
        jobs, mp_context=multiprocessing.get_context("spawn"), initializer=_begin_worker
    )
    try:
        with _starting_workers():
            tasks = {pool.submit(_do_piece, work, *args): name for name, args in arguments.items()}
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
        for number in filter(_heeded, _STOPS):
            former[number] = signal.signal(number, lambda given, _: waiting.append(given))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)  # processes inherit it
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


_worker = SimpleNamespace(busy=False, stopped=False)


def _begin_worker() -> None:
    """Let signals stop a piece of work, and do nothing to an idle process."""
    for number in filter(_heeded, _STOPS):
        signal.signal(number, _stop_worker)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)


def _stop_worker(number: int, frame: object) -> None:
    first, _worker.stopped = not _worker.stopped, True
    if first and _worker.busy:
        raise KeyboardInterrupt


def _do_piece(work: Callable[..., Result], *given: Any) -> Result:
    _worker.busy = True
    try:
        if _worker.stopped:
            raise KeyboardInterrupt
        return work(*given)
    finally:
        _worker.busy = False


# --- tables and pictures ----------------------------------------------------------------------


def write_results(
    folder: Path,
    name: str,
    values: Mapping[str, Any],
    rows: Iterable[Mapping[str, Any]],
    pictures: Mapping[str, tuple[str, list[list[Panel]]]],
    report: Iterable[str],
    tables: Mapping[str, str] | None = None,
) -> None:
    """Write ``name.json``, ``name.csv``, pictures (PNG, SVG, PDF), ``report.md`` and LaTeX tables.

    ``values`` are for JSON, ``rows`` for CSV, ``pictures`` are titles and panels by file name,
    ``report`` has paragraphs, of which empty ones are left out, and ``tables`` are by file name.
    """
    write_bytes(folder / f"{name}.json", compact_json(values))
    write_bytes(folder / f"{name}.csv", csv_bytes(rows))
    for picture, (title, panels) in pictures.items():
        for suffix in ("png", "svg", "pdf"):
            plot_panels(panels, folder / f"{picture}.{suffix}", title=title)
    for table, text in (tables or {}).items():
        write_bytes(folder / f"{table}.tex", (text + "\n").encode())
    write_bytes(folder / "report.md", ("\n\n".join(filter(None, report)) + "\n").encode())


def bullets(lines: Iterable[str]) -> str:
    """Return a list in Markdown."""
    return "\n".join(f"- {line}" for line in lines)


def rounded(values: npt.ArrayLike) -> Any:
    """Return plain numbers with as many digits as are kept in files."""
    return np.round(np.asarray(values, dtype=np.float64), _DIGITS).tolist()


def spread(values: Array, digits: int = 4) -> str:
    """Return the mean over seeds, and the range of several.

    Example:
        >>> spread(np.array([0.1, 0.2])), spread(np.array([0.5]))
        ('0.1500 (0.1000 to 0.2000)', '0.5000')
    """
    mean, low, high = (f"{each():.{digits}f}" for each in (values.mean, values.min, values.max))
    return f"{mean} ({low} to {high})" if len(values) > 1 else mean


def compact_json(values: Mapping[str, Any]) -> bytes:
    """Return indented JSON with every list of numbers on one line.

    Example:
        >>> print(compact_json({"a": [1, 2.5]}).decode(), end="")
        {
         "a": [1, 2.5]
        }
    """

    def on_one_line(found: re.Match[str]) -> str:
        part = found[0]
        return part if part[0] == '"' else f"[{' '.join(part[1:-1].split())}]"

    text = json.dumps(values, indent=1, allow_nan=False)
    # Texts are matched as well, so that brackets in them stay as they are.
    return (re.sub(r'"(?:[^"\\]|\\.)*"|\[[-+\d.e,\s]*\]', on_one_line, text) + "\n").encode()
