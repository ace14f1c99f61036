"""Scripts that users are sent to: they run, and what they write is what they say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"


@pytest.mark.slow
def test_the_demo_trains_attacks_and_draws(tmp_path):
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "demo.py"), "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"Look at {tmp_path / 'robustness.png'}" in done.stdout
    assert (tmp_path / "robustness.png").read_bytes().startswith(b"\x89PNG")
    found = json.loads((tmp_path / "robustness.json").read_text())
    bce, softmax = (found[name]["ndcg@10"] for name in ("bce", "softmax"))
    for curves in (bce, softmax):
        assert set(curves) == {"weight_decay", "two_to_inf", "robust preset"}
        clean = json.loads((tmp_path / "weight_decay" / "metrics.json").read_text())["test"]
        assert curves["weight_decay"]["attack"][0] == pytest.approx(clean["ndcg@10"], abs=1e-6)
    # The picture shows the effect, and what it is worth.
    assert bce["two_to_inf"]["attack"][-1] > 2 * bce["weight_decay"]["attack"][-1]
    assert softmax["two_to_inf"]["attack"][-1] < softmax["robust preset"]["attack"][-1]
    for curves in softmax.values():
        pairs = zip(curves["certificate"], curves["attack"], strict=True)
        assert all(proved <= left for proved, left in pairs)
