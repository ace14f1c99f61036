"""The real sets: counts, splits and formats as published."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest

from robustcf.data import load
from robustcf.data.id_lists import read_adjacency, read_json_lists

# Slow to read, and all that reading does is tested on small files too.
pytestmark = [pytest.mark.realdata, pytest.mark.slow]


def naive_adjacency(path) -> set[tuple[int, int]]:
    pairs = set()
    for line in path.read_text().splitlines():
        user, *items = map(int, line.split())
        pairs.update((user, item) for item in items)
    return pairs


def as_set(x) -> set[tuple[int, int]]:
    return set(zip(x.users.tolist(), x.items.tolist(), strict=True))


def test_ml_1m(real_data):
    split = load("ml-1m", real_data, download=False)
    sizes = (len(split.train), len(split.valid), len(split.test))
    assert (split.n_users, split.n_items, *sizes) == (6022, 3043, 796_244, 99_455, 99_455)
    assert split.valid_source == "published"
    for part in ("train", "valid", "test"):
        assert as_set(getattr(split, part)) == naive_adjacency(real_data / "ml-1m" / f"{part}.txt")
    # Ids are ranks of the raw ids sorted as text.
    for labels in (split.user_labels, split.item_labels):
        assert labels.tolist() == sorted(labels.tolist(), key=str)


def test_the_json_form_of_ml_1m_has_the_published_checksums_and_pairs(real_data):
    published = {
        "train": "4229bc5369f943918103daf7fd92e920",
        "valid": "60be3b377d39806f80a43e37c94449f6",
        "test": "cdd3ad819512cb87dad2f098c8437df2",
    }
    for part, md5 in published.items():
        raw = read_adjacency((real_data / "ml-1m" / f"{part}.txt").read_bytes(), part)
        lists = [raw.items[raw.users == user].tolist() for user in range(6022)]
        data = json.dumps(lists).encode()
        assert hashlib.md5(data).hexdigest() == md5
        again = read_json_lists(data, part)
        np.testing.assert_array_equal(again.users, raw.users)
        np.testing.assert_array_equal(again.items, raw.items)


@pytest.mark.parametrize(
    ("name", "users", "items", "train_and_valid", "test"),
    [
        ("yelp2018", 31_668, 38_048, 1_237_259, 324_147),
        ("gowalla", 29_858, 40_981, 810_128, 217_242),
    ],
)
def test_lightgcn_splits(real_data, name, users, items, train_and_valid, test):
    split = load(name, real_data, download=False)
    assert (split.n_users, split.n_items) == (users, items)
    assert len(split.train) + len(split.valid) == len(split.train_full) == train_and_valid
    assert len(split.test) == test
    assert split.valid_source == "carved"
    degrees = split.train_full.user_degrees
    expected = np.maximum(np.floor(0.1 * degrees + 0.5), 1)
    np.testing.assert_array_equal(split.valid.user_degrees, expected)


@pytest.mark.parametrize(
    ("name", "users", "items", "pairs"),
    [("citeulike-a", 5551, 16_980, 204_986), ("citeulike-t", 7947, 25_584, 134_860)],
)
def test_citeulike(real_data, name, users, items, pairs):
    split = load(name, real_data, download=False)
    assert (split.n_users, split.n_items, split.n_interactions) == (users, items, pairs)
    everything = split.train_full.union(split.test)
    assert everything.user_degrees.min() > 2
    assert everything.item_degrees.min() >= 1
    expected = np.maximum(np.floor(0.1 * everything.user_degrees + 0.5), 1)
    np.testing.assert_array_equal(split.test.user_degrees, expected)
    # The original item ids survive as labels: compare with a loop over the raw file.
    lines = (real_data / name / "users.dat").read_text().splitlines()
    raw = {(u, int(i)) for u, line in enumerate(lines) for i in line.split()[1:]}
    labels = split.item_labels[everything.items].tolist()
    assert set(zip(everything.users.tolist(), labels, strict=True)) == raw


def test_citeulike_is_citeulike_t_and_says_what_it_dropped(real_data):
    split = load("citeulike", real_data, download=False)
    assert split.name == "citeulike-t"
    assert any("391 of 25,975 item ids never occur" in note for note in split.notes)


def test_ml_100k_and_its_threshold(real_data):
    split = load("ml-100k", real_data, download=False)
    assert (split.n_users, split.n_items, split.n_interactions) == (943, 1682, 100_000)
    rows = np.loadtxt(real_data / "ml-100k" / "u.data", dtype=np.int64)
    liked = load("ml-100k", real_data, download=False, min_rating=4)
    assert liked.n_interactions == (rows[:, 2] >= 4).sum() == 55_375
    everything = liked.train_full.union(liked.test)
    got = set(
        zip(
            liked.user_labels[everything.users].tolist(),
            liked.item_labels[everything.items].tolist(),
            strict=True,
        )
    )
    assert got == {(int(u), int(i)) for u, i, r, _ in rows if r >= 4}
    assert liked.train.timestamps is not None


def test_ml_100k_cut_in_time(real_data):
    rows = np.loadtxt(real_data / "ml-100k" / "u.data", dtype=np.int64)
    first_of_april = 891_388_800
    split = load("ml-100k", real_data, download=False, split="time", test_from="1998-04-01")
    assert len(split.test) == (rows[:, 3] >= first_of_april).sum()
    learnt = rows[rows[:, 3] < split.valid.timestamps.min()]
    assert len(split.train) == len(learnt)
    new = len(set(rows[:, 0]) - set(learnt[:, 0]))
    assert f" {new} users (" in split.notes[1]


def test_a_raw_ratings_table_reads_as_own_data(real_data):
    path = real_data / "ml-1m-raw" / "ratings_no_timestamps.csv.gz"
    split = load(path, k_core=20)
    # The published split is the 20-core of these very ratings.
    published = load("ml-1m", real_data, download=False)
    assert (split.n_users, split.n_items, split.n_interactions) == (6022, 3043, 995_154)
    assert set(split.item_labels.tolist()) == set(published.item_labels.tolist())
