"""RunDir: the folder of a training, from its configuration to the recommender and its results.

A finished run holds the files of :meth:`robustcf.Recommender.save`, so :func:`robustcf.open` reads
it.
"""

from __future__ import annotations

import dataclasses
import io
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar

from robustcf._checks import check_known
from robustcf._io import files
from robustcf._io.files import CheckpointFiles, csv_bytes
from robustcf._io.schema import (
    ABSENT,
    FLAG,
    NAME,
    NUMBER,
    OBJECT,
    Kind,
    check_kind,
    choice,
    either,
    nullable,
    record,
    whole,
)
from robustcf._io.text import counted
from robustcf._registry import FITTERS
from robustcf._runtime import device_of, threads_used
from robustcf.data import Split, load
from robustcf.data.catalog import find
from robustcf.errors import InputError, RanksError
from robustcf.experiments.folders import RunBase, RunConfigBase
from robustcf.experiments.records import CONFIG, HISTORY, METRICS_KIND, VOTE, is_vote
from robustcf.metrics.evaluate import MetricReport
from robustcf.models.voting import VoteConfig
from robustcf.recommender import Recommender, open_recommender
from robustcf.recommender.saved import write_into
from robustcf.training.config import TrainConfig
from robustcf.training.fitting import Trained, check_trainable, fit_split
from robustcf.training.search import Trial, read_trials, search

_SEARCH, PER_USER = "search.json", "per_user.parquet"
_COLUMN = nullable(either(NAME, whole()))
#: The arguments of :func:`robustcf.data.load` that a run may have.
DATA_OPTIONS = record(
    {},
    {
        "data_dir": nullable(NAME),
        "download": FLAG,
        "cache": FLAG,
        "seed": whole(),
        "min_rating": nullable(NUMBER),
        "k_core": nullable(whole(1)),
        "eval_users": nullable(whole(1)),
        "split": nullable(choice("random", "leave-one-out", "time")),
        **dict.fromkeys(("user_col", "item_col", "rating_col", "time_col"), _COLUMN),
        **dict.fromkeys(("test_ratio", "valid_ratio"), nullable(NUMBER)),
        **dict.fromkeys(("test_from", "valid_from"), nullable(either(NAME, NUMBER))),
        **dict.fromkeys(("valid_file", "test_file"), nullable(NAME)),
    },
    others=ABSENT,
)


@dataclasses.dataclass(frozen=True)
class RunConfig(RunConfigBase[TrainConfig | VoteConfig]):
    """The data of a run, and how to train on them.

    Args:
        dataset: a name or a path.
        data: further arguments of :func:`robustcf.data.load`.
        train: training settings.
        threads: torch threads; the same number repeats the same bits.
        device: torch device.
        preset: the preset of the settings, or None.
        search: settings of the search before training, see
            :func:`robustcf.training.search.search_settings`, or None.

    Example:
        >>> config = RunConfig("demo")
        >>> RunConfig.from_json(config.to_json()) == config
        True
    """

    data_kind: ClassVar[Kind] = DATA_OPTIONS

    preset: str | None = None
    search: Mapping[str, Any] | None = None

    @classmethod
    def read_train(cls, values: Mapping[str, Any]) -> TrainConfig | VoteConfig:
        """Read nested settings, or ``{"vote": settings}`` of a vote."""
        if not is_vote(values):
            return TrainConfig.from_dict(values)
        settings = values[VOTE]
        check_kind("", settings, OBJECT, VOTE)
        check_known(VoteConfig, settings)
        return VoteConfig(**settings)

    @staticmethod
    def plain_train(train: TrainConfig | VoteConfig) -> dict[str, Any]:
        """Return nested plain values."""
        return (
            train.as_dict() if isinstance(train, TrainConfig) else {VOTE: dataclasses.asdict(train)}
        )


class RunDir(RunBase[RunConfig, Split]):
    """The folder of a training.

    Args:
        path: the folder; it must hold the configuration of a run.
        allow_unfinished: whether the result of an interrupted training may be used.
        allow_code: whether modules that the run names (``module:Class``) may be imported.

    Raises:
        InputError: there is no run at this path.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from robustcf.data import load
        >>> config = RunConfig("demo", train=TrainConfig.of(factors=4, epochs=1))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run = RunDir.create(Path(folder) / "first", config, load("demo"))
        ...     run.complete
        False
    """

    config_type = RunConfig
    result_kind = METRICS_KIND
    command = "robustcf train"
    _searched: dict[str, Any] | None = None

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        allow_unfinished: bool = False,
        allow_code: bool = False,
    ) -> None:
        super().__init__(path, allow_unfinished=allow_unfinished)
        self.allow_code = allow_code

    @classmethod
    def create(cls, path: str | os.PathLike[str], config: RunConfig, split: Split) -> RunDir:
        """Make a run folder, see :meth:`robustcf.experiments.folders.RunBase.create`."""
        run = super().create(path, config, split)
        run.allow_code = True  # it was named in this process
        return run

    def _check_code(self) -> None:
        train = self.config.train
        outside = train.outside() if isinstance(train, TrainConfig) else []
        if outside and not self.allow_code:
            raise InputError(
                f"{self.path} was trained with code from outside of the package "
                f"({', '.join(outside)}): give --allow-code to import and run it, if you trust it"
            )

    @classmethod
    def check_trainable(cls, config: RunConfig, split: Split) -> None:
        """Raise for names, ranges, devices and sizes that training would refuse."""
        if isinstance(config.train, TrainConfig):
            check_trainable(split, config.train, device=device_of(config.device))
            return
        if config.device != "cpu":
            raise InputError(f"a vote is counted on the cpu, got the device {config.device!r}")
        if config.train.groups is not None:
            from robustcf.models.voting.voters import Groups  # on demand: votes are seldom

            Groups.check(split.n_users, config.train.groups)

    @classmethod
    def data_facts(cls, split: Split) -> dict[str, Any]:
        """Return name, fingerprint, sources and sizes."""
        return {
            "name": split.name,
            "fingerprint": split.fingerprint,
            "sources": dict(split.sources),
            "valid_source": split.valid_source,
            "n_users": split.n_users,
            "n_items": split.n_items,
            "pairs": {
                "train": len(split.train), "valid": len(split.valid), "test": len(split.test),
            },
            "notes": list(split.notes),
        }  # fmt: skip

    def is_named(self) -> bool:
        """Return whether the run is on one of the known sets."""
        return find(self.config.dataset) is not None

    def load(self, dataset: str, data: Mapping[str, Any]) -> Split:
        """Load data with these arguments of :func:`robustcf.data.load`; the cache is only read."""
        return load(dataset, **{"cache": "read", **data})

    @property
    def is_vote(self) -> bool:
        """Whether it is the run of a vote."""
        return isinstance(self.config.train, VoteConfig)

    def recommender(self, interactions: Split | None = None) -> Recommender:
        """Open the recommender, see :func:`robustcf.open`."""
        return open_recommender(
            self.path,
            interactions=interactions,
            allow_unfinished=self.allow_unfinished,
            allow_code=self.allow_code,
        )

    def execute(
        self,
        split: Split,
        *,
        progress: bool = False,
        every: float = 10.0,
        report: Callable[[str], None] | None = None,
    ) -> bool:
        """Train, or resume an earlier attempt, and write; return False where it was interrupted.

        ``every`` is in seconds between checkpoints, 0 for one after every epoch; ``report`` is
        called with a line per trial of a search.
        """
        self.check(split)
        self._check_code()
        with threads_used(self.config.threads, exact=True), self.at_work():
            if isinstance(self.config.train, VoteConfig):
                model = FITTERS["vote"](split, self.config.train)
                self._write(model, model.evaluate() if model.part == "test" else None)
                return True
            if self.config.search is not None:
                self._search(split, report)
            try:
                trained = fit_split(
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
        return not trained.interrupted

    def _search(self, split: Split, report: Callable[[str], None] | None) -> None:
        """Search, or resume a search, and write the chosen settings into the configuration.

        Trials are kept with their times, so a resumed search chooses as an undisturbed one.
        """
        path, wanted = self.path / _SEARCH, self.config.search or {}

        def record(trials: Sequence[Trial]) -> None:
            files.write_json(path, {"trials": [trial.as_dict() for trial in trials]})

        seed = self.config.train.seed
        found = search(
            split,
            **wanted,
            seed=seed,
            device=device_of(self.config.device),
            done=read_trials(path) if os.path.lexists(path) else (),
            record=record,
            report=report,
        )
        files.write_json(path, found.as_dict())
        self._searched = found.summary()
        chosen = found.config.replace(seed=seed)
        self.config = dataclasses.replace(self.config, train=chosen)
        files.write_bytes(self.path / CONFIG, self.config.to_json().encode())

    def kept(self) -> list[str]:
        """Return the trials and epochs that a run can be resumed from, in words."""
        found, path = super().kept(), self.path / _SEARCH
        if os.path.lexists(path):
            with suppress(InputError):
                found = [f"{counted(len(read_trials(path)), 'trial')} of the search", *found]
        return found

    def write(self, trained: Trained) -> None:
        """Write the recommender, history, per-user values and, last, the metrics.

        The first rank writes; the others call :func:`assist`.
        """
        test, whole, norm = _collected(trained)
        if whole is None:
            raise InputError("a run is written by the first rank: the others call assist")
        searched = {} if self._searched is None else {"search": self._searched}
        model = whole.recommender(preset=self.config.preset, **searched)
        folded = (model.training or {}).get("fold-in")
        facts = {
            "reg": trained.config.reg.name,
            "valid": None if trained.valid is None else trained.valid.as_dict(),
            "epochs": trained.epochs,
            "train_seconds": round(trained.train_seconds, 3),
            "two_to_inf": norm,
            "preset": self.config.preset,
            **searched,
            **({} if folded is None else {"fold-in": folded}),
        }
        self._write(model, test, trained.history, trained.interrupted, **facts)
        if not trained.interrupted:
            CheckpointFiles(self.path, 0.0).clear()

    def _write(
        self,
        model: Recommender,
        test: MetricReport | None,
        history: list[dict[str, Any]] | None = None,
        interrupted: bool = False,
        **facts: Any,
    ) -> None:
        split = model.split
        # Data larger than memory stay where they are; a vote cannot do without.
        included = not split.train.mapped or model.scorer.stored().needs_interactions
        write_into(self.path, model, include_interactions=included, interrupted=interrupted)
        if history is not None:
            files.write_bytes(self.path / HISTORY, csv_bytes(history))
        if test is not None:
            files.write_bytes(self.path / PER_USER, _parquet_bytes(test, split))
        kind = self.config.train
        training: Mapping[str, Any] = model.training or {}
        self.write_metrics(
            {
                "run": str(self.path),
                "dataset": split.name,
                "model": kind.model.name if isinstance(kind, TrainConfig) else model.kind,
                "reg": "none",
                "test": None if test is None else test.as_dict(),
                "valid": None,
                "epochs": 0,
                "train_seconds": training.get("train_seconds", 0.0),
                "learnt_from": model.fit_on,
                "interrupted": interrupted,
                **facts,
            }
        )


def assist(config: RunConfig, split: Split) -> None:
    """Train as one of the other ranks while the first executes a run, and hand over.

    Raises:
        RanksError: the first rank has ended, or does not answer.
    """
    if not isinstance(config.train, TrainConfig):
        raise InputError("a vote is fit by one process")
    with threads_used(config.threads, exact=True):
        _collected(fit_split(split, config.train, device=device_of(config.device)))


def _collected(trained: Trained) -> tuple[MetricReport | None, Trained | None, float | None]:
    """Test metrics, the factors of all users (first rank only) and the norm of the scores."""
    test = trained.evaluate() if len(trained.split.test) else None
    return test, trained.gathered(), trained.two_to_inf()


def _parquet_bytes(report: MetricReport, split: Split) -> bytes:
    import pandas as pd

    columns: dict[str, Any] = {"user": report.users}
    if split.user_labels is not None:
        columns["label"] = split.user_labels[report.users]
    columns |= dict(report.per_user)
    buffer = io.BytesIO()
    pd.DataFrame(columns).to_parquet(buffer, index=False)
    return buffer.getvalue()
