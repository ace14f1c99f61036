"""The kill harness: ends a command inside every single file write, repeats it, compares bytes.

``python -m tests.hostile.kills train`` runs a command once undisturbed, and counts the points at
which it touches the disk below its folder, by Python's audit events: before a file is made, in the
middle of every write, before every renaming, removing and changing of permissions. Then, for each
point, it runs the command anew in a fresh folder, has the kernel end it there by SIGKILL, goes on
as a user would, and compares all files with those of the undisturbed run. Each run is a fork.
"""

from __future__ import annotations

import argparse
import builtins
import hashlib
import importlib
import io
import json
import os
import pkgutil
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

import robustcf
from robustcf._io import files
from robustcf._io.fetching import SourceFile
from robustcf.cli.main import run as command_line
from robustcf.data import catalog
from tests._io.faulty_server import Plan, serve
from tests.data.toy import toy_manifest
from tests.hostile.folders import save_images, table_text

# --- points ---------------------------------------------------------------------------------

_CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.link", "os.symlink"}


class Points:
    """Counts the points at which a process touches the disk ``below``; ends it at one of them."""

    def __init__(self, below: Path, kill_at: int | None) -> None:
        self.below, self.kill_at = str(below), kill_at
        self.seen: list[str] = []

    def install(self) -> None:
        """For the rest of this process."""
        sys.addaudithook(self._audit)
        opened = io.open

        def watched(*arguments: Any, **options: Any) -> Any:
            file = opened(*arguments, **options)
            writes = getattr(file, "mode", "r") not in ("r", "rb")
            inside = _path_of(arguments[0]).startswith(self.below)
            return _Watched(file, self) if writes and inside else file

        io.open = watched  # type: ignore[assignment]
        builtins.open = watched  # type: ignore[assignment]
        os.fdopen = lambda descriptor, *more, **options: watched(descriptor, *more, **options)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            flags = arguments[2]
            changes = isinstance(flags, int) and flags & (os.O_CREAT | os.O_TRUNC)
        else:
            changes = event in _CHANGES
        if changes and not isinstance(arguments[0], int):
            path = _path_of(arguments[0])
            if path.startswith(self.below):
                self.point(f"{event} {path}")

    def point(self, what: str) -> None:
        """The process may end here."""
        what = re.sub(r"[0-9a-f]{16}(?=\.robustcf-tmp)", "TOKEN", what.replace(self.below, ""))
        self.seen.append(what)
        if self.kill_at == len(self.seen) - 1:
            os.kill(os.getpid(), signal.SIGKILL)


class _Watched:
    """A file that may be killed in the middle of a write."""

    def __init__(self, file: Any, points: Points) -> None:
        self._file, self._points = file, points

    def write(self, content: Any) -> int:
        half = len(content) // 2
        self._file.write(content[:half])
        self._file.flush()
        self._points.point(f"write {_path_of(self._file.fileno())}")
        return half + int(self._file.write(content[half:]))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _Watched:
        self._file.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._file.__exit__(*error)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._file)


def _path_of(file: Any) -> str:
    if isinstance(file, int):
        return os.readlink(f"/proc/self/fd/{file}")
    return os.path.abspath(os.fsdecode(file))


# --- commands -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Command:
    """A command that writes.

    Args:
        words: of its command line; WORK stands for the folder.
        before: command lines that come before it, undisturbed.
        resume: of the command line that resumes from ``WORK/out``; the same command again where
            this is None, or where that folder does not exist yet.
        after: changes what those have left.
        around: holds while commands run.
        setup: makes in a folder what the commands need.
    """

    words: tuple[str, ...]
    before: tuple[tuple[str, ...], ...] = ()
    resume: tuple[str, ...] | None = None
    after: Callable[[Path], None] = field(default=lambda work: None)
    around: Callable[[], AbstractContextManager[None]] = nullcontext
    setup: Callable[[Path], None] = field(default=lambda work: _table(work))


def _table(work: Path) -> None:
    (work / "mine.csv").write_text(table_text())


def _factors(work: Path) -> None:
    _table(work)
    rng = np.random.default_rng(0)
    np.savez(work / "mine.npz", U=rng.normal(size=(40, 3)), V=rng.normal(size=(30, 3)))


def _nothing_learnt(work: Path) -> None:
    """Make a run one that ended before its first checkpoint, and may be written over."""
    for path in (work / "out").iterdir():
        if path.name not in ("config.json", "environment.json", "data.json"):
            path.unlink()


BODY = np.random.default_rng(0).integers(48, 58, 150_000, dtype=np.uint8).tobytes()


@contextmanager
def _served() -> Iterator[None]:
    """A server in a process of its own, and a set that is fetched from there."""
    reading, writing = os.pipe()
    server = os.fork()
    if server == 0:
        with serve(Plan(BODY)) as plan:
            os.write(writing, plan.url.encode() + b"\n")
            signal.pause()
        os._exit(0)
    url = os.read(reading, 1000).decode().strip()
    checksum = f"sha256:{hashlib.sha256(BODY).hexdigest()}"
    parts = {
        name: (SourceFile(f"{name}.txt", "adjacency", (checksum,), (url,)),)
        for name in ("train", "test")
    }
    known = {**catalog.manifests(), "toy": toy_manifest(parts=parts)}
    original, catalog.manifests = catalog.manifests, lambda: known  # type: ignore[assignment]
    try:
        yield
    finally:
        catalog.manifests = original
        os.kill(server, signal.SIGKILL)
        os.waitpid(server, 0)
        os.close(reading), os.close(writing)


def _words(text: str) -> tuple[str, ...]:
    """A command line; OUT and TABLE are in the folder of the work."""
    text = text.replace("OUT", "--out WORK/out").replace("TABLE", "--dataset WORK/mine.csv")
    return tuple(text.split())


TRAIN = _words(
    "train OUT TABLE --model ultragcn --factors 2 --epochs 2 --threads 1 --set block_users=20"
)
VOTE = _words("train OUT TABLE --model vote --threads 1 --set cap=0.2")
RESUME = ("train", "--resume", "WORK/out")
COMMANDS = {
    "train": Command(TRAIN, resume=RESUME),
    "train over a failed run": Command(
        TRAIN, before=(TRAIN,), after=_nothing_learnt, resume=RESUME
    ),
    "sweep": Command(
        _words(
            "sweep OUT TABLE --regs none --seeds 1 --attacks fgm --epsilons 0 0.1 --threads 1 "
            "--set factors=2 --set epochs=1 --set block_users=20"
        )
    ),
    "poison": Command(
        _words(
            "poison OUT TABLE --model als --attack random --fakes 2 --targets 2 --seeds 1 "
            "--threads 1 --set factors=2 --set iterations=1"
        )
    ),
    "detect": Command(_words("detect TABLE --out WORK/suspects.csv")),
    "attack": Command(_words("attack WORK/out --attack fgm --epsilons 0 0.1"), before=(TRAIN,)),
    "certify": Command(_words("certify WORK/out --epsilons 0 0.01"), before=(TRAIN,)),
    "train a vote": Command(VOTE, resume=RESUME),
    "certify against fakes": Command(_words("certify WORK/out --fakes 0 1"), before=(VOTE,)),
    "import": Command(
        _words("import WORK/mine.npz --interactions WORK/mine.csv OUT --rows sorted --force"),
        setup=_factors,
    ),
    "vision train": Command(
        _words(
            "vision train OUT --dataset WORK/images.npz --depth 10 --width 1 --epochs 2 "
            "--batch-size 30 --threads 1"
        ),
        resume=("vision", *RESUME),
        setup=lambda work: save_images(work / "images.npz"),
    ),
    "datasets fetch": Command(
        _words("datasets fetch toy --data-dir WORK/data"), around=_served, setup=lambda work: None
    ),
    "datasets prepare": Command(
        _words("datasets prepare WORK/mine.csv OUT --shards 2 --memory 2GB")
    ),
    "datasets info": Command(_words("datasets info WORK/mine.csv")),
}


def _without(*keys: str) -> Callable[[bytes], Any]:
    def cleaned(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: cleaned(part) for name, part in value.items() if name not in keys}
        return [cleaned(part) for part in value] if isinstance(value, list) else value

    return lambda content: cleaned(json.loads(content))


def _without_column(name: str) -> Callable[[bytes], Any]:
    def cleaned(content: bytes) -> Any:
        header, *rows = (line.split(",") for line in content.decode().splitlines())
        at = header.index(name) if name in header else len(header)
        return [[*row[:at], *row[at + 1 :]] for row in (header, *rows)]

    return cleaned


# Files that tell how long something took, without what tells it: all else of them is compared.
TIMES: dict[str, Callable[[bytes], Any]] = {
    "metrics.json": _without("train_seconds", "overhead"),
    "recommender.json": _without("train_seconds", "seconds"),
    "history.csv": _without_column("seconds"),
}


# --- the harness ----------------------------------------------------------------------------


class Harness:
    """Runs a command in a folder, ends it, goes on, compares."""

    def __init__(self, command: Command, home: Path) -> None:
        self.command, self.home = command, home
        # The same path each time: runs write down where their data are.
        self.work = home / "work"

    def prepare(self) -> None:
        """A fresh folder, as it is before the command."""
        shutil.rmtree(self.work, ignore_errors=True)
        ready = self.home / "ready"
        if not ready.exists():
            self.work.mkdir()
            self.command.setup(self.work)
            for words in self.command.before:
                self._must(words)
            self.command.after(self.work)
            shutil.copytree(self.work, ready)
            return
        shutil.copytree(ready, self.work)

    def undisturbed(self) -> tuple[list[str], dict[str, Any]]:
        """The points of the command, and what it leaves."""
        self.prepare()
        status, seen = self._fork(self.command.words, None)
        if status != 0:
            raise RuntimeError(f"the undisturbed command failed: {seen}")
        return seen, self.files()

    def killed_at(self, number: int) -> None:
        """End the command at a point, in a fresh folder."""
        self.prepare()
        status, seen = self._fork(self.command.words, number)
        if not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL):
            raise RuntimeError(f"it was not killed at point {number} (status {status}): {seen}")

    def repeat(self) -> None:
        """What a user would do after that."""
        words = self.command.words
        if self.command.resume is not None and (self.work / "out").exists():
            words = self.command.resume
        self._must(words)

    def files(self) -> dict[str, Any]:
        """What is in the folder: every name, with its content but for times."""
        found: dict[str, Any] = {}
        for path in sorted(self.work.rglob("*")):
            name = str(path.relative_to(self.work))
            if path.is_dir():
                found[name] = "a folder"
            else:
                content = path.read_bytes()
                found[name] = TIMES.get(path.name, bytes)(content)
        return found

    def _must(self, words: tuple[str, ...]) -> None:
        status, seen = self._fork(words, None)
        if status != 0:
            raise RuntimeError(f"robustcf {' '.join(words)} failed: {seen}")

    def _fork(self, words: tuple[str, ...], kill_at: int | None) -> tuple[int, list[str]]:
        """Run a command line in a process of its own; its points, or its words where it failed."""
        log = self.home / "log"
        log.unlink(missing_ok=True)
        process = os.fork()
        if process == 0:
            code = 1
            try:
                code = self._child(words, kill_at, log)
            finally:
                os._exit(code)
        _, status = os.waitpid(process, 0)
        return status, json.loads(log.read_text()) if log.exists() else []

    def _child(self, words: tuple[str, ...], kill_at: int | None, log: Path) -> int:
        os.environ["ROBUSTCF_CACHE"] = str(self.work / "cache")
        init = files.CheckpointFiles.__init__

        def after_every_epoch(self: Any, folder: Path, every: float) -> None:
            init(self, folder, 0.0)

        files.CheckpointFiles.__init__ = after_every_epoch  # type: ignore[method-assign]
        said = io.StringIO()
        sys.stdout = sys.stderr = said
        points = Points(self.work, kill_at)
        points.install()
        code = command_line([word.replace("WORK", str(self.work)) for word in words])
        log.write_text(json.dumps(points.seen if code == 0 else [said.getvalue()]))
        return code


def try_all(name: str, home: Path, every: int = 1, first: int = 0) -> Iterator[dict[str, Any]]:
    """Kill a command at each point (or at some); yields for each what is wrong, or None."""
    command = COMMANDS[name]
    with command.around():
        harness = Harness(command, home)
        points, expected = harness.undisturbed()
        again = harness.undisturbed()[1]
        yield {"points": points, "fault": _difference(expected, again)}
        for number in range(first, len(points), every):
            try:
                harness.killed_at(number)
                harness.repeat()
                fault = _difference(expected, harness.files())
            except RuntimeError as error:
                fault = str(error)
            yield {"point": number, "what": points[number], "fault": fault}


def _difference(expected: dict[str, Any], found: dict[str, Any]) -> str | None:
    lost, left = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
    other = sorted(name for name in expected if name in found and expected[name] != found[name])
    faults = {"lost": lost, "left": left, "other bytes": other}
    told = [f"{word}: {', '.join(names)}" for word, names in faults.items() if names]
    return "; ".join(told) or None


def main(words: list[str]) -> int:
    """The command; prints a JSON object for each point."""
    parser = argparse.ArgumentParser(prog="kills", description=__doc__.split("\n")[0])
    parser.add_argument("commands", choices=COMMANDS, nargs="+", metavar="COMMAND")
    parser.add_argument("--every", type=int, default=1, help="of so many points try one")
    parser.add_argument("--first", type=int, default=0, help="the first point to try")
    parser.add_argument("--count", action="store_true", help="count the points, no more")
    asked = parser.parse_args(words)
    torch.set_num_threads(1)
    import_all()
    failed = 0
    every, first = (10**9, 10**9) if asked.count else (asked.every, asked.first)
    for command in asked.commands:
        with tempfile.TemporaryDirectory(prefix="robustcf-kills-") as home:
            for found in try_all(command, Path(home), every, first):
                print(json.dumps({"command": command, **found}), flush=True)
                failed += found["fault"] is not None
    return int(failed > 0)


def import_all() -> None:
    """Import what commands import late, so that a fork need not."""
    for module in pkgutil.walk_packages(robustcf.__path__, "robustcf."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name in (
        *("pandas", "matplotlib.figure", "matplotlib.backends.backend_agg", "requests"),
        *("matplotlib.backends.backend_svg", "PIL.GifImagePlugin", "PIL.JpegImagePlugin"),
        *("pyarrow.parquet", "scipy.sparse.linalg"),
    ):
        importlib.import_module(name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
