"""Spoilt files end in clear errors, within bounds; and the fuzzer would notice if not."""

from __future__ import annotations

import os
import subprocess
import sys
from random import Random

import pytest

from tests.conftest import ROOT
from tests.hostile import mutations


def python(*words: str, timeout: float = 1000) -> subprocess.CompletedProcess[str]:
    """Run a module of these tests in a process of its own, which forks: here threads may run."""
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *words]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=settings, timeout=timeout
    )


def fuzz(*words: str) -> str:
    done = python("-m", "tests.hostile.fuzz", *words)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
def test_spoilt_files_of_every_reader() -> None:
    out = fuzz("--seed", "0", "--cases", "200", "--readers")
    assert "read" in out
    assert "refused" in out
    assert "failed" not in out


@pytest.mark.slow
def test_spoilt_files_folders_and_settings() -> None:
    assert "300 cases of seed 1" in fuzz("--seed", "1", "--cases", "300")


@pytest.mark.slow
def test_the_fuzzer_finds_what_is_planted() -> None:
    """Each kind of fault, in a reader that has it for some files: found, named, and repeated."""
    done = python("-m", "tests.hostile.planted")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_case_is_the_same_each_time() -> None:
    content = b"user,item\n" + b"1,2\n" * 30
    spoilt = [
        [mutations.spoil_bytes(Random(f"{seed} 1"), content) for seed in range(50)]
        for _ in range(2)
    ]
    assert spoilt[0] == spoilt[1]
    assert len(set(spoilt[0])) > 40
