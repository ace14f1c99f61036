"""A whole split, a named data set or the pairs of a run as interactions."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from robustcf.adapters import Imported
from robustcf.cli.main import run
from robustcf.data import EvaluationProtocol, Split, load
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.metrics import evaluate
from robustcf.models.spectral import spectral_factors
from robustcf.recommender import open_recommender
from robustcf.recommender.matching import Rows, match
from tests.adapters.helpers import naive_ndcg, saved_import, world, write_pairs

SEEDS = (0, 1, 2)


def published(seed=0, labels=False):
    """Factors, and a split with validation pairs of its own."""
    U, V, split = world(seed)
    matrix = split.test.csr().toarray()
    valid, test = matrix.copy(), matrix.copy()
    for user in range(len(matrix)):
        first, second = np.flatnonzero(matrix[user])
        valid[user, second] = test[user, first] = 0
    named = {}
    if labels:
        rng = np.random.default_rng(seed)
        named = {"user_labels": rng.permutation(40), "item_labels": rng.permutation(30)}
    train = Split.from_csr(split.train.csr(), test, **named)
    held = Split.from_csr(split.train.csr(), valid, **named).test
    whole = dataclasses.replace(
        train,
        name="three parts",
        valid=held,
        valid_source="published",
        protocol=EvaluationProtocol(test=("train",)),
    )
    return U, V, whole


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """Factors of the demo set as a file."""
    split = load("demo")
    users, items = spectral_factors(split.train_full, 8, np.random.default_rng(0), smooth=True)
    path = tmp_path_factory.mktemp("demo") / "mine.npz"
    np.savez(path, U=np.asarray(users), V=np.asarray(items))
    return split, path, Factors.of(users, items)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("labels", [False, True])
def test_a_run_keeps_the_parts_and_the_order_of_a_split(tmp_path, seed, labels):
    U, V, split = published(seed, labels)
    mine = Imported(Factors.of(U, V), "arrays", "mine")
    made = saved_import(mine, split, tmp_path / "run", check=False)
    again = made.split
    assert again.fingerprint == split.fingerprint
    assert (again.name, again.valid_source) == ("three parts", "published")
    assert again.protocol == split.protocol
    assert made.fit_on == "train"
    own = naive_ndcg(U.astype(float) @ V.T.astype(float), split.train, split.test)
    assert made.evaluate()["ndcg@10"] == pytest.approx(own, abs=1e-9)
    both = saved_import(mine, split, tmp_path / "both", check=False, with_valid=True)
    assert both.fit_on == "train and valid"
    own = naive_ndcg(U.astype(float) @ V.T.astype(float), split.train_full, split.test)
    assert both.evaluate()["ndcg@10"] == pytest.approx(own, abs=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("labels", [False, True])
def test_labelled_factors_take_the_order_of_the_split(tmp_path, seed, labels):
    U, V, split = published(seed, labels)
    rng = np.random.default_rng([seed, 7])
    by_user, by_item = rng.permutation(40), rng.permutation(30)
    users = by_user if split.user_labels is None else split.user_labels[by_user]
    items = by_item if split.item_labels is None else split.item_labels[by_item]
    mine = Imported(Factors.of(U[by_user], V[by_item]), "x", "y", users, items)
    made = saved_import(mine, split, tmp_path / "run", check=False)
    assert made.split.fingerprint == split.fingerprint
    np.testing.assert_array_equal(made.factors.users.numpy(), U)
    np.testing.assert_array_equal(made.factors.items.numpy(), V)


def test_other_catalogues_keep_the_order_of_labels(tmp_path):
    U, V, split = published()
    labels = np.arange(31)[::-1]
    mine = Imported(
        Factors.of(U, np.vstack([np.zeros((1, 4), np.float32), V[::-1]])),
        "x",
        "y",
        np.arange(40),
        labels,
    )
    made = saved_import(mine, split, tmp_path / "run", check=False)
    assert made.split.n_items == 31
    assert made.split.item_labels.tolist() == list(range(31))


@pytest.mark.parametrize(
    ("arguments", "options"),
    [("split test", {}), ("train", {"with_valid": True}), ("split", {"user_col": "user"})],
)
def test_what_does_not_go_with_a_split(arguments, options):
    U, V, split = published()
    given = {"split": split, "train": split.train, "test": split.test}
    with pytest.raises(InputError):
        match(Rows(*U.shape[:1], len(V)), *(given[name] for name in arguments.split()), **options)


def told(capsys, *words):
    assert run([*map(str, words), "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def test_a_named_data_set(capsys, tmp_path, demo):
    split, path, factors = demo
    made = told(capsys, "import", path, "--interactions", "demo", "--out", tmp_path / "run")
    notes = made["imported"]["notes"]
    assert (
        "demo: taken as fit on its training and validation pairs (89,913), judged by its 10,087 "
        "test pairs"
    ) in notes
    assert not any("no test pairs" in note for note in notes)
    assert made["learnt_from"] == "train and valid"
    own = evaluate(factors, split, mask=("train", "valid"))
    assert made["test"]["ndcg@10"] == own["ndcg@10"]
    assert open_recommender(tmp_path / "run").split.fingerprint == split.fingerprint
    # The pairs of that run, for another import.
    third = told(
        capsys, "import", path, "--interactions", tmp_path / "run", "--out", tmp_path / "third"
    )
    assert third["test"] == made["test"]
    assert open_recommender(tmp_path / "third").split.fingerprint == split.fingerprint


def test_audit_and_harden_take_names(capsys, tmp_path, demo, monkeypatch):
    split, path, _ = demo
    found = told(
        capsys, "audit", path, "--interactions", "demo", "--against", path, "--only", "norms",
        "churn",
    )  # fmt: skip
    assert found["subject"]["judged_by"] == "test"
    assert found["subject"]["pairs"] == len(split.train_full)
    assert "judged by its 10,087 test pairs" in found["source"]
    judged = []

    def stand_in(target, step=None):
        judged.append((target.part, target.fit_on))
        raise InputError("enough")

    monkeypatch.setattr("robustcf.robustness.harden_by_trial", stand_in)
    out = tmp_path / "safer.npz"
    for more in ([], ["--without-valid"]):
        words = ["--interactions", "demo", *more, "--by-trial", "--out", str(out)]
        assert run(["harden", str(path), *words]) == 1
    # Never by test: by valid where they were not fit on, else by the pairs themselves.
    assert judged == [("train", "train and valid"), ("valid", "train")]


def test_options_of_names(capsys, tmp_path, demo, monkeypatch):
    monkeypatch.setattr("robustcf._io.fetching.data_dirs", lambda *_: [tmp_path])
    _, path, _ = demo
    csv = write_pairs(tmp_path / "train.csv", world()[2].train)
    assert run(["audit", str(path), "--interactions", "demo", "--test", str(csv)]) == 1
    assert "demo has test pairs of its own" in capsys.readouterr().err
    assert run(["import", str(path), "--interactions", "ml-2m", "--out", str(tmp_path / "r")]) == 1
    assert "ml-2m: no such file of interactions" in capsys.readouterr().err
    assert run(["import", str(path), "--interactions", "yelp2018", "--data-dir", str(tmp_path),
                "--out", str(tmp_path / "r")]) == 1  # fmt: skip
    assert "(give --data-dir DIR, or --download)" in capsys.readouterr().err
