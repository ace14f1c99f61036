"""Injected data: fakes behind the genuine users, in train alone; files come back as they went."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from robustcf.data import Interactions, Split
from robustcf.data.large.mapped import MappedInteractions
from robustcf.errors import DataError, InputError
from robustcf.poisoning import inject, inject_split, read_profiles, write_profiles
from robustcf.poisoning.injection import with_train

PARTS = ("train", "valid", "test")
PROFILES = (np.array([0, 5, 7]), np.array([3]))


def test_fakes_come_behind_the_genuine_users(split):
    train = inject(split.train, PROFILES)
    assert train.n_users == split.n_users + 2
    before = split.train.csr().toarray()
    after = train.csr().toarray()
    assert (after[: split.n_users] == before).all()
    assert np.flatnonzero(after[-2]).tolist() == [0, 5, 7]
    assert np.flatnonzero(after[-1]).tolist() == [3]
    assert train.user_labels[:-2].tolist() == split.user_labels.tolist()
    assert len(set(train.user_labels.tolist())) == train.n_users


def test_valid_and_test_stay_the_genuine_users(split):
    poisoned = inject_split(split, PROFILES)
    for part in ("valid", "test"):
        old, new = getattr(split, part), getattr(poisoned, part)
        assert np.array_equal(old.users, new.users)
        assert np.array_equal(old.items, new.items)
        assert new.n_users == split.n_users + 2
    assert len(poisoned.train_full) == len(split.train_full) + 4
    assert poisoned.protocol == split.protocol
    assert poisoned.valid_source == split.valid_source
    assert inject_split(split, ()) is split
    # A defence may take them out again.
    fewer = poisoned.train.take(poisoned.train.users < split.n_users)
    assert len(with_train(poisoned, fewer).train) == len(split.train)
    assert with_train(poisoned, split.train).n_users == split.n_users


def test_a_prepared_set_is_poisoned_like_any_other(split):
    parts = {name: MappedInteractions.of(getattr(split, name)) for name in PARTS}
    mapped = inject_split(replace(split, **parts), PROFILES)
    plain = inject_split(split, PROFILES)
    for name in PARTS:
        assert getattr(mapped, name) == getattr(plain, name)


MOST, LARGEST = np.iinfo(np.int64).max, np.iinfo(np.uint64).max


@pytest.mark.parametrize(
    ("labels", "new"),
    [
        (np.array(["fake0", "fake_1", "u"]), None),
        (np.array([41, 7, 9]), [42, 43]),
        # At the end of the numbers: the smallest that nobody has.
        (np.array([MOST, 1, 0]), [2, 3]),
        (np.array([LARGEST, 1, 0], dtype=np.uint64), [2, 3]),
        (np.array([MOST - 2, 1, 0]), [MOST - 1, MOST]),
    ],
)
def test_fakes_have_new_labels_the_largest_weight_and_the_latest_time(labels, new):
    pairs = Interactions(
        np.arange(3), np.arange(3), 3, 3, user_labels=labels, timestamps=np.array([5, 9, 7]),
        weights=np.array([1.0, 4.0, 2.0]),
    )  # fmt: skip
    found = inject(pairs, [np.array([2]), np.array([1])])
    assert len(set(found.user_labels.tolist())) == 5
    assert found.user_labels.dtype.kind == labels.dtype.kind
    assert new is None or found.user_labels.tolist() == [*labels.tolist(), *new]
    assert found.timestamps.tolist() == [5, 9, 7, 9, 9]
    assert found.weights.tolist() == [1.0, 4.0, 2.0, 4.0, 4.0]


@pytest.mark.parametrize(
    ("profile", "word"),
    [([40], "ids"), ([-1], "ids"), ([0.5], "ids"), ([[1]], "ids"), ([1, 1], "once")],
)
def test_profiles_that_are_none_are_refused(split, profile, word):
    with pytest.raises(InputError, match=word):
        inject(split.train, [np.array(profile)])


@pytest.mark.parametrize("seed", range(3))
def test_profiles_come_back_from_their_file(split, seed, tmp_path):
    rng = np.random.default_rng(seed)
    profiles = [np.sort(rng.permutation(40)[: rng.integers(1, 9)]) for _ in range(15)]
    path = tmp_path / "profiles.csv"
    write_profiles(path, profiles, split.train)
    assert path.read_text().splitlines()[1] == f"fake0,i{profiles[0][0]}"
    assert all(map(np.array_equal, read_profiles(path, split.train), profiles))
    bare = Split.from_csr(np.ones((2, 40))).train
    write_profiles(path, profiles, bare)
    assert all(map(np.array_equal, read_profiles(path, bare), profiles))
    write_profiles(path, [], split.train)
    assert read_profiles(path, split.train) == ()


def test_profiles_come_in_the_order_of_the_file(split, tmp_path):
    path = tmp_path / "mixed.csv"
    path.write_text("user,item\nz,i3\na,i5\nz,i1\nb,i2\na,i0\n")
    found = read_profiles(path, split.train)
    assert [profile.tolist() for profile in found] == [[1, 3], [0, 5], [2]]


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ("user,item\na,i1\na,i1\n", "twice"),
        ("user,item\na,i999\n", "i999"),
        ("user,item,note\n", None),
        ("one,two\n1,2\n", "user"),
        ("", None),
    ],
)
def test_files_that_hold_no_profiles_are_refused(split, content, word, tmp_path):
    path = tmp_path / "profiles.csv"
    path.write_text(content)
    with pytest.raises((InputError, DataError), match=word):
        read_profiles(path, split.train)
    with pytest.raises(InputError):
        read_profiles(tmp_path / "absent.csv", split.train)


@pytest.mark.parametrize("raw", [False, True])
def test_profiles_with_labels_that_look_like_formulas_come_back(tmp_path, raw):
    labels = np.array(["=1+1", "'=1+1", "@x", "-7", "'plain", "+cmd|' /C calc'!A1"])
    pairs = Interactions.from_pairs([0, 0, 1], [0, 1, 2], 2, len(labels))[0]
    train = Interactions(pairs.users, pairs.items, 2, len(labels), item_labels=labels)
    profiles = [np.array([0, 2, 4]), np.array([3, 5]), np.array([0, 1])]
    write_profiles(tmp_path / "p.csv", profiles[: 2 if raw else 3], train, raw=raw)
    found = read_profiles(tmp_path / "p.csv", train)
    assert [profile.tolist() for profile in found] == [
        profile.tolist() for profile in profiles[: 2 if raw else 3]
    ]
    lines = (tmp_path / "p.csv").read_text().splitlines()[1:]
    assert any(line.split(",")[1][0] in "=+@" for line in lines) == raw
