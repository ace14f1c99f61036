"""``robustcf import`` and the run it makes: every command works on it, and leaves biases alone."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from robustcf._io import files
from robustcf.adapters import Imported
from robustcf.cli.main import run
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.recommender import open_recommender
from tests.adapters.helpers import naive_ndcg, saved_import, world, write_pairs

SEEDS = (0, 1, 2)


def biased(seed=0, scale=1.0, n_users=60, n_items=40):
    """Factors with two bias columns, 2 and 4, and pairs that follow their scores."""
    rng = np.random.default_rng(seed)
    U, V = rng.normal(size=(n_users, 5)), rng.normal(size=(n_items, 5))
    U[:, 2], V[:, 2] = 1.0, scale * rng.normal(size=n_items)
    U[:, 4], V[:, 4] = scale * rng.normal(size=n_users), 1.0
    top = np.argsort(-(U @ V.T + 0.5 * rng.normal(size=(n_users, n_items))), axis=1)[:, :8]
    train, test = np.zeros((n_users, n_items)), np.zeros((n_users, n_items))
    for user, items in enumerate(top):
        train[user, items[rng.permutation(8)[:6]]] = 1
        test[user, items] = 1 - train[user, items]
    return U, V, train, test


def imported_run(path, seed=0, scale=1.0, **sizes):
    U, V, train, test = biased(seed, scale, **sizes)
    mine = Imported(Factors.of(U, V), "arrays", "mine", fixed=(2, 4))
    return saved_import(mine, train, path, test, check=False)


def told(capsys):
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def files_of(tmp_path):
    U, V, split = world(0, 60, 40)
    names = [f"user {n}" for n in range(60)]
    np.savez(tmp_path / "mine.npz", U=U, V=V)
    (tmp_path / "names.txt").write_text("\n".join(names))
    write_pairs(tmp_path / "train.csv", split.train, names)
    write_pairs(tmp_path / "test.csv", split.test, names)
    return U, V, split, names


def arguments(tmp_path, *more, test=True):
    given = ["import", str(tmp_path / "mine.npz"), "--interactions", str(tmp_path / "train.csv")]
    given += ["--test", str(tmp_path / "test.csv")] if test else []
    given += ["--user-ids", str(tmp_path / "names.txt"), "--out", str(tmp_path / "run")]
    return [*given, *more]


@pytest.mark.slow
def test_every_command_works_on_the_run(tmp_path, files_of, capsys):
    U, V, split, names = files_of
    assert run(arguments(tmp_path, "--json")) == 0
    made = told(capsys)
    assert made["label"] == "mine.npz"
    assert made["imported"]["format"] == "npz"
    assert "users: matched by their labels" in made["imported"]["notes"]
    expected = naive_ndcg(U.astype(float) @ V.T.astype(float), split.train, split.test)
    assert made["test"]["ndcg@10"] == pytest.approx(expected, abs=1e-6)
    folder = str(tmp_path / "run")

    # The run is whole by itself: its sources may go.
    for name in ("mine.npz", "train.csv", "test.csv", "names.txt"):
        (tmp_path / name).unlink()
    assert run(["evaluate", folder, "--json"]) == 0
    assert told(capsys)["test"]["ndcg@10"] == made["test"]["ndcg@10"]
    assert run(["recommend", folder, "--user", "user 7", "-k", "3", "--json"]) == 0
    scores = np.where(split.train.csr().toarray()[7] > 0, -np.inf, U[7] @ V.T)
    assert told(capsys)["recommendations"][0]["items"] == np.argsort(-scores)[:3].tolist()
    assert run(["recommend", folder, "--items", "1", "2", "--json"]) == 0
    assert len(told(capsys)["recommendations"][0]["items"]) == 10
    sizes = ["--epsilons", "0", "0.1"]
    assert run(["attack", folder, "--attack", "fgm", *sizes, "--json"]) == 0
    assert run(["certify", folder, *sizes, "--json"]) == 0
    capsys.readouterr()
    assert run(["train", "--resume", folder]) == 1  # there is no training to resume
    assert "config.json" in capsys.readouterr().err

    other = Imported(Factors.of(U, V * 2), "arrays", "twice", user_labels=names)
    pairs = (split.train.csr(), tmp_path / "other", split.test.csr())
    saved_import(other, *pairs, name="train.csv")
    assert run(["attack", str(tmp_path / "other"), "--attack", "fgm", *sizes]) == 0
    capsys.readouterr()
    assert run(["compare", folder, str(tmp_path / "other"), "--resamples", "100", "--json"]) == 0
    assert [group["label"] for group in told(capsys)["groups"]] == ["mine.npz", "twice"]


@pytest.mark.slow
def test_without_test_pairs_the_given_ones_count(tmp_path, files_of, capsys):
    assert run(arguments(tmp_path, "--label", "shop", "--json", test=False)) == 0
    made = told(capsys)
    assert made["test"] is None
    assert "no test pairs: judged by the pairs it was fit on" in made["imported"]["notes"]
    folder = str(tmp_path / "run")
    assert run(["evaluate", folder, "--json"]) == 0
    assert told(capsys)["train"]["ndcg@10"] == made["train"]["ndcg@10"]
    sizes = ["--epsilons", "0", "0.1"]
    assert run(["attack", folder, "--attack", "fgm", *sizes]) == 0
    assert run(["certify", folder, *sizes]) == 0
    assert "shop" not in capsys.readouterr().err
    with pytest.raises(InputError, match="no valid pairs"):
        open_recommender(folder).judged_by("valid")


def test_text_for_people(tmp_path, files_of, capsys):
    assert run(arguments(tmp_path, "--fixed", "1", "3")) == 0
    said = capsys.readouterr().out
    assert "columns held fixed: 1, 3" in said
    assert "given pairs rank above" in said
    assert f"run: {tmp_path / 'run'}" in said


@pytest.mark.parametrize(
    ("more", "code", "message"),
    [
        (["--fixed", "one"], 2, "column numbers"),
        (["--fixed", "9"], 1, "fixed columns"),
        (["--item-key", "W"], 1, "there are U 60x4"),
        (["--rows", "sorted"], 1, "contradicts"),
        (["--min-rating", "3"], 1, "rating"),
        (["--id-key", "id"], 1, "id_key"),
        (["--label", "two\nlines"], 1, "label"),
        (["--label", " "], 1, "label"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_left_behind(tmp_path, files_of, capsys, more, code, message):  # noqa: E501  # fmt: skip
    assert run(arguments(tmp_path, *more)) == code
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert not list(tmp_path.glob(".run*"))


def test_shifted_ids_are_refused_and_force_overrides(tmp_path, files_of, capsys):
    U, V, _, _ = files_of
    np.savez(tmp_path / "mine.npz", U=U, V=np.roll(V, 1, axis=0))
    assert run(arguments(tmp_path)) == 1
    said = capsys.readouterr().err
    assert "shifted against ids: item rows one later would fit better" in said
    assert "--force" in said
    assert not (tmp_path / "run").exists()
    assert run(arguments(tmp_path, "--force", "--fixed", "none")) == 0


def test_a_folder_that_is_there_is_left_alone(tmp_path, files_of, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("x")
    assert run(arguments(tmp_path)) == 1
    assert "exists already" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("name", ["interactions.npz", "factors.safetensors"])
def test_files_of_another_import_are_noticed(tmp_path, name):
    for seed, folder in enumerate(("a", "b")):
        imported_run(tmp_path / folder, seed=seed)
    (tmp_path / "a" / name).write_bytes((tmp_path / "b" / name).read_bytes())
    with pytest.raises(InputError, match="changed"):
        open_recommender(tmp_path / "a")


def test_two_imports_of_one_data_set_share_their_fingerprint(tmp_path):
    """The order in which libraries keep their rows does not matter."""
    U, V, split = world(0, 60, 40)
    rng = np.random.default_rng(0)
    users, items = rng.permutation(60), rng.permutation(40)
    names = np.array([f"u{n:02}" for n in range(60)])
    one = Imported(Factors.of(U, V), "x", "one", names, np.arange(40))
    two = Imported(Factors.of(U[users], V[items]), "x", "two", names[users], items)
    train = write_pairs(tmp_path / "t.csv", split.train, names)
    runs = [saved_import(each, train, tmp_path / each.source) for each in (one, two)]
    assert runs[0].split.fingerprint == runs[1].split.fingerprint
    for mine, theirs in zip(runs[0].factors, runs[1].factors, strict=True):
        assert torch.equal(mine, theirs)


# --- biases -----------------------------------------------------------------------------------


def test_fixed_columns_are_kept_with_the_run(tmp_path):
    assert imported_run(tmp_path / "run").fixed == (2, 4)
    path = tmp_path / "run" / "factors.safetensors"
    assert json.loads(files.read_facts(path)["fixed"]) == [2, 4]
    assert set(load_file(path)) == {"users", "items"}


@pytest.mark.slow
def test_a_new_user_gets_the_constant_of_a_bias(tmp_path):
    """Items are ranked with their biases, so unpopular items stay at the end."""
    opened = imported_run(tmp_path / "run", scale=1000.0)
    bias = opened.factors.items[:, 2]
    chosen = opened.recommend(items=int(bias.argmax()), k=5, as_ids=True).items[0]
    expected = [n for n in torch.argsort(-bias).tolist() if n != int(bias.argmax())][:5]
    assert chosen.tolist() == expected
