"""``robustcf recommend``: known users, new users, and what is refused."""

from __future__ import annotations

import pytest

from robustcf.data import load
from robustcf.recommender import open_recommender
from tests.cli.conftest import FAST, PLAIN


def test_recommend_to_known_users(call, found, trained, table):
    result = found("recommend", trained, "--user", "u3", "u8", "-k", "5")
    split = load(table)
    assert [entry["user"] for entry in result["recommendations"]] == ["u3", "u8"]
    for entry in result["recommendations"]:
        user = split.user_labels.tolist().index(entry["user"])
        own = set(split.item_labels[split.train_full.items_of(user)].tolist())
        assert len(entry["items"]) == 5
        assert not own & set(entry["items"])
        assert entry["scores"] == sorted(entry["scores"], reverse=True)
    assert found("recommend", trained, "--user", "u3", "--user", "u8", "-k", "5") == result
    assert call("recommend", trained, "--user", "u3", "-k", "2")[1].startswith("u3: i")


@pytest.mark.parametrize("model", ["ultragcn", "bpr-mf"])
@pytest.mark.parametrize("reg", ["weight_decay", "none"])
@pytest.mark.parametrize("gauge", ["none", "balanced"])
def test_recommend_folds_a_new_user_in(found, table, tmp_path, model, reg, gauge):
    out = tmp_path / "run"
    fast = FAST if model == "ultragcn" else PLAIN
    options = ["--model", model, "--reg", reg, *fast, "--epochs", "12", "--gauge", gauge]
    found("train", "--dataset", table, "--out", out, *options)
    own = [f"i{n}" for n in range(0, 24, 2)]
    (entry,) = found("recommend", out, "--items", *own, "-k", "10")["recommendations"]
    assert entry["user"] is None
    assert not set(own) & set(entry["items"])
    even = sum(int(item[1:]) % 2 == 0 for item in entry["items"])
    assert even >= 8  # a user with even items gets even items


def test_recommend_without_labels(call, found, tmp_path):
    out = tmp_path / "run"
    found("train", "--dataset", "demo", "--out", out, "--factors", "4", "--epochs", "1")
    (entry,) = found("recommend", out, "--user", "7", "-k", "3")["recommendations"]
    assert all(isinstance(item, int) for item in entry["items"])
    code, _, err = call("recommend", out, "--user", "2000")
    assert code == 1
    assert "1999" in err


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        ([], 2, "give either --user or --items"),
        (["--user", "u1", "--items", "i1"], 2, "give either --user or --items"),
        (["--user", "u333"], 1, "'u33'"),
        (["--items", "?"], 1, "unknown item '?'"),
        (["--user", "u1", "-k", "0"], 2, "range"),
    ],
)
def test_recommend_refuses(call, trained, words, code, reason):
    got, _, err = call("recommend", trained, *words)
    assert got == code
    assert reason in err


def test_a_recommender_without_interactions_serves_new_users(call, found, trained, tmp_path):
    folder = open_recommender(trained).save(tmp_path / "bare", include_interactions=False)
    asked = ["--items", "i2", "i4", "-k", "5"]
    bare, whole = (
        found("recommend", each, *asked)["recommendations"][0] for each in (folder, trained)
    )
    # The graph of the items is not known here: scores are close, lists are the same.
    assert bare["items"] == whole["items"]
    assert bare["scores"] == pytest.approx(whole["scores"], rel=0.02)
    for words in (["recommend", folder, "--user", "u1"], ["evaluate", folder]):
        code, _, err = call(*words)
        assert (code, "interactions" in err) == (1, True)
