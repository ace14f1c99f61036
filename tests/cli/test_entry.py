"""Commands that are stopped, and output that cannot be written: exit codes and one line each."""

from __future__ import annotations

import errno
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

import click
import pytest

from robustcf import open as open_recommender
from robustcf._io import files
from robustcf.cli import main as entry
from robustcf.errors import WriteError
from robustcf.training import loop
from tests.experiments.conftest import small_table

FAST = ["--model", "ultragcn", "--factors", "3", "--set", "block_users=20"]
SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "mine.csv"
    path.write_text(small_table())
    return str(path)


@pytest.fixture
def train(call, own):
    words = ["train", "--dataset", own, *FAST, "--epochs", "4"]
    return lambda out, *more: call(*words, "--out", out, *more)


def stop(*_, **__):
    raise KeyboardInterrupt


def stop_in_epoch(monkeypatch, number):
    """Ctrl-C in the middle of an epoch, behind a step that has changed the parameters."""
    one_epoch = loop._Steps.one_epoch

    def epoch_then_stop(self, epoch):
        row = one_epoch(self, epoch)
        if epoch == number:
            raise KeyboardInterrupt
        return row

    monkeypatch.setattr(loop._Steps, "one_epoch", epoch_then_stop)


@pytest.mark.slow
def test_an_interrupted_training_says_so_and_is_not_used(call, train, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    stop_in_epoch(monkeypatch, 2)
    again = f"go on with 'robustcf train --resume {folder}'"
    assert train(folder) == (130, "", f"robustcf: interrupted, 2 epochs kept: {again}\n")
    commands = [
        ["evaluate", folder],
        ["attack", folder, "--attack", "fgm", "--epsilons", "0", "0.1"],
        ["certify", folder, "--epsilons", "0", "0.1"],
        ["recommend", folder, "--user", "u1"],
    ]
    for words in (*commands, ["compare", folder, folder]):
        code, out, err = call(*words)
        assert (code, out) == (1, "")
        for word in ("2 epochs", f"robustcf train --resume {folder}", "--allow-unfinished"):
            assert word in err
        assert not (folder / "robustness").exists()
    for words in commands:
        assert call(*words, "--allow-unfinished")[0] == 0
    words = ["compare", folder, folder, "--allow-unfinished", "--attack", "fgm-bce"]
    assert "same settings and the same seed" in call(*words)[2]
    monkeypatch.undo()
    assert call("train", "--resume", folder)[0] == 0
    for words in commands:
        assert call(*words)[0] == 0


@pytest.mark.slow
def test_epochs_since_the_last_checkpoint_are_kept(call, train, tmp_path, monkeypatch):
    """Checkpoints are 10 seconds apart: none is due within these epochs."""
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert train(whole)[0] == 0
    with monkeypatch.context() as patch:
        stop_in_epoch(patch, 2)
        code, out, err = train(stopped, "--json")
    assert (code, err.count("\n")) == (130, 1)
    assert "2 epochs kept" in err
    assert json.loads(out)["error"] in err
    resumed: list[int] = []
    one_epoch = loop._Steps.one_epoch

    def watched(self, epoch):
        resumed.append(epoch)
        return one_epoch(self, epoch)

    monkeypatch.setattr(loop._Steps, "one_epoch", watched)
    assert call("train", "--resume", stopped)[0] == 0
    assert resumed[0] == 2
    one, other = (folder / "factors.safetensors" for folder in (whole, stopped))
    assert one.read_bytes() == other.read_bytes()


def test_a_state_that_is_too_large_to_copy_is_not_claimed(train, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_MOST_COPIED", 0)
    stop_in_epoch(monkeypatch, 2)
    code, _, err = train(tmp_path / "run")
    assert code == 130
    assert "no epoch is kept" in err
    assert not list((tmp_path / "run").glob("checkpoint*"))


@pytest.mark.parametrize("where", ["build_model", "evaluate"])
def test_stopped_before_or_after_the_epochs(call, train, tmp_path, monkeypatch, where):
    from robustcf.experiments.run import RunDir

    module = sys.modules["robustcf.training.fitting"]
    with monkeypatch.context() as patch:
        patch.setattr(RunDir, "check_trainable", lambda *_: patch.setattr(module, where, stop))
        code, out, err = train(tmp_path / "run")
    assert (code, out, err.count("\n")) == (130, "", 1)
    assert f"go on with 'robustcf train --resume {tmp_path / 'run'}'" in err
    assert call("train", "--resume", tmp_path / "run")[0] == 0


def test_an_interrupted_search_sweep_and_command(call, own, tmp_path, monkeypatch):
    search = sys.modules["robustcf.training.search"]
    attempt = search._Search.attempt

    def second(stopped):
        def attempted(self, *arguments):
            if self.trials:
                raise stopped
            return attempt(self, *arguments)

        return attempted

    preset, swept = tmp_path / "p.json", tmp_path / "s"
    tune = ["tune", "--dataset", own, "--out", preset]
    with monkeypatch.context() as patch:
        patch.setattr(search, "fit_split", stop)
        code, _, err = call(*tune)
    assert (code, err) == (130, "robustcf: interrupted, no trial is kept yet: start it again\n")
    with monkeypatch.context() as patch:
        patch.setattr(search._Search, "attempt", second(KeyboardInterrupt(signal.SIGTERM)))
        code, _, err = call(*tune)
        assert (code, f"the trials so far are kept in {preset}" in err) == (130, True)
        auto = ["train", "--dataset", own, "--preset", "auto", "--out", tmp_path / "run"]
        code, _, err = call(*auto)
        assert (code, "1 trial of the search kept" in err.splitlines()[-1]) == (130, True)
        # Ctrl-C means that the best so far is good enough.
        patch.setattr(search._Search, "attempt", second(KeyboardInterrupt()))
        code, out, err = call(*tune, "--resume")
        assert (code, "the best settings so far are taken" in err) == (0, True)
        assert str(preset) in out
        assert call(*auto[:-1], tmp_path / "soon")[0] == 0
        assert open_recommender(tmp_path / "soon").n_users
    with monkeypatch.context() as patch:
        patch.setattr("robustcf.experiments.sweep.RunDir.create", stop)
        code, _, err = call(
            "sweep", "--dataset", own, "--out", swept, "--regs", "none", "--seeds", "1"
        )
    assert code == 130
    assert f"{swept} keeps what is done: go on with the same command" in err.splitlines()[-1]


CODE = """
import signal, sys
# Tests started in the background ignore these signals, and child processes inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from robustcf._io import files
init = files.CheckpointFiles.__init__
files.CheckpointFiles.__init__ = lambda self, folder, every: init(self, folder, 0.0)
from robustcf.cli.entry import main
main(sys.argv[1:])
"""


def stopped(command, ready, number):
    """Code, stdout and stderr of a process that gets a signal soon after it is ready."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not ready(process) and process.poll() is None:
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(number)
    try:
        out, err = process.communicate(timeout=600)
    finally:
        process.kill()
    return process.returncode, out, err


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_signals(call, own, tmp_path, number, code):
    folder = tmp_path / "run"
    words = ["train", "--dataset", own, "--out", str(folder), *FAST, "--epochs", "100000"]
    command = [sys.executable, "-c", CODE, *words, "--set", "patience=0"]
    checkpoint = folder / "checkpoint.train.safetensors"
    got, out, err = stopped(command, lambda process: checkpoint.exists(), number)
    assert (got, out, err.count("\n")) == (code, "", 1)
    assert re.match(r"robustcf: interrupted, [\d,]+ epochs? kept", err)
    assert call("evaluate", folder)[0] == 1


# A signal at the moment that a module is looked for.
EARLY = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup has it ignored
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


def early(module, number, more=""):
    command = [sys.executable, "-c", EARLY, module, str(int(number)), more, "--json"]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize(("number", "code"), SIGNALS)
@pytest.mark.parametrize("module", ["click", "robustcf.cli.datasets"])
def test_a_signal_during_start_up(module, number, code):
    done = early(module, number)
    assert (done.returncode, done.stderr) == (code, "robustcf: interrupted\n")
    assert json.loads(done.stdout) == {"error": "interrupted"}


SWALLOWED = """
import signal, sys
from robustcf.cli import main as command

def broken(*_, **__):
    try:
        signal.raise_signal(int(sys.argv[1]))
    except KeyboardInterrupt:
        raise AttributeError("half imported")

command.cli.main = broken
command.main(["train"])
"""


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_signal_that_an_import_turns_into_another_error(number, code):
    """numpy's C code does, while it is being imported."""
    words = [sys.executable, "-c", SWALLOWED, str(int(number))]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (code, "robustcf: interrupted\n")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_that_the_caller_ignores_stays_ignored(number):
    done = early("click", number, "ignored")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)


def test_the_installed_command_and_the_module_begin_with_the_entry():
    root = Path(entry.__file__).parents[2]
    scripts = tomllib.loads((root / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"robustcf": "robustcf.cli.entry:main"}
    imports = re.findall(r"^from (\S+)", (root / "robustcf" / "__main__.py").read_text(), re.M)
    assert imports in (["robustcf.cli.entry"], ["__future__", "robustcf.cli.entry"])


def children(process):
    return [
        number
        for path in Path(f"/proc/{process.pid}/task").glob("*/children")
        for number in path.read_text().split()
    ]


@pytest.mark.slow
@pytest.mark.skipif(not Path(f"/proc/self/task/{os.getpid()}/children").exists(), reason="no /proc")
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="two jobs take two cores")
def test_workers_that_are_stopped_print_no_traceback(own, tmp_path):
    """Python starts three processes for two jobs; they import torch for a second and longer."""
    words = ["sweep", "--dataset", own, "--model", "ultragcn", "--jobs", "2", "--seeds", "2"]
    command = [sys.executable, "-m", "robustcf", *words, "--out", str(tmp_path / "out")]
    code, out, err = stopped(command, lambda process: len(children(process)) >= 3, signal.SIGTERM)
    assert (code, out, err.count("\n")) == (143, "", 1)
    assert "interrupted" in err


# --- output that cannot be written ----------------------------------------------------------

# As most people have it: what is written stays in a buffer, and may fail at the very end.
BUFFERED = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")


def started(words, **streams):
    command = [sys.executable, "-m", "robustcf", *words]
    return subprocess.run(command, **streams, text=True, env=BUFFERED)


@full
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["datasets"], 1, "the output cannot be written (No space left on device"),
        (["datasets", "--json"], 1, "the output cannot be written (No space left on device"),
        (["--help"], 1, "the output cannot be written (No space left on device"),
        (["--version"], 1, "the output cannot be written (No space left on device"),
        (["datasets", "nothing", "--json"], 2, "No such command"),
    ],
)
def test_stdout_that_is_full(words, code, said):
    with open("/dev/full", "w") as sink:
        done = started(words, stdout=sink, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr.count("\n")) == (code, 1)
    assert said in done.stderr


@full
@pytest.mark.parametrize(
    ("words", "code"), [(["datasets"], 0), (["nonsense"], 2), (["compare", "x", "y"], 1)]
)
def test_stderr_that_is_full(words, code):
    with open("/dev/full", "w") as sink:
        assert started(words, stdout=subprocess.PIPE, stderr=sink).returncode == code


def test_closed_streams():
    command = f"{sys.executable} -m robustcf datasets >&- 2>&-"
    assert subprocess.run(command, shell=True).returncode in (0, 1)


def test_what_is_said_meanwhile_does_not_stop_the_work(monkeypatch):
    from robustcf.cli.reporting import say

    def fail(*_, **__):
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
def test_a_full_disk_names_the_path_and_what_to_do(train, tmp_path, monkeypatch, number, advice):
    def fail(descriptor):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    code, out, err = train(tmp_path / "run")
    assert (code, out, err.count("\n")) == (1, "", 1)
    place = tmp_path / "run" / "config.json"
    assert err.startswith(f"robustcf: {place} cannot be written ({os.strerror(number)}): {advice}")
    assert os.listdir(tmp_path) == []


def test_a_disk_that_fills_up_while_training(call, train, tmp_path):
    """A limit on the size of files stands for the disk: the system refuses the write itself."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, limits[1]))
    try:
        code, out, err = train(tmp_path / "run")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "safetensors cannot be written (File too large): raise the limit on the size" in err
    assert not [path for path in (tmp_path / "run").iterdir() if path.name.startswith(".")]
    assert call("train", "--resume", tmp_path / "run")[0] == 0


def test_places_that_cannot_be_made(call, train, own, tmp_path):
    (tmp_path / "file").write_text("")
    places = (tmp_path / "file" / "run", tmp_path / ("x" * 300))
    swept = call("sweep", "--dataset", own, "--out", places[0])
    for out, (code, _, err) in zip((*places, ""), (*map(train, places), swept), strict=True):
        assert (code, f"{out} cannot be written".strip() in err) == (1, True)
    with pytest.raises(WriteError, match="cannot be written"):
        files.write_bytes(tmp_path / "absent" / "x", b"")


# --- leftovers and bytes --------------------------------------------------------------------


@pytest.mark.slow
def test_the_next_command_that_writes_to_a_run_clears_what_a_kill_left(call, train, tmp_path):
    folder = tmp_path / "run"
    assert train(folder)[0] == 0
    attack = ["attack", folder, "--attack", "fgm", "--epsilons", "0", "0.1"]
    assert call(*attack)[0] == 0
    left = [
        place / f".x.{n:016x}.robustcf-tmp"
        for n, place in enumerate((folder, folder / "robustness"))
    ]
    for path in left:
        path.write_text("half")
    assert call("evaluate", folder)[0] == 0
    assert all(path.exists() for path in left)  # it only reads
    assert call(*attack)[0] == 0
    assert not any(path.exists() for path in left)


def timeless(value):
    """JSON without what tells how long something took, and where."""
    if isinstance(value, dict):
        left_out = ("run", "seconds", "train_seconds")
        return {key: timeless(part) for key, part in value.items() if key not in left_out}
    return [timeless(part) for part in value] if isinstance(value, list) else value


@pytest.mark.slow
@pytest.mark.parametrize("seed", ["0", "1", "2"])
def test_equal_runs_have_equal_bytes(call, train, tmp_path, seed):
    timed = ("metrics.json", "recommender.json")
    found, results = [], []
    for name in ("one", "two"):
        folder = tmp_path / name / "run"
        assert train(folder, "--seed", seed)[0] == 0
        assert call("attack", folder, "--attack", "fgm", "--epsilons", "0", "0.1")[0] == 0
        files = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()}
        clocked = (*timed, "history.csv")  # these hold durations
        found.append({str(n): p.read_bytes() for n, p in files.items() if p.name not in clocked})
        results.append([timeless(json.loads((folder / each).read_text())) for each in timed])
    names = {"factors.safetensors", "interactions.npz", "config.json", "per_user.parquet"}
    assert names <= found[0].keys()
    assert found[0] == found[1]
    assert results[0] == results[1]
