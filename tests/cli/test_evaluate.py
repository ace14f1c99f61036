"""``robustcf evaluate``: cutoffs, masks, and what is refused."""

from __future__ import annotations

import json

import pytest

from robustcf.experiments import RunDir
from robustcf.recommender import open_recommender


def test_evaluate(call, found, trained):
    stored = RunDir(trained).metrics()["test"]
    assert found("evaluate", trained)["test"] == stored
    more = found("evaluate", trained, "--k", "1", "5")["test"]
    assert {"ndcg@1", "ndcg@5"} <= set(more)
    assert "ndcg@10" not in more
    other = found("evaluate", trained, "--mask", "train")["test"]
    assert other["protocol"]["masked"] == ["train"]
    text = call("evaluate", trained, "--k", "3", "--k", "10")[1]
    assert "pairs of train and valid masked" in text


def test_a_saved_recommender_is_opened_as_a_run_is(found, trained, tmp_path):
    folder = open_recommender(trained).save(tmp_path / "saved")
    assert found("evaluate", folder)["test"] == found("evaluate", trained)["test"]
    for words in (["--user", "u3"], ["--items", "i2", "i4"]):
        one, other = (found("recommend", each, *words) for each in (folder, trained))
        assert one["recommendations"] == other["recommendations"]


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (["RUN", "--part", "valid"], 1, "fit on train and valid"),
        (["RUN", "7"], 2, "unexpected extra argument"),
        (["RUN", "--k", "0"], 2, "range"),
        (["nowhere"], 1, "nowhere"),
    ],
)
def test_evaluate_refuses(call, trained, words, code, reason):
    got, _, err = call("evaluate", *(trained if word == "RUN" else word for word in words))
    assert got == code
    assert reason in err


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("evaluate", ["--k", "10"]),
        ("recommend", ["--user", "u0", "-k"]),
        ("attack", ["--attack", "fgm", "--epsilons", "0.1", "--k"]),
        ("attack", ["--attack", "quantization", "--k"]),
        ("certify", ["--epsilons", "0.001", "--k"]),
    ],
)
def test_cutoffs_beyond_the_catalogue_are_announced_and_invalid_ones_refused(
    call, trained, command, words
):
    code, out, err = call(command, trained, *words, "2000", "--json")
    assert code == 0
    assert err.count("k 2000 is beyond the catalogue: all 60 items count") == 1
    if command in ("attack", "certify"):
        assert json.loads(out)["protocol"]["capped"] == [2000]
    assert "beyond" not in call(command, trained, *words, "60")[2]
    for k in ("0", "-3", str(2**31), "9" * 40):  # before any file is read
        code, _, err = call(command, "no such run", *words, k)
        assert code in (1, 2)
        assert "from 1 to 2147483647" in err or "at least 1" in err or "x>=1" in err, err
        assert "no such run" not in err
