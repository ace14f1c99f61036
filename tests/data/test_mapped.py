"""Mapped interactions against ordinary ones and dense matrices."""

from __future__ import annotations

import pickle
import tempfile

import numpy as np
import pytest

from robustcf.data import Interactions, Split, interactions
from robustcf.data.large import mapped
from robustcf.data.large.mapped import LabelSource, MappedInteractions, MergedInteractions, joined
from robustcf.errors import DataError, WriteError


def dense_of(seed: int, n_users: int = 23, n_items: int = 17) -> np.ndarray:
    dense = np.random.default_rng(seed).random((n_users, n_items)) < 0.3
    dense[5] = False  # a user without pairs
    return dense


def of_dense(dense: np.ndarray, **labels: np.ndarray) -> Interactions:
    users, items = np.nonzero(dense)
    columns = dict(timestamps=users * 100 + items, weights=(users + items / 32).astype(np.float32))
    return Interactions(users, items, *dense.shape, **columns, **labels)


def labels_of(dense: np.ndarray) -> dict[str, np.ndarray]:
    return dict(
        user_labels=np.array([f"u{n}" for n in range(len(dense))]),
        item_labels=np.arange(dense.shape[1]) * 7,
    )


@pytest.mark.parametrize("cold", [0, 5])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_range_of_users_has_the_dense_rows(seed, cold):
    dense = dense_of(seed)
    dense[:cold] = False
    whole = of_dense(dense, **labels_of(dense))
    mapped_whole, empty = MappedInteractions.of(whole), of_dense(0 * dense, **labels_of(dense))
    for start, stop in [(0, 23), (0, 7), (1, 9), (3, 5), (6, 23), (5, 6), (9, 9), (23, 23)]:
        rows = dense[start:stop]
        users, items = np.nonzero(rows)
        parts = [whole.between(start, stop), mapped_whole.between(start, stop)]
        parts += [whole.between(1, 23).between(start - 1, stop - 1)] if start else []
        parts += [parts[0].union(empty.between(start, stop))]
        parts += [mapped_whole.union(empty).between(start, stop)]
        for part in parts:
            assert (part.n_users, len(part)) == (stop - start, rows.sum())
            np.testing.assert_array_equal(part.users, users)
            np.testing.assert_array_equal(part.items, items)
            np.testing.assert_array_equal(part.timestamps, (users + start) * 100 + items)
            np.testing.assert_array_equal(part.weights, users + start + items / 32)
            np.testing.assert_array_equal(part.user_degrees, rows.sum(1))
            np.testing.assert_array_equal(part.item_degrees, rows.sum(0))
            np.testing.assert_array_equal(part.csr().toarray(), rows.astype(np.float32))
            assert part.user_labels.tolist() == [f"u{n}" for n in range(start, stop)]
            assert part.item_labels is whole.item_labels
            assert part.users.dtype == part.items.dtype == np.int32
            assert not any(array.flags.writeable for array in (part.users, part.items, part.indptr))
            assert part.take(np.ones(len(part), dtype=bool)) == part == parts[0]


def test_a_range_copies_no_pairs():
    whole = of_dense(dense_of(0))
    part = whole.between(3, 9)
    for name in ("items", "timestamps", "weights"):
        assert np.shares_memory(getattr(part, name), getattr(whole, name))


def test_a_range_out_of_bounds_is_refused():
    for start, stop in [(-1, 2), (3, 2), (0, 24)]:
        with pytest.raises(DataError, match=f"must lie in 0 to 23, got {start} to {stop}"):
            of_dense(dense_of(0)).between(start, stop)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_some_rows_are_those_of_the_matrix(seed):
    dense = dense_of(seed)
    users = np.random.default_rng(seed).integers(0, 23, 9)
    for pairs in (of_dense(dense), MappedInteractions.of(of_dense(dense))):
        rows = pairs.csr_of(users)
        np.testing.assert_array_equal(rows.toarray(), dense[users].astype(np.float32))
        whole = pairs.csr()[users]
        for name in ("indptr", "indices", "data"):
            np.testing.assert_array_equal(getattr(rows, name), getattr(whole, name))
            assert getattr(rows, name).dtype == getattr(whole, name).dtype
        assert pairs.items_of(5).tolist() == []
        assert pairs.items_of(7).tolist() == np.flatnonzero(dense[7]).tolist()


@pytest.mark.parametrize("most", [1, 3, 1 << 22])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_union_of_mapped_sets_is_that_of_ordinary_ones(seed, most, monkeypatch):
    monkeypatch.setattr(mapped, "user_ranges", lambda p: interactions.user_ranges(p, most))
    dense = dense_of(seed)
    left = dense & (np.random.default_rng(seed + 10).random(dense.shape) < 0.6)
    labels = labels_of(dense)
    parts = [MappedInteractions.of(of_dense(part, **labels)) for part in (left, dense & ~left)]
    both, oracle = parts[0].union(parts[1]), of_dense(dense, **labels)
    assert isinstance(both, MergedInteractions)
    assert len(both) == len(oracle)
    users = np.array([3, 0, 5, 22])
    for found, expected in zip(both.rows(users), oracle.rows(users), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert both.items_of(2).tolist() == np.flatnonzero(dense[2]).tolist()
    assert not both._merged, "all users were merged for a few"
    both.item_degrees  # noqa: B018
    assert set(both._merged) == {"item"}, "an unused column was merged"
    assert both == oracle
    assert both.between(4, 9) == oracle.between(4, 9)
    assert both.csr_of(users).toarray().tolist() == dense[users].astype(float).tolist()


def test_a_union_keeps_columns_that_both_have():
    left = MappedInteractions.of(of_dense(np.eye(3, dtype=bool)))
    right = Interactions(np.array([0]), np.array([1]), 3, 3, weights=np.array([9.0]))
    both = left.union(right)
    assert both.timestamps is None
    assert both.weights.tolist() == [0.0, 9.0, 1.03125, 2.0625]


def test_a_pair_in_both_is_refused():
    one = MappedInteractions.of(of_dense(np.eye(3, dtype=bool)))
    with pytest.raises(DataError, match="pair"):
        one.union(one).rows(np.array([0]))
    with pytest.raises(DataError, match="users"):
        one.union(of_dense(np.eye(4, dtype=bool)))


def test_labels_are_read_when_asked_for_and_once():
    reads = []

    def read() -> np.ndarray:
        reads.append(1)
        return np.array(["a", "b", "c"])

    source, whole = LabelSource(read), of_dense(np.eye(3, dtype=bool))
    parts = [
        MappedInteractions(read_columns, whole.indptr, 3, user_labels=source)
        for read_columns in [MappedInteractions.of(whole)._read] * 2
    ]
    interactions.same_ids("two parts", *parts)
    ranged = parts[0].between(1, 3)
    assert not reads
    assert ranged.user_labels.tolist() == ["b", "c"]
    assert parts[0].user_labels.tolist() == ["a", "b", "c"]
    assert parts[1].user_labels is parts[0].user_labels
    assert len(reads) == 1
    with pytest.raises(ValueError, match="read-only"):
        parts[0].user_labels[0] = "x"


def test_a_mapped_split_is_a_split():
    dense, other = np.eye(4, dtype=bool), np.roll(np.eye(4, dtype=bool), 1, 1)
    plain = [of_dense(part) for part in (dense, other, np.roll(other, 1, 1))]
    one = Split("toy", *plain)
    two = Split("toy", *map(MappedInteractions.of, plain))
    assert one.fingerprint == two.fingerprint
    assert two.train_full == one.train_full
    again = pickle.loads(pickle.dumps(two))
    assert again.train == one.train
    with pytest.raises(DataError, match="pairs"):
        Split("toy", *map(MappedInteractions.of, [plain[0], plain[1], plain[0]]))


@pytest.mark.parametrize("small", [0, 1 << 20])
def test_blocks_become_one_array(small, monkeypatch):
    monkeypatch.setattr(mapped, "_SMALL_BYTES", small)
    blocks = [np.arange(3), np.arange(0), np.arange(5)]
    array = joined(iter(blocks), np.int64, 8)
    assert array.tolist() == [0, 1, 2, 0, 1, 2, 3, 4]
    assert not array.flags.writeable
    with pytest.raises(DataError, match="pairs"):
        joined(iter(blocks), np.int64, 7)


def test_a_full_disk_is_an_error(monkeypatch):
    monkeypatch.setattr(mapped, "_SMALL_BYTES", 0)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with pytest.raises(WriteError, match="TMPDIR"):
        joined(iter([np.arange(3)]), np.int32, 3)
