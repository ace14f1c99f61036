"""Interactions and Split: what they accept, what they refuse, and that they cannot change."""

from __future__ import annotations

import copy
import hashlib
import pickle

import numpy as np
import pytest

from robustcf.data import Interactions, Split
from robustcf.errors import DataError


def pairs(users, items, n_users=3, n_items=4, **extra) -> Interactions:
    return Interactions(np.array(users), np.array(items), n_users, n_items, **extra)


def test_pairs_are_sorted_with_what_belongs_to_them():
    x = pairs(
        [2, 0, 2],
        [1, 3, 0],
        timestamps=np.array([10, 20, 30]),
        weights=np.array([1.0, 2.0, 3.0]),
    )
    assert x.users.tolist() == [0, 2, 2]
    assert x.items.tolist() == [3, 0, 1]
    assert x.timestamps.tolist() == [20, 30, 10]
    assert x.weights.tolist() == [2.0, 3.0, 1.0]
    assert x.users.dtype == x.items.dtype == np.int32


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_csr_degrees_and_items_of_agree_with_a_dense_matrix(seed):
    rng = np.random.default_rng(seed)
    dense = rng.random((13, 17)) < 0.3
    x = Interactions(*np.nonzero(dense), 13, 17)
    np.testing.assert_array_equal(x.csr().toarray(), dense.astype(np.float32))
    np.testing.assert_array_equal(x.user_degrees, dense.sum(1))
    np.testing.assert_array_equal(x.item_degrees, dense.sum(0))
    for user in range(13):
        np.testing.assert_array_equal(x.items_of(user), np.flatnonzero(dense[user]))
    assert x.density == pytest.approx(dense.mean())
    assert x.csr() is x.csr()


def test_nothing_can_be_written_to():
    mine = np.array([0, 1])
    x = Interactions(mine, np.array([0, 1]), 2, 2, user_labels=np.array(["a", "b"]))
    mine[0] = 1  # the caller's array is the caller's: no effect
    assert x.users.tolist() == [0, 1]
    for array in (
        x.users,
        x.items,
        x.user_labels,
        x.user_degrees,
        x.indptr,
        x.csr().indices,
        x.csr().data,
    ):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    with pytest.raises(AttributeError):
        x.n_users = 5


def test_from_pairs_keeps_the_latest_repeat_and_counts():
    x, dropped = Interactions.from_pairs(
        [0, 0, 0, 1], [1, 1, 1, 0], 2, 2, timestamps=[5, 9, 7, 1], weights=[1, 2, 3, 4]
    )
    assert dropped == 2
    assert x.timestamps.tolist() == [9, 1]
    assert x.weights.tolist() == [2, 4]
    first, _ = Interactions.from_pairs([0, 0], [1, 1], 1, 2, weights=[7, 8])
    assert first.weights.tolist() == [7]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(users=[0, 1], items=[0]), "same length"),
        (dict(users=[-1], items=[0]), "must not be negative, got -1"),
        (dict(users=[3], items=[0]), r"below n_users = 3, got 3"),
        (dict(users=[0], items=[4]), r"below n_items = 4, got 4"),
        (dict(users=[0.0, np.nan], items=[0, 1]), "got nan at position 1"),
        (dict(users=[0.5], items=[0]), "must be integers, got dtype float64"),
        (dict(users=["a"], items=[0]), "must be integers, got dtype"),
        (dict(users=[[0]], items=[0]), "one-dimensional"),
        (dict(users=[0, 0], items=[1, 1]), "1 pairs occur more than once.*user 0, item 1"),
        (dict(users=[0], items=[0], timestamps=np.array([1, 2])), "one entry per pair"),
        (dict(users=[0], items=[0], weights=np.array([np.inf])), "weights must be finite"),
        (dict(users=[0], items=[0], weights=np.array(["x"])), "weights must be numbers"),
        (dict(users=[0], items=[0], user_labels=np.array(["a"])), "length n_users = 3, got 1"),
        (dict(users=[0], items=[0], user_labels=np.array(["a", "b", "a"])), "'a'.* more than once"),
        (dict(users=[0], items=[0], user_labels=np.array([0.5, 1, 2])), "integers or strings"),
        (dict(users=[], items=[], n_users=-1), "n_users must be an integer from 0.*got -1"),
        (dict(users=[], items=[], n_items=1.5), "n_items must be an integer"),
        (dict(users=[], items=[], n_users=None), "n_users must be an integer.*got None"),
        (dict(users=[0], items=[0], timestamps=np.array([0.5])), "whole numbers, got fractions"),
        (dict(users=[0], items=[0], timestamps=np.array([2**63], np.uint64)), "fit into int64"),
        (dict(users=[0], items=[0], weights=np.array([1e300])), "fit into float32"),
    ],
)
def test_bad_input_is_refused(arguments, message):
    with pytest.raises(DataError, match=message):
        pairs(**arguments)


def test_from_pairs_and_items_of_refuse_what_the_constructor_would():
    with pytest.raises(DataError, match="same length"):
        Interactions.from_pairs([0], [0, 1], 1, 2)
    with pytest.raises(DataError, match=r"user must be in \[0, 3\), got 3"):
        pairs([0], [0]).items_of(3)


def test_an_empty_set_is_a_set():
    x = pairs([], [])
    assert len(x) == 0
    assert x.csr().shape == (3, 4)
    assert x.density == 0.0
    assert Interactions(np.array([], int), np.array([], int), 0, 0).density == 0.0


def test_equality_is_of_content():
    assert pairs([0, 1], [1, 2]) == pairs([1, 0], [2, 1])
    assert pairs([0], [1]) != pairs([0], [2])
    assert pairs([0], [1]) != pairs([0], [1], weights=np.array([1.0]))
    assert pairs([0], [1]) != "pairs"
    with pytest.raises(TypeError):
        hash(pairs([0], [1]))


def test_labels_may_be_an_object_array_of_text_and_are_checked_once():
    x = pairs([0], [0], user_labels=np.array(["a", "b", "c"], dtype=object))
    assert x.user_labels.dtype.kind == "U"
    assert x.take(np.array([0])).user_labels is x.user_labels, "shared, not copied and re-sorted"


def split(**parts) -> Split:
    given = {"train": pairs([0, 1], [0, 1]), "valid": pairs([0], [1]), "test": pairs([1], [2])}
    return Split("toy", **{**given, **parts})


def test_split_gives_train_and_valid_back_together():
    full = split().train_full
    assert full == pairs([0, 0, 1], [0, 1, 1])
    assert split().n_interactions == 4
    assert (split().n_users, split().n_items) == (3, 4)


def test_union_keeps_columns_that_both_have():
    left = pairs([0], [0], weights=np.array([1.0]), timestamps=np.array([3]))
    right = pairs([0], [1], weights=np.array([2.0]))
    both = left.union(right)
    assert both.weights.tolist() == [1.0, 2.0]
    assert both.timestamps is None


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (dict(test=pairs([1, 0], [2, 0])), "1 pairs are in both train and test.*user 0, item 0"),
        (dict(valid=pairs([1], [2])), "1 pairs are in both valid and test"),
        (dict(test=pairs([1], [2], n_items=5)), "same users and items"),
        (
            dict(test=pairs([1], [2], user_labels=np.array([1, 2, 3]))),
            "train and test must have the same user labels",
        ),
        (dict(train=pairs([], [])), "train has no interactions"),
    ],
)
def test_a_split_that_is_none_is_refused(parts, message):
    with pytest.raises(DataError, match=message):
        split(**parts)


def test_an_overlap_is_named_by_label():
    labels = dict(
        user_labels=np.array(["ann", "bob", "cy"]), item_labels=np.array([10, 11, 12, 13])
    )
    train, test = pairs([1], [2], **labels), pairs([1], [2], **labels)
    with pytest.raises(DataError, match="user 'bob', item 12"):
        Split("toy", train, pairs([], [], **labels), test)


def test_fingerprint_is_the_documented_digest_and_tells_splits_apart():
    one = split()
    text = b"3,4"
    for part in (one.train, one.valid, one.test):
        text += f";{len(part)};".encode()
        text += np.array(part.users, "<i4").tobytes() + np.array(part.items, "<i4").tobytes()
    assert one.fingerprint == hashlib.sha256(text).hexdigest()
    assert one.fingerprint != split(valid=pairs([], [])).fingerprint
    moved = split(train=pairs([0, 1, 0], [0, 1, 1]), valid=pairs([], []))
    assert moved.fingerprint != one.fingerprint


def test_copies_and_pickles_are_equal_and_frozen():
    labelled = dict(user_labels=np.array(["a", "b", "c"]), item_labels=np.arange(4))
    one = Split("toy", *(pairs([0], [n], **labelled) for n in range(3)), sources={"a": "b"})
    for twin in (copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        assert twin.fingerprint == one.fingerprint
        assert twin.train == one.train
        assert twin.sources == {"a": "b"}
        with pytest.raises(ValueError, match="read-only"):
            twin.train.users[0] = 1


def test_notes_and_sources_are_frozen():
    one = Split("toy", *(pairs([0], [n]) for n in range(3)), sources={"a": "b"}, notes=["x"])
    assert one.notes == ("x",)
    with pytest.raises(TypeError):
        one.sources["c"] = "d"
    assert "toy" in repr(one)
