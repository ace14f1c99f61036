"""``--threads`` of the commands."""

from __future__ import annotations

import json
import os

import click
import pytest
import torch

from robustcf import _runtime as runtime
from robustcf._cpus import cpus
from robustcf.cli import reporting
from robustcf.cli.main import cli, commands_of
from robustcf.cli.reporting import Report, command

COMPUTING = (
    *("attack", "audit", "certify", "compare", "detect", "evaluate", "harden", "import", "norm"),
    *("poison", "recommend", "report", "sweep", "train", "tune"),
)


def test_every_command_that_computes_has_threads():
    commands = commands_of(cli)
    for name in COMPUTING:
        assert "--threads" in {option for each in commands[name].params for option in each.opts}


@pytest.fixture(autouse=True)
def _undecided(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    yield
    assert torch.get_num_threads() == before


OUTCOMES: list[tuple[int, int, int]] = []


@command()
@click.option("--k", type=int)
def told(k):
    OUTCOMES.append((k, torch.get_num_threads(), runtime.threads_for(10**6, 10**6)))
    return Report({}, "")


def outcome(*words):
    told.main(list(words), standalone_mode=False)
    return OUTCOMES.pop()


def test_a_command_runs_with_the_threads_that_were_typed(monkeypatch):
    assert outcome("--threads", "1", "--k", "5") == (5, 1, 1)
    most = cpus()
    assert outcome("--k", "5", "--threads", str(most)) == (5, most, most)
    assert outcome("--k", "5")[:2] == (5, torch.get_num_threads())
    # The quota of a container is heeded.
    monkeypatch.setattr(reporting, "cpu_quota", lambda: 1)
    monkeypatch.setattr(runtime, "cpus", lambda: 1)
    assert outcome("--k", "5") == (5, 1, 1)


def test_no_threads(call):
    for count in (0, -2):
        said = f"robustcf: threads must be an integer of at least 1, got {count}\n"
        assert call("compare", "a", "b", "--threads", count) == (1, "", said)
    assert call("norm", os.devnull, "--threads", "many")[0] == 2


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
def test_a_thousand_threads_are_capped_and_said(words, tmp_path, monkeypatch, call):
    """Data and runs are missing: what is said of the threads comes first."""
    monkeypatch.chdir(tmp_path)
    with runtime.threads_used(None):
        code, _, err = call(*words, "--threads", "1000")
        assert torch.get_num_threads() <= cpus()
    assert code == 1
    assert sum("got 1000" in line and str(cpus()) in line for line in err.splitlines()) == 1


def test_a_run_records_the_threads_that_were_used(table, tmp_path, call):
    out = tmp_path / "run"
    words = ["train", "--dataset", table, "--model", "als", "--factors", "4", "--out", out]
    with runtime.threads_used(None):
        code, _, err = call(*words, "--threads", "1000")
    assert (code, "got 1000" in err) == (0, True)
    assert json.loads((out / "config.json").read_text())["threads"] == cpus()


def test_long_sentences_take_several_lines_and_tables_stay(capsys):
    sentence, row = " ".join(["words"] * 40), "  ".join(["cell"] * 40)

    @command()
    def says() -> Report:
        """Say it."""
        return Report({}, f"{row}\n{sentence}")

    says.main([], standalone_mode=False)
    first, *rest = capsys.readouterr().out.splitlines()
    assert first == row
    assert " ".join(rest) == sentence
    assert max(map(len, rest)) <= 100
