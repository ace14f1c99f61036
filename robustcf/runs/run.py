"""RunDir: a recommender's run, from its configuration to its results and attacks."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from robustcf.data import Split
from robustcf.data.interactions import Interactions
from robustcf.errors import InputError, RanksError
from robustcf.factors import Factors, read_fixed
from robustcf.metrics.evaluate import MetricReport, Part, evaluate
from robustcf.metrics.recommend import Ranked, recommend_to
from robustcf.models import fold_in
from robustcf.objectives import BCEConfig
from robustcf.robustness.measure import Result
from robustcf.robustness.target import Target
from robustcf.runs.base import CONFIG, DATA, HISTORY, own_folder
from robustcf.runs.config import RunConfig
from robustcf.runs.recommender import PER_USER, RecommenderRun, parquet_bytes
from robustcf.runs.records import METRICS_KIND, facts_of_data
from robustcf.runs.saved import FOLDER
from robustcf.support import files
from robustcf.support.files import CheckpointFiles, csv_bytes
from robustcf.support.registry import OBJECTIVES
from robustcf.support.runtime import device_of, set_threads
from robustcf.support.schema import shown
from robustcf.support.temporary import clear_leftovers
from robustcf.training.search import MINUTES, Trial, read_trials, search
from robustcf.training.train import (
    Trained,
    check_trainable,
    fit_mask,
    fit_pairs,
    train,
)

FACTORS, SEARCH = "factors.safetensors", "search.json"
#: The pairs of a run whose factors were imported, see :mod:`robustcf.runs.imported`.
PAIRS = "pairs.npz"
FORMAT = "robustcf run 1"

# Where training had no weight decay: keeps a row bounded, too small to matter otherwise.
_RIDGE = 1e-2


class RunDir(RecommenderRun[RunConfig]):
    """A run directory of a recommender.

    Args:
        path: the directory; it must hold the configuration of a run.
        allow_unfinished: whether what an interrupted training left may be used.
        allow_code: whether modules that the run names may be imported, where it was trained with
            code of somebody's own (``module:Class``).

    Raises:
        InputError: there is no run at this path.

    Example:
        >>> import tempfile
        >>> from robustcf.data import load
        >>> from robustcf.training import TrainConfig
        >>> config = RunConfig("demo", train=TrainConfig.of(dim=4, epochs=1))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run = RunDir.create(Path(folder) / "first", config, load("demo"))
        ...     run.complete
        False
    """

    config_type = RunConfig
    result_kind = METRICS_KIND
    _searched: dict[str, Any] | None = None

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        allow_unfinished: bool = False,
        allow_code: bool = False,
    ) -> None:
        """Open a run; reads its configuration only."""
        super().__init__(path, allow_unfinished=allow_unfinished)
        self.allow_code = allow_code

    @classmethod
    def create(cls, path: str | os.PathLike[str], config: RunConfig, split: Split) -> RunDir:
        """Make a run directory, see :meth:`robustcf.runs.base.RunBase.create`."""
        run = super().create(path, config, split)
        run.allow_code = True  # it was named in this very process
        return run

    def _check_code(self) -> None:
        """Raise where a module would be imported that the run names, and nobody said it may."""
        outside = self.config.train.outside()
        if outside and not self.allow_code:
            raise InputError(
                f"{self.path} was trained with code of somebody's own ({', '.join(outside)}), "
                "which would be imported and run now: if you trust it, give --allow-code"
            )

    @classmethod
    def check_trainable(cls, config: RunConfig, split: Split) -> None:
        """Raise for what would only be found wrong in training: names, ranges, devices, sizes."""
        device = device_of(config.device)
        check_trainable(split, config.train, device=device)

    def split(self, data_dir: str | None = None, **places: Any) -> Split:
        """The data of the run; an imported run has its pairs with it and takes no places.

        The arguments are those of :meth:`robustcf.runs.base.RunBase.split`.
        """
        if not self.imported:
            return super().split(data_dir, **places)
        from robustcf.runs.imported import read_pairs

        split = read_pairs(self.path / PAIRS)
        self.check(split)
        return split

    @property
    def imported(self) -> bool:
        """Whether the factors come from elsewhere; then there is nothing to train or resume."""
        return (self.path / PAIRS).is_file()

    @cached_property
    def fixed(self) -> tuple[int, ...]:
        """The columns that no attack, budget or certificate may move: biases."""
        path = self.path / FACTORS
        return read_fixed(files.read_facts(path), str(path)) if path.is_file() else ()

    def factors(self) -> Factors:
        """The trained embeddings, read once; the data are not needed for this.

        Raises:
            UnfinishedError: the run has not come to its end, and this was not allowed.
            InputError: the file is damaged, or holds something else.
        """
        if not os.path.lexists(self.path / FACTORS):
            raise self.unfinished(FACTORS)
        self.check_finished()
        return self._factors

    @cached_property
    def _factors(self) -> Factors:
        path = self.path / FACTORS
        tensors, _ = files.read_tensors(path)
        facts = facts_of_data(self.path)
        for name in ("users", "items"):
            expected = facts.get(f"n_{name}")
            if name not in tensors:
                raise InputError(
                    f"{path}: {name} must be a matrix, got nothing; there "
                    f"{'is' if len(tensors) == 1 else 'are'} {shown(sorted(tensors))}"
                )
            if expected is not None and tensors[name].shape[:1] != (expected,):
                raise InputError(
                    f"{path}: {name} must have {expected:,} rows, as {DATA} says, got the shape "
                    f"{tuple(tensors[name].shape)}"
                )
        try:
            return Factors.of(tensors["users"], tensors["items"])
        except InputError as error:
            raise InputError(f"{path}: {error}") from error

    @property
    def fit_on(self) -> str:
        """``train``, or ``train and valid`` after a refit."""
        fit_on: str = self.metrics()["learnt_from"]
        return fit_on

    @property
    def label(self) -> str:
        """Model and regularizer, for tables and pictures."""
        result = self.metrics()
        return str(result.get("label") or f"{result['model']}, {result['reg']}")

    def execute(
        self,
        split: Split,
        *,
        progress: bool = False,
        every: float = 10.0,
        report: Callable[[str], None] | None = None,
    ) -> Trained:
        """Train as the configuration says, from where an earlier attempt stopped, and write.

        Args:
            split: the run's data.
            progress: whether to show a bar.
            every: seconds between checkpoints; 0 keeps one after every epoch.
            report: called with a line for each trial, where settings are searched for.
        """
        self.check(split)
        self._check_code()
        set_threads(self.config.threads)
        with self.at_work():
            if self.config.search is not None:
                self._search(split, report)
            try:
                trained = train(
                    split,
                    self.config.train,
                    device=device_of(self.config.device),
                    checkpoint=CheckpointFiles(self.path, every),
                    progress=progress,
                )
                self.write(trained)
            except RanksError as error:
                hint = str(self.interrupted()).removeprefix("interrupted, ")
                raise RanksError(f"{error}; {hint}") from error
        return trained

    def _search(self, split: Split, report: Callable[[str], None] | None) -> None:
        """Search for the settings, from where an earlier attempt stopped, and keep them.

        How long trials took is kept with them, so that one that was stopped chooses as it would
        have.
        """
        path, wanted = self.path / SEARCH, self.config.search or {}

        def record(trials: Sequence[Trial]) -> None:
            files.write_json(path, {"trials": [trial.as_dict() for trial in trials]})

        found = search(
            split,
            minutes=wanted.get("minutes", MINUTES),
            seed=self.config.train.seed,
            device=device_of(self.config.device),
            done=read_trials(path) if os.path.lexists(path) else (),
            record=record,
            report=report,
        )
        files.write_json(path, found.as_dict())
        self._searched = found.summary()
        chosen = found.config.replace(seed=self.config.train.seed)
        self.config = dataclasses.replace(self.config, train=chosen)
        files.write_bytes(self.path / CONFIG, self.config.to_json().encode())

    def write(self, trained: Trained) -> None:
        """Write factors, history, per-user values and, last, the metrics.

        Of several ranks, the first writes for all; the others call :func:`assist`.
        """
        split = trained.split
        test, factors, norm = _collected(trained)
        if factors is None:
            raise InputError("a run is written by the first rank: the others call assist")
        facts = {
            "format": FORMAT,
            "dataset": split.name,
            "fingerprint": split.fingerprint,
            "learnt_from": trained.fit_on,
        }
        tensors = {"users": factors.users.cpu(), "items": factors.items.cpu()}
        files.write_tensors(self.path / FACTORS, tensors, facts)
        self.__dict__.pop("_factors", None)
        files.write_bytes(self.path / HISTORY, csv_bytes(trained.history))
        if test is not None:
            files.write_bytes(self.path / PER_USER, parquet_bytes(test, split))
        searched = {} if self._searched is None else {"search": self._searched}
        self.write_metrics(
            {
                **searched,
                "run": str(self.path),
                "dataset": split.name,
                "model": trained.config.model.name,
                "reg": trained.config.reg.name,
                "test": None if test is None else test.as_dict(),
                "valid": None if trained.valid is None else trained.valid.as_dict(),
                "epochs": trained.epochs,
                "train_seconds": round(trained.train_seconds, 3),
                "two_to_inf": norm,
                "learnt_from": trained.fit_on,
                "interrupted": trained.interrupted,
                "preset": self.config.preset,
            }
        )
        if not trained.interrupted:
            CheckpointFiles(self.path, 0.0).clear()

    def evaluate(
        self,
        split: Split,
        ks: tuple[int, ...] = (10, 20),
        *,
        part: Part = "test",
        mask: tuple[str, ...] | None = None,
    ) -> MetricReport:
        """Metrics of the run's factors: by the protocol of its set, or with other pairs masked."""
        part = self._judged_by(split, part)
        own = self._mask(split, part)
        return evaluate(self.factors(), split, ks, part=part, mask=own if mask is None else mask)

    def _judged_by(self, split: Split, part: Part) -> Part:
        """Without test pairs, imported factors are judged by those they were fit on."""
        return "train" if self.imported and part == "test" and not len(split.test) else part

    def _mask(self, split: Split, part: Part) -> tuple[str, ...]:
        fit_on = self.fit_on
        try:
            return fit_mask(split, fit_on, part)
        except InputError as error:
            raise InputError(f"{self.path}: {error}") from error

    def target(self, split: Split, part: Part = "test") -> Target:
        """The run as something to attack, judged by ``part``.

        Raises:
            InputError: the run was fit on the very pairs it would be judged by.
        """
        part = self._judged_by(split, part)
        self._mask(split, part)
        objective = self.config.train.objective.settings
        users, items = self.factors()
        return Target(
            users,
            items,
            split,
            part=part,
            fit_on=self.fit_on,
            fixed=self.fixed,
            label=self.label,
            bce=objective if isinstance(objective, BCEConfig) else None,
        )

    def save(self, result: Result) -> tuple[Path, bool]:
        """Save a result of this run in its one home; see :meth:`Result.save`."""
        return result.save(self.results_folder())

    def results_folder(self) -> Path:
        """The home of what is measured of the run; what a kill left there is cleared first."""
        folder = own_folder(self.path, FOLDER)
        for place in (self.path, folder):
            clear_leftovers(place)
        return folder

    def recommend(self, split: Split, users: Sequence[int], k: int = 10) -> list[Ranked]:
        """For each user the k best items that they have neither in train nor in valid."""
        return recommend_to(self.factors(), split.train_full, users, k)

    def fold_in(self, split: Split, items: Sequence[int], k: int = 10) -> Ranked:
        """The k best items, with scores, for a new user who has these items.

        The ridge is the weight that training had on the squared norm of a user's row.
        """
        self._check_code()
        config, factors = self.config.train, self.factors()
        pairs = fit_pairs(split, self.fit_on)
        if not self.imported:  # there is no class behind an imported model
            config = config.resolved()
        decays = config.reg.name == "weight_decay"
        ridge = config.reg.settings.weight * len(pairs) / 1024 if decays else _RIDGE
        row = fold_in(
            OBJECTIVES[config.objective.name](pairs, config.objective.settings),
            factors,
            sorted(set(items)),
            ridge=ridge,
            fixed=self.fixed,
            offset=config.gauge != "none",
            unit=config.gauge == "none" and getattr(config.model.settings, "normalize", False),
        )
        new = Factors(row[None, :], factors.items)
        have = Interactions.from_pairs([0] * len(items), list(items), 1, factors.n_items)[0]
        return recommend_to(new, have, [0], k)[0]


def assist(config: RunConfig, split: Split) -> None:
    """What the other ranks do while the first one executes a run: train, and hand over.

    Args:
        config: that of the run.
        split: the run's data.

    Raises:
        RanksError: the first rank has ended, or does not answer.
    """
    set_threads(config.threads)
    _collected(train(split, config.train, device=device_of(config.device)))


def _collected(trained: Trained) -> tuple[MetricReport | None, Factors | None, float]:
    """Test metrics, the factors of all users (on the first rank) and the norm of the scores."""
    test = trained.evaluate() if len(trained.split.test) else None
    return test, trained.gathered(), trained.two_to_inf()
