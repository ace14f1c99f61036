"""``search``: the best settings for a data set without a tuned preset, on validation data.

A portfolio of models is tried small first: baselines in closed form, then short trainings. The best
are improved one setting at a time, larger and longer, while it pays and while time is left. A plain
baseline that nothing beats is the answer.

Small sets are validated on several parts: the set's own and others drawn like it, since one of a
few hundred users is mostly noise. Trials are raced over the parts: what is clearly worse than the
best on the first of them is not trained for the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from robustcf._checks import check_number
from robustcf._io import files
from robustcf._io.progress import bar
from robustcf._io.schema import (
    ABSENT,
    NAME,
    NOT_NEGATIVE,
    NUMBER,
    TEXT,
    check_kind,
    list_of,
    nullable,
    record,
    whole,
)
from robustcf._randomness import stream
from robustcf.data.holdout import hold_out, hold_out_last
from robustcf.data.split import Split
from robustcf.errors import InputError, Interrupted, TrainingError
from robustcf.metrics.evaluate import evaluate
from robustcf.training.config import TrainConfig
from robustcf.training.fitting import fit_split
from robustcf.training.portfolio import Settings, Size, Values, moves, portfolio

MINUTES = 5.0
BASELINES = ("popularity", "ease", "als")
Values64 = npt.NDArray[np.float64]
METRIC = "ndcg@20"
# A search ends after this many times what its best trial took, or after the seconds, whichever is
# later, and at the latest when its minutes are over.
_TIMES, _SECONDS = 10.0, 60.0
_VALUE = f"valid {METRIC}"
_TRIAL_KIND = record(
    {
        "settings": record({"model": NAME}),
        "value": nullable(NUMBER),
        "error": nullable(NOT_NEGATIVE),
        "seconds": NOT_NEGATIVE,
        "stage": TEXT,
        "parts": whole(1),
    },
    others=ABSENT,
)
_TRIALS_KIND = record({"trials": list_of(_TRIAL_KIND)})
_BEGUN_KIND = record({"found": record({"fingerprint": TEXT}, {"seed": whole(0, 2**128)})})
# A trial that is this many standard errors behind the best is not trained for further parts.
_BEHIND = 1.0
# Validation pairs below which one more part is drawn, and the most parts.
_PAIRS_PER_PART, _MOST_PARTS = 8_000, 3


@dataclass(frozen=True)
class Trial:
    """One configuration that was tried.

    The value is NDCG@20 on valid, mean over the validation parts; None where training diverged. Of
    a trial that was given up after some of the parts: the value of the best trial before it, plus
    the difference to it on these parts.
    """

    settings: Values  # flat, those that differ from the defaults
    value: float | None
    error: float | None  # standard error over users of the difference to the best before it
    seconds: float
    stage: str  # ``portfolio`` or ``improve``
    parts: int = 1  # validation parts that it was trained for

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return {**vars(self), "seconds": round(self.seconds, 3)}

    def beats(self, best: Trial | None) -> bool:
        """Return whether it is better than the best so far."""
        return self.value is not None and (best is None or self.value > (best.value or 0.0))


def read_trials(path: Path) -> list[Trial]:
    """Return the trials that a search has kept in a file, its own or a preset's."""
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
    seconds: float  # of all trials

    @property
    def config(self) -> TrainConfig:
        """The settings as a configuration."""
        return TrainConfig.of(**self.settings, epochs_chosen=True)

    @property
    def best(self) -> Trial:
        """The trial that has the settings."""
        return next(trial for trial in self.trials if trial.settings == self.settings)

    def summary(self) -> dict[str, Any]:
        """Return what a run's metrics say of it."""
        return {
            "trials": len(self.trials),
            "seconds": round(self.seconds, 3),
            _VALUE: self.best.value,
            "parts": self.parts,
            "chosen": _words(self.settings),
            "baseline": self.settings["model"] in BASELINES or self.settings.get("epochs") == 0,
        }

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return {
            **self.summary(),
            "settings": dict(self.settings),
            "metric": _VALUE,
            "trials": [trial.as_dict() for trial in self.trials],
        }

    def table(self) -> str:
        """Return the trials as text, best first."""
        lines = [f"{_VALUE:>14}  seconds  settings"]
        for trial in sorted(self.trials, key=lambda t: -(t.value if t.value is not None else -1.0)):
            given_up = " (given up)" if trial.parts < self.parts else ""
            lines.append(f"{_line(trial, 14, 7)}{given_up}")
        return "\n".join(lines)


def search_settings(minutes: float | None = None) -> Values:
    """Return what a run writes down of a search to come."""
    wanted = MINUTES if minutes is None else minutes
    return {"minutes": check_number("minutes", wanted, positive=True)}


def search(
    split: Split,
    *,
    minutes: float = MINUTES,
    seed: int = 0,
    device: torch.device | str = "cpu",
    done: Sequence[Trial] = (),
    record: Callable[[Sequence[Trial]], None] | None = None,
    report: Callable[[str], None] | None = None,
    progress: bool | None = False,
) -> Found:
    """Find the settings with the best NDCG@20 on valid; test pairs are never touched.

    Args:
        split: the data; it must have validation pairs.
        minutes: time at most. It ends earlier, after ten times what its best trial took.
        seed: of training and of the validation parts that are drawn.
        device: where the tensors live.
        done: trials of an earlier search of these data that was stopped: they are not made again.
        record: called with all trials after each, to keep them; pending ones of ``done`` come last.
        report: called with a line of text after each.
        progress: whether to show a bar with the best trial so far; None: in a terminal and in a
            notebook.

    Raises:
        InputError: there are no validation pairs, or ``minutes`` is not positive.

    Cost: at most ``minutes``, and the trial during which they end. Resumed, the best trial of
    before is made once more to compare with, and that is not counted.

    Example:
        >>> from robustcf.data import checkerboard
        >>> found = search(checkerboard(), minutes=0.02)
        >>> found.best.value > 0.5
        True
    """
    check_number("minutes", minutes, positive=True)
    if len(split.valid) == 0:
        raise InputError(
            f"{split.name} has no validation pairs to search on: load it with a share of them, or "
            "name a model and its settings"
        )
    with bar(None, "search", "trial", progress) as steps:

        def tried(trials: Sequence[Trial], best: Trial | None) -> None:
            if record is not None:
                record(_with_others(trials, done))
            steps.set_postfix_str(f"best {best.value:.4f}" if best else "")
            steps.update()
            if report is not None:
                report(_line(trials[-1], unit=" s"))

        return _Search(split, minutes * 60.0, seed, device, done, tried).run()


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
        self.parts, self.size = validation_parts(split, seed), Size.of(split)
        self.limit, self.seed, self.device, self.tried = limit, seed, device, tried
        self.known = {_key(trial.settings): trial for trial in done}
        self.trials: list[Trial] = []
        self.best: Trial | None = None
        # Of the best trial, user by user and part by part; None: it was made by an earlier search.
        self._best_users: list[Values64] | None = None

    @property
    def spent(self) -> float:
        return sum(trial.seconds for trial in self.trials)

    def run(self) -> Found:
        for settings in portfolio(self.size):
            self.attempt(settings, "portfolio")
        finite = [trial for trial in self.trials if trial.value is not None]
        # The best of each model, best model first; no others than the three best are improved.
        leaders: dict[str, Trial] = {}
        for trial in sorted(finite, key=lambda trial: -(trial.value or 0.0)):
            leaders.setdefault(_family(trial.settings), trial)
        for leader in list(leaders.values())[:3]:
            self.improve(leader)
        if self.best is None:
            raise TrainingError(f"all {len(self.trials)} trials of the search diverged")
        return Found(dict(self.best.settings), tuple(self.trials), len(self.parts), self.spent)

    def improve(self, leader: Trial) -> None:
        """Change one setting at a time, as long as something gets better and time is left."""
        before = None
        while leader is not before:
            before = leader
            for move in moves(leader.settings, self.size):
                # In a direction that helps, go on.
                while (settings := move(leader.settings)) is not None:
                    trial = self.attempt(settings, "improve")
                    if trial is None or (trial.value or 0.0) <= (leader.value or 0.0):
                        break
                    leader = trial

    def attempt(self, settings: Values, stage: str) -> Trial | None:
        """Try settings, unless they were tried or would take too long."""
        key = _key(settings)
        for trial in self.trials:
            if _key(trial.settings) == key:
                return trial
        if self.trials and self.spent + self.predicted(settings) > self.until():
            return None
        known = self.known.get(key)
        if known is not None and known.parts < len(self.parts) and known.beats(self.best):
            # It was given up against a trial that is missing here: its value is only a guess.
            known = None
        trial = known if known is not None else self.measured(settings, stage)
        self.trials.append(trial)
        if known is not None and trial.beats(self.best):
            self.best, self._best_users = trial, None
        self.tried(self.trials, self.best)
        return trial

    def until(self) -> float:
        """Seconds after which nothing more is tried."""
        if self.best is None:
            return self.limit
        return min(self.limit, max(_SECONDS, _TIMES * self.best.seconds))

    def predicted(self, settings: Settings) -> float:
        """Seconds that settings take on all parts, from trials of the same model or its cost."""
        cost = self.size.cost(settings)
        same = [t for t in self.trials if _family(t.settings) == _family(settings)]
        if same:
            # The last one is the most alike.
            last = same[-1]
            cost *= last.seconds / last.parts / self.size.cost(last.settings)
        return cost * len(self.parts)

    def measured(self, settings: Values, stage: str) -> Trial:
        """Race against the best trial so far, which is replaced if it loses."""
        rivals = self.best_users()
        began = time.perf_counter()
        users: list[Values64] = []
        gap = error = None
        try:
            for part in self.parts:
                users.append(self.on_part(settings, part))
                if rivals is not None:
                    gap, error = _difference(users, rivals)
                    if gap < -_BEHIND * error:
                        break
        except TrainingError:
            seconds = time.perf_counter() - began
            return Trial(settings, None, None, seconds, stage, len(users) + 1)
        whole = len(users) == len(self.parts)
        if whole or self.best is None or self.best.value is None or gap is None:
            value = float(np.mean([part.mean() for part in users]))
        else:
            value = self.best.value + gap
        trial = Trial(settings, value, error, time.perf_counter() - began, stage, len(users))
        if whole and trial.beats(self.best):
            self.best, self._best_users = trial, users
        return trial

    def best_users(self) -> list[Values64] | None:
        """Values of the best trial on all parts; made again where an earlier search made it."""
        if self.best is not None and self._best_users is None:
            settings = dict(self.best.settings)
            self._best_users = [self.on_part(settings, part) for part in self.parts]
        return self._best_users

    def on_part(self, settings: Values, part: Split) -> Values64:
        """NDCG@20 of each user on the validation pairs of one part."""
        config = TrainConfig.of(**settings, seed=self.seed, epochs_chosen=True, refit="no")
        trained = fit_split(part, config, device=self.device)
        if trained.interrupted:
            raise KeyboardInterrupt
        report = trained.valid or evaluate(trained.factors, part, part="valid")
        return report.per_user[METRIC]


def _difference(users: Sequence[Values64], rivals: Sequence[Values64]) -> tuple[float, float]:
    """Mean over the parts that both have of users' differences, and its standard error."""
    gaps = [a - b for a, b in zip(users, rivals, strict=False)]
    every = np.concatenate(gaps)
    return float(np.mean([gap.mean() for gap in gaps])), float(every.std() / len(every) ** 0.5)


def _with_others(trials: Sequence[Trial], known: Iterable[Trial]) -> list[Trial]:
    """Trials, and behind them those of an earlier search that are not among them."""
    tried = {_key(trial.settings) for trial in trials}
    return [*trials, *(trial for trial in known if _key(trial.settings) not in tried)]


def _family(settings: Settings) -> str:
    """What is improved on its own: a model, and the start alone of one."""
    return f"{settings['model']}, start" if settings.get("epochs") == 0 else settings["model"]


def _key(settings: Settings) -> str:
    return repr(sorted(settings.items(), key=lambda pair: pair[0]))


def _line(trial: Trial, width: int = 0, digits: int = 6, unit: str = "") -> str:
    value = "not finite" if trial.value is None else f"{trial.value:.4f}"
    return f"{value:>{width}}  {trial.seconds:{digits}.1f}{unit}  {_words(trial.settings)}"


def _words(settings: Settings) -> str:
    rest = " ".join(f"{key}={value}" for key, value in settings.items() if key != "model")
    return f"{settings['model']} {rest}".rstrip()


def validation_parts(split: Split, seed: int) -> list[Split]:
    """Return the split, and where its validation part is small and was drawn, others like it.

    Where each user's latest pair was held out, there is no other part like it.
    """
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
        # A stream of its own: that of the split could draw the split's own part again.
        rng = stream(seed, "search", "valid", str(number))
        # By its share, a part of one pair a user would have several of those with many.
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
    seed: int = 0,
    device: torch.device | str = "cpu",
    resume: bool = False,
    report: Callable[[str], None] | None = None,
) -> Found:
    """Search, and write the outcome as a preset that ``train --preset FILE`` takes.

    Args:
        split: the data.
        path: a ``.json`` file; trials are kept there while the search runs.
        minutes: time of the search at most (default 5).
        seed: training seed.
        device: see :func:`search`.
        resume: go on with the trials that the file has.
        report: see :func:`search`.

    Raises:
        InputError: the file exists without ``resume``, or does not exist with it, or its trials
            are of other data or of another seed.
    """
    if path.suffix != ".json":
        raise InputError(f"a preset is a .json file, got {path}")
    done: list[Trial] = []
    if resume:
        if not path.is_file():
            raise InputError(f"{path} is not there: nothing to go on with")
        begun = files.read_json(path, follow=True)
        check_kind(path, begun, _BEGUN_KIND)
        if begun["found"]["fingerprint"] != split.fingerprint:
            raise InputError(f"{path} is of other data than {split.name}: choose another file")
        if begun["found"].get("seed") != seed:
            got = begun["found"].get("seed", "none")
            raise InputError(
                f"{path}: the seed of its trials must be {seed}, as asked for, got {got}: they "
                "cannot be compared; go on with their seed, or choose another file"
            )
        done = read_trials(path)
    elif path.exists():
        raise InputError(f"{path} exists already: choose another file, or go on with --resume")
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

    wanted = search_settings(minutes)
    try:
        found = search(
            split, **wanted, seed=seed, device=device, done=done, record=record, report=report
        )
    except KeyboardInterrupt as error:
        kept = f"the trials so far are kept in {path}: go on with the same command and --resume"
        nothing = "no trial is kept yet: start it again"
        raise Interrupted(f"interrupted, {kept if path.is_file() else nothing}") from error
    # Trials that these minutes did not come to are kept too: more minutes may.
    trials = _with_others(found.trials, done)
    record(trials, {**found.settings, "epochs_chosen": True}, found.as_dict())
    return found
