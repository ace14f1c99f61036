"""Interactions and splits from matrices: every format, what counts as a pair, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from robustcf.data import Interactions, Split
from robustcf.errors import DataError

FORMATS = ["bsr", "coo", "csc", "csr", "dia", "dok", "lil"]
KINDS = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8", "g"]


def as_set(x: Interactions) -> set[tuple[int, int]]:
    return set(zip(x.users.tolist(), x.items.tolist(), strict=True))


def cells(seed: int) -> Any:
    """A 0/1 matrix with an empty row and an empty column."""
    dense = (np.random.default_rng(seed).random((6, 8)) < 0.4).astype(np.float64)
    dense[2], dense[:, 5], dense[0, 0] = 0, 0, 1
    return dense


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("suffix", ["matrix", "array"])
def test_every_format_of_scipy_gives_the_same_pairs(seed: int, layout: str, suffix: str) -> None:
    dense = cells(seed)
    matrix = getattr(sp, f"{layout}_{suffix}")(dense)
    before = matrix.toarray()
    found = Interactions.from_csr(matrix)
    assert found == Interactions(*np.nonzero(dense), 6, 8)
    assert found.weights is None
    np.testing.assert_array_equal(matrix.toarray(), before)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_every_type_of_number_gives_the_same_pairs(seed: int, kind: str) -> None:
    dense = cells(seed).astype(kind)
    expected = Interactions(*np.nonzero(dense), 6, 8)
    assert Interactions.from_csr(dense) == expected
    assert Interactions.from_csr(sp.csr_matrix(dense)) == expected


@pytest.mark.parametrize("kind", ["f2", ">f4", ">f8", ">i4", ">u2"])
def test_dense_types_that_scipy_does_not_know(kind: str) -> None:
    dense = cells(0).astype(kind)
    assert Interactions.from_csr(dense) == Interactions(*np.nonzero(cells(0)), 6, 8)
    doubled = Interactions.from_csr(2 * dense)
    assert doubled.weights is not None
    assert set(doubled.weights.tolist()) == {2.0}


def test_other_dense_things() -> None:
    expected = Interactions(np.array([0, 1]), np.array([1, 0]), 2, 3)
    lists = [[0, 1, 0], [1, 0, 0]]
    for given in (
        lists,
        tuple(map(tuple, lists)),
        np.array(lists),
        np.asfortranarray(lists),
        np.array(lists, dtype=bool),
        np.array([[0, 9, 1, 9, 0, 9], [1, 9, 0, 9, 0, 9]])[:, ::2],
        np.broadcast_to(np.array(lists), (2, 3)),
    ):
        assert Interactions.from_csr(given) == expected


# --- values ---------------------------------------------------------------------------------


def test_values_other_than_one_are_weights() -> None:
    dense = np.array([[0.5, 0, 3], [0, 1, 0]])
    for given in (dense, sp.csr_matrix(dense), sp.lil_matrix(dense)):
        found = Interactions.from_csr(given)
        assert as_set(found) == {(0, 0), (0, 2), (1, 1)}
        assert found.weights.tolist() == [0.5, 3.0, 1.0]
        assert found.weights.dtype == np.float32
    whole = Interactions.from_csr(np.array([[5, 0], [0, 4]]))
    assert whole.weights.tolist() == [5.0, 4.0]


def test_explicit_zeros_are_no_pairs() -> None:
    rows, columns, values = [0, 0, 1, 1], [0, 1, 0, 2], [1.0, 0.0, 0.0, 1.0]
    coo = sp.coo_matrix((values, (rows, columns)), shape=(2, 3))
    assert coo.nnz == 4
    for matrix in (coo, coo.tocsr(), coo.tocsc()):
        found = Interactions.from_csr(matrix)
        assert as_set(found) == {(0, 0), (1, 2)}
        assert found.weights is None
    assert len(Interactions.from_csr(sp.csr_matrix(([0.0], ([0], [0])), shape=(2, 2)))) == 0


def test_entries_of_one_cell_add_up() -> None:
    coo = sp.coo_matrix(([1, 1, 2, 1], ([0, 0, 1, 1], [1, 1, 0, 2])), shape=(2, 3))
    found = Interactions.from_csr(coo)
    assert as_set(found) == {(0, 1), (1, 0), (1, 2)}
    assert found.weights.tolist() == [2.0, 2.0, 1.0]
    # As they are in a CSR matrix that nobody has put in order.
    csr = sp.csr_matrix((np.array([1.0, 1.0, 2.0]), np.array([2, 2, 0]), np.array([0, 3])), (1, 3))
    found = Interactions.from_csr(csr)
    assert as_set(found) == {(0, 0), (0, 2)}
    assert found.weights.tolist() == [2.0, 2.0]
    assert csr.nnz == 3, "the caller's matrix is the caller's"
    # One half and one half are one.
    halves = sp.coo_matrix(([0.5, 0.5], ([0, 0], [0, 0])), shape=(1, 1))
    assert Interactions.from_csr(halves).weights is None
    twice = sp.coo_matrix(([True, True], ([0, 0], [0, 0])), shape=(1, 1))
    assert len(Interactions.from_csr(twice)) == 1


@pytest.mark.parametrize(("kind", "values"), [("u1", [255, 1]), ("i1", [100, 100])])
def test_sums_do_not_overflow_small_types(kind: str, values: list[int]) -> None:
    coo = sp.coo_matrix((np.array(values, dtype=kind), ([0, 0], [0, 0])), shape=(1, 1))
    assert Interactions.from_csr(coo).weights.tolist() == [float(sum(values))]


@pytest.mark.parametrize("shape", [(0, 0), (0, 4), (3, 0), (3, 4)])
def test_matrices_without_entries(shape: tuple[int, int]) -> None:
    for given in (np.zeros(shape), sp.csr_matrix(shape), sp.coo_array(shape)):
        found = Interactions.from_csr(given)
        assert (len(found), found.n_users, found.n_items) == (0, *shape)


def test_labels_are_kept_and_checked() -> None:
    dense = np.array([[0, 1], [1, 1], [0, 0]])
    found = Interactions.from_csr(
        dense, user_labels=np.array(["a", "b", "c"]), item_labels=np.array([30, 10])
    )
    assert found.user_labels.tolist() == ["a", "b", "c"]
    assert found.item_labels.tolist() == [30, 10]
    with pytest.raises(DataError, match="user labels must have length n_users = 3, got 2"):
        Interactions.from_csr(dense, user_labels=np.array(["a", "b"]))
    with pytest.raises(DataError, match="item labels must differ"):
        Interactions.from_csr(dense, item_labels=np.array([1, 1]))


# --- refusals -------------------------------------------------------------------------------


@pytest.mark.parametrize("wrap", [np.array, sp.csr_matrix, sp.coo_array], ids=["np", "csr", "coo"])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.nan, "must hold finite numbers, got nan: repair it, or drop the entry"),
        (np.inf, "must hold finite numbers, got inf"),
        (-1.0, "must not hold negative numbers"),
        (-1, "must not hold negative numbers"),
        (1e300, "weights must fit into float32"),
        (1j, "a users x items matrix of numbers, scipy or numpy, got complex128"),
    ],
)
def test_bad_values_are_refused(wrap: Any, value: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Interactions.from_csr(wrap([[1, value], [0, 1]]))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.ones(3), r"a users x items matrix of numbers, .* got float64 of shape \(3,\)"),
        (np.ones((2, 2, 2)), r"got float64 of shape \(2, 2, 2\)"),
        (np.float64(3.0), r"of shape \(\)"),
        (sp.coo_array(np.array([1, 0, 1])), r"got int64 of shape \(3,\)"),
        (np.array([["a", "b"]]), r"got <U1 of shape \(1, 2\)"),
        (np.array([[None, 1]]), r"got object of shape \(1, 2\)"),
        (np.array([["2020-01-01"]], dtype="M8[D]"), "got datetime64"),
        ([[1, 0], [1]], "interactions must be a users x items matrix"),
        ("pairs.csv", "of shape"),
        (None, "got object of shape"),
    ],
)
def test_what_is_no_matrix_of_numbers_is_refused(given: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Interactions.from_csr(given)


# --- splits ---------------------------------------------------------------------------------

TRAIN = np.array([[1, 1, 0, 0], [0, 0, 1, 0]])
VALID = np.array([[0, 0, 1, 0], [0, 0, 0, 0]])
TEST = np.array([[0, 0, 0, 1], [1, 0, 0, 1]])


@pytest.mark.parametrize("wrap", [np.array, sp.csr_matrix, sp.coo_array, sp.lil_matrix])
def test_a_split_from_matrices(wrap: Any) -> None:
    split = Split.from_csr(wrap(TRAIN), wrap(TEST), wrap(VALID), name="mine")
    assert split.name == "mine"
    assert as_set(split.train) == {(0, 0), (0, 1), (1, 2)}
    assert as_set(split.valid) == {(0, 2)}
    assert as_set(split.test) == {(0, 3), (1, 0), (1, 3)}
    assert split.valid_source == "published"
    assert (split.n_users, split.n_items) == (2, 4)


def test_parts_that_are_left_out_are_empty() -> None:
    split = Split.from_csr(TRAIN)
    assert split.name == "own data"
    assert (len(split.train), len(split.valid), len(split.test)) == (3, 0, 0)
    assert split.valid_source == "none"
    tested = Split.from_csr(TRAIN, TEST)
    assert (len(tested.valid), len(tested.test)) == (0, 3)
    assert len(Split.from_csr(TRAIN, valid=VALID).valid) == 1


def test_a_split_has_one_set_of_labels_and_keeps_weights() -> None:
    users, items = np.array(["a", "b"]), np.array([7, 8, 9, 10])
    split = Split.from_csr(3 * TRAIN, TEST, VALID, user_labels=users, item_labels=items)
    for part in (split.train, split.valid, split.test):
        assert part.user_labels.tolist() == ["a", "b"]
        assert part.item_labels.tolist() == [7, 8, 9, 10]
    assert split.train.weights.tolist() == [3.0, 3.0, 3.0]
    assert split.test.weights is None
    assert len(Split.from_csr(TRAIN, item_labels=items).valid) == 0


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"train": np.zeros((2, 4))}, "own data: train has no interactions"),
        ({"test": TEST[:, :3]}, "train and test must have the same users and items, got 2 x 4 and"),
        ({"test": TEST[:1]}, "same users and items, got 2 x 4 and 1 x 4"),
        ({"valid": VALID.T}, "train and valid must have the same users and items"),
        ({"test": TRAIN}, "own data: 3 pairs are in both train and test, the first is user 0"),
        ({"valid": TEST}, "pairs are in both valid and test"),
        ({"test": -TEST}, "must not hold negative numbers"),
        ({"train": np.ones(4)}, "a users x items matrix of numbers"),
        ({"user_labels": np.array(["a"])}, "user labels must have length n_users = 2, got 1"),
    ],
)
def test_matrices_that_are_no_split_are_refused(parts: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Split.from_csr(**{"train": TRAIN, "test": TEST, "valid": VALID, **parts})
