"""Start and resume trainings, alone or as one of several ranks that must agree."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from robustcf._checks import check_known
from robustcf._distributed import job, restarts
from robustcf._io.text import counted
from robustcf._runtime import device_of, set_threads, threads_for
from robustcf.data import Split, load
from robustcf.data.catalog import find
from robustcf.errors import IdleSettingError, InputError
from robustcf.experiments.folders import free_folder
from robustcf.experiments.opening import check_one_process, check_same, in_turn
from robustcf.experiments.run import RunConfig, RunDir, assist
from robustcf.models.voting import VoteConfig
from robustcf.recommender.saved import read_recommender
from robustcf.training.config import TrainConfig
from robustcf.training.presets import adapted, check_used, choose
from robustcf.training.search import search_settings

_BASELINE = "\n      (a baseline without training: nothing that was trained did better on valid)"
_SHOWN = ("ndcg@10", "recall@20", "ndcg@20", "mrr@10", "coverage@10")
Say = Callable[[str], None]


def start_run(
    dataset: str,
    data: Mapping[str, Any],
    *,
    model: str | None = None,
    reg: str | None = None,
    preset: str | None = None,
    changes: Mapping[str, Any],
    minutes: float | None = None,
    trials: int | None = None,
    memory: float | None = None,
    seed: int = 0,
    threads: int | None = None,
    device: str = "cpu",
    out: str | None = None,
    progress: bool = False,
    say: Say,
) -> RunDir | None:
    """Train in a new folder; returns the run, or None on a rank that does not write.

    Args:
        dataset: a known set, or a file of your own.
        data: the other arguments of :func:`robustcf.data.load`.
        model: name of the model, or ``vote``; None for the best known.
        reg: name of the regularizer; None for the model's own.
        preset: see :func:`robustcf.training.presets.choose`.
        changes: settings that differ from the preset, by their flat names.
        minutes: upper limit of the search of the preset ``auto``, as for ``trials`` and
            ``memory``, see :func:`robustcf.training.search.search`.
        threads: None by the size of the data.
        out: the folder; None for a new one in ``runs/``.
        say: called with lines for people.
    """
    manifest = find(dataset)
    name = manifest.name if manifest is not None else Path(dataset).name
    config: TrainConfig | VoteConfig
    used, searches = None, False
    if model == "vote":
        check_one_process()
        check_known(VoteConfig, changes)
        config = VoteConfig(seed=seed, **changes)
    else:
        chosen = choose(name, model, reg, preset, changed=changes)
        used, searches = chosen.name, chosen.searches
        limits = {"trials": trials, "memory": memory, "minutes": minutes}
        heeded = list(limits) if searches and not chosen.under_attack else ["minutes"] * searches
        idle = [key for key, own in limits.items() if own is not None and key not in heeded]
        if idle:
            raise IdleSettingError(
                f"{' and '.join(idle)} is for a search (presets auto and robust): leave it out"
            )
        _check_ranks(out, searches=searches)
        config = adapted(chosen.config, changes).replace(seed=seed)
        check_used(config, changes)
    device_of(device)
    set_threads(threads)
    split = in_turn(lambda: load(dataset, **data))
    if model != "vote" and chosen.under_attack:
        from robustcf.experiments.frontier import frontier  # for this preset alone

        found = frontier(split, minutes=minutes, seed=seed, report=say)
        say(str(found))
        config, searches = adapted(found.config, changes).replace(seed=seed), False
    run_config = RunConfig(
        dataset,
        data,
        config,
        set_threads(threads or threads_for(split.n_users, split.n_items)),
        device,
        preset=used,
        search=search_settings(minutes, trials, memory) if searches else None,
    )
    label = "-".join((used or "set.vote").split(".")[1:]).replace(":", ".") or used
    folder = Path(out) if out else free_folder(f"{Path(name).stem}-{label}-seed{seed}")
    check_same(split, config=run_config.to_json())
    if not job().first:
        assist(run_config, split)
        return None
    if restarts()[0] and folder.exists():
        run = RunDir(folder, allow_code=True)
        if run.config.to_json() != run_config.to_json():
            raise InputError(f"{folder} holds a run of other settings: choose another --out")
        return run if run.settle() else _executed(run, split, progress, say)
    run = RunDir.create(folder, run_config, split)
    if run.replaced:
        say(f"robustcf: {run.path} held a run that ended before its first checkpoint: replaced")
    return _executed(run, split, progress, say)


def resume_run(
    folder: str, *, allow_code: bool = False, progress: bool = False, say: Say, **places: Any
) -> RunDir | None:
    """Resume a run with its own settings; returns it, or None on a rank that does not write.

    ``places`` are those of ``RunDir.split``; other arguments as in :func:`start_run`.
    """
    team = job()
    run = RunDir(folder, allow_code=allow_code)
    if run.is_vote:
        check_one_process()
    # One rank looks: it removes what a kill left.
    done = team.first and run.settle()
    if team.text_from_first("done" if done else ""):
        return run if team.first else None
    set_threads(run.config.threads)
    split = in_turn(lambda: run.split(**places))
    _check_ranks(folder, searches=run.config.search is not None)
    check_same(split, config=run.config.to_json())
    if team.first:
        return _executed(run, split, progress, say)
    assist(run.config, split)
    return None


def _executed(run: RunDir, split: Split, progress: bool, say: Say) -> RunDir:
    if not run.execute(split, progress=progress, report=say):
        raise run.interrupted()
    return run


def _check_ranks(out: str | None, *, searches: bool) -> None:
    """Raise for what several ranks, or a launcher that starts again, cannot do."""
    if searches and job().size > 1:
        raise InputError(
            "settings are searched for in one process: run 'robustcf tune', then --preset FILE"
        )
    if out is None and restarts()[1]:
        raise InputError("a training with --max-restarts must know its folder: give --out DIR")


def describe(run: RunDir) -> str:
    """Return the result of a run in words: metrics with their protocol, time, and its folder."""
    result = run.metrics()
    lines = _metric_lines(result)
    seconds, fit_on = f"{result['train_seconds']:.1f} s", f"fit on {result['learnt_from']}"
    if run.is_vote:
        from robustcf.models.voting.vote import stored_config  # on demand: votes are seldom

        lines += [
            f"{stored_config(read_recommender(run.path)['scorer']).words}; {fit_on} in {seconds}",
            f"run: {run.path}",
            f"next: robustcf certify {run.path} --fakes 0 1 2 5 10 20",
        ]
        return "\n".join(lines)
    norm = result.get("two_to_inf")  # item-item models have none
    words = "" if norm is None else f"; norm of the scores (two-to-infinity) {norm:.2f}"
    lines.append(f"{counted(result['epochs'], 'epoch')} in {seconds}, {fit_on}{words}")
    searched = result.get("search")
    if searched is not None:
        lines.append(
            f"chosen out of {searched['trials']} trials in {searched['seconds']:.0f} s: "
            f"{searched['chosen']}{_BASELINE if searched['baseline'] else ''}"
        )
        if searched.get("not_tried"):
            lines.append(f"not tried: {searched['not_tried']} settings, for lack of time or memory")
    return "\n".join([*lines, *served_words(result), f"run: {run.path}"])


def served_words(facts: Mapping[str, Any]) -> list[str]:
    """Return a line on users computed from their histories, next to stored ones; else nothing."""
    found = facts.get("fold-in")
    if not isinstance(found, Mapping):
        return []
    share = f"{found['overlap@10']:.1%} of the top 10 of stored users stay"
    names = [name for name in found if name.startswith("valid")]
    values = "".join(f"; {name} {found[name]:.4f}" for name in names)
    return [f"users are computed from their histories: {share}{values}"]


def _metric_lines(result: Mapping[str, Any]) -> list[str]:
    """The metrics of a run's parts, with their protocol."""
    lines = []
    for part in ("test", "valid"):
        if (values := result[part]) is None:
            continue
        protocol = values["protocol"]
        masked = " and ".join(protocol["masked"])
        known = protocol.get("sampled_from")
        sample = f", a sample of {known:,}" if known else ""
        lines.append(f"{part:6}" + "  ".join(f"{name} {values[name]:.4f}" for name in _SHOWN))
        lines.append(
            f"      ({protocol['dataset']}: full ranking, {masked} masked, "
            f"{protocol['n_users']:,} users{sample})"
        )
    return lines
