"""Which row is which: by labels, by number, by order; counts that do not fit are an error."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from robustcf.adapters import Imported
from robustcf.adapters.ordering import in_label_order
from robustcf.data.interactions import Interactions
from robustcf.errors import DataError, InputError
from robustcf.factors import Factors
from robustcf.recommender.matching import match
from tests.adapters.helpers import rows_of, world, write_pairs


def imported(seed=0, n_items=30, **labels):
    U, V, split = world(seed, n_items=n_items)
    return Imported(Factors.of(U, V), "arrays", "mine", **labels), split


def same_pairs(one, other):
    assert one.users.tolist() == other.users.tolist()
    assert one.items.tolist() == other.items.tolist()


def test_row_numbers_from_files_matrices_and_interactions(tmp_path):
    mine, split = imported()
    train = write_pairs(tmp_path / "train.csv", split.train)
    test = write_pairs(tmp_path / "test.csv", split.test)
    sp.save_npz(tmp_path / "train.npz", split.train.csr())
    sp.save_npz(tmp_path / "test.npz", split.test.csr().tocoo())
    sp.save_npz(tmp_path / "csc.npz", split.train.csr().tocsc())
    for given in (
        (train, test),
        (tmp_path / "train.npz", tmp_path / "test.npz"),
        (tmp_path / "csc.npz", tmp_path / "test.npz"),
        (split.train.csr(), split.test.csr()),
        (split.train, split.test),
    ):
        found, notes = match(rows_of(mine), *given)
        same_pairs(found.train, split.train)
        same_pairs(found.test, split.test)
        assert len(found.valid) == 0
        assert found.masked("test") == ("train",)
        assert "users: no labels, the ids are row numbers" in notes
        assert (found.n_users, found.n_items) == (40, 30)
    assert match(rows_of(mine), train).split.name == "train.csv"
    assert match(rows_of(mine), train, name="shop").split.name == "shop"
    assert len(match(rows_of(mine), train).split.test) == 0


def test_pairs_of_a_split_bring_their_labels():
    """What a model was fitted on, split.train.csr(), has the rows of split.train."""
    mine, split = imported()
    labels = np.array([f"u{n}" for n in range(40)][::-1])
    pairs = Interactions(split.train.users, split.train.items, 40, 30, user_labels=labels)
    found, notes = match(rows_of(mine), pairs)
    same_pairs(found.train, split.train)
    assert found.user_labels.tolist() == labels.tolist()
    assert "users: ids are row numbers" in notes
    # Where both have labels, labels count.
    named, _ = imported(user_labels=labels[::-1])
    assert match(rows_of(named), pairs).split.train.users[0] == 39 - split.train.users[-1]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_labels_are_matched_whatever_their_order(tmp_path, seed):
    rng = np.random.default_rng(seed)
    users = [f"user {n}" for n in rng.permutation(1000)[:40]]
    items = rng.permutation(5000)[:30].tolist()
    mine, split = imported(seed, user_labels=users, item_labels=items)
    order = rng.permutation(len(split.train))
    train = write_pairs(tmp_path / "train.csv", split.train, users, items, order)
    test = write_pairs(tmp_path / "test.csv", split.test, users, items)
    found, notes = match(rows_of(mine), train, test)
    same_pairs(found.train, split.train)
    same_pairs(found.test, split.test)
    assert found.user_labels.tolist() == users
    assert "items: matched by their labels" in notes
    with pytest.raises(InputError, match="contradicts"):
        match(rows_of(mine), train, rows="sorted")


def test_ids_that_the_factors_do_not_have(tmp_path):
    users = [f"u{n}" for n in range(40)]
    mine, split = imported(user_labels=users)
    others = ["stranger", *users[1:]]
    train = write_pairs(tmp_path / "train.csv", split.train, others)
    with pytest.raises(DataError, match="1 of 40 users.*stranger.*--drop-unknown"):
        match(rows_of(mine), train)
    found, notes = match(rows_of(mine), train, drop_unknown=True)
    assert len(found.train) == len(split.train) - 6
    assert "6 pairs of users or items that the factors do not have: left out" in notes
    train = write_pairs(tmp_path / "train.csv", split.train, [f"x{n}" for n in range(40)])
    with pytest.raises(DataError, match="none"):
        match(rows_of(mine), train, drop_unknown=True)


def test_an_item_without_pairs_stays_in_the_catalogue(tmp_path):
    items = [f"i{n}" for n in range(30)]
    mine, split = imported(item_labels=items)
    some = split.train.take(split.train.items != 7)
    found = match(rows_of(mine), write_pairs(tmp_path / "train.csv", some, None, items)).split
    assert found.n_items == 30
    assert found.train.item_degrees[7] == 0
    # Row numbers: fewer distinct ids than rows are cold rows.
    few = split.train.take(split.train.users < 30)
    plain, _ = imported()
    assert match(rows_of(plain), write_pairs(tmp_path / "few.csv", few)).split.n_users == 40


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_rows_in_the_order_of_ids_or_of_appearance(tmp_path, seed):
    mine, split = imported(seed, n_items=20)
    rng = np.random.default_rng(seed)
    names = sorted(rng.permutation(10**4)[:40].tolist())
    texts = sorted(f"t{n}" for n in rng.permutation(10**4)[:20])
    order = rng.permutation(len(split.train))
    train = write_pairs(tmp_path / "train.csv", split.train, names, texts, order)
    test = write_pairs(tmp_path / "test.csv", split.test, names, texts)
    found, notes = match(rows_of(mine), train, test, rows="sorted")
    same_pairs(found.train, split.train)
    assert found.user_labels.tolist() == names
    assert "users: no labels, rows taken in the order of the ids" in notes

    # By appearance: number the rows of the files as pandas.factorize would.
    first_users = list(dict.fromkeys(split.train.users[order].tolist()))
    first_items = list(dict.fromkeys(split.train.items[order].tolist()))
    first_items += [n for n in dict.fromkeys(split.test.items.tolist()) if n not in first_items]
    U, V = mine.factors
    other = Imported(Factors(U[first_users], V[first_items]), "arrays", "mine")
    found, notes = match(rows_of(other), train, test, rows="appearance")
    scores = other.factors.users @ other.factors.items.T
    expected = U @ V.T
    for pairs, own in ((found.train, split.train), (found.test, split.test)):
        mine_scores = sorted(scores[pairs.users.astype(int), pairs.items.astype(int)].tolist())
        theirs = sorted(expected[own.users.astype(int), own.items.astype(int)].tolist())
        assert mine_scores == theirs
    assert found.user_labels.tolist() == [names[n] for n in first_users]
    assert "items: no labels, rows taken in the order of first appearance" in notes


LABELLED = Interactions.from_pairs([0], [0], 40, 30, user_labels=np.arange(40))[0]
CSR = {"format": np.array("csr"), "shape": np.array([40, 30]), "data": np.ones(2)}


@pytest.mark.parametrize(
    ("given", "options", "kind", "word"),
    [
        ("nothing.csv", {}, DataError, "no such file"),
        ("nothing.npz", {}, DataError, "no such file"),
        ("matrix, pairs.csv", {}, InputError, "one kind"),
        ("train", {"min_rating": 3}, InputError, "min_rating"),
        ("train, split", {}, InputError, "split"),
        ("pairs.csv, pairs.csv", {}, DataError, "both train and test"),
        ("train, none", {}, DataError, "no pairs"),
        ("labelled", {"rows": "appearance"}, InputError, "rows"),
        ("labelled", {"rows": "sorted"}, InputError, "rows"),
        ("pairs.csv", {"rows": "guess"}, InputError, "rows"),
        ("array.npz", {}, DataError, "scipy"),
        ("damaged.npz", {}, DataError, "scipy"),
        ("from_1.csv", {}, DataError, "count from 1"),
        ("text.csv", {}, DataError, "row numbers"),
        ("wide", {}, DataError, "41 users"),
        ("few.csv", {"rows": "sorted"}, DataError, "39 distinct"),
    ],
)
def test_errors(tmp_path, given, options, kind, word):
    mine, split = imported()
    write_pairs(tmp_path / "pairs.csv", split.train)
    write_pairs(tmp_path / "from_1.csv", split.train, [n + 1 for n in range(40)])
    write_pairs(tmp_path / "text.csv", split.train, [f"u{n}" for n in range(40)])
    write_pairs(tmp_path / "few.csv", split.train.take(split.train.users > 0))
    np.savez(tmp_path / "array.npz", a=np.ones(3))
    bad = {"indices": np.array([0, 99]), "indptr": np.arange(41)}
    np.savez(tmp_path / "damaged.npz", **CSR, **bad)
    things = {"train": split.train, "split": split, "labelled": LABELLED, "wide": np.ones((41, 30))}
    things |= {"matrix": split.train.csr(), "none": split.test.take(split.test.users < 0)}
    arguments = [things.get(name, tmp_path / name) for name in given.split(", ")]
    with pytest.raises(kind, match=word):
        match(rows_of(mine), *arguments, **options)


def test_ratings_and_columns(tmp_path):
    mine, split = imported()
    lines = ["who,what,stars"]
    lines += [f"{u},{i},{n % 5}" for n, (u, i) in enumerate(zip(split.train.users, split.train.items, strict=True))]  # fmt: skip  # noqa: E501
    (tmp_path / "t.csv").write_text("\n".join(lines))
    found, notes = match(
        rows_of(mine),
        tmp_path / "t.csv",
        user_col="who",
        item_col="what",
        rating_col="stars",
        min_rating=2,
    )
    assert len(found.train) == sum(n % 5 >= 2 for n in range(len(split.train)))
    assert any("rated below 2 dropped" in note for note in notes)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_rows_in_the_order_of_labels_score_as_before(seed):
    rng = np.random.default_rng(seed)
    labels = {
        "user_labels": rng.permutation(40),
        "item_labels": [f"i{n}" for n in rng.permutation(30)],
    }
    mine, split = imported(seed, **labels)
    matched = match(rows_of(mine), split.train.csr(), split.test.csr()).split
    factors, ordered = in_label_order(mine.factors, matched)
    assert ordered.user_labels.tolist() == sorted(labels["user_labels"].tolist())
    assert ordered.item_labels.tolist() == sorted(labels["item_labels"])
    before, after = (f.users @ f.items.T for f in (mine.factors, factors))
    place = {label: row for row, label in enumerate(mine.item_labels.tolist())}
    columns = [place[label] for label in ordered.item_labels.tolist()]
    rows = np.argsort(labels["user_labels"])
    torch.testing.assert_close(after, before[rows][:, columns])
    dense = matched.test.csr().toarray()[rows][:, columns]
    assert (ordered.test.csr().toarray() == dense).all()
