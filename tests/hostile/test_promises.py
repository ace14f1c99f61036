"""The table of promises names tests that are there, and no more cases than they have."""

from __future__ import annotations

import re

import pytest

from tests.conftest import ROOT
from tests.hostile.numbers import ALL_CASES, FAST_CASES, SLOW_CASES
from tests.hostile.planted import FAULTS
from tests.hostile.promises import ROWS, counted
from tests.hostile.test_fuzz import python

KILLS = "tests/hostile/test_kills.py::test_killed_in_every_write"


def test_every_row_counts_something() -> None:
    kinds = ("test", "point", "file", "fault")
    assert sum(len(counted(kind)) for kind in kinds) == len(ROWS) >= 30


def test_files_and_faults() -> None:
    assert [number for _, _, number in counted("file")] == [FAST_CASES, SLOW_CASES, ALL_CASES]
    assert [number for _, _, number in counted("fault")] == [len(FAULTS)]
    makefile = (ROOT / "Makefile").read_text()
    assert f"CASES ?= {ALL_CASES}\n" in makefile


@pytest.mark.slow
def test_tests() -> None:
    rows = counted("test")
    files = sorted({test.partition("::")[0] for _, tests, _ in rows for test in tests})
    collected = python("-m", "pytest", "--collect-only", "-q", "-n", "0", *files).stdout.split("\n")
    for promise, tests, number in rows:
        there = [
            line
            for line in collected
            if any(re.match(rf"{re.escape(test)}(\W|$)", line) for test in tests)
        ]
        assert len(there) >= number, f"{promise}: {len(there)} tests, not {number}"


def test_points() -> None:
    """How many there are is checked where they are tried."""
    assert {test for _, tests, _ in counted("point") for test in tests} == {KILLS}
