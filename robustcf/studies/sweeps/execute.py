"""Do what a plan says: train what is not there, attack what is not attacked, sum up.

Killed at any time and started again, a sweep goes on where it was and ends with the same files:
runs resume from their checkpoints, curves are written whole, and the summary is made from files.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from tqdm import tqdm

from robustcf.data import Split, load
from robustcf.errors import InputError, Interrupted
from robustcf.robustness import measure
from robustcf.robustness.table import CERTIFICATE
from robustcf.runs.config import RunConfig
from robustcf.runs.run import RunDir
from robustcf.runs.saved import SavedRun, open_run
from robustcf.studies.sweeps.plan import SweepPlan
from robustcf.studies.sweeps.report import write_report
from robustcf.studies.sweeps.summary import SHOWN, Summary, places, summarize
from robustcf.support.files import read_json, unwritable, write_json
from robustcf.support.schema import FLAG, check_kind, record, shown, whole

PLAN = "sweep.json"
_PLAN_KIND = record({"threads": whole(1)}, {"relative": FLAG})


def sweep(
    plan: SweepPlan,
    out: str | Path,
    *,
    runs: str | Path | None = None,
    jobs: int = 1,
    progress: bool = False,
) -> Summary:
    """Train, attack and sum up; or go on with a sweep that was stopped.

    Writes ``sweep.json`` (the plan), ``runs/``, ``curves.json``, ``curves.csv``, a picture for
    every attack (PNG and SVG) and ``report.md``.

    Args:
        plan: what to do.
        out: the folder.
        runs: where the runs are; ``out/runs`` by default. Sweeps of different attacks may share
            them: a run is taken only if it was trained as the plan says.
        jobs: runs that go on at a time, each with ``plan.threads`` threads. Results do not depend
            on it.
        progress: whether to show a bar.

    Raises:
        InputError: the folder holds a sweep of another plan or of other data, another sweep is at
            work in it, or jobs are more than the cores.

    Cost: that of the runs that are not there, and one curve for each run and attack.
    """
    folder = Path(out)
    home = folder / "runs" if runs is None else Path(runs)
    _check_jobs(jobs)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(folder, error) from error
    with _alone(folder), _goes_on(folder):
        split = load(plan.dataset, **plan.data)
        _keep_plan(plan, split, folder)
        units = len(plan.runs()) * (1 + len(plan.measured))
        bar: tqdm[Any]
        with tqdm(
            total=units, desc="sweep", unit="step", disable=not progress, file=sys.stderr
        ) as bar:
            if jobs == 1:
                for reg, seed in plan.runs():
                    for step in _complete(plan, home, reg, seed, split):
                        bar.set_postfix_str(f"{reg}, seed {seed}: {step}")
                        bar.update()
            else:
                _in_parallel(plan, home, jobs, bar)
        summary = summarize(plan, folder, home, split)
        write_report(summary)
        return summary


def kept_threads(out: str | Path) -> int | None:
    """The threads per run of the sweep that is already in this folder, or None."""
    kept = _kept_plan(Path(out))
    return None if kept is None else int(kept["threads"])


def _kept_plan(folder: Path) -> dict[str, Any] | None:
    path = folder / PLAN
    if not path.is_file():
        return None
    try:
        kept = read_json(path)
        check_kind(path, kept, _PLAN_KIND)
    except InputError as error:
        raise InputError(f"{path} is no plan of a sweep ({error}): choose another --out") from error
    if "relative" in kept:  # before units had names
        kept["unit"] = "relative" if kept.pop("relative") else "absolute"
    return kept


def _complete(plan: SweepPlan, home: Path, reg: str, seed: int, split: Split) -> Iterator[str]:
    """Bring one run to its end, step by step; says what has been done."""
    train, preset = plan.train_config(reg, seed)
    config = RunConfig(plan.dataset, dict(plan.data), train, plan.threads, preset=preset)
    path = home / f"{reg}-seed{seed}"
    run = RunDir(path) if path.exists() else RunDir.create(path, config, split)
    # Code that the plan names may be imported, and no other.
    run.allow_code = run.config.train.outside() == train.outside()
    known = run.config.train.resolved() if run.allow_code else None
    if (known, run.config.threads) != (train, plan.threads):
        raise InputError(
            f"{path} was trained with other settings than this sweep's: choose another --out"
        )
    run.check(split)
    if not run.settle() and run.execute(split).interrupted:
        raise run.interrupted()
    yield "trained"
    there: SavedRun = open_run(path)
    target = None
    for name in plan.measured:
        if not all(_is_whole(there, stem) for stem in places(plan, name)):
            target = run.target(split) if target is None else target
            run.save(measure(target, name, plan.threat, plan.epsilons))
        yield name


def _is_whole(run: SavedRun, stem: str) -> bool:
    """Whether a run has a curve, and the values of its users can be read.

    Until format 3 of curves, ensembles were taken user by user: such a one is made again.
    """
    try:
        curve = run.curves.get(stem)
        if curve is None or curve.facts["kind"] == "per user":
            return False
        # Under the name of an attack there may be something else, such as a certificate.
        known = stem.startswith(CERTIFICATE) or set(SHOWN) <= set(curve.facts["metrics"])
        return known and len(curve.users()) > 0
    except InputError:
        return False


def _in_parallel(plan: SweepPlan, home: Path, jobs: int, bar: tqdm[Any]) -> None:
    # Fresh processes: torch's threads do not survive a fork.
    pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))
    try:
        tasks = {
            pool.submit(_complete_run, plan, home, reg, seed): f"{reg}, seed {seed}"
            for reg, seed in plan.runs()
        }
        for task in as_completed(tasks):
            bar.update(task.result())
            bar.set_postfix_str(tasks[task])
    except KeyboardInterrupt:
        # Ctrl-C in a terminal reaches them all; SIGTERM does not.
        for worker in multiprocessing.active_children():
            if worker.pid is not None:
                with suppress(OSError):
                    os.kill(worker.pid, signal.SIGINT)
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _complete_run(plan: SweepPlan, home: Path, reg: str, seed: int) -> int:
    split = load(plan.dataset, **plan.data)
    return len(list(_complete(plan, home, reg, seed, split)))


def _check_jobs(jobs: int) -> None:
    cores = os.cpu_count() or 1
    if isinstance(jobs, bool) or not isinstance(jobs, int) or not 1 <= jobs <= cores:
        raise InputError(f"jobs must be between 1 and the number of cores, {cores}, got {jobs!r}")


def _keep_plan(plan: SweepPlan, split: Split, folder: Path) -> None:
    asked = {**plan.identity(), "fingerprint": split.fingerprint}
    kept = _kept_plan(folder)
    if kept is None:
        write_json(folder / PLAN, asked)
        return
    asked = json.loads(json.dumps(asked))
    for key in dict.fromkeys((*kept, *asked)):
        if kept.get(key) != asked.get(key):
            raise InputError(
                f"{folder} holds a sweep with {key[:60]} {_brief(kept.get(key))}, not "
                f"{_brief(asked.get(key))}: choose another --out, or ask for what it was begun with"
            )


def _brief(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 200 else shown(value)


@contextmanager
def _goes_on(folder: Path) -> Iterator[None]:
    """Say of an interrupted sweep that it can go on."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise Interrupted(
            f"interrupted, {folder} keeps what is done: go on with the same command"
        ) from error


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise InputError(f"another sweep is at work in {folder}: wait for it to end") from error
    try:
        yield
    finally:
        lock.release()
