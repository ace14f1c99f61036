"""The vote on the command line: what it does, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from robustcf.cli.main import run
from robustcf.errors import InputError
from robustcf.experiments import RunDir
from robustcf.models.voting import PartitionVote
from robustcf.recommender import open_recommender
from tests.recommender.tampering import change_json
from tests.robustness.helpers import PNG


@pytest.fixture(scope="module")
def vote(table, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "vote"
    words = ["train", "--dataset", str(table), "--model", "vote", "--out", str(folder)]
    assert run([*words, "--threads", "1"]) == 0
    return folder


def test_a_run_recommends_evaluates_and_certifies(vote, call, found):
    opened = open_recommender(vote)
    split = opened.split
    assert (opened.kind, opened.fit_on) == ("vote", "train and valid")
    assert RunDir(vote).is_vote
    assert split.fingerprint == RunDir(vote).split().fingerprint
    scorer = PartitionVote(split.train_full, opened.scorer.config)
    expected = scorer.evaluate(split, (5, 10), mask=("train", "valid"))
    test = found("evaluate", vote, "--k", 5, 10)["test"]
    assert {k: v for k, v in test.items() if "@" in k} == dict(expected.values)

    words = ["--fakes", 0, 1, 2, 5, "--k", 5, 10]
    data = found("certify", vote, *words)
    certified = scorer.certify_fakes(split, [0, 1, 2, 5], (5, 10), mask=("train", "valid"))
    assert data["fakes"] == [0, 1, 2, 5]
    for name in ("precision@10", "ndcg@10", "recall@10", "hit_rate@5", "mrr@5", "map@10"):
        assert data[name] == certified[name]
        assert data[name][0] == expected[name]
    assert data["ndcg@5"][0] > data["ndcg@5"][1] >= data["ndcg@5"][3] >= 0
    assert data["protocol"] == expected.protocol.as_dict()
    assert not data["replaced"]
    assert Path(data["picture"]).read_bytes().startswith(PNG)
    saved = json.loads(Path(data["file"]).read_text())
    assert saved["precision@10"] == data["precision@10"]
    arrays = np.load(data["file"].replace(".json", ".npz"))
    assert np.array_equal(arrays["precision@10"], certified.per_user["precision@10"])
    assert np.array_equal(arrays["users"], certified.users)
    code, out, _ = call("certify", vote, *words)
    assert code == 0
    assert "fake accounts that are added" in out
    assert "replaced an earlier result" in out

    lists = found("recommend", vote, "--user", "u0", "u1", "-k", 3)["recommendations"]
    even, odd = ({int(item[1:]) % 2 for item in entry["items"]} for entry in lists)
    assert (even, odd) == ({0}, {1})
    (new,) = found("recommend", vote, "--items", "i1", "i3", "-k", 3)["recommendations"]
    assert all(int(item[1:]) % 2 for item in new["items"])


def test_groups_on_the_command_line(table, tmp_path, call):
    out = tmp_path / "groups"
    words = ["train", "--dataset", table, "--model", "vote", "--out", out]
    said = call(*words, "--set", "groups=12", "--set", "votes=8")[1]
    assert "12 groups vote for 8 items each (ridge)" in said
    said = call("certify", out, "--fakes", 0, 1, 2)[1]
    assert "added, altered or removed, in 12 groups" in said


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--set", "groups=91"], "90, got 91"),
        (["--set", "gropus=6"], "did you mean 'groups'"),
        (["--factors", "8"], "factors"),
        (["--reg", "none"], "--reg has no effect on a vote"),
        (["--preset", "tuned"], "--preset has no effect on a vote"),
        (["--minutes", "3"], "--minutes has no effect on a vote"),
        (["--device", "meta"], "cpu"),
        (["--set", "cap=-1"], "cap must be"),
    ],
)
def test_invalid_settings_are_refused_before_writing(table, tmp_path, call, words, expected):
    out = tmp_path / "none"
    code, _, error = call("train", "--dataset", table, "--model", "vote", "--out", out, *words)
    assert (code > 0, expected in error, out.exists()) == (True, True, False)


@pytest.mark.parametrize(
    "words",
    [
        ["attack", "RUN", "--attack", "fgm"],
        ["certify", "RUN"],
        ["certify", "RUN", "--epsilons", "0", "0.1"],
        ["harden", "RUN", "--out", "hardened"],
        ["audit", "RUN"],
        ["compare", "RUN", "RUN"],
    ],
)
def test_commands_about_embeddings_say_why_not(vote, call, words):
    code, _, error = call(*(vote if word == "RUN" else word for word in words))
    assert code != 0
    assert "vote" in error
    assert "no embeddings" in error
    assert "fakes" in error or words[0] == "compare"
    with pytest.raises(InputError, match="no embeddings"):
        _ = open_recommender(vote).factors


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["certify", "FACTORS", "--fakes", 0, 1], "train --model vote"),
        (["certify", "VOTE", "--fakes", 1, "--epsilons", "0.1"], "--epsilons"),
        (["certify", "VOTE", "--fakes", 1, "--personal"], "--personal"),
        (["certify", "VOTE", "--fakes", 1, "--side", "users"], "--side"),
        (["certify", "VOTE", "--fakes", 1, "--absolute"], "--absolute"),
        (["certify", "VOTE", "--fakes", 2, 1], "ascending"),
        (["certify", "VOTE", "--fakes", -1], "range"),
        (["evaluate", "VOTE", "--part", "valid"], "fit on train and valid"),
    ],
)
def test_fakes_need_a_vote(vote, trained, call, words, expected):
    places = {"VOTE": vote, "FACTORS": trained}
    code, _, error = call(*(places.get(word, word) for word in words))
    assert (code > 0, expected in error) == (True, True)


def test_an_unfinished_run_is_finished_by_resume(tmp_path, vote, call):
    out = tmp_path / "stopped"
    opened = RunDir(vote)
    RunDir.create(out, opened.config, opened.split())
    code, _, error = call("evaluate", out)
    assert (code, "--resume" in error) == (1, True)
    for _ in range(2):  # the second time, nothing is left to do
        assert call("train", "--resume", out)[0] == 0
    for name in ("interactions.npz", "per_user.parquet"):
        assert (out / name).read_bytes() == (vote / name).read_bytes()


@pytest.mark.parametrize(
    ("name", "words"),
    [("recommender.json", "--resume"), ("interactions.npz", "interactions.npz")],
)
def test_missing_files_are_named(tmp_path, vote, call, name, words):
    out = shutil.copytree(vote, tmp_path / "damaged")
    (out / name).unlink()
    code, _, error = call("evaluate", out)
    assert (code, words in error, str(out) in error) == (1, True, True)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *(("config.json", {"train": {"vote": vote}}) for vote in (3, {"capp": 1}, {"cap": 9})),
        *(("recommender.json", {"scorer": scorer}) for scorer in ({}, {"settings": [[]]})),
    ],
)
def test_damaged_files_are_not_resumed(tmp_path, vote, call, name, damage):
    out = shutil.copytree(vote, tmp_path / "damaged")
    change_json(out / name, **damage)
    code, _, error = call("train", "--resume", out)
    assert (code, "internal error" in error) == (1, False)
    assert name != "config.json" or str(out / name) in error
