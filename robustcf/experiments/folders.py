"""Run folders of recommenders and of classifiers: creating, opening, resuming.

Configuration, versions and data checksums are written first, ``metrics.json`` last, so a run that
has it is complete. Opening a run only reads. A path in the run itself, which may be a stranger's,
is followed only to a plain file with the length and the checksum that the run wrote down.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from robustcf._checks import check_known
from robustcf._io import files
from robustcf._io.files import json_bytes
from robustcf._io.reading import open_plain, parse_json, read_plain
from robustcf._io.schema import OBJECT, Kind, check_kind
from robustcf._io.temporary import alone_in, clear_leftovers, is_leftover
from robustcf._io.text import counted
from robustcf._runtime import environment
from robustcf.errors import DataError, DownloadError, InputError, Interrupted, UnfinishedError
from robustcf.experiments.records import (
    CONFIG,
    CONFIG_KIND,
    DATA,
    DATA_KIND,
    ENVIRONMENT,
    ENVIRONMENT_KIND,
    METRICS,
    RESULT_KIND,
    read_record,
)

# Where data lie is a matter of the machine, not of the run.
_PLACES = ("data_dir", "download", "cache")
_BLOCK = 1 << 20


class Named(Protocol):
    """Data with a name and a digest of their content."""

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def fingerprint(self) -> str: ...  # noqa: D102


TrainT = TypeVar("TrainT")
ConfigT = TypeVar("ConfigT", bound="RunConfigBase[Any]")
SplitT = TypeVar("SplitT", bound=Named)


@dataclass(frozen=True)
class RunConfigBase(ABC, Generic[TrainT]):
    """The data of a run, and how to train on them; a value of the wrong kind is an InputError."""

    #: The entries that ``data`` may have.
    data_kind: ClassVar[Kind] = OBJECT

    dataset: str
    data: Mapping[str, Any] = field(default_factory=dict)
    train: TrainT = None  # type: ignore[assignment]
    threads: int = 1
    device: str = "cpu"

    def __post_init__(self) -> None:
        values = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}
        values["data"] = dict(self.data) if isinstance(self.data, Mapping) else self.data
        values.pop("train")
        check_kind("", values, CONFIG_KIND)
        check_kind("", values["data"], self.data_kind, "data")
        if self.train is None:
            object.__setattr__(self, "train", self.read_train({}))

    @classmethod
    @abstractmethod
    def read_train(cls, values: Mapping[str, Any]) -> TrainT:
        """Return training settings from plain values."""

    @staticmethod
    def plain_train(train: Any) -> dict[str, Any]:
        """Return training settings as plain values."""
        return dataclasses.asdict(train)

    def to_json(self) -> str:
        """Return indented JSON text."""
        values = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}
        values["data"] = dict(self.data)
        values["train"] = self.plain_train(self.train)
        return json.dumps(values, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read JSON text; an unknown key is an error."""
        try:
            values = parse_json(text)
        except InputError as error:
            raise InputError(f"a configuration must be JSON ({error})") from error
        check_kind("", values, CONFIG_KIND)
        check_known(cls, values)
        return cls(train=cls.read_train(values.pop("train", {})), **values)


class RunBase(ABC, Generic[ConfigT, SplitT]):
    """A run folder, which must hold the configuration of a run of this kind.

    ``allow_unfinished`` is whether the result of an interrupted training may be used.
    """

    config_type: ClassVar[type[RunConfigBase[Any]]]
    result_kind: ClassVar[Kind] = RESULT_KIND
    #: The command that makes such runs.
    command: ClassVar[str]

    config: ConfigT
    #: Whether a run that failed before its first checkpoint was overwritten.
    replaced = False

    def __init__(self, path: str | os.PathLike[str], *, allow_unfinished: bool = False) -> None:
        self.path, self.allow_unfinished = Path(path), allow_unfinished
        if not (self.path / CONFIG).is_file():
            raise InputError(
                f"{self.path} is not a run directory (no {CONFIG} in it): give the directory "
                f"that '{self.command}' wrote"
            )
        content = read_plain(self.path / CONFIG)
        try:
            self.config = self.config_type.from_json(content)  # type: ignore[assignment]
        except InputError as error:
            raise InputError(f"{self.path / CONFIG}: {error}") from error

    @classmethod
    def create(cls, path: str | os.PathLike[str], config: ConfigT, split: SplitT) -> Self:
        """Make a run folder with configuration, versions and data checksums in it.

        The path must not exist yet, or be an empty folder, or hold a run that failed before its
        first checkpoint, which is overwritten. Errors that can be found before training are raised
        before the folder is made.
        """
        if not os.fspath(path):
            raise InputError("the run directory must have a name, got an empty one")
        cls.check_trainable(config, split)
        facts = cls.data_facts(split)
        paths = {part: config.data.get(f"{part}_file") for part in ("valid", "test")}
        sizes = {
            part: os.stat(os.path.expanduser(path)).st_size
            for part, path in {"train": config.dataset, **paths}.items()
            if path is not None and _checksum(facts, part, path)
        }
        contents = {
            CONFIG: config.to_json().encode(),
            ENVIRONMENT: json_bytes({**environment(), "seed": config.train.seed}),
            DATA: json_bytes({**facts, **({"sizes": sizes} if sizes else {})}),
        }
        replaced = files.create_folder(Path(path), contents, _holds_nothing_learnt)
        run = cls(path)
        run.replaced = replaced
        return run

    @classmethod
    @abstractmethod
    def check_trainable(cls, config: ConfigT, split: SplitT) -> None:
        """Raise for names, ranges, devices and sizes that training would refuse."""

    @classmethod
    @abstractmethod
    def data_facts(cls, split: SplitT) -> dict[str, Any]:
        """Return the recorded facts of the data: name, fingerprint, sizes."""

    @abstractmethod
    def is_named(self) -> bool:
        """Return whether the data are found by a name, not by paths."""

    @abstractmethod
    def load(self, dataset: str, data: Mapping[str, Any]) -> SplitT:
        """Load data with these arguments; nothing may be written, unless downloaded."""

    @property
    def complete(self) -> bool:
        """Whether the run has the result of all its epochs."""
        try:
            return not self._result["interrupted"]
        except UnfinishedError:
            return False

    def settle(self) -> bool:
        """Return whether the run is complete; if so, remove checkpoints that a kill has left."""
        if not self.complete:
            return False
        # A process at work in it removes them itself; a read-only folder keeps them.
        with suppress(InputError, OSError), alone_in(self.path, f"another '{self.command}'"):
            files.CheckpointFiles(self.path, 0.0).clear()
            self._clear_leftovers()
        return True

    def _clear_leftovers(self) -> None:
        """Remove what a killed process left in the folder, or next to it while making it."""
        clear_leftovers(self.path)
        place = Path(os.path.realpath(self.path))
        clear_leftovers(place.parent, place.name)

    def metrics(self) -> dict[str, Any]:
        """Return the content of ``metrics.json``; see :meth:`check_finished`."""
        self.check_finished()
        return dict(self._result)

    def check_finished(self) -> None:
        """Raise an UnfinishedError unless the run is finished, or unfinished ones are allowed."""
        result = self._result
        if result["interrupted"] and not self.allow_unfinished:
            raise UnfinishedError(
                f"{self.path} is not finished (interrupted after "
                f"{counted(result['epochs'], 'epoch')}): {self._advice}, or insist with "
                "--allow-unfinished"
            )

    @property
    def _advice(self) -> str:
        return f"finish it with '{self.command} --resume {self.path}'"

    @cached_property
    def _result(self) -> dict[str, Any]:
        if not os.path.lexists(self.path / METRICS):
            raise self.unfinished("result")
        return read_record(self.path / METRICS, self.result_kind)

    def write_metrics(self, result: Mapping[str, Any]) -> None:
        """Write the result: the last file of a run."""
        files.write_bytes(self.path / METRICS, json_bytes(result))
        self.__dict__.pop("_result", None)

    def split(
        self,
        data_dir: str | None = None,
        *,
        dataset: str | None = None,
        valid_file: str | None = None,
        test_file: str | None = None,
        download: bool = False,
    ) -> SplitT:
        """Load the data of the run again, and check that they are the same.

        Args:
            data_dir: where to look first for data with a name.
            dataset: where the run's own file or folder is now.
            valid_file: where its validation file is now.
            test_file: where its test file is now.
            download: whether missing files may be downloaded.
        """
        data = {key: value for key, value in self.config.data.items() if key not in _PLACES}
        given = {"dataset": dataset, "valid_file": valid_file, "test_file": test_file}
        named = self.is_named()
        if named and any(given.values()):
            raise InputError(
                f"{self.path} is about {self.config.dataset}, which is found by its name: give "
                "--data-dir, the folder that holds it"
            )
        where = self.config.dataset if named else dataset or self._place("dataset", "train")
        for key in ("valid_file", "test_file"):
            if data.get(key) is not None or given[key] is not None:
                data[key] = given[key] or self._place(key, key.removesuffix("_file"))
        if data_dir is not None:
            data["data_dir"] = data_dir
        try:
            split = self.load(where, {**data, "download": download})
        except DownloadError as error:
            if download:
                raise
            before = self.config.data.get("data_dir")
            hint = f"; when the run was made they were in {before!r}" if before else ""
            raise DownloadError(f"{error} (give --data-dir DIR, or --download{hint})") from error
        self.check(split)
        return split

    def _place(self, option: str, part: str) -> str:
        """The path of the run, if the file there is still the one that it read."""
        path = self.config.dataset if option == "dataset" else self.config.data[option]
        facts = self._data_facts
        expected, length = _checksum(facts, part, path), facts.get("sizes", {}).get(part, -1)
        problem: str | None = "the run has no checksum of it"
        if expected is not None:
            problem = _problem(Path(os.path.expanduser(path)), expected, length)
        if problem:
            raise InputError(
                f"{self.path} was made from {path!r}, which is not read now: {problem}. If you "
                f"know the data, say where they are with --{option.replace('_', '-')} PATH"
            )
        return str(path)

    @property
    def _data_facts(self) -> dict[str, Any]:
        return read_record(self.path / DATA, DATA_KIND)

    def check(self, split: SplitT) -> None:
        """Raise unless these are the data of the run."""
        expected = self._data_facts["fingerprint"]
        if split.fingerprint != expected:
            raise DataError(
                f"{self.path} was made from other data: its {split.name} has fingerprint "
                f"{expected[:12]}, this one {split.fingerprint[:12]}; restore the files it read"
            )

    def unfinished(self, what: str) -> InputError:
        """Return the error of a run that lacks a file."""
        return UnfinishedError(f"{self.path} has no {what} yet: {self._advice}")

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Keep other trainings out of the folder; an interrupt says what is kept, how to resume."""
        with alone_in(self.path, f"another '{self.command}'"):
            self._clear_leftovers()
            try:
                yield
            except Interrupted:
                raise
            except KeyboardInterrupt as error:
                raise self.interrupted() from error

    def interrupted(self) -> Interrupted:
        """Return the error of a stopped training: what is kept, and how to resume."""
        kept = self.kept()
        words = f"{' and '.join(kept)} kept" if kept else "no epoch is kept yet"
        return Interrupted(
            f"interrupted, {words}: go on with '{self.command} --resume {self.path}'"
        )

    def kept(self) -> list[str]:
        """Return the epochs that an interrupted training can be resumed from, in words."""
        counts: dict[str, int] = {}
        prefix, suffix = files.CHECKPOINT.split("{}")
        for path in sorted(self.path.glob(files.CHECKPOINT.format("*")), reverse=True):
            stage = path.name.removeprefix(prefix).removesuffix(suffix)
            with suppress(InputError, KeyError, TypeError):
                state = parse_json(files.read_facts(path).get("state", ""))
                counts[stage] = len(state["history"])
        return [
            counted(number, "epoch") + (f" of stage {stage}" if len(counts) > 1 else "")
            for stage, number in counts.items()
        ]


def _holds_nothing_learnt(folder: Path) -> bool:
    """Whether a folder surely is a run that ended before its first checkpoint."""
    names = {entry.name for entry in folder.iterdir() if not is_leftover(entry)}
    if names != {CONFIG, ENVIRONMENT, DATA}:
        return False
    try:
        read_record(folder / DATA, DATA_KIND)
        read_record(folder / ENVIRONMENT, ENVIRONMENT_KIND)
    except InputError:
        return False
    return True


def _checksum(facts: Mapping[str, Any], part: str, path: str) -> str | None:
    """The sha256 of a file as the run wrote it down, or None."""
    sources, name = facts.get("sources", {}), Path(path).name
    found: str | None = sources.get(f"{part}/{name}", sources.get(name))
    return found


def _problem(path: Path, sha256: str, length: int) -> str | None:
    """Why a file is not the one of this length and checksum, or None; its content is not told."""
    try:
        descriptor = open_plain(path, follow=True)
    except InputError as error:
        return str(error)
    other = "the file there is another than the run read"
    with os.fdopen(descriptor, "rb") as file:
        if os.fstat(descriptor).st_size != length:
            return other
        found, left = hashlib.sha256(), length
        try:
            while left > 0 and (block := file.read(min(_BLOCK, left))):
                found.update(block)
                left -= len(block)
        except OSError as error:
            return f"it cannot be read ({error.strerror})"
    return None if left == 0 and found.hexdigest() == sha256 else other


def free_folder(name: str) -> Path:
    """Return a folder in ``runs/`` that does not exist yet."""
    folder, number = Path("runs") / name, 1
    while folder.exists():
        number += 1
        folder = Path("runs") / f"{name}-{number}"
    return folder
