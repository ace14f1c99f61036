"""Interactions from arrays and matrices: checks, and immutability."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from robustcf.data import Interactions, interactions
from robustcf.errors import DataError


def pairs(users, items, n_users=3, n_items=4, **extra) -> Interactions:
    return Interactions(np.array(users), np.array(items), n_users, n_items, **extra)


def as_set(x: Interactions) -> set[tuple[int, int]]:
    return set(zip(x.users.tolist(), x.items.tolist(), strict=True))


def test_pairs_are_sorted_with_what_belongs_to_them():
    x = pairs([2, 0, 2], [1, 3, 0], timestamps=np.array([10, 20, 30]), weights=np.array([1, 2, 3]))
    assert x.users.tolist() == [0, 2, 2]
    assert x.items.tolist() == [3, 0, 1]
    assert x.timestamps.tolist() == [20, 30, 10]
    assert x.weights.tolist() == [2.0, 3.0, 1.0]
    assert x.users.dtype == x.items.dtype == np.int32


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("block", [7, 1 << 22])
def test_csr_degrees_and_items_of_agree_with_a_dense_matrix(seed, block, monkeypatch):
    monkeypatch.setattr(interactions, "BLOCK_PAIRS", block)
    dense = np.random.default_rng(seed).random((13, 17)) < 0.3
    x = Interactions(*np.nonzero(dense), 13, 17)
    np.testing.assert_array_equal(x.csr().toarray(), dense.astype(np.float32))
    np.testing.assert_array_equal(x.user_degrees, dense.sum(1))
    np.testing.assert_array_equal(x.item_degrees, dense.sum(0))
    for user in range(13):
        np.testing.assert_array_equal(x.items_of(user), np.flatnonzero(dense[user]))
    assert x.density == pytest.approx(dense.mean())
    assert x.csr() is x.csr()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_ranges_of_users_cover_all_and_hold_so_many_pairs(seed):
    degrees = np.random.default_rng(seed).integers(0, 9, 40)
    ranges = list(interactions.user_ranges(np.concatenate(([0], np.cumsum(degrees))), 10))
    assert [start for start, _ in ranges] == [0, *(stop for _, stop in ranges[:-1])]
    assert ranges[-1][1] == 40
    assert all(degrees[start:stop].sum() <= 10 or stop == start + 1 for start, stop in ranges)
    assert list(interactions.user_ranges(np.array([0]))) == []


def test_nothing_can_be_written_to():
    mine = np.array([0, 1])
    x = Interactions(mine, np.array([0, 1]), 2, 2, user_labels=np.array(["a", "b"]))
    mine[0] = 1  # the caller's array is the caller's: no effect
    assert x.users.tolist() == [0, 1]
    arrays = [x.users, x.items, x.user_labels, x.user_degrees, x.indptr]
    for array in (*arrays, x.csr().indices, x.csr().data):
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


ONE = dict(users=[0], items=[0])


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (dict(users=[0, 1], items=[0]), "same length"),
        (dict(users=[-1], items=[0]), "got -1"),
        (dict(users=[3], items=[0]), "n_users = 3, got 3"),
        (dict(users=[0], items=[4]), "n_items = 4, got 4"),
        (dict(users=[0.0, np.nan], items=[0, 1]), "without an id"),
        (dict(users=[0.5], items=[0]), "integers"),
        (dict(users=["a"], items=[0]), "integers"),
        (dict(users=[[0]], items=[0]), "one-dimensional"),
        (dict(users=[0, 0], items=[1, 1]), "1 pairs .*user 0, item 1"),
        (dict(users=[], items=[], n_users=-1), "n_users"),
        (dict(users=[], items=[], n_items=1.5), "n_items"),
        (dict(users=[], items=[], n_users=None), "n_users"),
        (dict(ONE, timestamps=np.array([1, 2])), "one entry per pair"),
        (dict(ONE, timestamps=np.array([0.5])), "fractions"),
        (dict(ONE, timestamps=np.array([2**63], np.uint64)), "int64"),
        (dict(ONE, weights=np.array([np.inf])), "finite"),
        (dict(ONE, weights=np.array(["x"])), "numbers"),
        (dict(ONE, weights=np.array([1e300])), "float32"),
        (dict(ONE, user_labels=np.array(["a"])), "n_users = 3, got 1"),
        (dict(ONE, user_labels=np.array(["a", "b", "a"])), "'a'"),
        (dict(ONE, user_labels=np.array([0.5, 1, 2])), "integers or strings"),
    ],
)
def test_bad_input_is_refused(arguments, word):
    with pytest.raises(DataError, match=word):
        pairs(**arguments)


def test_from_pairs_and_items_of_check_their_input():
    with pytest.raises(DataError, match="same length"):
        Interactions.from_pairs([0], [0, 1], 1, 2)
    with pytest.raises(DataError, match="got 3"):
        pairs([0], [0]).items_of(3)


def test_an_empty_set_is_a_set():
    x = pairs([], [])
    assert len(x) == 0
    assert x.csr().shape == (3, 4)
    assert x.density == 0.0
    assert Interactions(np.array([], int), np.array([], int), 0, 0).density == 0.0


def test_equality_is_of_content():
    assert pairs([0, 1], [1, 2]) == pairs([1, 0], [2, 1])
    for other in (pairs([0], [2]), pairs([0], [1], weights=np.array([1.0])), "pairs"):
        assert pairs([0], [1]) != other
    with pytest.raises(TypeError):
        hash(pairs([0], [1]))


def test_labels_may_be_an_object_array_of_text_and_are_checked_once():
    x = pairs([0], [0], user_labels=np.array(["a", "b", "c"], dtype=object))
    assert x.user_labels.dtype.kind == "U"
    assert x.take(np.array([0])).user_labels is x.user_labels, "shared, not copied and re-sorted"


def test_union_keeps_columns_that_both_have():
    left = pairs([0], [0], weights=np.array([1.0]), timestamps=np.array([3]))
    both = left.union(pairs([0], [1], weights=np.array([2.0])))
    assert both.weights.tolist() == [1.0, 2.0]
    assert both.timestamps is None


# --- matrices -------------------------------------------------------------------------------


def cells(seed: int) -> Any:
    """A 0/1 matrix with an empty row and an empty column."""
    dense = (np.random.default_rng(seed).random((6, 8)) < 0.4).astype(np.float64)
    dense[2], dense[:, 5], dense[0, 0] = 0, 0, 1
    return dense


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("layout", ["bsr", "coo", "csc", "csr", "dia", "dok", "lil"])
@pytest.mark.parametrize("suffix", ["matrix", "array"])
def test_every_format_of_scipy_gives_the_same_pairs(seed, layout, suffix):
    matrix = getattr(sp, f"{layout}_{suffix}")(cells(seed))
    found = Interactions.from_csr(matrix)
    assert found == Interactions(*np.nonzero(cells(seed)), 6, 8)
    assert found.weights is None
    np.testing.assert_array_equal(matrix.toarray(), cells(seed))


SCIPY_KINDS = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8", "g"]


@pytest.mark.parametrize("kind", [*SCIPY_KINDS, "f2", ">f4", ">f8", ">i4", ">u2"])
def test_every_type_of_number_gives_the_same_pairs(kind):
    dense = cells(0).astype(kind)
    expected = Interactions(*np.nonzero(cells(0)), 6, 8)
    assert Interactions.from_csr(dense) == expected
    if kind in SCIPY_KINDS:
        assert Interactions.from_csr(sp.csr_matrix(dense)) == expected
    if kind != "?":
        assert set(Interactions.from_csr(2 * dense).weights.tolist()) == {2.0}


def test_dense_matrices_of_any_layout():
    expected = Interactions(np.array([0, 1]), np.array([1, 0]), 2, 3)
    lists = [[0, 1, 0], [1, 0, 0]]
    strided = np.repeat(lists, 2, axis=1)[:, ::2]
    for given in (lists, tuple(map(tuple, lists)), np.asfortranarray(lists), strided):
        assert Interactions.from_csr(given) == expected


def test_values_other_than_one_are_weights():
    dense = np.array([[0.5, 0, 3], [0, 1, 0]])
    for given in (dense, sp.csr_matrix(dense), sp.lil_matrix(dense)):
        found = Interactions.from_csr(given)
        assert as_set(found) == {(0, 0), (0, 2), (1, 1)}
        assert found.weights.tolist() == [0.5, 3.0, 1.0]
        assert found.weights.dtype == np.float32


def test_explicit_zeros_are_not_pairs():
    entries = [1.0, 0.0, 0.0, 1.0], ([0, 0, 1, 1], [0, 1, 0, 2])
    coo = sp.coo_matrix(entries, shape=(2, 3))
    for matrix in (coo, coo.tocsr(), coo.tocsc()):
        found = Interactions.from_csr(matrix)
        assert as_set(found) == {(0, 0), (1, 2)}
        assert found.weights is None


@pytest.mark.parametrize(
    ("kind", "values", "total"),
    [("u1", [255, 1], 256), ("i1", [100, 100], 200), ("f8", [0.5, 0.5], None), ("?", [1, 1], None)],
)
def test_entries_of_one_cell_add_up(kind, values, total):
    coo = sp.coo_matrix((np.array(values, dtype=kind), ([0, 0], [0, 0])), shape=(1, 1))
    found = Interactions.from_csr(coo)
    assert len(found) == 1
    assert found.weights is None if total is None else found.weights.tolist() == [total]
    # As in a CSR matrix that is not sorted.
    csr = sp.csr_matrix((np.array([1.0, 1.0, 2.0]), np.array([2, 2, 0]), np.array([0, 3])), (1, 3))
    found = Interactions.from_csr(csr)
    assert as_set(found) == {(0, 0), (0, 2)}
    assert found.weights.tolist() == [2.0, 2.0]
    assert csr.nnz == 3, "the caller's matrix is the caller's"


@pytest.mark.parametrize("shape", [(0, 0), (0, 4), (3, 0), (3, 4)])
def test_matrices_without_entries(shape):
    for given in (np.zeros(shape), sp.csr_matrix(shape), sp.coo_array(shape)):
        found = Interactions.from_csr(given)
        assert (len(found), found.n_users, found.n_items) == (0, *shape)


@pytest.mark.parametrize("wrap", [np.array, sp.csr_matrix, sp.coo_array], ids=["np", "csr", "coo"])
@pytest.mark.parametrize(
    ("value", "word"),
    [(np.nan, "nan"), (np.inf, "inf"), (-1.0, "-1"), (-1, "-1"), (1e300, "float32"), (1j, "compl")],
)
def test_bad_values_are_refused(wrap, value, word):
    with pytest.raises(DataError, match=word):
        Interactions.from_csr(wrap([[1, value], [0, 1]]))


@pytest.mark.parametrize(
    "given",
    [
        np.ones(3),
        np.ones((2, 2, 2)),
        np.float64(3.0),
        sp.coo_array(np.array([1, 0, 1])),
        np.array([["a", "b"]]),
        np.array([[None, 1]]),
        np.array([["2020-01-01"]], dtype="M8[D]"),
        [[1, 0], [1]],
        "pairs.csv",
        None,
    ],
    ids=str,
)
def test_other_input_than_a_matrix_of_numbers_is_refused(given):
    with pytest.raises(DataError, match="matrix"):
        Interactions.from_csr(given)
