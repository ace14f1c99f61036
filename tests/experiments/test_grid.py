"""The engine of grids: processes that share the work, and JSON for people."""

from __future__ import annotations

import json
import multiprocessing
import signal
import subprocess
import sys
import time

import pytest

from robustcf.experiments.grid import compact_json, in_parallel


@pytest.mark.slow
def test_a_worker_that_reads_its_argument_stops_without_a_traceback(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.experiments.workers", str(tmp_path)],
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (tmp_path / "begun").exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    try:
        _, err = process.communicate(timeout=600)
    finally:
        process.kill()
    assert (process.returncode, err) == (7, "")
    assert not (tmp_path / "done").exists()


def test_lists_of_numbers_are_on_one_line_and_texts_stay():
    values = {"targets": ["a [ b", "x [1,  2]", 'say "[ 1 ]" \\'], "n": [1, -2.5, 1e-30], "no": []}
    written = compact_json(values).decode()
    assert json.loads(written) == values
    assert '"n": [1, -2.5, 1e-30],\n' in written


def test_only_the_workers_of_a_grid_are_stopped(monkeypatch):
    other = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,))
    other.start()
    signalled = []

    def interrupted(*_):
        raise KeyboardInterrupt

    try:
        # Only for the call: the process below is killed by the same function.
        with monkeypatch.context() as patched:
            patched.setattr(
                "robustcf.experiments.grid.os.kill", lambda pid, _: signalled.append(pid)
            )
            with pytest.raises(KeyboardInterrupt):
                in_parallel(time.sleep, {"one": (0,)}, 1, interrupted)
        assert len(signalled) == 1
        assert other.pid not in signalled
    finally:
        other.kill()
        other.join()
