"""Several processes on this machine, started by torchrun: the same results, and clear ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file

from tests.distributed.equality import configurations

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow

TRAIN = "--epochs 3 --set block_users=16 --seed 3 --factors 4 --threads 1".split()


def environment(**more: str) -> dict[str, str]:
    left_out = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK")
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    own = {
        "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error",
        "ROBUSTCF_RANK_TIMEOUT": "60",
    }  # fmt: skip
    return {**kept, **own, **more}


def torchrun(
    ranks: int, *words: Any, options: tuple[str, ...] = (), module: str = "robustcf", **more: str
) -> subprocess.CompletedProcess[str]:
    """Run a job to its end; a process that is still running then is an orphan and an error."""
    launcher = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks))
    with subprocess.Popen(
        [*launcher, *options, "-m", module, *map(str, words)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
        env=environment(**more), start_new_session=True,
    ) as job:  # fmt: skip
        try:
            out, err = job.communicate(timeout=900)
        finally:
            # The session is the job's own: no other processes are in this group.
            orphans = members(job.pid) - {job.pid}
            if orphans or job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
    assert not orphans, f"processes that outlived their job: {orphans}"
    return subprocess.CompletedProcess(launcher, job.returncode, out, err)


def members(group: int) -> set[int]:
    """Processes of a group that live, but for those that only wait to be looked at."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.add(int(entry.name))
    return found


def alone(*words: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "robustcf", *map(str, words)],
        capture_output=True, text=True, cwd=ROOT, env=environment(), check=False,
    )  # fmt: skip


def ours(text: str) -> list[str]:
    """The lines that robustcf itself has said."""
    return [line for line in text.splitlines() if line.startswith("robustcf: ")]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of 60 users with two tastes."""
    rng = np.random.default_rng(0)
    chance = np.where((np.arange(60)[:, None] + np.arange(40)) % 2, 0.1, 0.5)
    users, items = np.nonzero(rng.random((60, 40)) < chance)
    path = tmp_path_factory.mktemp("data") / "pairs.csv"
    pd.DataFrame({"user": users, "item": items}).to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def run(pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that one process trained."""
    folder = tmp_path_factory.mktemp("runs") / "one"
    done = alone("train", "--dataset", pairs, "--model", "softmax-mf", *TRAIN, "--out", folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_ranks_train_what_one_process_trains_with_every_objective_and_regularizer():
    done = torchrun(2, module="tests.distributed.equality")
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == len(configurations())
    wrong = [row for row in found if not row["difference"] < 1e-10]
    assert not wrong, wrong


def test_a_run_of_ranks_is_a_run_like_any(pairs, run, tmp_path):
    folder = tmp_path / "many"
    words = ("train", "--dataset", pairs, "--model", "softmax-mf", *TRAIN, "--out", folder)
    done = torchrun(3, *words, "--json")
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()  # one rank has spoken
    result, expected = json.loads(line), json.loads((run / "metrics.json").read_text())
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        path.name for path in run.iterdir()
    )
    for part in ("test", "valid"):
        for name, value in expected[part].items():
            if name != "protocol":
                assert result[part][name] == pytest.approx(value, abs=1e-4), name
        assert result[part]["protocol"] == expected[part]["protocol"]
    assert result["two_to_inf"] == pytest.approx(expected["two_to_inf"], rel=1e-4)
    np.testing.assert_allclose(scores(folder), scores(run), atol=1e-4)
    # Its own files say what the one line says, and one process can use it.
    assert json.loads((folder / "metrics.json").read_text()) == result
    again = alone("evaluate", folder, "--json")
    assert json.loads(again.stdout)["test"] == result["test"]


def scores(folder: Path) -> Any:
    factors = load_file(folder / "factors.safetensors")
    return factors["users"] @ factors["items"].T


def commands(folder: Path) -> list[list[str]]:
    place, sizes = str(folder), ("--epsilons", "0", "0.2")
    bpr = ("--attack", "pgd", "--objective", "bpr", "--steps", "2")
    return [
        ["evaluate", place, "--json"],
        ["attack", place, *sizes, "--steps", "3", "--json"],
        ["attack", place, *bpr, *sizes, "--json"],
        ["certify", place, "--personal", "--epsilons", "0", "0.01", "--json"],
        ["audit", place, "--out", str(folder / "page.html"), "--json"],
    ]


def outcome(ranks: int, run: Path, place: Path) -> tuple[list[str], dict[str, bytes]]:
    """What the commands print, and all files of the run behind them."""
    folder, plan = place / "run", place / "plan.json"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(run, folder)
    plan.write_text(json.dumps(commands(folder)))
    done = torchrun(ranks, plan, module="tests.distributed.commands")
    assert done.returncode == 0, done.stderr
    files = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
    return done.stdout.splitlines(), files


def test_commands_give_the_bits_of_one_process(run, tmp_path):
    lines, files = outcome(1, run, tmp_path)
    assert len(lines) == 5
    assert "page.html" in files
    found, written = outcome(3, run, tmp_path)
    assert found == lines
    assert written == files


def killed_training(pairs: Path, folder: Path) -> tuple[Any, ...]:
    reg = ("--reg", "tests.distributed.killer:Killer", "--model", "ultragcn")
    return ("train", "--dataset", pairs, *reg, *TRAIN, "--refit", "no", "--out", folder)


@pytest.fixture(scope="module")
def unbroken(pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The result of the training where no process is killed."""
    folder = tmp_path_factory.mktemp("unbroken") / "run"
    done = torchrun(2, *killed_training(pairs, folder))
    assert done.returncode == 0, done.stderr
    return dict(load_file(folder / "factors.safetensors"))


def same_factors(folder: Path, expected: dict[str, Any]) -> None:
    found = load_file(folder / "factors.safetensors")
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, atol=1e-5)


@pytest.mark.parametrize("how", ["kill", "raise", "stop"])
def test_a_rank_that_ends_ends_the_job_and_another_number_of_ranks_goes_on(
    how, pairs, unbroken, tmp_path
):
    folder = tmp_path / "run"
    # 4 blocks an epoch: in the second one.
    wait = "5" if how == "stop" else "60"
    done = torchrun(
        3, *killed_training(pairs, folder), KILL=f"1:6:{how}", ROBUSTCF_RANK_TIMEOUT=wait
    )
    assert done.returncode != 0
    lines = ours(done.stderr)
    assert len(lines) == 1, lines
    (line,) = lines
    # torchrun also stops the others: the first rank may notice either event first.
    ended = ("told to fail",) if how == "raise" else ("another process of this job", "interrupted")
    assert any(words in line for words in ended), line
    if how != "raise":
        assert f"--resume {folder}" in line
    left = {path.name for path in folder.iterdir()}
    assert left == {
        "config.json", "data.json", "environment.json", "checkpoint.train.safetensors"
    }  # fmt: skip
    if how != "kill":
        return
    resumed = torchrun(2, "train", "--resume", folder, "--allow-code")
    assert resumed.returncode == 0, resumed.stderr
    assert "checkpoint.train.safetensors" not in {path.name for path in folder.iterdir()}
    history = pd.read_csv(folder / "history.csv")
    assert history["epoch"].tolist() == [1, 2, 3]
    same_factors(folder, unbroken)


def test_torchrun_starts_again_from_the_checkpoint(pairs, unbroken, tmp_path):
    folder = tmp_path / "run"
    again = ("--max-restarts", "1")
    done = torchrun(2, *killed_training(pairs, folder), options=again, KILL="0:10:kill")
    assert done.returncode == 0, done.stderr
    same_factors(folder, unbroken)
    without = torchrun(2, *killed_training(pairs, folder)[:-2], options=again)
    assert without.returncode != 0
    assert {"give --out DIR" in line for line in ours(without.stderr)} == {True}


def test_a_rank_without_users_and_more_ranks_than_blocks(tmp_path):
    path = tmp_path / "few.csv"
    pd.DataFrame({"user": [0, 0, 0, 0, 1, 1, 1, 1], "item": [0, 1, 2, 3, 2, 3, 4, 5]}).to_csv(
        path, index=False
    )
    words = ("train", "--dataset", path, "--model", "ultragcn", "--reg", "two_to_inf", *TRAIN)
    one, many = tmp_path / "one", tmp_path / "many"
    assert alone(*words, "--out", one).returncode == 0
    done = torchrun(3, *words, "--out", many)
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(scores(many), scores(one), atol=1e-4)


def test_what_ranks_cannot_do_is_said_once(pairs, run, tmp_path):
    plan = [
        (("train", "--dataset", pairs, "--model", "softmax-mf", *TRAIN, "--out", run),
         "exists already"),
        (("sweep", "--out", tmp_path / "sweep"), "runs in one process"),
        (("train", "--dataset", pairs, "--preset", "auto", "--out", tmp_path / "a"),
         "searched for in one process"),
    ]  # fmt: skip
    for words, expected in plan:
        done = torchrun(2, *words)
        assert done.returncode != 0
        (line,) = ours(done.stderr)
        assert expected in line
    assert not (tmp_path / "a").exists()


def by_hand(rank: int, size: int, port: int, *words: Any, **more: str) -> subprocess.Popen[str]:
    """A process as a launcher would start it."""
    where = {
        "RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    return subprocess.Popen(
        [sys.executable, "-m", "robustcf", *map(str, words)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
        env=environment(**where, **more),
    )  # fmt: skip


def free_port() -> int:
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return int(place.getsockname()[1])


def test_different_data_on_two_ranks_are_refused(pairs, tmp_path):
    other = tmp_path / "elsewhere" / pairs.name
    other.parent.mkdir()
    lines = pairs.read_text().splitlines()
    other.write_text("\n".join(lines[:-1]) + "\n")
    folder, port = tmp_path / "run", free_port()
    jobs = [
        by_hand(rank, 2, port, "train", "--dataset", data, "--model", "softmax-mf", *TRAIN,
                "--out", folder)
        for rank, data in enumerate((pairs, other))
    ]  # fmt: skip
    said = [job.communicate(timeout=900)[1] for job in jobs]
    assert [job.returncode for job in jobs] == [1, 1]
    (line,) = ours("\n".join(said))
    assert "the data must be the same on all ranks" in line
    assert not folder.exists()


@pytest.mark.parametrize("in_use", [True, False])
def test_a_port_in_use_and_ranks_that_do_not_come_are_said(run, in_use):
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        port = place.getsockname()[1]
        if in_use:
            place.listen()
        else:
            place.close()
        job = by_hand(0, 2, port, "evaluate", run, ROBUSTCF_RANK_TIMEOUT="3")
        said = job.communicate(timeout=900)[1]
    assert job.returncode == 1
    (line,) = ours(said)
    for words in (f"127.0.0.1:{port} is in use", "--master-port") if in_use else ("did not find",):
        assert words in line
