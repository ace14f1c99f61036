"""The command line and a launcher: what is said where several processes make no sense."""

from __future__ import annotations

import socket

import pytest

from robustcf.cli import main as entry


def launch(monkeypatch, **variables):
    for name, value in {"MASTER_ADDR": "127.0.0.1", **variables}.items():
        monkeypatch.setenv(name, str(value))


@pytest.mark.parametrize("rank", [0, 1])
def test_other_commands_run_in_one_process(rank, monkeypatch, call):
    launch(monkeypatch, RANK=rank, WORLD_SIZE=2, MASTER_PORT=1)
    code, _, said = call("compare", "a", "b")
    assert code == 2
    expected = "'robustcf compare' runs in one process: start it without torchrun"
    assert expected in said if rank == 0 else said == ""
    assert call("compare", "--help")[0] == 0


@pytest.mark.parametrize(("rank", "local", "speaks"), [(1, 0, True), (3, 2, False)])
def test_a_rank_that_does_not_reach_the_first_says_so_on_its_machine(
    rank, local, speaks, monkeypatch, call
):
    """On each machine, one of its ranks says it: the first rank's line is seen on another."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # no process listens there
        where = {"MASTER_PORT": unused.getsockname()[1], "ROBUSTCF_RANK_TIMEOUT": 1}
        launch(monkeypatch, RANK=rank, WORLD_SIZE=4, LOCAL_RANK=local, **where)
        code, _, said = call("evaluate", "somewhere")
    assert (code, said.count("\n")) == (1, speaks)
    assert f"rank {rank}" in said if speaks else said == ""


def test_a_training_that_is_started_again_goes_on_with_its_own_run(
    table, tmp_path, monkeypatch, call, found
):
    words = ["train", "--dataset", table, "--model", "bpr-mf", "--epochs", "1", "--factors", "2"]
    words += ["--out", tmp_path / "run"]
    first = found(*words)
    code, _, err = call(*words)
    assert (code, "exists already" in err) == (1, True)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert found(*words) == first
    code, _, err = call(*words, "--seed", "5")
    assert (code, "other settings" in err) == (1, True)


def test_a_training_that_may_be_started_again_must_know_its_folder(table, monkeypatch, call):
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "1")
    code, _, err = call("train", "--dataset", table, "--model", "bpr-mf")
    assert (code, "give --out DIR" in err) == (1, True)


def test_a_rank_waits_on_when_it_is_asked_to_stop(monkeypatch):
    """torchrun stops all ranks once one has ended: the first one is still to be heard."""
    clock, slept = [0.0], []

    def sleep(seconds):
        slept.append(seconds)
        if len(slept) == 1:
            clock[0] += 0.5
            raise KeyboardInterrupt
        clock[0] += seconds

    monkeypatch.setattr(entry.time, "sleep", sleep)
    monkeypatch.setattr(entry.time, "monotonic", lambda: clock[0])
    entry._wait(2.0)
    assert slept == [2.0, 1.5]
