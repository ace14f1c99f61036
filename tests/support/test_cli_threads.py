"""``--threads`` of the commands."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import click
import pytest
import torch

from robustcf.cli import options
from robustcf.cli.main import cli, run
from robustcf.cli.options import threads_option, typed_threads
from robustcf.errors import InputError
from robustcf.support import runtime
from robustcf.support.cpus import cpus

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


@click.command()
@click.option("--k", type=int)
@threads_option
def told(k: int) -> tuple[int, int, int]:
    return k, torch.get_num_threads(), runtime.threads_for(10**6, 10**6)


def outcome(*words: str) -> Any:
    return told.main(list(words), standalone_mode=False)


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
    monkeypatch.setattr(options, "cpu_quota", lambda: 1)
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
