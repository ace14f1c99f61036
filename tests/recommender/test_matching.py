"""Matching rows with ids: by labels, by number, by order; wrong counts are errors."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch

from robustcf.adapters import Imported
from robustcf.adapters.aligning import mean_place
from robustcf.adapters.ordering import in_label_order
from robustcf.adapters.reading import read
from robustcf.data.interactions import Interactions
from robustcf.errors import DataError, InputError
from robustcf.factors import Factors
from robustcf.recommender.matching import match
from tests.adapters.helpers import rows_of, world, write_pairs


def imported(seed=0, n_items=30, **labels):
    U, V, split = world(seed, n_items=n_items)
    return Imported(Factors.of(U, V), "arrays", "mine", **labels), split


def sorted_scores(factors, pairs):
    scores = factors.users @ factors.items.T
    return sorted(scores[pairs.users.astype(int), pairs.items.astype(int)].tolist())


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
        found, notes, _ = match(rows_of(mine), *given)
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
    mine, split = imported()
    labels = np.array([f"u{n}" for n in range(40)][::-1])
    pairs = Interactions(split.train.users, split.train.items, 40, 30, user_labels=labels)
    found, notes, _ = match(rows_of(mine), pairs)
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
    found, notes, _ = match(rows_of(mine), train, test)
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
    found, notes, _ = match(rows_of(mine), train, drop_unknown=True)
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
    found, notes, _ = match(rows_of(mine), train, test, rows="sorted")
    same_pairs(found.train, split.train)
    assert found.user_labels.tolist() == names
    assert "users: no labels, rows taken as the sorted ids of the training pairs" in notes

    # By appearance: number the rows of the files as pandas.factorize would.
    first_users = list(dict.fromkeys(split.train.users[order].tolist()))
    first_items = list(dict.fromkeys(split.train.items[order].tolist()))
    first_items += [n for n in dict.fromkeys(split.test.items.tolist()) if n not in first_items]
    U, V = mine.factors
    other = Imported(Factors(U[first_users], V[first_items]), "arrays", "mine")
    found, notes, _ = match(rows_of(other), train, test, rows="appearance")
    for pairs, own in ((found.train, split.train), (found.test, split.test)):
        assert sorted_scores(other.factors, pairs) == sorted_scores(mine.factors, own)
    assert found.user_labels.tolist() == [names[n] for n in first_users]
    assert any(
        note.startswith("items: no labels, rows taken as the ids, in order") for note in notes
    )


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
        ("from_1.csv", {}, DataError, "say how rows were numbered"),
        ("text.csv", {"rows": "number"}, DataError, "row numbers"),
        ("wide", {}, DataError, "41 users"),
        ("few.csv", {"rows": "sorted"}, DataError, "training pairs are 39"),
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
    stars = np.arange(len(split.train)) % 5
    table = pd.DataFrame({"who": split.train.users, "what": split.train.items, "stars": stars})
    table.to_csv(tmp_path / "t.csv", index=False)
    columns = {"user_col": "who", "item_col": "what", "rating_col": "stars"}
    found, notes, _ = match(rows_of(mine), tmp_path / "t.csv", **columns, min_rating=2)
    assert len(found.train) == (stars >= 2).sum()
    assert any("rated below 2 dropped" in note for note in notes)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_rows_in_the_order_of_labels_score_as_before(seed):
    rng = np.random.default_rng(seed)
    users, items = rng.permutation(40), [f"i{n}" for n in rng.permutation(30)]
    mine, split = imported(seed, user_labels=users, item_labels=items)
    matched = match(rows_of(mine), split.train.csr(), split.test.csr()).split
    factors, ordered = in_label_order(mine.factors, matched)
    assert ordered.user_labels.tolist() == sorted(users.tolist())
    assert ordered.item_labels.tolist() == sorted(items)
    before, after = (f.users @ f.items.T for f in (mine.factors, factors))
    rows, columns = np.argsort(users), np.argsort(items)
    torch.testing.assert_close(after, before[rows][:, columns])
    dense = matched.test.csr().toarray()[rows][:, columns]
    assert (ordered.test.csr().toarray() == dense).all()


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("order", ["number", "sorted", "text", "appearance"])
def test_rows_are_found_by_the_scores_of_the_training_pairs(tmp_path, seed, order):
    """Every numbering that libraries use, with nothing said about it."""
    U, V, split = world(seed, n_items=30)
    rng = np.random.default_rng(seed)
    # Two users and items exist in held-out pairs only.
    known = (split.train.users < 38) & (split.train.items < 28)
    train = split.train.take(known)
    ids = np.arange(40) if order == "number" else np.sort(rng.permutation(10**4)[:40])
    table = pd.DataFrame({"user": ids[train.users], "item": train.items})
    table = table.sample(frac=1, random_state=seed)
    table.to_csv(tmp_path / "train.csv", index=False)
    test = pd.DataFrame({"user": ids[split.test.users], "item": split.test.items})
    test.to_csv(tmp_path / "test.csv", index=False)
    found = np.unique(table["user"])
    if order == "text":
        found = np.array(sorted(found.astype(str))).astype(int)
    elif order == "appearance":
        found = pd.factorize(table["user"])[1]
    place = {label: n for n, label in enumerate(ids.tolist())}
    rows = [place[label] for label in found.tolist()] if order != "number" else list(range(40))
    factors = Factors(U[rows], V)
    matched = match(
        rows_of(Imported(factors, "arrays", "mine")),
        tmp_path / "train.csv",
        tmp_path / "test.csv",
        fit=lambda pairs: mean_place(factors, pairs),
    )
    own = sorted_scores(Factors(U, V), train)
    assert sorted_scores(factors, matched.split.train) == own
    dropped = [note for note in matched.caveats if "held-out pairs" in note]
    assert bool(dropped) == (order != "number" and bool((split.test.users >= 38).any()))


def test_the_nearest_explanations_have_counts(tmp_path):
    mine, split = imported()
    some = split.train.take(split.train.users >= 3)
    train = write_pairs(tmp_path / "train.csv", some, [f"u{n}" for n in range(40)])
    with pytest.raises(DataError, match="40 user rows.*training pairs are 37"):
        match(rows_of(mine), train, fit=lambda pairs: 0.0)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ids.txt", "a,1\nb\nc\n"),
        ("ids.txt", "id\na,1\nb\nc\n\n"),
        ("ids.csv", 'user\n"a,1"\nb\nc\n'),
        ("ids.csv", ',0\n0,"a,1"\n1,b\n2,c\n'),
        ("ids.csv", 'user,row\nb,1\n"a,1",0\nc,2\n'),
        ("ids.tsv", "row\tuser\n2\tc\n1\tb\n0\ta,1\n"),
    ],
)
def test_files_of_ids(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    np.savez(tmp_path / "m.npz", U=np.eye(3, 2), V=np.eye(4, 2))
    found = read(tmp_path / "m.npz", user_ids=tmp_path / name)
    assert found.user_labels.tolist() == ["a,1", "b", "c"]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("a\nb\n", "2 ids and 3 rows"),
        ("a,b,c\nd,e,f\ng,h,i\n", "3 columns"),
        ("a,b\nc,d\ne,f\n", "2 columns"),
        ('"a\nb\nc\n', "readable"),
    ],
)
def test_files_that_are_not_ids(tmp_path, text, word):
    (tmp_path / "ids.csv").write_text(text)
    np.savez(tmp_path / "m.npz", U=np.eye(3, 2), V=np.eye(4, 2))
    with pytest.raises(DataError, match=word):
        read(tmp_path / "m.npz", user_ids=tmp_path / "ids.csv")
