"""What recommender runs and vision runs have in common: files, opening, resuming.

Files are written as :mod:`robustcf._io.files` does, whole or not at all. Configuration,
versions and data checksums come first; ``metrics.json`` comes last, so a run that has it is
complete. Nothing is pickled.

Opening a run reads, and nothing else. Its data are found by their name where the user keeps data,
or by paths that the user gives. A path that stands in the run itself, which may come from anybody,
is followed only to a plain file that has the length and the checksum that the run wrote down.
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
    ENVIRONMENT,
    ENVIRONMENT_KIND,
    HISTORY,
    METRICS,
    RESULT_KIND,
    check_run,
    facts_of_data,
    own_folder,
    read_record,
    result_of,
)

__all__ = [
    "CONFIG",
    "DATA",
    "ENVIRONMENT",
    "HISTORY",
    "METRICS",
    "Named",
    "RunBase",
    "RunConfigBase",
    "own_folder",
]

# Where data lie is a matter of the machine and of who sits at it, not of the run.
_PLACES = ("data_dir", "download", "cache")
# Of a file whose length a run did not write down, as versions before this one did not.
_MOST_UNKNOWN = 1 << 30
_BLOCK = 1 << 20


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

    Raises:
        InputError: a value is of another kind than it must be.
    """

    #: What ``data`` may hold.
    data_kind: ClassVar[Kind] = OBJECT

    dataset: str
    data: Mapping[str, Any] = field(default_factory=dict)
    train: TrainT = None  # type: ignore[assignment]
    threads: int = 1
    device: str = "cpu"

    def __post_init__(self) -> None:
        own = [entry.name for entry in dataclasses.fields(self) if entry.name != "train"]
        values = {name: getattr(self, name) for name in own}
        values["data"] = dict(self.data) if isinstance(self.data, Mapping) else self.data
        check_kind("", values, CONFIG_KIND)
        check_kind("", values["data"], self.data_kind, "data")
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
    def from_json(cls, text: str | bytes) -> Self:
        """From JSON text; an unknown key is an error."""
        try:
            values = parse_json(text)
        except InputError as error:
            raise InputError(f"a configuration must be JSON ({error})") from error
        if not isinstance(values, dict):
            raise InputError(f"a configuration must be a JSON object, got {type(values).__name__}")
        check_known(cls, values)
        if "dataset" not in values:
            raise InputError("a configuration must name its dataset, got none")
        check_kind("", values, CONFIG_KIND)
        train = cls.read_train(values.pop("train", {}))
        return cls(train=train, **values)


class RunBase(ABC, Generic[ConfigT, SplitT]):
    """A run directory: configuration first, results last.

    Args:
        path: the directory; it must hold the configuration of such a run.
        allow_unfinished: whether what an interrupted training left may be used.

    Raises:
        InputError: there is no run of this kind at this path.
    """

    config_type: ClassVar[type[RunConfigBase[Any]]]
    #: What the result of such a run must hold.
    result_kind: ClassVar[Kind] = RESULT_KIND
    #: The command that makes such runs.
    command: ClassVar[str]

    config: ConfigT
    #: Whether another run was written over, which had failed before its first checkpoint.
    replaced = False

    def __init__(self, path: str | os.PathLike[str], *, allow_unfinished: bool = False) -> None:
        """Open a run; reads its configuration only."""
        self.path, self.allow_unfinished = Path(path), allow_unfinished
        check_run(self.path, self.command)
        content = read_plain(self.path / CONFIG)
        try:
            self.config = self.config_type.from_json(content)  # type: ignore[assignment]
        except InputError as error:
            raise InputError(f"{self.path / CONFIG}: {error}") from error

    @classmethod
    def create(cls, path: str | os.PathLike[str], config: ConfigT, split: SplitT) -> Self:
        """Make a run directory with configuration, versions and data checksums in it.

        Whatever can be known to be wrong before training is an error before the directory is made.

        Args:
            path: must not exist yet, or be an empty directory, or hold a run that came to its end
                before its first checkpoint, which is written over.
            config: what the run will do.
            split: the data it will use; their checksums are written down.
        """
        if not os.fspath(path):
            raise InputError("the run directory must have a name, got an empty one")
        cls.check_trainable(config, split)
        facts = cls.data_facts(split)
        sizes = {name: _length(file) for name, file in _own_files(config, facts).items()}
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
        """Raise for what would only be found wrong in training: names, ranges, devices, sizes."""

    @classmethod
    @abstractmethod
    def data_facts(cls, split: SplitT) -> dict[str, Any]:
        """What is written down of the data: name, fingerprint, sizes."""

    @abstractmethod
    def is_named(self) -> bool:
        """Whether the run's data are found by a name, not by paths."""

    @abstractmethod
    def load(self, dataset: str, data: Mapping[str, Any]) -> SplitT:
        """Load these data with these arguments; nothing may be written, unless downloaded."""

    @property
    def complete(self) -> bool:
        """Whether the run has its result, and that of all its epochs."""
        try:
            return not self._result["interrupted"]
        except UnfinishedError:
            return False

    def settle(self) -> bool:
        """Whether the run is complete; if so, what a kill behind its result left is removed.

        These are states of the training, which the result has made useless, and temporary files.
        Whoever would otherwise go on with the run asks this first.
        """
        if not self.complete:
            return False
        # Somebody at work in it removes them himself; a folder that is read-only keeps them.
        with suppress(InputError, OSError), alone_in(self.path, f"another '{self.command}'"):
            files.CheckpointFiles(self.path, 0.0).clear()
            self._clear_leftovers()
        return True

    def _clear_leftovers(self) -> None:
        """Remove what a killed process left in the directory, or next to it while making it."""
        clear_leftovers(self.path)
        place = Path(os.path.realpath(self.path))
        clear_leftovers(place.parent, place.name)

    def metrics(self) -> dict[str, Any]:
        """The result, as ``metrics.json`` has it; read once.

        Raises:
            UnfinishedError: there is none, or that of an interrupted training, which was not
                allowed.
        """
        self.check_finished()
        return dict(self._result)

    def check_finished(self) -> None:
        """Raise unless the run came to its end, or unfinished ones are allowed."""
        if not self.complete:
            result_of(
                self.path, self.command, self.result_kind, allow_unfinished=self.allow_unfinished
            )

    @cached_property
    def _result(self) -> dict[str, Any]:
        return result_of(self.path, self.command, self.result_kind, allow_unfinished=True)

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
        """The data of the run, loaded again and checked to be the very same.

        Args:
            data_dir: where to look first for data with a name; where the run found them is not
                asked.
            dataset: where the run's own file or folder is now.
            valid_file: likewise.
            test_file: likewise.
            download: whether files that are not there may be fetched.

        Raises:
            InputError: the data are not there, or others.
            DownloadError: a file of a named set is not there.
        """
        data = {key: value for key, value in self.config.data.items() if key not in _PLACES}
        given = {"dataset": dataset, "valid_file": valid_file, "test_file": test_file}
        named = self.is_named()
        if named and any(given.values()):
            raise InputError(
                f"{self.path} is about {self.config.dataset}, which is found by its name: give "
                "--data-dir, the folder that holds it"
            )
        where = self.config.dataset if named else self._place("train", dataset, where="dataset")
        for key in ("valid_file", "test_file"):
            if data.get(key) is not None or given[key] is not None:
                data[key] = self._place(key.removesuffix("_file"), given[key], where=key)
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

    def _place(self, part: str, given: str | None, *, where: str) -> str:
        """A path that the user gave, or else that of the run, if its very file is there."""
        if given is not None:
            return given
        path = self.config.dataset if where == "dataset" else self.config.data[where]
        facts = facts_of_data(self.path)
        expected = _checksum(facts, part, path)
        problem: str | None = "the run has no checksum of it"
        if expected is not None:
            length = facts.get("sizes", {}).get(part)
            problem = _problem(Path(os.path.expanduser(path)), expected, length)
        if problem:
            raise InputError(
                f"{self.path} was made from {path!r}, which is not read now: {problem}. If you "
                f"know the data, say where they are with --{where.replace('_', '-')} PATH"
            )
        return str(path)

    def check(self, split: SplitT) -> None:
        """Raise unless these are the data the run was made from."""
        expected = facts_of_data(self.path)["fingerprint"]
        if split.fingerprint != expected:
            raise DataError(
                f"{self.path} was made from other data: its {split.name} has fingerprint "
                f"{expected[:12]}, this one {split.fingerprint[:12]}; restore the files it read"
            )

    def unfinished(self, what: str) -> InputError:
        """The error of a run that lacks something."""
        return UnfinishedError(
            f"{self.path} has no {what} yet: finish it with '{self.command} --resume {self.path}'"
        )

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Nobody else trains in this directory meanwhile, and what a kill left is cleared first.

        Raises:
            Interrupted: somebody stopped it; the message says what is kept and how to go on.
        """
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
        """Return what an interrupted training can be resumed from, in words."""
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
    """Whether a folder surely is a run, and one that ended before its first checkpoint."""
    first = {CONFIG, ENVIRONMENT, DATA}
    names = {entry.name for entry in folder.iterdir() if not is_leftover(entry)}
    if names != first:
        return False
    try:
        facts_of_data(folder)
        read_record(folder / ENVIRONMENT, ENVIRONMENT_KIND)
    except InputError:
        return False
    return True


def _own_files(config: RunConfigBase[Any], facts: Mapping[str, Any]) -> dict[str, str]:
    """Part -> path of each file of the user's own that the run has a checksum of."""
    paths = {"train": config.dataset}
    paths |= {
        part: config.data[f"{part}_file"]
        for part in ("valid", "test")
        if config.data.get(f"{part}_file") is not None
    }
    return {part: path for part, path in paths.items() if _checksum(facts, part, path)}


def _checksum(facts: Mapping[str, Any], part: str, path: str) -> str | None:
    """The sha256 of a file as the run wrote it down, or None."""
    sources, name = facts.get("sources", {}), Path(path).name
    found: str | None = sources.get(f"{part}/{name}", sources.get(name))
    return found


def _length(path: str) -> int:
    return os.stat(os.path.expanduser(path)).st_size


def _problem(path: Path, sha256: str, length: int | None) -> str | None:
    """Why a file is not the one with this checksum, or None; nothing of its content is told."""
    try:
        descriptor = open_plain(path, follow=True)
    except InputError as error:
        return str(error)
    other = "the file there is another than the run read"
    with os.fdopen(descriptor, "rb") as file:
        size = os.fstat(descriptor).st_size
        if length is not None and size != length:
            return other
        if length is None and size > _MOST_UNKNOWN:
            return "it is too large for a run that does not say how large its file was"
        found, left = hashlib.sha256(), size
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
