"""Command lines and what they print."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from robustcf.cli.main import run

Call = Callable[..., tuple[int, str, str]]
Found = Callable[..., Any]


@pytest.fixture
def call(capsys):
    """Run a command line: its exit code, stdout and stderr."""

    def call(*words):
        capsys.readouterr()
        code = run([str(word) for word in words])
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def found(call):
    """Run a command line that must succeed: its JSON."""

    def found(*words):
        code, out, err = call(*words, "--json")
        assert code == 0, err
        return json.loads(out)

    return found


@pytest.fixture(scope="session")
def table(tmp_path_factory):
    """Users u0, u1, ... with two tastes: even items, odd items."""
    rng, lines = np.random.default_rng(0), ["user,item"]
    for user in range(90):
        chances = np.where(np.arange(60) % 2 == user % 2, 0.6, 0.03)
        lines += [f"u{user},i{item}" for item in np.flatnonzero(rng.random(60) < chances)]
    path = tmp_path_factory.mktemp("data") / "mine.csv"
    path.write_text("\n".join(lines))
    return path


#: A training of a moment.
PLAIN = ("--epochs", "3", "--set", "block_users=20", "--factors", "6")
FAST = ("--model", "ultragcn", *PLAIN, "--set", "negative_weight=20")


@pytest.fixture(scope="session")
def trained(table, tmp_path_factory):
    """A run on the table."""
    out = str(tmp_path_factory.mktemp("runs") / "first")
    assert run(["train", "--dataset", str(table), "--out", out, *FAST]) == 0
    return out
