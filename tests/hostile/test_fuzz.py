"""Spoilt files end in clear errors, within bounds; and the fuzzer would notice if not."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.hostile.numbers import FAST_CASES, SLOW_CASES


def python(*words: str, timeout: float = 280) -> subprocess.CompletedProcess[str]:
    """Run a module of these tests in a process of its own, which forks: here threads may run."""
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=settings,
        timeout=timeout,
    )


def fuzz(*words: str) -> str:
    done = python("-m", "tests.hostile.fuzz", *words)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
def test_spoilt_files_of_every_reader() -> None:
    out = fuzz("--seed", "0", "--cases", str(FAST_CASES), "--readers")
    assert "read" in out
    assert "refused" in out
    assert "failed" not in out


@pytest.mark.slow
def test_spoilt_files_folders_and_settings() -> None:
    out = fuzz("--seed", "1", "--cases", str(SLOW_CASES))
    assert f"{SLOW_CASES:,} cases of seed 1" in out


@pytest.mark.slow
def test_the_fuzzer_finds_what_is_planted() -> None:
    """Each kind of fault, in a reader that has it for some files: found, named, and repeated."""
    done = python("-m", "tests.hostile.planted")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_case_is_the_same_each_time() -> None:
    from random import Random

    from tests.hostile import mutations

    content = b"user,item\n" + b"1,2\n" * 30
    for seed in range(50):
        ways = [mutations.spoil_bytes(Random(f"{seed} 1"), content) for _ in range(2)]
        assert ways[0] == ways[1]
    assert len({mutations.spoil_bytes(Random(f"{seed} 1"), content) for seed in range(50)}) > 40
