"""The command line and a launcher: what is said where several processes make no sense."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from robustcf._distributed import Ranks
from robustcf.cli import main as entry
from robustcf.cli.main import run
from robustcf.data import checkerboard
from robustcf.data.shards import Shard
from robustcf.errors import InputError, TrainingError
from robustcf.experiments import RunDir
from robustcf.experiments import run as run_module
from robustcf.factors import Factors
from robustcf.models import UltraGCN
from robustcf.objectives import Batches, Softmax
from robustcf.training import TrainConfig
from robustcf.training.fitting import fit_split
from robustcf.training.loop import Stop, fit
from tests.distributed.threads import on_threads


@pytest.fixture
def pairs(tmp_path: Path) -> str:
    users, items = np.nonzero((np.arange(12)[:, None] + np.arange(10)) % 2)
    path = tmp_path / "pairs.csv"
    pd.DataFrame({"user": users, "item": items}).to_csv(path, index=False)
    return str(path)


def words(pairs: str, out: Path, *more: str) -> list[str]:
    plain = ["train", "--dataset", pairs, "--model", "bpr-mf", "--epochs", "1", "--dim", "2"]
    return [*plain, "--out", str(out), *more, "--json"]


@pytest.mark.parametrize("rank", ["0", "1"])
def test_other_commands_run_in_one_process(
    rank: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {
        "RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    assert run(["compare", "a", "b"]) == 2
    said = capsys.readouterr().err
    expected = "'robustcf compare' runs in one process: start it without torchrun"
    assert expected in said if rank == "0" else said == ""
    assert run(["compare", "--help"]) == 0


@pytest.mark.parametrize(("rank", "local", "speaks"), [("1", "0", True), ("3", "2", False)])
def test_a_rank_that_does_not_reach_the_first_says_so_on_its_machine(
    rank: str,
    local: str,
    speaks: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """On each machine, one of its ranks says it: the first rank's line is seen on another."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # nobody listens there
        port = str(unused.getsockname()[1])
        for name, value in {
            "RANK": rank, "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
            "LOCAL_RANK": local, "ROBUSTCF_RANK_TIMEOUT": "1",
        }.items():  # fmt: skip
            monkeypatch.setenv(name, value)
        assert run(["evaluate", "somewhere"]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == speaks
    assert f"rank {rank}" in said if speaks else said == ""


def test_a_training_that_is_started_again_goes_on_with_its_own_run(
    pairs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert run(words(pairs, out)) == 0
    first = json.loads(capsys.readouterr().out)
    assert run(words(pairs, out)) == 1
    assert "exists already" in capsys.readouterr().err
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert run(words(pairs, out)) == 0
    assert json.loads(capsys.readouterr().out) == first
    assert run(words(pairs, out, "--seed", "5")) == 1
    assert "holds another run than the one that was started again" in capsys.readouterr().err


def test_a_training_that_may_be_started_again_must_know_its_folder(
    pairs: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "1")
    assert run(["train", "--dataset", pairs, "--model", "bpr-mf"]) == 1
    assert "give --out DIR" in capsys.readouterr().err


def test_only_the_first_rank_writes_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = fit_split(checkerboard(), TrainConfig.of(model="bpr-mf", dim=2, epochs=1))
    monkeypatch.setattr(run_module, "_collected", lambda trained: (None, None, 0.0))
    written = RunDir.__new__(RunDir)
    written.path = tmp_path
    with pytest.raises(InputError, match="a run is written by the first rank"):
        written.write(trained)
    assert not list(tmp_path.iterdir())


def test_copies_of_the_items_that_come_apart_are_noticed() -> None:
    pairs = checkerboard().train

    def work(ranks: Ranks) -> None:
        shard = Shard.of(pairs, ranks)
        start = Factors(
            torch.ones(shard.pairs.n_users, 2), torch.ones(pairs.n_items, 2) + 1e-3 * ranks.rank
        )
        model = UltraGCN(shard.pairs, start=start, shard=shard, dim=2)
        fit(model, Batches(Softmax(shard.pairs, shard=shard)), Stop(1))

    with pytest.raises(TrainingError, match="the ranks' copies of the items differ"):
        on_threads(2, work)


def test_a_training_that_diverges_on_one_rank_is_an_error_there() -> None:
    pairs = checkerboard().train

    def work(ranks: Ranks) -> None:
        shard = Shard.of(pairs, ranks)
        users = torch.full((shard.pairs.n_users, 2), torch.nan if ranks.rank else 1.0)
        model = UltraGCN(
            shard.pairs, start=Factors(users, torch.ones(pairs.n_items, 2)), shard=shard, dim=2
        )
        fit(model, Batches(Softmax(shard.pairs, shard=shard)), Stop(1))

    with pytest.raises(TrainingError, match="is not finite in epoch 1"):
        on_threads(2, work)


def test_a_rank_waits_on_when_it_is_asked_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun stops all ranks once one has ended: the first one is still to be heard."""
    clock, slept = [0.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 1:
            clock[0] += 0.5
            raise KeyboardInterrupt
        clock[0] += seconds

    monkeypatch.setattr(entry.time, "sleep", sleep)
    monkeypatch.setattr(entry.time, "monotonic", lambda: clock[0])
    entry._wait(2.0)
    assert slept == [2.0, 1.5]
