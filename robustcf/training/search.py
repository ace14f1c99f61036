"""``search``: the best settings for a data set without a tuned preset, on validation data.

A portfolio of models is tried, baselines in closed form and then short trainings; the best are
improved one setting at a time; then the best item-item model and the best factors are added up.
Small sets are validated on several splits drawn alike, and trials race over them: one that is
clearly worse than the best is not trained for the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from pathlib import Path
from signal import SIGINT
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from robustcf import _runtime
from robustcf._checks import check_integer, check_number
from robustcf._io import files, schema
from robustcf._io.progress import bar
from robustcf._io.schema import TEXT, check_kind, list_of, nullable, record, whole
from robustcf._randomness import stream
from robustcf.data.holdout import hold_out, hold_out_last
from robustcf.data.split import Split
from robustcf.errors import InputError, Interrupted, TrainingError
from robustcf.metrics.evaluate import evaluate_rankings
from robustcf.training.config import TrainConfig
from robustcf.training.fitting import fit_scorer, fit_split
from robustcf.training.portfolio import MOST_JUDGED, Settings, Size, Values, moves, portfolio

MINUTES = 5.0
_BASELINES = ("popularity", "als", "sparse-ease", "item-knn", "graph-filter")
_ITEM_ITEM = ("sparse-ease", "item-knn", "graph-filter")
_Values64 = npt.NDArray[np.float64]
METRIC = "ndcg@20"
_VALUE = f"valid {METRIC}"
# The largest share of the budget that one trial may be expected to take.
_LONGEST = 0.2
_IMPROVE, _ENSEMBLE = "improve", "ensemble"
# Weights of the second member of an ensemble, and the standard errors by which it must win.
_SHARES, _AHEAD = (0.2, 0.35, 0.5, 0.65, 0.8, 0.9), 2.0
# The largest share of the machine's memory that a trial may be expected to take.
_MEMORY = 0.6
# A trial that is this many standard errors behind the best is not trained for further parts.
_BEHIND = 1.0
# Validation pairs below which one more part is drawn, and the most parts.
_PAIRS_PER_PART, _MOST_PARTS = 8_000, 3
_TRIAL_KIND = record(
    {
        "settings": record({"model": schema.NAME}),
        "value": nullable(schema.NUMBER),
        "error": nullable(schema.NOT_NEGATIVE),
        "seconds": schema.NOT_NEGATIVE,
        "stage": TEXT,
        "parts": whole(1),
    },
    others=schema.ABSENT,
)
_TRIALS_KIND = record({"trials": list_of(_TRIAL_KIND)})
_BEGUN_KIND = record({"found": record({"fingerprint": TEXT}, {"seed": whole(0, 2**128)})})


@dataclass(frozen=True)
class Trial:
    """One configuration that was tried.

    The value is NDCG@20 on valid, mean over the validation parts; None if training diverged. For a
    trial given up after some parts: the best value before it plus the difference on these parts.
    """

    settings: Values  # flat, those that differ from the defaults
    value: float | None
    error: float | None  # standard error over users of the difference to the best before it
    seconds: float
    stage: str  # ``portfolio``, ``improve`` or ``ensemble``
    parts: int = 1  # validation parts that it was trained for

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return {**vars(self), "seconds": round(self.seconds, 3)}

    def beats(self, best: Trial | None) -> bool:
        """Return whether it is better than the best so far."""
        return self.value is not None and (best is None or self.value > (best.value or 0.0))


def read_trials(path: Path) -> list[Trial]:
    """Return the trials of a search in a file, its own or a preset's."""
    values = files.read_json(path, follow=True)
    kept: Any = values if "trials" in values else values.get("found")
    check_kind(path, kept, _TRIALS_KIND)
    return [Trial(**entry) for entry in kept["trials"]]


@dataclass(frozen=True)
class Found:
    """The result of a search: the flat settings of the best trial, and all trials in order."""

    settings: Values
    trials: tuple[Trial, ...]
    parts: int  # validation parts behind the value of the best trial
    seconds: float  # CPU time of all trials
    not_tried: tuple[Values, ...] = ()  # for lack of time or memory
    interrupted: bool = False  # by Ctrl-C: the best so far

    @property
    def config(self) -> TrainConfig:
        """The settings as a configuration."""
        return TrainConfig.of(**self.settings, epochs_chosen=True)

    @property
    def best(self) -> Trial:
        """The trial with these settings."""
        return next(trial for trial in self.trials if trial.settings == self.settings)

    def summary(self) -> dict[str, Any]:
        """Return the facts for the metrics of a run."""
        return {
            "trials": len(self.trials),
            "seconds": round(self.seconds, 3),
            _VALUE: self.best.value,
            "parts": self.parts,
            "chosen": _words(self.settings),
            "baseline": self.settings["model"] in _BASELINES or self.settings.get("epochs") == 0,
            "not_tried": len(self.not_tried),
        }

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        trials = [trial.as_dict() for trial in self.trials]
        more = {"settings": dict(self.settings), "metric": _VALUE, "trials": trials}
        return {**self.summary(), **more, "not_tried": list(self.not_tried)}

    def table(self) -> str:
        """Return the trials as text, best first."""
        lines = [f"{_VALUE:>14}  seconds  settings"]
        for trial in sorted(self.trials, key=lambda t: -(t.value if t.value is not None else -1.0)):
            given_up = " (given up)" if trial.parts < self.parts else ""
            lines.append(f"{_line(trial, 14, 7)}{given_up}")
        lines += [f"{'not tried':>14}           {_words(each)}" for each in self.not_tried]
        return "\n".join(lines)


def search_settings(
    minutes: float | None = None, trials: int | None = None, memory: float | None = None
) -> Values:
    """Return the settings of a search, for the configuration of a run."""
    wanted = MINUTES if minutes is None else minutes
    how: Values = {"minutes": check_number("minutes", wanted, positive=True)}
    if trials is not None:
        how["trials"] = check_integer("trials", trials)
    if memory is not None:
        how["memory"] = check_number("memory", memory, positive=True)
    return how


def search(
    split: Split,
    *,
    minutes: float = MINUTES,
    trials: int | None = None,
    memory: float | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    done: Sequence[Trial] = (),
    record: Callable[[Sequence[Trial]], None] | None = None,
    report: Callable[[str], None] | None = None,
    progress: bool | None = False,
) -> Found:
    """Find the settings with the best NDCG@20 on valid; test pairs are never touched.

    Args:
        minutes: CPU time at most, so that a busy machine finds the same.
        trials: number of trials at most, instead of the time: the same everywhere.
        memory: GB that a trial may be expected to take; None for 60 % of the machine's.
        seed: of training and of the validation parts that are drawn.
        done: trials of an interrupted search of these data, which are not repeated.
        record: called with all trials after each; pending trials of ``done`` come last.
        report: called with a line of text after each trial.
        progress: whether to show a bar; None for terminals and notebooks only.

    Raises:
        InputError: there are no validation pairs, or ``minutes`` is not positive.

    Ctrl-C ends the search with the best settings so far; ``interrupted`` says so.

    Cost: at most ``minutes`` and the trial during which they end. A resumed search repeats its best
    trial once to compare with, which is not counted.

    Example:
        >>> from robustcf.data import checkerboard
        >>> search(checkerboard(), minutes=0.02).best.value > 0.5
        True
    """
    how = search_settings(minutes, trials, memory)
    if len(split.valid) == 0:
        raise InputError(
            f"{split.name} has no validation pairs to search on: load it with a share of them, or "
            "name a model and its settings"
        )
    with bar(None, "search", "trial", progress) as steps:

        def tried(trials: Sequence[Trial], best: Trial | None) -> None:
            if record is not None:
                record(_with_pending(trials, done))
            steps.set_postfix_str(f"best {best.value:.4f}" if best else "")
            steps.update()
            if report is not None:
                report(_line(trials[-1], unit=" s"))

        state = _Search(split, how["minutes"] * 60.0, seed, device, done, tried)
        state.most = how.get("trials")
        state.memory = how["memory"] * 1e9 if memory else _MEMORY * (_runtime.memory() or 2**62)
        found = state.run()
        if found.interrupted and report is not None:
            report("interrupted: the best settings so far are taken")
        return found


class _Search:
    """The state of a search: parts, trials, clock."""

    def __init__(
        self,
        split: Split,
        limit: float,
        seed: int,
        device: torch.device | str,
        done: Sequence[Trial],
        tried: Callable[[Sequence[Trial], Trial | None], None],
    ) -> None:
        self.parts, self.size = [_judged(p) for p in validation_parts(split, seed)], Size.of(split)
        self.limit, self.seed, self.device = limit, seed, device
        self.done, self.tried = done, tried
        self.most: int | None = None
        self.memory = float("inf")
        self.trials: list[Trial] = []
        self.skipped: list[Values] = []
        self.best: Trial | None = None
        # Values of the best trial per user and part; None if an earlier search made it.
        self._best_users: list[_Values64] | None = None

    @property
    def spent(self) -> float:
        return sum(trial.seconds for trial in self.trials)

    def run(self) -> Found:
        interrupted = False
        try:
            self.steps()
        except KeyboardInterrupt as stop:
            # A signal other than Ctrl-C ends the process, which can be resumed.
            if self.best is None or stop.args not in ((), (SIGINT,)):
                raise
            interrupted = True
        if self.best is None:
            raise TrainingError(f"all {len(self.trials)} trials of the search diverged")
        found, parts = dict(self.best.settings), len(self.parts)
        skipped = tuple(own for own in self.skipped if _find(self.trials, own) is None)
        return Found(found, tuple(self.trials), parts, self.spent, skipped, interrupted)

    def steps(self) -> None:
        for settings in portfolio(self.size, _LONGEST * self.limit / len(self.parts)):
            self.attempt(settings, "portfolio")
        # Time for the ensembles is kept back.
        kept = sum(self.predicted(rungs[0]) for rungs in self.sums())
        improved = self.improved()
        for place, leader in enumerate(improved):
            free = max(0.0, self.limit - kept - self.spent)
            self.improve(leader, self.spent + free / (len(improved) - place))
        self.ensembles()

    def leaders(self) -> Iterator[Trial]:
        """Yield the best trial per family, best first."""
        families = set()
        finite = [t for t in self.trials if t.value is not None and t.stage != _ENSEMBLE]
        for trial in sorted(finite, key=lambda trial: -(trial.value or 0.0)):
            if (family := _family(trial.settings)) not in families:
                families.add(family)
                yield trial

    def members(self) -> list[Trial]:
        """Return the best item-item model and the best two families of factors."""
        items: list[Trial] = []
        factors: list[Trial] = []
        for trial in self.leaders():
            (items if trial.settings["model"] in _ITEM_ITEM else factors).append(trial)
        return [*items[:1], *factors[:2]] if items else []

    def improved(self) -> list[Trial]:
        """Return three trials to improve, best first: those to be added up, and the next best."""
        leaders = list(self.leaders())
        first = self.members()[:2]
        chosen = [*first, *(trial for trial in leaders if trial not in first)][:3]
        return [trial for trial in leaders if trial in chosen]

    def sums(self) -> list[list[Values]]:
        """Return ensembles of the best item-item model and the best factors, by their shares."""
        members = [dict(trial.settings) for trial in self.members()]
        both = [[members[0], own] for own in members[1:] if own["model"] != "popularity"]
        return [
            [{"model": _ENSEMBLE, "members": two, "share": share} for share in _SHARES]
            for two in both
        ]

    def ensembles(self) -> None:
        """Try sums of the best item-item model and the best factors."""
        for rungs in self.sums():
            self.add_up(rungs)

    def add_up(self, rungs: Sequence[Values]) -> None:
        trials = [_find(self.done, settings) for settings in rungs]
        if None in trials:
            if not self.fits(rungs[0], self.limit):
                return
            trials = [*self.summed(rungs)]
        # Each share must win clearly against the best before; of those that do, the best is taken.
        before = (self.best.value or 0.0) if self.best else 0.0
        for trial in trials:
            if trial is None:
                continue
            self.trials.append(trial)
            ahead = (trial.value or 0.0) - before > _AHEAD * (trial.error or 0.0)
            if ahead and trial.beats(self.best):
                self.best, self._best_users = trial, None
            self.tried(self.trials, self.best)

    def summed(self, rungs: Sequence[Values]) -> Iterator[Trial]:
        """Yield trials of ensembles that differ in the share: their members are fit once."""
        rivals, began = self.best_users() or [], time.process_time()
        users: list[list[_Values64]] = [[] for _ in rungs]
        for part in self.parts:
            own: Any = fit_scorer(part.train, rungs[0], seed=self.seed, device=self.device)
            ranks = own.rankers([settings["share"] for settings in rungs])
            for rank, values in zip(ranks, users, strict=True):
                report = evaluate_rankings(rank, part, (20,), part="valid")
                values.append(report.per_user[METRIC])
        seconds = (time.process_time() - began) / len(rungs)
        for settings, values in zip(rungs, users, strict=True):
            _, error = _difference(values, rivals)
            value = float(np.mean([each.mean() for each in values]))
            yield Trial(settings, value, error, seconds, _ENSEMBLE, len(self.parts))

    def improve(self, leader: Trial, until: float) -> None:
        """Change one setting at a time while that helps and time is left."""
        before = None
        while leader is not before:
            before = leader
            for move in moves(leader.settings, self.size):
                # Continue in a direction that helps.
                while (settings := move(leader.settings)) is not None:
                    trial = self.attempt(settings, _IMPROVE, until)
                    if trial is None or (trial.value or 0.0) <= (leader.value or 0.0):
                        break
                    leader = trial

    def attempt(self, settings: Values, stage: str, until: float | None = None) -> Trial | None:
        """Try settings unless they were tried already or would take too long."""
        if (again := _find(self.trials, settings)) is not None:
            return again
        if not self.fits(settings, self.limit if until is None else until):
            return None
        trial = _find(self.done, settings)
        better = trial is not None and trial.beats(self.best)
        # The value of a trial that was given up is a guess: it cannot become the best.
        if trial is None or (better and trial.parts < len(self.parts)):
            trial = self.measured(settings, stage)
        elif better:
            self.best, self._best_users = trial, None
        self.trials.append(trial)
        self.tried(self.trials, self.best)
        return trial

    def fits(self, settings: Values, until: float) -> bool:
        """Return whether time and memory are left for settings; else note them as not tried."""
        if self.most is not None:
            fits = len(self.trials) < self.most
        else:
            cost = self.predicted(settings)
            # An ensemble is several trials, which fit their members together.
            longest = (1.0 if settings["model"] == _ENSEMBLE else _LONGEST) * self.limit
            fits = self.spent + cost <= until and cost <= longest
        fits = (fits or not self.trials) and self.size.memory(settings) <= self.memory
        if not fits and settings not in self.skipped:
            self.skipped.append(settings)
        return fits

    def predicted(self, settings: Settings) -> float:
        """Return the expected seconds on all parts, from the trial of the model closest in cost."""
        if settings["model"] == _ENSEMBLE:
            return 1.5 * sum(self.predicted(own) for own in settings["members"])
        cost = self.size.cost(settings)
        same = [t for t in reversed(self.trials) if _family(t.settings) == _family(settings)]
        if same:
            costs = [self.size.cost(trial.settings) for trial in same]
            near = min(range(len(same)), key=lambda n: abs(log(costs[n] / cost)))
            cost *= same[near].seconds / same[near].parts / costs[near]
        return cost * len(self.parts)

    def measured(self, settings: Values, stage: str) -> Trial:
        """Race against the best trial so far, which is replaced if it loses."""
        rivals = self.best_users()
        began = time.process_time()
        users: list[_Values64] = []
        gap = error = None
        try:
            for part in self.parts:
                users.append(self.on_part(settings, part))
                if rivals is not None:
                    gap, error = _difference(users, rivals)
                    if gap < -_BEHIND * error:
                        break
        except TrainingError:
            seconds = time.process_time() - began
            return Trial(settings, None, None, seconds, stage, len(users) + 1)
        whole = len(users) == len(self.parts)
        if whole or self.best is None or self.best.value is None or gap is None:
            value = float(np.mean([part.mean() for part in users]))
        else:
            value = self.best.value + gap
        trial = Trial(settings, value, error, time.process_time() - began, stage, len(users))
        if whole and trial.beats(self.best):
            self.best, self._best_users = trial, users
        return trial

    def best_users(self) -> list[_Values64] | None:
        """Return the values of the best trial on all parts, repeated if they are not known."""
        if self.best is not None and self._best_users is None:
            settings = dict(self.best.settings)
            self._best_users = [self.on_part(settings, part) for part in self.parts]
        return self._best_users

    def on_part(self, settings: Values, part: Split) -> _Values64:
        """Return NDCG@20 per user on the validation pairs of one part."""
        config = TrainConfig.of(**settings, seed=self.seed, epochs_chosen=True, refit="no")
        trained = fit_split(part, config, device=self.device)
        if trained.interrupted:
            raise KeyboardInterrupt
        if trained.valid is None:
            raise TrainingError("the part has no validation pairs")
        return trained.valid.per_user[METRIC]


def _difference(users: Sequence[_Values64], rivals: Sequence[_Values64]) -> tuple[float, float]:
    """Mean difference over the common parts, and its standard error over users."""
    gaps = [a - b for a, b in zip(users, rivals, strict=False)]
    every = np.concatenate(gaps)
    return float(np.mean([gap.mean() for gap in gaps])), float(every.std() / len(every) ** 0.5)


def _find(trials: Iterable[Trial], settings: Settings) -> Trial | None:
    return next((trial for trial in trials if trial.settings == settings), None)


def _with_pending(trials: Sequence[Trial], done: Iterable[Trial]) -> list[Trial]:
    """Trials, then those of an earlier search that are not among them."""
    return [*trials, *(trial for trial in done if _find(trials, trial.settings) is None)]


def _family(settings: Settings) -> str:
    """The model; its untrained start and its exact form are improved separately."""
    name: str = settings["model"]
    form = {"epochs": ", start", "neighbours": ", exact"}
    return name + "".join(word for key, word in form.items() if settings.get(key) == 0)


def _judged(part: Split) -> Split:
    """Return the part with the validation pairs of 10,000 evenly spaced users at most."""
    users = np.flatnonzero(part.valid.user_degrees)
    if len(users) <= MOST_JUDGED:
        return part
    chosen = np.zeros(part.n_users, dtype=bool)
    chosen[users[np.linspace(0, len(users) - 1, MOST_JUDGED).astype(np.int64)]] = True
    return replace(part, valid=part.valid.take(chosen[part.valid.users]))


def _line(trial: Trial, width: int = 0, digits: int = 6, unit: str = "") -> str:
    value = "not finite" if trial.value is None else f"{trial.value:.4f}"
    return f"{value:>{width}}  {trial.seconds:{digits}.1f}{unit}  {_words(trial.settings)}"


def _words(settings: Settings) -> str:
    rest = " ".join(f"{key}={value}" for key, value in settings.items() if key != "model")
    return f"{settings['model']} {rest}".rstrip()


def validation_parts(split: Split, seed: int) -> list[Split]:
    """Return the split, and others drawn like it if its validation pairs are few and random."""
    parts = [split]
    if split.valid_source != "carved":
        return parts
    count = min(_MOST_PARTS, max(1, -(-_PAIRS_PER_PART * _MOST_PARTS // len(split.valid))))
    one_each = split.valid.user_degrees.max() == 1
    if count == 1 or (one_each and _are_latest(split)):
        return parts
    pairs = split.train_full
    share = len(split.valid) / len(pairs)
    for number in range(1, count):
        # Not the stream of the split, which could draw the same part again.
        rng = stream(seed, "search", "valid", str(number))
        # A share would hold out several pairs of active users.
        users = pairs.users
        mask = hold_out_last(users, None, rng) if one_each else hold_out(users, share, rng)
        parts.append(replace(split, train=pairs.take(~mask), valid=pairs.take(mask)))
    return parts


def _are_latest(split: Split) -> bool:
    """Whether no validation pair is earlier than a training pair of its user."""
    learnt, held = split.train.timestamps, split.valid.timestamps
    if learnt is None or held is None:
        return False
    latest = np.full(split.n_users, np.iinfo(np.int64).min)
    np.maximum.at(latest, split.train.users, learnt)
    return bool((held >= latest[split.valid.users]).all())


def tune_to_file(
    split: Split,
    path: Path,
    *,
    minutes: float | None = None,
    trials: int | None = None,
    memory: float | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    resume: bool = False,
    report: Callable[[str], None] | None = None,
) -> Found:
    """Search, and write the outcome as a preset for ``train --preset FILE``.

    Args:
        path: a ``.json`` file; trials are kept there while the search runs.
        minutes: CPU time of the search at most (default 5).
        trials: number of trials at most, instead of the time.
        memory: GB that a trial may take (default: 60 % of the machine's).
        seed: training seed.
        resume: continue with the trials of the file.

    Raises:
        InputError: the file exists without ``resume``, or does not exist with it, or its trials
            are of other data or of another seed.
    """
    if path.suffix != ".json":
        raise InputError(f"a preset is a .json file, got {path}")
    if path.exists() and not resume:
        raise InputError(f"{path} exists already: choose another file, or continue with --resume")
    done = _resumed(path, split, seed) if resume else []
    facts = {
        "how": "successive trials on validation data, one setting at a time",
        "dataset": split.name,
        "fingerprint": split.fingerprint,
        "seed": seed,
    }

    def record(
        trials: Sequence[Trial], config: Values | None = None, more: Mapping[str, Any] | None = None
    ) -> None:
        found = {**facts, **(more or {})} | {"trials": [trial.as_dict() for trial in trials]}
        files.write_json(path, {"config": config, "found": found})

    how: Values = {
        **search_settings(minutes, trials, memory),
        "seed": seed,
        "device": device,
        "report": report,
    }
    try:
        found = search(split, done=done, record=record, **how)
    except KeyboardInterrupt as error:
        kept = f"the trials so far are kept in {path}: continue with the same command and --resume"
        nothing = "no trial is kept yet: start it again"
        raise Interrupted(f"interrupted, {kept if path.is_file() else nothing}") from error
    record(
        _with_pending(found.trials, done),
        {**found.settings, "epochs_chosen": True},
        found.as_dict(),
    )
    return found


def _resumed(path: Path, split: Split, seed: int) -> list[Trial]:
    if not path.is_file():
        raise InputError(f"{path} is not there: start without --resume")
    begun = files.read_json(path, follow=True)
    check_kind(path, begun, _BEGUN_KIND)
    if begun["found"]["fingerprint"] != split.fingerprint:
        raise InputError(f"{path} is of other data than {split.name}: choose another file")
    if begun["found"].get("seed") != seed:
        raise InputError(
            f"{path}: its trials must have the seed {seed}, got {begun['found'].get('seed')}: "
            "resume with their seed, or choose another file"
        )
    return read_trials(path)
