"""What recommender runs and vision runs have in common: files, opening, resuming.

Files are written as :mod:`robustcf.support.files` does, whole or not at all. Configuration,
versions and data checksums come first; ``metrics.json`` comes last, so a run that has it is
complete. Nothing is pickled.
"""

from __future__ import annotations

import dataclasses
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from robustcf.errors import InputError
from robustcf.support import files
from robustcf.support.checks import check_known
from robustcf.support.files import json_bytes
from robustcf.support.runtime import environment

CONFIG, ENVIRONMENT, DATA = "config.json", "environment.json", "data.json"
METRICS, HISTORY = "metrics.json", "history.csv"


class Named(Protocol):
    """Data, of which a run needs a name and a fingerprint."""

    @property
    def name(self) -> str:
        """What the data are called."""

    @property
    def fingerprint(self) -> str:
        """A digest of their content."""


TrainT = TypeVar("TrainT")
ConfigT = TypeVar("ConfigT", bound="RunConfigBase[Any]")
SplitT = TypeVar("SplitT", bound=Named)


@dataclass(frozen=True)
class RunConfigBase(ABC, Generic[TrainT]):
    """What a run directory was made from: the data, and how to train on them.

    Args:
        dataset: a name or a path.
        data: the other arguments of the loader.
        train: how to train.
        threads: torch threads; the same number repeats the same bits.
        device: where the tensors live.
    """

    dataset: str
    data: Mapping[str, Any] = field(default_factory=dict)
    train: TrainT = None  # type: ignore[assignment]
    threads: int = 1
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.train is None:
            object.__setattr__(self, "train", self.read_train({}))

    @classmethod
    @abstractmethod
    def read_train(cls, values: Mapping[str, Any]) -> TrainT:
        """The training configuration from plain values."""

    @staticmethod
    def plain_train(train: Any) -> dict[str, Any]:
        """The training configuration as plain values."""
        return dataclasses.asdict(train)

    def to_json(self) -> str:
        """As indented JSON text."""
        values = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}
        values["data"] = dict(self.data)
        values["train"] = self.plain_train(self.train)
        return json.dumps(values, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """From JSON text; an unknown key is an error."""
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise InputError(f"a configuration must be JSON ({error})") from error
        if not isinstance(values, dict):
            raise InputError(f"a configuration must be a JSON object, got {type(values).__name__}")
        check_known(cls, values)
        if "dataset" not in values:
            raise InputError("a configuration must name its dataset, got none")
        train = cls.read_train(values.pop("train", {}))
        return cls(train=train, **values)


class RunBase(ABC, Generic[ConfigT, SplitT]):
    """A run directory: configuration first, results last.

    Args:
        path: the directory; it must hold the configuration of such a run.

    Raises:
        InputError: there is no run of this kind at this path.
    """

    config_type: ClassVar[type[RunConfigBase[Any]]]
    #: The command that makes such runs.
    command: ClassVar[str]

    config: ConfigT

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open a run; reads its configuration only."""
        self.path = Path(path)
        if not (self.path / CONFIG).is_file():
            raise InputError(
                f"{self.path} is no run directory (no {CONFIG} in it): "
                f"give the directory that '{self.command}' wrote"
            )
        try:
            text = (self.path / CONFIG).read_text(encoding="utf-8")
            self.config = self.config_type.from_json(text)  # type: ignore[assignment]
        except (InputError, UnicodeDecodeError) as error:
            raise InputError(f"{self.path / CONFIG}: {error}") from error

    @classmethod
    def create(cls, path: str | os.PathLike[str], config: ConfigT, split: SplitT) -> Self:
        """Make a run directory with configuration, versions and data checksums in it.

        Args:
            path: must not exist yet, or be an empty directory.
            config: what the run will do.
            split: the data it will use; their checksums are written down.
        """
        contents = {
            CONFIG: config.to_json().encode(),
            ENVIRONMENT: json_bytes({**environment(), "seed": config.train.seed}),
            DATA: json_bytes(cls.data_facts(split)),
        }
        files.create_folder(Path(path), contents)
        return cls(path)

    @classmethod
    @abstractmethod
    def data_facts(cls, split: SplitT) -> dict[str, Any]:
        """What is written down of the data: name, fingerprint, sizes."""

    @abstractmethod
    def load(self, data: Mapping[str, Any]) -> SplitT:
        """Load the run's data with these arguments."""

    @property
    def complete(self) -> bool:
        """Whether the run has its result, and that of all its epochs."""
        return (self.path / METRICS).is_file() and not self.metrics()["interrupted"]

    def metrics(self) -> dict[str, Any]:
        """The result, as ``metrics.json`` has it; read once."""
        return dict(self._metrics)

    @cached_property
    def _metrics(self) -> dict[str, Any]:
        if not (self.path / METRICS).is_file():
            raise self.unfinished("result")
        return files.read_json(self.path / METRICS)

    def write_metrics(self, result: Mapping[str, Any]) -> None:
        """Write the result: the last file of a run."""
        files.write_bytes(self.path / METRICS, json_bytes(result))
        self.__dict__.pop("_metrics", None)

    def split(self, data_dir: str | None = None) -> SplitT:
        """The data of the run, loaded again and checked to be the very same.

        Args:
            data_dir: where to look first, instead of where the run found them.
        """
        data = dict(self.config.data)
        if data_dir is not None:
            data["data_dir"] = data_dir
        split = self.load(data)
        self.check(split)
        return split

    def check(self, split: SplitT) -> None:
        """Raise unless these are the data the run was made from."""
        files.check_fingerprint(self.path / DATA, split.name, split.fingerprint)

    def unfinished(self, what: str) -> InputError:
        """The error of a run that lacks something."""
        return InputError(
            f"{self.path} has no {what} yet: finish it with '{self.command} --resume {self.path}'"
        )
