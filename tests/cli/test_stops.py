"""Commands that are stopped, and output that cannot be written: exit codes and one line each."""

from __future__ import annotations

import ast
import errno
import hashlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest

from robustcf._io import files
from robustcf.cli import main as entry
from robustcf.cli.main import cli, run
from robustcf.errors import WriteError
from robustcf.experiments.sweep import SweepPlan
from robustcf.training import loop
from tests.experiments.conftest import small_table

FAST = ["--model", "ultragcn", "--dim", "3", "--set", "block_users=20"]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("data") / "mine.csv"
    path.write_text(small_table())
    return str(path)


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Ctrl-C in the third epoch of whatever is trained, with a checkpoint after each before."""
    one_epoch, init = loop._Steps.one_epoch, files.CheckpointFiles.__init__

    def stop(self: Any, epoch: int) -> Any:
        if epoch == 2:
            raise KeyboardInterrupt
        return one_epoch(self, epoch)

    monkeypatch.setattr(loop._Steps, "one_epoch", stop)
    monkeypatch.setattr(
        files.CheckpointFiles, "__init__", lambda self, folder, every: init(self, folder, 0.0)
    )
    return monkeypatch


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = run(words)
    out, err = capsys.readouterr()
    return code, out, err


def train(capsys: Any, own: str, out: Path, *more: str) -> tuple[int, str, str]:
    return call(capsys, "train", "--dataset", own, "--out", str(out), *FAST, "--epochs", "4", *more)


@pytest.mark.slow
def test_an_interrupted_training_says_so_and_is_not_used(
    own: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], stopped: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    code, out, err = train(capsys, own, folder)
    again = f"go on with 'robustcf train --resume {folder}'"
    kept = "2 epochs kept"
    assert (code, out, err) == (130, "", f"robustcf: interrupted, {kept}: {again}\n")
    attack = ["--attack", "fgm", "--epsilons", "0", "0.1"]
    commands = [
        ["evaluate", str(folder)],
        ["attack", str(folder), *attack],
        ["certify", str(folder), "--epsilons", "0", "0.1"],
        ["recommend", str(folder), "--user", "u1"],
    ]
    for words in (*commands, ["compare", str(folder), str(folder)]):
        code, out, err = call(capsys, *words)
        assert (code, out) == (1, "")
        assert "2 epochs" in err
        assert f"robustcf train --resume {folder}" in err
        assert "--allow-unfinished" in err
        assert not (folder / "robustness").exists()
    for words in commands:
        assert call(capsys, *words, "--allow-unfinished")[0] == 0
    assert (
        "same settings and the same seed"
        in call(
            capsys, "compare", str(folder), str(folder), "--allow-unfinished", "--attack", "fgm-bce"
        )[2]
    )
    stopped.undo()
    assert call(capsys, "train", "--resume", str(folder))[0] == 0
    for words in commands:
        assert call(capsys, *words)[0] == 0


def stop_in_epoch(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Ctrl-C in the middle of an epoch, behind a step that has changed the parameters."""
    one_epoch = loop._Steps.one_epoch

    def stop(self: Any, epoch: int) -> Any:
        row = one_epoch(self, epoch)
        if epoch == number:
            raise KeyboardInterrupt
        return row

    monkeypatch.setattr(loop._Steps, "one_epoch", stop)


def test_epochs_since_the_last_checkpoint_are_kept(
    own: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checkpoints are 10 seconds apart: none is due within these epochs."""
    files_of = []
    for name in ("whole", "stopped"):
        folder = tmp_path / name
        with monkeypatch.context() as patch:
            if name == "stopped":
                stop_in_epoch(patch, 2)
                code, _, err = train(capsys, own, folder)
                assert code == 130
                assert "2 epochs kept" in err
        words = ["--resume", str(folder)] if name == "stopped" else []
        resumed: list[int] = []
        one_epoch = loop._Steps.one_epoch

        def watched(self: Any, epoch: int, one: Any = one_epoch, seen: Any = resumed) -> Any:
            seen.append(epoch)
            return one(self, epoch)

        with monkeypatch.context() as patch:
            patch.setattr(loop._Steps, "one_epoch", watched)
            assert (call(capsys, "train", *words) if words else train(capsys, own, folder))[0] == 0
        if words:
            assert resumed[0] == 2
        files_of.append((folder / "factors.safetensors").read_bytes())
    assert files_of[0] == files_of[1]


def test_a_state_that_is_too_large_to_copy_is_not_claimed(
    own: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_MOST_COPIED", 0)
    stop_in_epoch(monkeypatch, 2)
    code, _, err = train(capsys, own, tmp_path / "run")
    assert code == 130
    assert "no epoch is kept" in err
    assert not list((tmp_path / "run").glob("checkpoint*"))


def test_an_interrupted_search_of_a_run_tells_its_trials(
    own: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = sys.modules["robustcf.training.search"]
    attempt = search._Search.attempt

    def stop_second(self: Any, *arguments: Any) -> Any:
        if self.trials:
            raise KeyboardInterrupt
        return attempt(self, *arguments)

    monkeypatch.setattr(search._Search, "attempt", stop_second)
    words = ["train", "--dataset", own, "--preset", "auto", "--out", str(tmp_path / "run")]
    code, _, err = call(capsys, *words)
    assert code == 130
    assert "1 trial of the search kept" in err.splitlines()[-1]


def test_every_command_that_opens_a_run_can_insist() -> None:
    """A command to come that takes a RUN must not use an unfinished one unawares."""

    def walk(group: click.Group) -> list[click.Command]:
        return [
            inner
            for command in group.commands.values()
            for inner in (walk(command) if isinstance(command, click.Group) else [command])
        ]

    takes_run = [
        command
        for command in walk(cli)
        if any(isinstance(p, click.Argument) and p.name in ("run", "runs") for p in command.params)
    ]
    assert len(takes_run) >= 7
    for command in takes_run:
        names = {name for parameter in command.params for name in parameter.opts}
        assert "--allow-unfinished" in names, command.name


def test_an_interrupted_training_as_json(
    own: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], stopped: pytest.MonkeyPatch
) -> None:
    code, out, err = train(capsys, own, tmp_path / "run", "--json")
    assert code == 130
    assert json.loads(out)["error"] in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("where", ["build_model", "evaluate"])
def test_stopped_before_and_after_the_epochs(
    own: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    from robustcf.experiments.run import RunDir as Dir

    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    module = sys.modules["robustcf.training.fitting"]
    check = Dir.check_trainable
    monkeypatch.setattr(Dir, "check_trainable", lambda *_: monkeypatch.setattr(module, where, stop))
    code, out, err = train(capsys, own, tmp_path / "run")
    monkeypatch.undo()
    assert check == Dir.check_trainable
    assert (code, out, err.count("\n")) == (130, "", 1)
    assert f"go on with 'robustcf train --resume {tmp_path / 'run'}'" in err
    assert call(capsys, "train", "--resume", str(tmp_path / "run"))[0] == 0


def test_an_interrupted_search_sweep_and_command(
    own: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    search = sys.modules["robustcf.training.search"]
    monkeypatch.setattr(search, "fit_split", stop)
    tune = ["tune", "--dataset", own, "--out", str(tmp_path / "p.json")]
    code, _, err = call(capsys, *tune)
    assert (code, err) == (130, "robustcf: interrupted, no trial is kept yet: start it again\n")
    monkeypatch.undo()
    attempt = search._Search.attempt

    def stop_second(self: Any, *arguments: Any) -> Any:
        if self.trials:
            raise KeyboardInterrupt
        return attempt(self, *arguments)

    monkeypatch.setattr(search._Search, "attempt", stop_second)
    code, _, err = call(capsys, *tune)
    assert code == 130
    kept = f"robustcf: interrupted, the trials so far are kept in {tmp_path / 'p.json'}"
    assert err.splitlines()[-1].startswith(kept)
    monkeypatch.setattr(SweepPlan, "complete", stop)
    words = [
        "sweep",
        "--dataset",
        own,
        "--out",
        str(tmp_path / "s"),
        "--regs",
        "none",
        "--seeds",
        "1",
    ]
    code, _, err = call(capsys, *words)
    assert (code, err.splitlines()[-1]) == (
        130,
        f"robustcf: interrupted, {tmp_path / 's'} keeps what is done: go on with the same command",
    )
    monkeypatch.setattr("robustcf.data.load", stop)
    code, out, err = call(capsys, "datasets", "info", "demo")
    assert (code, out, err.count("\n")) == (130, "", 1)
    assert "interrupted, what was finished before is kept" in err


CODE = """
import signal, sys
# Whoever starts the tests in the background has the signal ignored, and processes inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
from robustcf._io import files
init = files.CheckpointFiles.__init__
files.CheckpointFiles.__init__ = lambda self, folder, every: init(self, folder, 0.0)
from robustcf.cli.entry import main
main(sys.argv[1:])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_signals(own: str, tmp_path: Path, capsys: Any, number: int, code: int) -> None:
    folder = tmp_path / "run"
    words = ["train", "--dataset", own, "--out", str(folder), *FAST, "--epochs", "100000"]
    command = [sys.executable, "-c", CODE, *words, "--set", "patience=0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not (folder / "checkpoint.train.safetensors").exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(number)
    try:
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, out) == (code, "")
    assert err.count("\n") == 1
    assert re.match(r"robustcf: interrupted, [\d,]+ epochs? kept", err)
    assert call(capsys, "evaluate", str(folder))[0] == 1


# A signal at the moment that a module is looked for.
EARLY = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            os.kill(os.getpid(), int(sys.argv[2]))
sys.meta_path.insert(0, Finder())
if sys.argv[3] == "ignored":
    signal.signal(int(sys.argv[2]), signal.SIG_IGN)
del sys.argv[3]
from robustcf.cli.entry import main
main(["datasets", "--json"])
"""


def early(module: str, number: int, more: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", EARLY, module, str(int(number)), more, "--json"]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
@pytest.mark.parametrize("module", ["click", "robustcf.cli.train"])
def test_a_signal_during_start_up(module: str, number: int, code: int) -> None:
    done = early(module, number)
    assert (done.returncode, done.stderr) == (code, "robustcf: interrupted\n")
    assert json.loads(done.stdout) == {"error": "interrupted"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_that_the_caller_ignores_stays_ignored(number: int) -> None:
    done = early("click", number, "ignored")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)


def test_the_installed_command_and_the_module_begin_with_the_entry() -> None:
    root = Path(entry.__file__).parents[2]
    scripts = tomllib.loads((root / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"robustcf": "robustcf.cli.entry:main"}
    imports = [
        node.module
        for node in ast.walk(ast.parse((root / "robustcf" / "__main__.py").read_text()))
        if isinstance(node, ast.ImportFrom)
    ]
    assert imports == ["robustcf.cli.entry"]


def children(process: subprocess.Popen[str]) -> list[str]:
    return [
        number
        for path in Path(f"/proc/{process.pid}/task").glob("*/children")
        for number in path.read_text().split()
    ]


@pytest.mark.slow
@pytest.mark.skipif(not Path(f"/proc/self/task/{os.getpid()}/children").exists(), reason="no /proc")
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="two jobs take two cores")
@pytest.mark.parametrize("command", ["poison", "sweep"])
def test_workers_that_are_stopped_print_no_traceback(
    own: str, tmp_path: Path, command: str
) -> None:
    """Python starts three processes for two jobs; they import torch for a second and longer."""
    words = [command, "--dataset", own, "--model", "ultragcn", "--jobs", "2", "--seeds", "2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "robustcf", *words, "--out", str(tmp_path / "out")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while len(children(process)) < 3 and process.poll() is None:
        time.sleep(0.05)
    time.sleep(1.0)
    process.send_signal(signal.SIGTERM)
    try:
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert (process.returncode, out, err.count("\n")) == (143, "", 1)
    assert "interrupted" in err


def test_exit_codes_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = call(capsys, "--help")
    words = " ".join(out.split())
    for code in (
        "0 done",
        "1 failed",
        "2 wrong usage",
        "130 stopped by Ctrl-C",
        "143 stopped by SIGTERM",
        "129 stopped by SIGHUP",
    ):
        assert code in words


# --- output that cannot be written ----------------------------------------------------------

# As most people have it: what is written stays in a buffer, and may fail at the very end.
BUFFERED = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")


def started(words: list[str], **streams: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "robustcf", *words]
    return subprocess.run(command, **streams, text=True, env=BUFFERED)


@full
@pytest.mark.parametrize("words", [["datasets"], ["datasets", "--json"], ["--help"], ["--version"]])
def test_stdout_that_is_full(words: list[str]) -> None:
    with open("/dev/full", "w") as sink:
        done = started(words, stdout=sink, stderr=subprocess.PIPE)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("robustcf: the output cannot be written (No space left on device")


@full
def test_stdout_that_is_full_after_another_error() -> None:
    with open("/dev/full", "w") as sink:
        done = started(["datasets", "nothing", "--json"], stdout=sink, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "No such command" in done.stderr


@full
@pytest.mark.parametrize(
    ("words", "code"), [(["datasets"], 0), (["nonsense"], 2), (["compare", "x", "y"], 1)]
)
def test_stderr_that_is_full(words: list[str], code: int) -> None:
    with open("/dev/full", "w") as sink:
        assert started(words, stdout=subprocess.PIPE, stderr=sink).returncode == code


def test_closed_streams() -> None:
    command = f"{sys.executable} -m robustcf datasets >&- 2>&-"
    assert subprocess.run(command, shell=True).returncode in (0, 1)


def test_what_is_said_meanwhile_does_not_stop_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    from robustcf.cli.reporting import say

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(click, "echo", fail)
    say("a trial")
    assert entry._fail(["--json"], "reason", 1) == 1


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "free some space and start again"),
        (errno.EDQUOT, "free some space and start again"),
        (errno.EROFS, "choose a place that may be written to"),
        (errno.EACCES, "choose a place that you may write to"),
        (errno.EIO, "see that this place can be written to"),
    ],
)
def test_a_full_disk_names_the_path_and_what_to_do(
    own: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch, number: int, advice: str
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    code, out, err = train(capsys, own, tmp_path / "run")
    assert (code, out, err.count("\n")) == (1, "", 1)
    place = tmp_path / "run" / "config.json"
    assert err.startswith(f"robustcf: {place} cannot be written ({os.strerror(number)}): {advice}")
    assert os.listdir(tmp_path) == []


def test_a_disk_that_fills_up_while_training(own: str, tmp_path: Path, capsys: Any) -> None:
    """A limit on the size of files stands for the disk: the system refuses the write itself."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, limits[1]))
    try:
        code, out, err = train(capsys, own, tmp_path / "run")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "safetensors cannot be written (File too large): raise the limit on the size" in err
    assert not [path for path in (tmp_path / "run").iterdir() if path.name.startswith(".")]
    assert call(capsys, "train", "--resume", str(tmp_path / "run"))[0] == 0


def test_places_that_cannot_be_made(own: str, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file" / "run", tmp_path / ("x" * 300)):
        code, _, err = train(capsys, own, out)
        assert code == 1
        assert f"{out} cannot be written" in err
    code, _, err = call(capsys, "sweep", "--dataset", own, "--out", str(tmp_path / "file" / "s"))
    assert code == 1
    assert "cannot be written" in err
    with pytest.raises(WriteError, match="cannot be written"):
        files.write_bytes(tmp_path / "absent" / "x", b"")


# --- leftovers and bytes --------------------------------------------------------------------


@pytest.mark.slow
def test_the_next_command_that_writes_to_a_run_clears_what_a_kill_left(
    own: str, tmp_path: Path, capsys: Any
) -> None:
    folder = tmp_path / "run"
    assert train(capsys, own, folder)[0] == 0
    attack = ["attack", str(folder), "--attack", "fgm", "--epsilons", "0", "0.1"]
    assert call(capsys, *attack)[0] == 0

    def litter() -> list[Path]:
        left = [
            place / f".x.{n:016x}.robustcf-tmp"
            for n, place in enumerate((folder, folder / "robustness"))
        ]
        for path in left:
            path.write_text("half")
        return left

    left = litter()
    assert call(capsys, "evaluate", str(folder))[0] == 0
    assert all(path.exists() for path in left)  # it only reads
    assert call(capsys, *attack)[0] == 0
    assert not any(path.exists() for path in left)


def timeless(value: Any) -> Any:
    """JSON without what tells how long something took, and where."""
    if isinstance(value, dict):
        left_out = ("run", "seconds", "train_seconds")
        return {key: timeless(part) for key, part in value.items() if key not in left_out}
    return [timeless(part) for part in value] if isinstance(value, list) else value


@pytest.mark.slow
@pytest.mark.parametrize("seed", ["0", "1", "2"])
def test_equal_runs_have_equal_bytes(own: str, tmp_path: Path, capsys: Any, seed: str) -> None:
    timed = ("metrics.json", "recommender.json")
    found, results = [], []
    for name in ("one", "two"):
        folder = tmp_path / name / "run"
        assert train(capsys, own, folder, "--seed", seed)[0] == 0
        words = ["--epsilons", "0", "0.1"]
        assert call(capsys, "attack", str(folder), "--attack", "fgm", *words)[0] == 0
        found.append(
            {
                str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
                for path in sorted(folder.rglob("*"))
                # These tell how long it took.
                if path.is_file() and path.name not in (*timed, "history.csv")
            }
        )
        results.append([timeless(json.loads((folder / each).read_text())) for each in timed])
    assert {"factors.safetensors", "interactions.npz", "config.json", "per_user.parquet"} <= found[
        0
    ].keys()
    assert len(found[0]) >= 10
    assert found[0] == found[1]
    assert results[0] == results[1]
