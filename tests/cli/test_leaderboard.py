"""``submit``, ``verify`` and ``leaderboard``."""

from __future__ import annotations

import json

import pytest

from tests.auditing.test_entries import changed


@pytest.mark.slow
def test_the_commands(tmp_path, call):
    assert call("train", "--dataset", "demo", "--model", "als", "--out", tmp_path / "run")[0] == 0
    words = ("--out", tmp_path / "entries/als", "--steps", "2")
    code, out, err = call("submit", tmp_path / "run", "--name", "ALS", *words, "--json")
    assert code == 0, err
    path = json.loads(out)["path"]
    assert call("verify", path)[0] == 0
    changed_path = tmp_path / "entries/als/als.json"
    code, out, _ = call(
        "leaderboard",
        tmp_path / "entries",
        "--out",
        tmp_path / "site",
        "--markdown",
        tmp_path / "t.md",
    )
    assert code == 0
    assert (tmp_path / "site/index.html").is_file()
    assert "ALS" in (tmp_path / "t.md").read_text()
    changed(changed_path, lambda facts: facts["clean"].update({"ndcg@10": 0.9}))
    code, _, err = call("verify", path)
    assert (code, "refused" in err) == (1, True)
