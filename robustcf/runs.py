"""RunDir: what a run writes, how it is opened again, and how it goes on after a kill.

Files are written as :mod:`robustcf.files` does, whole or not at all. ``metrics.json`` comes last,
so a run that has it is complete. Nothing is pickled.
"""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

from robustcf import files
from robustcf.config import RunConfig
from robustcf.data import Interactions, Split, load
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.files import CheckpointFiles, csv_bytes, json_bytes
from robustcf.fitting import two_to_inf
from robustcf.metrics.evaluate import MetricReport, Part, default_mask, evaluate
from robustcf.runtime import device_of, environment, set_threads
from robustcf.training import Trained, train

CONFIG, ENVIRONMENT, DATA = "config.json", "environment.json", "data.json"
FACTORS, METRICS, PER_USER, HISTORY = (
    "factors.safetensors",
    "metrics.json",
    "per_user.parquet",
    "history.csv",
)
_FORMAT = "robustcf run 1"


class RunDir:
    """A run directory: configuration first, results last.

    Args:
        path: the directory; it must hold the configuration of a run.

    Raises:
        InputError: there is no run at this path.

    Example:
        >>> import tempfile
        >>> from robustcf.config import TrainConfig
        >>> config = RunConfig("demo", train=TrainConfig(dim=4, epochs=1))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run = RunDir.create(Path(folder) / "first", config, load("demo"))
        ...     run.complete
        False
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open a run; reads its configuration only."""
        self.path = Path(path)
        if not (self.path / CONFIG).is_file():
            raise InputError(
                f"{self.path} is no run directory (no {CONFIG} in it): "
                "give the directory that 'robustcf train' wrote"
            )
        try:
            self.config = RunConfig.from_json((self.path / CONFIG).read_text(encoding="utf-8"))
        except InputError as error:
            raise InputError(f"{self.path / CONFIG}: {error}") from error

    @classmethod
    def create(cls, path: str | os.PathLike[str], config: RunConfig, split: Split) -> RunDir:
        """Make a run directory with configuration, versions and data checksums in it.

        Args:
            path: must not exist yet, or be an empty directory.
            config: what the run will do.
            split: the data it will use; their checksums are written down.
        """
        target = Path(path)
        contents = {
            CONFIG: config.to_json().encode(),
            ENVIRONMENT: json_bytes({**environment(), "seed": config.train.seed}),
            DATA: json_bytes(_data_facts(split)),
        }
        files.create_folder(target, contents)
        return cls(target)

    @property
    def complete(self) -> bool:
        """Whether the run has its result, and that of all its passes."""
        return (self.path / METRICS).is_file() and not self.metrics()["interrupted"]

    def split(self, data_dir: str | None = None) -> Split:
        """The data of the run, loaded again and checked to be the very same.

        Args:
            data_dir: where to look first, instead of where the run found them.
        """
        data = dict(self.config.data)
        if data_dir is not None:
            data["data_dir"] = data_dir
        split = load(self.config.dataset, **data)
        self.check(split)
        return split

    def check(self, split: Split) -> None:
        """Raise unless these are the data the run was made from."""
        files.check_fingerprint(self.path / DATA, split.name, split.fingerprint)

    def factors(self) -> Factors:
        """The trained embeddings; the data are not needed for this."""
        path = self.path / FACTORS
        if not path.is_file():
            raise InputError(
                f"{self.path} has no {FACTORS} yet: finish it with "
                f"'robustcf train --resume {self.path}'"
            )
        tensors, _ = files.read_tensors(path)
        return Factors(tensors["users"], tensors["items"])

    def metrics(self) -> dict[str, Any]:
        """The result, as ``metrics.json`` has it."""
        if not (self.path / METRICS).is_file():
            raise InputError(
                f"{self.path} has no result yet: finish it with "
                f"'robustcf train --resume {self.path}'"
            )
        found: dict[str, Any] = json.loads((self.path / METRICS).read_text(encoding="utf-8"))
        return found

    def learnt_pairs(self, split: Split) -> Interactions:
        """The pairs that the factors were learnt from: train, or train and valid after a refit."""
        return split.train if self.metrics()["learnt_from"] == "train" else split.train_full

    def execute(self, split: Split, *, progress: bool = False, every: float = 10.0) -> Trained:
        """Train as the configuration says, from where an earlier attempt stopped, and write.

        Args:
            split: the run's data.
            progress: whether to show a bar.
            every: seconds between checkpoints; 0 keeps one after every pass.
        """
        self.check(split)
        set_threads(self.config.threads)
        trained = train(
            split,
            self.config.train,
            device=device_of(self.config.device),
            checkpoint=CheckpointFiles(self.path, every),
            progress=progress,
        )
        self.write(trained)
        return trained

    def write(self, trained: Trained) -> None:
        """Write factors, history, per-user values and, last, the metrics."""
        split, factors = trained.split, trained.factors
        test = trained.evaluate() if len(split.test) else None
        facts = {
            "format": _FORMAT,
            "dataset": split.name,
            "fingerprint": split.fingerprint,
            "learnt_from": trained.learnt_from,
        }
        tensors = {"users": factors.users.cpu(), "items": factors.items.cpu()}
        files.write_tensors(self.path / FACTORS, tensors, facts)
        files.write_bytes(self.path / HISTORY, csv_bytes(trained.history))
        if test is not None:
            files.write_bytes(self.path / PER_USER, _parquet(test, split))
        result = {
            "run": str(self.path),
            "dataset": split.name,
            "model": trained.config.model,
            "reg": trained.config.reg,
            "test": None if test is None else test.as_dict(),
            "valid": None if trained.valid is None else trained.valid.as_dict(),
            "epochs": trained.epochs,
            "train_seconds": round(trained.train_seconds, 3),
            "two_to_inf": two_to_inf(factors),
            "learnt_from": trained.learnt_from,
            "interrupted": trained.interrupted,
            "preset": self.config.preset,
        }
        files.write_bytes(self.path / METRICS, json_bytes(result))
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
        factors = self.factors()
        own = self.mask(split, part)
        return evaluate(factors, split, ks, part=part, mask=own if mask is None else mask)

    def mask(self, split: Split, part: Part = "test") -> tuple[str, ...]:
        """The parts that are no candidates when the run is evaluated on ``part``.

        Raises:
            InputError: the run learnt from the very pairs it would be evaluated on.
        """
        learnt = self.metrics()["learnt_from"]
        if part == "valid" and learnt != "train":
            raise InputError(f"{self.path} learnt from valid: it can be evaluated on test only")
        return default_mask(split, part) if learnt == "train" else ("train", "valid")


def _data_facts(split: Split) -> dict[str, Any]:
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


def _parquet(report: MetricReport, split: Split) -> bytes:
    import pandas as pd

    columns: dict[str, Any] = {"user": report.users}
    if split.user_labels is not None:
        columns["label"] = split.user_labels[report.users]
    columns |= dict(report.per_user)
    buffer = io.BytesIO()
    pd.DataFrame(columns).to_parquet(buffer, index=False)
    return buffer.getvalue()
