"""``--threads`` of the commands."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import torch

from robustcf import _runtime as runtime
from robustcf._cpus import cpus
from robustcf.cli import reporting
from robustcf.cli.main import cli, run
from robustcf.cli.reporting import Report, command, typed_threads
from robustcf.errors import InputError

COMPUTING = (
    *("attack", "audit", "certify", "compare", "detect", "evaluate", "harden", "import", "norm"),
    *("poison", "recommend", "report", "sweep", "train", "tune"),
)


@pytest.mark.parametrize("name", COMPUTING)
def test_every_command_that_computes_has_threads(name: str) -> None:
    found = {option for each in cli.commands[name].params for option in each.opts}
    assert "--threads" in found


@pytest.fixture(autouse=True)
def _undecided(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    yield
    assert torch.get_num_threads() == before


@command()
@click.option("--k", type=int)
def told(k: int) -> Report:
    OUTCOMES.append((k, torch.get_num_threads(), runtime.threads_for(10**6, 10**6)))
    return Report({}, "")


OUTCOMES: list[tuple[int, int, int]] = []


def outcome(*words: str) -> tuple[int, int, int]:
    told.main(list(words), standalone_mode=False)
    return OUTCOMES.pop()


def test_a_command_runs_with_the_threads_that_were_typed() -> None:
    assert outcome("--threads", "1", "--k", "5") == (5, 1, 1)
    most = cpus()
    assert outcome("--k", "5", "--threads", str(most)) == (5, most, most)
    assert outcome("--k", "5")[:2] == (5, torch.get_num_threads())


def test_more_threads_than_cpus_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    most = cpus()
    assert outcome("--k", "5", "--threads", str(most + 1))[1] == most
    assert capsys.readouterr().err == (
        f"robustcf: expected at most {most} threads, the CPUs this process may use, got "
        f"{most + 1}; {most} will be used\n"
    )


def test_the_quota_of_a_container_is_heeded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "cpu_quota", lambda: 1)
    monkeypatch.setattr(runtime, "cpus", lambda: 1)
    assert outcome("--k", "5") == (5, 1, 1)


def test_no_threads(capsys: pytest.CaptureFixture[str]) -> None:
    for count in (0, -2):
        with pytest.raises(InputError, match="threads must be an integer of at least 1, got"):
            typed_threads(count)
        assert run(["compare", "a", "b", "--threads", str(count)]) == 1
        said = capsys.readouterr().err
        assert said == f"robustcf: threads must be an integer of at least 1, got {count}\n"
    assert run(["norm", os.devnull, "--threads", "many"]) == 2


@pytest.mark.parametrize(
    "words",
    [
        ["evaluate", "none"],
        ["audit", "none"],
        ["train", "--dataset", "none.csv", "--model", "als", "--out", "none"],
        ["sweep", "--dataset", "none.csv", "--out", "none"],
        ["poison", "--dataset", "none.csv", "--out", "none"],
        ["vision", "train", "--dataset", "none", "--out", "none"],
        ["datasets", "prepare", "none.csv", "--out", "none"],
    ],
)
def test_a_thousand_threads_are_capped_and_said(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Data and runs are missing: what is said of the threads comes first."""
    monkeypatch.chdir(tmp_path)
    with runtime.threads_used(None):
        assert run([*words, "--threads", "1000"]) == 1
        assert torch.get_num_threads() <= cpus()
    lines = capsys.readouterr().err.splitlines()
    assert sum("got 1000" in line and str(cpus()) in line for line in lines) == 1


def test_a_run_records_the_threads_that_were_used(tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "run"
    words = ["train", "--dataset", "demo", "--model", "als", "--dim", "4", "--out", str(out)]
    with runtime.threads_used(None):
        assert run([*words, "--threads", "1000"]) == 0
    assert "got 1000" in capsys.readouterr().err
    assert json.loads((out / "config.json").read_text())["threads"] == cpus()
