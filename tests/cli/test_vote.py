"""The vote on the command line: what it does, and what is refused."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from robustcf.cli.main import run
from robustcf.data import Split
from robustcf.errors import InputError
from robustcf.experiments import RunDir
from robustcf.experiments.results import published
from robustcf.experiments.run import RunConfig
from robustcf.models.voting import PartitionVote, VoteConfig
from robustcf.recommender import open_recommender
from tests.recommender.tampering import change_json
from tests.robustness.helpers import PNG


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """60 users of two tastes."""
    rng, lines = np.random.default_rng(0), ["user,item"]
    for user in range(60):
        liked = rng.choice(np.arange(user % 2, 40, 2), 12, replace=False)
        lines += [f"u{user},i{item}" for item in liked]
    path = tmp_path_factory.mktemp("own") / "mine.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def trained(table, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "vote"
    words = ["train", "--dataset", str(table), "--model", "vote", "--out", str(folder)]
    assert run([*words, "--threads", "1"]) == 0
    return folder


def test_a_run_recommends_evaluates_and_certifies(trained, call):
    opened = open_recommender(trained)
    split = opened.split
    assert (opened.kind, opened.fit_on) == ("vote", "train and valid")
    assert RunDir(trained).is_vote
    assert split.fingerprint == RunDir(trained).split().fingerprint
    vote = PartitionVote(split.train_full, opened.scorer.config)
    expected = vote.evaluate(split, (5, 10), mask=("train", "valid"))

    code, out, _ = call("evaluate", trained, "--k", 5, 10, "--json")
    assert code == 0
    found = json.loads(out)["test"]
    assert {k: v for k, v in found.items() if "@" in k} == dict(expected.values)

    words = ["--fakes", 0, 1, 2, 5, "--k", 5, 10, "--json"]
    code, out, _ = call("certify", trained, *words)
    assert code == 0
    data = json.loads(out)
    certified = vote.certify_fakes(split, [0, 1, 2, 5], (5, 10), mask=("train", "valid"))
    assert data["fakes"] == [0, 1, 2, 5]
    for name in ("precision@10", "ndcg@10", "recall@10", "hit_rate@5", "mrr@5", "map@10"):
        assert data[name] == certified[name]
        assert data[name][0] == expected[name]
    assert data["ndcg@5"][0] > data["ndcg@5"][1] > data["ndcg@5"][3] >= 0
    assert data["protocol"] == expected.protocol.as_dict()
    assert not data["replaced"]
    with open(data["picture"], "rb") as picture:
        assert picture.read(len(PNG)) == PNG
    saved = json.loads((trained / "fakes" / data["file"].split("/")[-1]).read_text())
    assert saved["precision@10"] == data["precision@10"]
    arrays = np.load(data["file"].replace(".json", ".npz"))
    assert np.array_equal(arrays["precision@10"], certified.per_user["precision@10"])
    assert np.array_equal(arrays["users"], certified.users)
    code, out, _ = call("certify", trained, *words[:-1])
    assert code == 0
    assert "fake accounts that are added" in out
    assert "replaced an earlier result" in out

    code, out, _ = call("recommend", trained, "--user", "u0", "u1", "-k", 3, "--json")
    lists = json.loads(out)["recommendations"]
    even, odd = ({int(item[1:]) % 2 for item in entry["items"]} for entry in lists)
    assert (even, odd) == ({0}, {1})
    code, out, _ = call("recommend", trained, "--items", "i1", "i3", "-k", 3)
    assert code == 0
    assert all(int(word.strip()[1:]) % 2 for word in out.split(":")[1].split(","))


def test_groups_on_the_command_line(table, tmp_path, call):
    out = tmp_path / "groups"
    words = ["train", "--dataset", table, "--model", "vote", "--out", out]
    code, said, _ = call(*words, "--set", "groups=12", "--set", "votes=8")
    assert code == 0
    assert "12 groups vote for 8 items each (ridge)" in said
    code, said, _ = call("certify", out, "--fakes", 0, 1, 2)
    assert code == 0
    assert "added, altered or removed, in 12 groups" in said


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--set", "groups=61"], "from 1 to the number of users, 60, got 61"),
        (["--set", "gropus=6"], "did you mean 'groups'"),
        (["--dim", "8"], "dim"),
        (["--reg", "none"], "--reg has no effect on a vote"),
        (["--preset", "tuned"], "--preset has no effect on a vote"),
        (["--minutes", "3"], "--minutes has no effect on a vote"),
        (["--device", "meta"], "cpu"),
        (["--set", "cap=-1"], "cap must be"),
    ],
)
def test_what_a_vote_cannot_be_is_said_before_anything_is_written(
    table, tmp_path, call, words, expected
):
    out = tmp_path / "none"
    command = ["train", "--dataset", table, "--model", "vote", "--out", out]
    code, _, error = call(*command, *words)
    assert code != 0
    assert expected in error
    assert not out.exists()


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
def test_commands_about_embeddings_say_why_not(trained, call, words):
    code, _, error = call(*(trained if word == "RUN" else word for word in words))
    assert code != 0
    assert "vote" in error
    assert "no embeddings" in error
    assert "fakes" in error or words[0] == "compare"
    with pytest.raises(InputError, match="no embeddings"):
        _ = open_recommender(trained).factors


@pytest.mark.parametrize("settings", [[[]], None, {}])
def test_settings_that_are_damaged_are_refused(trained, tmp_path, call, settings):
    folder = shutil.copytree(trained, tmp_path / "run")
    facts = json.loads((folder / "recommender.json").read_text())["scorer"]
    scorer = {**facts, "settings": settings} if settings is not None else {}
    change_json(folder / "recommender.json", scorer=scorer)
    code, _, error = call("train", "--resume", folder)
    assert code == 1
    assert "internal error" not in error


def test_a_vote_is_counted_on_the_cpu(trained):
    config = RunConfig("demo", train=VoteConfig(), device="cuda:0")
    with pytest.raises(InputError, match="cpu"):
        RunDir.check_trainable(config, open_recommender(trained).split)


def test_fakes_need_a_vote(table, tmp_path, trained, call):
    out = tmp_path / "factors"
    words = ["train", "--dataset", table, "--model", "popularity", "--out", out]
    assert call(*words)[0] == 0
    code, _, error = call("certify", out, "--fakes", 0, 1)
    assert code != 0
    assert "train --model vote" in error
    for other in (["--epsilons", "0.1"], ["--personal"], ["--side", "users"], ["--absolute"]):
        code, _, error = call("certify", trained, "--fakes", 1, *other)
        assert code != 0
        assert other[0] in error
    code, _, error = call("certify", trained, "--fakes", 2, 1)
    assert code != 0
    assert "ascending" in error
    code, _, error = call("certify", trained, "--fakes", -1)
    assert code != 0
    code, _, error = call("evaluate", trained, "--part", "valid")
    assert code != 0
    assert "fit on train and valid" in error


def test_an_unfinished_run_is_finished_by_resume(table, tmp_path, trained, call):
    out = tmp_path / "stopped"
    opened = RunDir(trained)
    RunDir.create(out, opened.config, opened.split())
    code, _, error = call("evaluate", out)
    assert code != 0
    assert "--resume" in error
    assert call("train", "--resume", out)[0] == 0
    assert call("train", "--resume", out)[0] == 0  # nothing left to do
    for name in ("interactions.npz", "per_user.parquet"):
        assert (out / name).read_bytes() == (trained / name).read_bytes()


def settings(**changes):
    """Other settings in what a vote has saved."""

    def change(folder):
        scorer = json.loads((folder / "recommender.json").read_text())["scorer"]
        scorer["settings"] |= changes
        change_json(folder / "recommender.json", scorer=scorer)

    return change


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda f: (f / "recommender.json").unlink(), "recommender.json"),
        (lambda f: (f / "interactions.npz").unlink(), "interactions.npz"),
        (lambda f: change_json(f / "recommender.json", scorer={}), "settings"),
        (settings(capp=1), "cap"),
        (settings(cap=9), "cap"),
        (settings(groups=10**6), "users"),
    ],
)
def test_damaged_files_are_named(tmp_path, trained, call, spoil, words):
    out = shutil.copytree(trained, tmp_path / "damaged")
    spoil(out)
    code, _, error = call("evaluate", out)
    assert code != 0
    assert words in error
    assert str(out) in error


def test_a_damaged_configuration_is_named(tmp_path, trained, call):
    out = shutil.copytree(trained, tmp_path / "damaged")
    for train in ({"vote": 3}, {"vote": {"capp": 1}}, {"vote": {"cap": 9}}):
        change_json(out / "config.json", train=train)
        code, _, error = call("train", "--resume", out)
        assert code != 0
        assert "config.json" in error
        assert str(out) in error


def test_a_configuration_comes_back(table):
    config = RunConfig(str(table), train=VoteConfig(groups=3, key="ä"))
    assert RunConfig.from_json(config.to_json()) == config


def test_the_published_curve_is_drawn_for_its_own_data_alone():
    def split(n_users, n_items, test_share):
        rng = np.random.default_rng(0)
        keys = rng.choice(n_users * n_items, 100_000, replace=False)
        test = rng.random(len(keys)) < test_share
        parts = []
        for chosen in (~test, test):
            matrix = np.zeros(n_users * n_items)
            matrix[keys[chosen]] = 1
            parts.append(matrix.reshape(n_users, n_items))
        return Split.from_csr(parts[0], test=parts[1])

    ((name, values),) = published(split(943, 1682, 0.25), 10).items()
    assert name.startswith("PORE")
    assert values[1] == 0.141
    assert published(split(943, 1682, 0.25), 20) == {}
    assert published(split(943, 1682, 0.1), 10) == {}
    assert published(split(944, 1682, 0.25), 10) == {}
