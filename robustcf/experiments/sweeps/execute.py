"""Do what a plan says: train what is not there, attack what is not attacked, sum up.

Killed at any time and started again, a sweep goes on where it was and ends with the same files:
runs resume from their checkpoints, curves are written whole, and the summary is made from files.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm

from robustcf._io.schema import FLAG, record, whole
from robustcf.data import Split, load
from robustcf.errors import InputError
from robustcf.experiments.config import RunConfig
from robustcf.experiments.grids import (
    alone,
    check_jobs,
    goes_on,
    in_parallel,
    keep_plan,
    kept_plan,
    make_folder,
)
from robustcf.experiments.records import results_folder
from robustcf.experiments.run import RunDir
from robustcf.experiments.saved import SavedRun, open_run
from robustcf.experiments.sweeps.plan import SweepPlan
from robustcf.experiments.sweeps.report import write_report
from robustcf.experiments.sweeps.summary import Summary, places, summarize
from robustcf.recommender import Recommender
from robustcf.robustness import measure
from robustcf.training.config import TrainConfig

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
    check_jobs(jobs)
    make_folder(folder)
    with alone(folder, "sweep"), goes_on(folder):
        split = load(plan.dataset, **plan.data)
        asked = {**plan.identity(), "fingerprint": split.fingerprint}
        keep_plan(folder / PLAN, _kept_plan(folder), asked, "sweep")
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
    kept = kept_plan(folder / PLAN, _PLAN_KIND, "sweep")
    if kept is not None and "relative" in kept:  # before units had names
        kept["unit"] = "relative" if kept.pop("relative") else "absolute"
    return kept


def _complete(plan: SweepPlan, home: Path, reg: str, seed: int, split: Split) -> Iterator[str]:
    """Bring one run to its end, step by step; says what has been done."""
    train, preset = plan.train_config(reg, seed)
    config = RunConfig(plan.dataset, dict(plan.data), train, plan.threads, preset=preset)
    path = home / f"{reg}-seed{seed}"
    run = RunDir(path) if path.exists() else RunDir.create(path, config, split)
    # Code that the plan names may be imported, and no other.
    kept = run.config.train
    run.allow_code = isinstance(kept, TrainConfig) and kept.outside() == train.outside()
    known = kept.resolved() if isinstance(kept, TrainConfig) and run.allow_code else None
    if (known, run.config.threads) != (train, plan.threads):
        raise InputError(
            f"{path} was trained with other settings than this sweep's: choose another --out"
        )
    run.check(split)
    if not run.settle() and not run.execute(split):
        raise run.interrupted()
    yield "trained"
    there: SavedRun = open_run(path)
    model = None
    for name in plan.measured:
        if not all(_is_whole(there, settings) for settings in places(plan, name).values()):
            model = _opened(run, split) if model is None else model
            measure(model, name, plan.threat, plan.epsilons).save(results_folder(path))
        yield name


def _opened(run: RunDir, split: Split) -> Recommender:
    model = run.recommender()
    return model if model.has_interactions else run.recommender(split)


def _is_whole(run: SavedRun, settings: dict[str, Any]) -> bool:
    """Whether a run has a curve, and the values of its users can be read."""
    try:
        return len(run.find(settings).users()) > 0
    except InputError:
        return False


def _in_parallel(plan: SweepPlan, home: Path, jobs: int, bar: tqdm[Any]) -> None:
    def done(name: str, steps: int) -> None:
        bar.update(steps)
        bar.set_postfix_str(name)

    work = {f"{reg}, seed {seed}": (plan, home, reg, seed) for reg, seed in plan.runs()}
    in_parallel(_complete_run, work, jobs, done)


def _complete_run(plan: SweepPlan, home: Path, reg: str, seed: int) -> int:
    split = load(plan.dataset, **plan.data)
    return len(list(_complete(plan, home, reg, seed, split)))
