"""``submit``, ``verify`` and ``leaderboard``."""

from __future__ import annotations

import json

import numpy as np
import pytest

from robustcf import load, train
from tests.auditing.test_entries import changed


@pytest.mark.slow
def test_the_commands(tmp_path, call, found):
    """Factors of shuffled items enter in the rows of the data set."""
    model = train(load("demo"), "als", factors=8)
    order = np.random.default_rng(0).permutation(model.n_items)
    U, V = (part.numpy() for part in model.factors)
    np.savez(tmp_path / "als.npz", U=U, V=V[order])
    (tmp_path / "items.txt").write_text("\n".join(map(str, order)))
    words = ("--dataset", "demo", "--item-ids", tmp_path / "items.txt", "--steps", "2")
    out = tmp_path / "entries/als"
    entry = found("submit", tmp_path / "als.npz", "--name", "ALS", *words, "--out", out)
    assert entry["dataset"]["fingerprint"] == load("demo").fingerprint
    assert entry["clean"]["ndcg@10"] == pytest.approx(model.evaluate()["ndcg@10"], abs=0.01)
    assert call("verify", entry["path"])[0] == 0
    site, table = tmp_path / "site", tmp_path / "t.md"
    assert call("leaderboard", tmp_path / "entries", "--out", site, "--markdown", table)[0] == 0
    assert (site / "index.html").is_file()
    assert "ALS" in table.read_text()
    changed(out / "als.json", lambda facts: facts["clean"].update({"ndcg@10": 0.9}))
    code, _, err = call("verify", entry["path"])
    assert (code, "refused" in err) == (1, True)


def test_a_model_class_is_trained_and_entered(tmp_path, found):
    words = ("--dataset", "demo", "--name", "mine", "--steps", "1", "--out", tmp_path / "e")
    entry = found("submit", "robustcf.models.als:ALS", *words)
    assert json.loads((tmp_path / "e/mine.json").read_text())["name"] == entry["name"] == "mine"


def test_sources_without_a_named_data_set_are_refused(tmp_path, call):
    np.savez(tmp_path / "a.npz", U=np.eye(4), V=np.eye(4))
    (tmp_path / "pairs.csv").write_text("user,item\n" + "\n".join(f"{n},{n}" for n in range(4)))
    end = ("--name", "a", "--out", tmp_path / "e")
    for more, reason in (
        ((), "--dataset NAME"),
        (("--dataset", tmp_path / "pairs.csv"), "--dataset NAME"),
        (("--dataset", "demo", "--user-ids", "none.txt"), "none.txt"),
    ):
        code, _, err = call("submit", tmp_path / "a.npz", *more, *end)
        assert (code > 0, reason in err) == (True, True), err
