"""Do what a plan of poisoning says: make profiles, retrain the victims, sum up.

Every cell (a victim under an attack) is a file of its own, and so are the profiles of an attack.
Killed at any time and started again, a grid goes on with the cells that are not there, and ends
with the same files.
"""

from __future__ import annotations

import dataclasses
import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from robustcf._io.files import write_json
from robustcf._io.reading import read_plain
from robustcf._io.schema import record, whole
from robustcf._registry import DEFENCES, POISONINGS
from robustcf._runtime import threads_used
from robustcf.data import Split, load
from robustcf.errors import InputError
from robustcf.experiments.grids import (
    alone,
    check_jobs,
    goes_on,
    in_parallel,
    keep_plan,
    kept_plan,
    make_folder,
    threads_per_job,
)
from robustcf.experiments.poisoning.plan import CLEAN, FILE, UNDEFENDED, Part, PoisonPlan
from robustcf.experiments.poisoning.report import write_report
from robustcf.experiments.poisoning.summary import (
    CELLS,
    PoisonSummary,
    cell_name,
    cell_path,
    read_cell,
    summarize,
)
from robustcf.poisoning.base import spent
from robustcf.poisoning.injection import read_profiles, write_profiles
from robustcf.poisoning.threat import ItemIds
from robustcf.poisoning.victim import retrained
from robustcf.training.presets import KINDS

PLAN = "poison.json"
PROFILES = "profiles"
_PLAN_KIND = record({"threads": whole(1)})
_MOST_BYTES = 1 << 30


def poison(
    plan: PoisonPlan, out: str | Path, *, jobs: int = 1, progress: bool = False
) -> PoisonSummary:
    """Attack, retrain and sum up; or go on with a grid that was stopped.

    Writes ``poison.json`` (the plan), ``profiles/`` (CSV, one for each attack, size and seed),
    ``cells/`` (one JSON for each victim under each attack), ``results.json``, ``results.csv``, a
    picture (PNG and SVG), ``report.md`` and ``report.txt``.

    Args:
        plan: what to do.
        out: the folder.
        jobs: pieces of work that go on at a time, each with ``plan.threads`` threads. Results do
            not depend on it.
        progress: whether to show a bar.

    Raises:
        InputError: the threat does not fit the data; the folder holds a grid of another plan or of
            other data; another one is at work in it; or jobs are more than the cores.

    Cost: one training for each victim, attack, size and seed that is not there.
    """
    folder = Path(out)
    check_jobs(jobs)
    split = load(plan.dataset, **plan.data)
    _check(plan, split)
    if plan.threads is None:
        used = kept_threads(folder) or threads_per_job(jobs, split.n_users, split.n_items)
        plan = dataclasses.replace(plan, threads=used)
    make_folder(folder)
    with alone(folder, "poisoning"), goes_on(folder):
        asked = {**plan.identity(), "fingerprint": split.fingerprint} | _digest(plan)
        # Presets and defaults may be others by the time that a grid is gone on with.
        for model in plan.models:
            asked[f"settings of {model}"] = plan.train_config(model, plan.seeds[0])[0].as_dict()
        keep_plan(folder / PLAN, _kept_plan(folder), asked, "poisoning")
        for name in (CELLS, PROFILES):
            make_folder(folder / name)
        units = len(plan.parts()) * len(plan.victims())
        bar: tqdm[Any]
        with tqdm(
            total=units, desc="poison", unit="training", disable=not progress, file=sys.stderr
        ) as bar:

            def done(name: str, steps: int) -> None:
                bar.update(steps)
                bar.set_postfix_str(name)

            if jobs == 1:
                with threads_used(plan.threads, exact=True):
                    for part in plan.parts():
                        for _ in _complete(plan, folder, part, split):
                            done(part.name, 1)
            else:
                work = {part.name: (plan, folder, part) for part in plan.parts()}
                in_parallel(_complete_part, work, jobs, done)
        summary = summarize(plan, folder, split)
        write_report(summary)
        return summary


def kept_threads(out: str | Path) -> int | None:
    """The threads of the grid that is already in this folder, or None."""
    kept = _kept_plan(Path(out))
    return None if kept is None else int(kept["threads"])


def _kept_plan(folder: Path) -> dict[str, Any] | None:
    return kept_plan(folder / PLAN, _PLAN_KIND, "poisoning")


def _digest(plan: PoisonPlan) -> dict[str, str]:
    """The content of the files of a plan: what is in them is part of it, not where they are."""
    files = {"profiles": plan.profiles}
    if plan.preset not in KINDS:
        files["preset"] = plan.preset
    return {
        name: hashlib.sha256(read_plain(Path(path), _MOST_BYTES, follow=True)).hexdigest()
        for name, path in files.items()
        if path is not None
    }


def _check(plan: PoisonPlan, split: Split) -> None:
    """Raise for what does not fit the data, before anything is made."""
    if len(split.test) == 0:
        raise InputError(
            f"{split.name} has no test pairs: what quality is lost cannot be seen; give "
            "--test-ratio or --test-file"
        )
    for seed in plan.seeds:
        plan.targets.choose(split.train, seed)
        for fakes in plan.sizes if plan.profiles is None else ():
            plan.threat(fakes).granted(split.train, seed)
    if plan.profiles is not None and not read_profiles(plan.profiles, split.train):
        raise InputError(f"{plan.profiles} has no profiles: expected one or more, a pair a row")


def _complete_part(plan: PoisonPlan, folder: Path, part: Part) -> int:
    split = load(plan.dataset, **plan.data)
    with threads_used(plan.threads, exact=True):
        return len(list(_complete(plan, folder, part, split)))


def _complete(plan: PoisonPlan, folder: Path, part: Part, split: Split) -> Iterator[str]:
    """Bring one piece of work to its end, victim by victim."""
    profiles: tuple[ItemIds, ...] | None = None
    for model, defence in plan.victims():
        if read_cell(plan, folder, model, defence, part) is None:
            if profiles is None:
                profiles = _profiles(plan, folder, part, split)
            targets = plan.targets.choose(split.train, part.seed)
            config, _ = plan.train_config(model, part.seed)
            found = retrained(
                split,
                config,
                profiles,
                targets,
                defence=None if defence == UNDEFENDED else DEFENCES[defence](),
                ks=plan.ks,
            )
            cell = cell_name(model, defence, part) | {
                "targets": targets.tolist(),
                "spent": spent(profiles),
                **_plain(found.as_dict()),
            }
            write_json(cell_path(folder, model, defence, part), cell)
        yield f"{model}, {defence}"


def _plain(value: Any) -> Any:
    """Numbers of numpy as Python's own, which JSON can hold."""
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


def _profiles(plan: PoisonPlan, folder: Path, part: Part, split: Split) -> tuple[ItemIds, ...]:
    """The profiles of an attack, which are kept in a file to look at and to reuse.

    They are made again where a cell is to be made: a file that somebody has changed since must not
    pass for the attack's.
    """
    if part.attack == CLEAN:
        return ()
    if part.attack == FILE:
        return read_profiles(str(plan.profiles), split.train)
    path = folder / PROFILES / f"{part.name}.csv"
    attack = POISONINGS[part.attack]()
    found = attack.attack(split.train, plan.threat(part.fakes), part.seed)
    write_profiles(path, found.profiles, split.train)
    return found.profiles
