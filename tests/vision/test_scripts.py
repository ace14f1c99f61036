"""The scripts run from end to end at a size that says nothing but that they run."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.slow


def script(tmp_path, name, *words):
    command = [sys.executable, ROOT / "scripts" / f"{name}.py", *words, "--threads", 1]
    command += ["--work", tmp_path / "runs", "--out", tmp_path]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_table(tmp_path):
    words = ("--only", "digits", "--seeds", 1, "--epochs", 1, "--strong-steps", 2)
    script(tmp_path, "reproduce_vision", *words)
    found = json.loads((tmp_path / "vision_small.json").read_text())
    rows = found["results"]["digits"]["rows"]
    assert set(rows) == {"none", "frobenius", "spectral", "infinity", "two_to_inf"}
    assert all(0 <= row["pgd"]["mean"] <= 1 for row in rows.values())
    assert all(row["strong"]["mean"] <= row["accuracy"]["mean"] for row in rows.values())
    assert found["paper"]["cifar100"]["two_to_inf"][0] == [77.3, 0.1]
    assert (tmp_path / "vision_small.png").stat().st_size > 1000
    # Once more: every run is complete, so nothing is trained.
    again = script(tmp_path, "reproduce_vision", *words)
    assert "by strong: " in again
    assert json.loads((tmp_path / "vision_small.json").read_text())["results"] == found["results"]


def test_the_jacobian(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, size=(64, 16, 16, 3), dtype=np.uint8), np.arange(64) % 20
    np.savez(tmp_path / "some.npz", x_train=x, y_train=y, x_test=x[:20], y_test=y[:20])
    words = ("--cifar100", tmp_path / "some.npz", "--epochs", 1, "--trials", 2)
    script(tmp_path, "reproduce_jacobian", *words)
    found = json.loads((tmp_path / "jacobian_small.json").read_text())
    assert len(found["singular_values"]) == 20
    assert {point["method"] for point in found["points"]} >= {"twinest", "twinest_pp", "save"}
    assert (tmp_path / "jacobian_small.png").stat().st_size > 1000


def test_every_k(tmp_path):
    words = ("--ks", 2, "--seeds", 1, "--epochs", 1, "--repeats", 1)
    script(tmp_path, "reproduce_every_k", *words)
    found = json.loads((tmp_path / "every_k_small.json").read_text())
    assert set(found["accuracy"]["rows"]) == {"none", "every 2"}
    counted = found["operations"]["penalty_over_plain_step"]
    assert counted["two_to_inf, 32 images"] / 50 < 0.05
    assert found["costs"][0]["penalty_over_plain_step"]["two_to_inf"] > 0
    assert (tmp_path / "every_k_small.png").stat().st_size > 1000
