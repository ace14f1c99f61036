"""Run directories, sweeps and preset files: sound ones to spoil, and the commands that open them.

A spoilt one goes through the command line, in this process. Besides a clear error it must give
away nothing of a foreign file, and write nothing where it was not told to.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from robustcf.cli.main import run as command_line
from robustcf.data import load
from robustcf.experiments import RunDir, grid
from robustcf.experiments.run import RunConfig
from robustcf.recommender import open_recommender
from robustcf.training import loop
from robustcf.training.config import TrainConfig
from robustcf.vision import load_images
from robustcf.vision import training as vision_training
from robustcf.vision.config import VisionConfig, VisionRunConfig
from robustcf.vision.runs import VisionRun
from tests.hostile import mutations as spoil
from tests.recommender.tampering import sign

SECRET = "root:x:0:0"
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
# A long training is what they ask for, and no fault.
PATIENT = ("epochs", "patience", "refit_epochs", "minutes")
# Files with a checksum in recommender.json, which an attacker changes too.
SIGNED = ("factors.safetensors", "interactions.npz")


@dataclass(frozen=True)
class Folder:
    """A folder that may come from a stranger.

    Args:
        name: of the sound one.
        commands: in some, RUN stands for the spoilt and OTHER for a sound folder.
        reads: whether the commands may only read it.
    """

    name: str
    commands: Sequence[str]
    reads: bool = False


ATTACK = "attack RUN --attack fgm --epsilons 0 0.1"
SWEEP = (
    "sweep --dataset TABLE --out RUN --regs none --seeds 1 --attacks fgm --epsilons 0 0.1 "
    "--set factors=2 --set epochs=1 --set block_users=20 --threads 1"
)
POISON = (
    "poison --dataset TABLE --out RUN --model als --set factors=2 --set iterations=1 "
    "--attack random "
    "--fakes 2 --targets 2 --seeds 1 --threads 1"
)
PRESET = "train --dataset TABLE --out OUT --preset RUN/preset.json --epochs 1 --threads 1"
EVALUATE, RESUME, COMPARE = "evaluate RUN", "train --resume RUN", "compare RUN OTHER"
USER, ITEMS = "recommend RUN --user u1", "recommend RUN --items i1 i2"
HARDEN = "harden RUN --out OUT.safetensors"
AUDIT = "audit RUN --only norms popularity"
IMPORT = "import FACTORS --interactions RUN --out OUT --force"
FOLDERS = {
    "run, read": Folder("finished", [EVALUATE, COMPARE, USER, ITEMS], reads=True),
    "run, attacked": Folder("finished", [ATTACK, "certify RUN --epsilons 0 0.01"]),
    "run, resumed": Folder("finished", [RESUME]),
    "saved recommender, read": Folder("saved", [EVALUATE, USER, ITEMS, AUDIT, IMPORT], reads=True),
    "saved recommender": Folder("saved", [ATTACK, HARDEN]),
    "saved recommender without interactions": Folder(
        "bare", [ITEMS, USER, EVALUATE, HARDEN], reads=True
    ),
    "unfinished run": Folder(
        "unfinished", [RESUME, RESUME, EVALUATE, f"{EVALUATE} --allow-unfinished"]
    ),
    "run of a vote, read": Folder("vote", [EVALUATE, COMPARE, USER, ITEMS], reads=True),
    "run of a vote": Folder("vote", ["certify RUN --fakes 0 1 3", RESUME]),
    "vision run": Folder(
        "vision",
        [
            "vision evaluate RUN --jacobian-images 2",
            "vision train --resume RUN",
            "vision jacobian RUN --trials 1 --budgets 5",
        ],
    ),
    "unfinished vision run": Folder("unfinished vision", ["vision train --resume RUN"]),
    "sweep": Folder("sweep", [SWEEP]),
    "poisoning": Folder("poisoning", [POISON]),
    "preset of a run": Folder("preset", [PRESET]),
}


def _stopped_at(patch: pytest.MonkeyPatch, owner: Any, name: str, at: int) -> None:
    """Ctrl-C in an epoch."""
    original = getattr(owner, name)

    def stop(*arguments: Any) -> Any:
        if arguments[-1] == at:
            raise KeyboardInterrupt
        return original(*arguments)

    patch.setattr(owner, name, stop)


def table_text() -> str:
    """Two tastes and some noise, as CSV."""
    rng = np.random.default_rng(0)
    lines = ["user,item"]
    for user in range(40):
        chances = np.where(np.arange(30) % 2 == user % 2, 0.6, 0.05)
        lines += [f"u{user},i{item}" for item in np.flatnonzero(rng.random(30) < chances)]
    return "\n".join(lines)


def save_images(path: Path) -> None:
    """Sixty small images of three classes, as ``.npz``."""
    rng = np.random.default_rng(0)
    pixels, labels = rng.integers(0, 255, (60, 8, 8, 1), dtype=np.uint8), np.arange(60) % 3
    parts = dict(x_train=pixels, y_train=labels, x_test=pixels[:12], y_test=labels[:12])
    np.savez(path, **parts)


@contextlib.contextmanager
def without_pictures() -> Iterator[None]:
    """Pictures take a second and read nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grid, "plot_panels", lambda *_, **__: None)
        yield


class Workshop:
    """Sound folders, made once; spoilt copies of them, made for each case."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.trap = home / "trap"
        self.secret = home / "secret"
        self.table = home / "mine.csv"
        self.images = home / "images.npz"
        self.factors = home / "factors.npz"

    def make(self, needed: Set[str]) -> None:
        """Train what is needed; a second or two."""
        self.trap.mkdir(parents=True)
        self.secret.write_text(f"{SECRET}\n" * 5)
        self.table.write_text(table_text())
        if needed & {"finished", "saved", "bare"}:
            small = "--model ultragcn --factors 4 --epochs 3 --threads 1 --set block_users=20"
            for name, extra in (("finished", ""), ("other", "--reg none")):
                self._must(f"train --dataset TABLE --out RUN {small} {extra}", name)
                self._must(ATTACK, name)
            model = open_recommender(self.home / "finished")
            model.save(self.home / "saved")
            model.save(self.home / "bare", include_interactions=False)
            U, V = model.factors
            np.savez(self.factors, U=U.numpy(), V=V.numpy())
        made = {
            "vote": "train --dataset TABLE --out RUN --model vote --threads 1 --set groups=8",
            "sweep": SWEEP,
            "poisoning": POISON,
        }
        for name in needed & made.keys():
            self._must(made[name], name)
        if "unfinished" in needed:
            self._unfinished()
        if needed & {"vision", "unfinished vision"}:
            self._vision()
        (self.home / "preset").mkdir()
        preset = {"config": {"model": "ultragcn", "factors": 2, "epochs": 1}, "found": {}}
        (self.home / "preset" / "preset.json").write_text(json.dumps(preset))

    def _must(self, words: str, name: str) -> None:
        with without_pictures():
            code, _, err = self.call(words, self.home / name)
        if code != 0:
            raise RuntimeError(f"a sound command failed: {words} {err}")

    def _unfinished(self) -> None:
        split = load(str(self.table), cache=False)
        train = TrainConfig.of(
            model="ultragcn", factors=4, epochs=4, block_users=20, reg="two_to_inf",
            reg_weight=1e-4, reg_refresh=3, adversarial="bpr",
        )  # fmt: skip
        config = RunConfig(str(self.table), {"seed": 0}, train=train)
        run = RunDir.create(self.home / "unfinished", config, split)
        with pytest.MonkeyPatch.context() as patch:
            _stopped_at(patch, loop._Steps, "one_epoch", 2)
            run.execute(split, every=0.0)

    def _vision(self) -> None:
        save_images(self.images)
        split = load_images(str(self.images))
        for name, stop in (("vision", None), ("unfinished vision", 1)):
            train = VisionConfig(
                depth=10, width=1, epochs=1 if stop is None else 2, batch_size=30,
                reg="none" if stop is None else "two_to_inf", reg_weight=1e-3, reg_images=4,
            )  # fmt: skip
            run = VisionRun.create(
                self.home / name, VisionRunConfig(str(self.images), {}, train), split
            )
            with pytest.MonkeyPatch.context() as patch:
                if stop is not None:
                    _stopped_at(patch, vision_training, "_epoch", stop)
                run.execute(split, every=0.0)

    def call(self, words: str, run: Path) -> tuple[int, str, str]:
        """Run a command line; its exit code, and what it wrote to stdout and stderr."""
        names = {
            "RUN": str(run), "RUN/preset.json": str(run / "preset.json"),
            "OTHER": str(self.home / "other"), "TABLE": str(self.table),
            "OUT": str(run.with_name("out")), "FACTORS": str(self.factors),
            "OUT.safetensors": str(run.with_name("out.safetensors")),
        }  # fmt: skip
        # As strict about characters as a terminal is.
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in "oe")
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = command_line([names.get(word, word) for word in words.split()])
        written = [stream.buffer.getvalue().decode() for stream in (out, err)]  # type: ignore[attr-defined]
        return code, written[0], written[1]

    def spoil(self, rng: Random, run: Path) -> str:
        """Spoil one file of a folder, with a checksum that fits or not; says what was done."""
        file, what = self._spoil_one(rng, run)
        if not what.startswith("is "):
            what = f": {what}"
            if file.name in SIGNED and rng.random() < 0.8:
                sign(file.parent)
                what += ", signed"
        return f"{file.relative_to(run)} {what}"

    def _spoil_one(self, rng: Random, run: Path) -> tuple[Path, str]:
        files = sorted(path for path in run.rglob("*") if path.is_file() and path.name[0] != ".")
        # Those that every command reads come more often than one of many saved curves.
        first = [file for file in files if file.parent.name != "robustness"]
        file = rng.choice([*files, *first, *first])
        content = file.read_bytes()
        way = rng.random()
        if way < 0.1:
            return file, self._replace(rng, file)
        if way < 0.15:
            other = rng.choice(files)
            file.write_bytes(other.read_bytes())
            return file, f"copy of {other.name}"
        if way < 0.22:
            file.write_bytes(spoil.spoil_whole(rng, content))
            return file, "something else"
        if way < 0.32:
            file.write_bytes(spoil.spoil_bytes(rng, content))
            return file, "other bytes"
        paths = (str(self.trap), str(self.secret), str(self.trap / "new"), f"{self.trap}/../trap")
        ways = {
            ".json": lambda: self._json(rng, content, paths),
            ".safetensors": lambda: spoil.spoil_tensors(rng, content, paths),
            ".npz": lambda: ("an odd array", spoil.spoil_npz(rng, content)),
            ".parquet": lambda: ("odd columns", spoil.spoil_parquet(rng, content)),
        }
        plain = lambda: ("other bytes", spoil.spoil_bytes(rng, content))  # noqa: E731
        what, content = ways.get(file.suffix, plain)()
        file.write_bytes(content)
        return file, what

    @staticmethod
    def _json(rng: Random, content: bytes, paths: tuple[str, ...]) -> tuple[str, bytes]:
        while True:
            what, new = spoil.spoil_json(rng, content, paths)
            if not any(word in what for word in PATIENT):
                return what, new

    def _replace(self, rng: Random, file: Path) -> str:
        """Replace a plain file by something else."""
        file.unlink()
        ways = ["secret", "/dev/zero", "/dev/null", "self", "pipe", "folder", "nothing", "sparse"]
        way = rng.choice(ways)
        if way == "pipe":
            os.mkfifo(file)
        elif way == "folder":
            file.mkdir()
        elif way == "sparse":
            with file.open("wb") as handle:
                handle.truncate(3 << 30)
        elif way != "nothing":
            target = {"secret": str(self.secret), "self": str(file)}.get(way, way)
            file.symlink_to(target)
        return f"is {way}"

    def try_one(self, rng: Random, folder: Folder, work: Path) -> tuple[str, str, str]:
        """Spoil a copy of a folder and run a command on it.

        Returns:
            What was done, what came of it (read, refused or failed), and what is wrong with that.
        """
        run = work / "run"
        shutil.copytree(self.home / folder.name, run)
        words = rng.choice(folder.commands)
        what = f"{self.spoil(rng, run)}; robustcf {words}"
        before = _listing(run) if folder.reads else None
        with without_pictures():
            code, out, err = self.call(words, run)
        fault = self._fault(code, out, err)
        if folder.reads and _listing(run) != before:
            fault = fault or "a command that only reads changed the folder"
        return what, "failed" if fault else "refused" if code else "read", fault or ""

    def _fault(self, code: int, out: str, err: str) -> str | None:
        if code not in (0, 1, 2):
            return f"exit code {code}: {err[-300:]}"
        for words in ("internal error", "Traceback", "not enough memory", "Unable to allocate"):
            if words in err:
                return err[-600:]
        if SECRET in out + err:
            return f"it gave away a foreign file: {err[-300:]}"
        if code != 0 and err.count("robustcf:") != 1:
            return f"expected one line that says what is wrong, got {err[-300:]!r}"
        if marks := sorted(set(CONTROL.findall(out + err))):
            return f"control characters {marks} reach the terminal: {err[-300:]!r}"
        if len(err) > 4000:
            return f"a message of {len(err):,} characters: {err[:300]}"
        if any(self.trap.iterdir()):
            for left in self.trap.iterdir():
                shutil.rmtree(left) if left.is_dir() else left.unlink()
            return "something was written into a folder that the command was not given"
        return None


def _listing(folder: Path) -> list[tuple[str, int, int]]:
    return sorted(
        (str(path.relative_to(folder)), path.lstat().st_size, path.lstat().st_mtime_ns)
        for path in folder.rglob("*")
        if not path.is_dir()
    )
