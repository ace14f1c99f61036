"""Processes that share the work of a grid."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest


@pytest.mark.slow
def test_a_worker_that_reads_its_argument_stops_without_a_traceback(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.experiments.workers", str(tmp_path)],
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (tmp_path / "begun").exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    try:
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, err) == (7, "")
    assert not (tmp_path / "done").exists()
