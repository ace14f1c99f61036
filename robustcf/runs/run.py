"""RunDir: a recommender's run, from its configuration to its results and attacks."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from robustcf.data import Split, load
from robustcf.data.interactions import Interactions
from robustcf.errors import InputError
from robustcf.factors import Factors, read_fixed
from robustcf.metrics.evaluate import MetricReport, Part, evaluate
from robustcf.metrics.recommend import Ranked, recommend_to
from robustcf.models import fold_in
from robustcf.objectives import BCEConfig
from robustcf.robustness.measure import Result
from robustcf.robustness.target import Target
from robustcf.runs.base import CONFIG, HISTORY, RunBase
from robustcf.runs.config import RunConfig
from robustcf.runs.saved import FOLDER
from robustcf.support import files
from robustcf.support.files import CheckpointFiles, csv_bytes
from robustcf.support.registry import OBJECTIVES
from robustcf.support.runtime import device_of, set_threads
from robustcf.training.loop import two_to_inf
from robustcf.training.search import MINUTES, Trial, read_trials, search
from robustcf.training.train import Trained, fit_mask, fit_pairs, train

FACTORS, PER_USER, SEARCH = "factors.safetensors", "per_user.parquet", "search.json"
#: The pairs of a run whose factors were imported, see :mod:`robustcf.runs.imported`.
PAIRS = "pairs.npz"
FORMAT = "robustcf run 1"

# Where training had no weight decay: keeps a row bounded, too small to matter otherwise.
_RIDGE = 1e-2


class RunDir(RunBase[RunConfig, Split]):
    """A run directory of a recommender.

    Args:
        path: the directory; it must hold the configuration of a run.

    Raises:
        InputError: there is no run at this path.

    Example:
        >>> import tempfile
        >>> from robustcf.training import TrainConfig
        >>> config = RunConfig("demo", train=TrainConfig.of(dim=4, epochs=1))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run = RunDir.create(Path(folder) / "first", config, load("demo"))
        ...     run.complete
        False
    """

    config_type = RunConfig
    _searched: dict[str, Any] | None = None
    command = "robustcf train"

    @classmethod
    def data_facts(cls, split: Split) -> dict[str, Any]:
        """Name, fingerprint, sources and sizes."""
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

    def load(self, data: Mapping[str, Any]) -> Split:
        """Load the run's data with these arguments of :func:`robustcf.data.load`.

        An imported run has its pairs with it.
        """
        if self.imported:
            from robustcf.runs.imported import read_pairs

            return read_pairs(self.path / PAIRS)
        return load(self.config.dataset, **data)

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
        """The trained embeddings, read once; the data are not needed for this."""
        return self._factors

    @cached_property
    def _factors(self) -> Factors:
        path = self.path / FACTORS
        if not path.is_file():
            raise self.unfinished(FACTORS)
        tensors, _ = files.read_tensors(path)
        return Factors(tensors["users"], tensors["items"])

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
        set_threads(self.config.threads)
        if self.config.search is not None:
            self._search(split, report)
        trained = train(
            split,
            self.config.train,
            device=device_of(self.config.device),
            checkpoint=CheckpointFiles(self.path, every),
            progress=progress,
        )
        self.write(trained)
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
            done=read_trials(path) if path.is_file() else (),
            record=record,
            report=report,
        )
        files.write_json(path, found.as_dict())
        self._searched = found.summary()
        chosen = found.config.replace(seed=self.config.train.seed)
        self.config = dataclasses.replace(self.config, train=chosen)
        files.write_bytes(self.path / CONFIG, self.config.to_json().encode())

    def write(self, trained: Trained) -> None:
        """Write factors, history, per-user values and, last, the metrics."""
        split, factors = trained.split, trained.factors
        test = trained.evaluate() if len(split.test) else None
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
                "two_to_inf": two_to_inf(factors),
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
        try:
            return fit_mask(split, self.fit_on, part)
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
        return result.save(self.path / FOLDER)

    def fold_in(self, split: Split, items: Sequence[int], k: int = 10) -> Ranked:
        """The k best items, with scores, for a new user who has these items.

        The ridge is the weight that training had on the squared norm of a user's row.
        """
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


def parquet_bytes(report: MetricReport, split: Split) -> bytes:
    """The values of single users as a Parquet file."""
    import pandas as pd

    columns: dict[str, Any] = {"user": report.users}
    if split.user_labels is not None:
        columns["label"] = split.user_labels[report.users]
    columns |= dict(report.per_user)
    buffer = io.BytesIO()
    pd.DataFrame(columns).to_parquet(buffer, index=False)
    return buffer.getvalue()
