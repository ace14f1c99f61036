"""Injection of fakes into train alone, and files of their profiles."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from robustcf.data import Interactions, Split
from robustcf.data.large.mapped import MappedInteractions
from robustcf.data.synthetic import checkerboard
from robustcf.errors import DataError, InputError
from robustcf.poisoning import inject, inject_split, read_profiles, write_profiles
from robustcf.poisoning.injection import read_targets, with_train

PARTS = ("train", "valid", "test")
PROFILES = (np.array([0, 5, 7]), np.array([3]))


def test_fakes_are_appended_to_train_alone(split):
    poisoned = inject_split(split, PROFILES)
    train, n = poisoned.train, split.n_users
    after = train.csr().toarray()
    assert (after[:n] == split.train.csr().toarray()).all()
    assert [np.flatnonzero(row).tolist() for row in after[n:]] == [[0, 5, 7], [3]]
    assert train.user_labels[:-2].tolist() == split.user_labels.tolist()
    assert len(set(train.user_labels.tolist())) == train.n_users == n + 2
    for part in ("valid", "test"):
        old, new = getattr(split, part), getattr(poisoned, part)
        assert np.array_equal(old.users, new.users)
        assert np.array_equal(old.items, new.items)
        assert new.n_users == n + 2
    assert len(poisoned.train_full) == len(split.train_full) + 4
    assert (poisoned.protocol, poisoned.valid_source) == (split.protocol, split.valid_source)
    assert inject_split(split, ()) is split
    # A defence may take them out again.
    fewer = train.take(train.users < n)
    assert len(with_train(poisoned, fewer).train) == len(split.train)
    assert with_train(poisoned, split.train).n_users == n


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
        # Without larger integers: the smallest free ones.
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
    [([40], "ids"), ([-1], "ids"), ([0.5], "ids"), ([[1]], "ids"), ([1, 1], "twice")],
)
def test_invalid_profiles_are_refused(split, profile, word):
    with pytest.raises(InputError, match=word):
        inject(split.train, [np.array(profile)])


@pytest.mark.parametrize("seed", range(3))
def test_profiles_are_read_back_from_their_file(split, seed, tmp_path):
    rng = np.random.default_rng(seed)
    profiles = [np.sort(rng.permutation(40)[: rng.integers(1, 9)]) for _ in range(15)]
    path = tmp_path / "profiles.csv"
    for train in (split.train, Split.from_csr(np.ones((2, 40))).train):
        write_profiles(path, profiles, train)
        label = "i" if train is split.train else ""
        assert path.read_text().splitlines()[1] == f"fake0,{label}{profiles[0][0]}"
        assert all(map(np.array_equal, read_profiles(path, train), profiles))
    write_profiles(path, [], split.train)
    assert read_profiles(path, split.train) == ()
    path.write_text("user,item\nz,i3\na,i5\nz,i1\nb,i2\na,i0\n")
    found = [profile.tolist() for profile in read_profiles(path, split.train)]
    assert found == [[1, 3], [0, 5], [2]], "in the order of the file"


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
def test_invalid_files_are_refused(split, content, word, tmp_path):
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
    profiles = [[0, 2, 4], [3, 5], [0, 1]][: 2 if raw else 3]
    write_profiles(tmp_path / "p.csv", [np.array(each) for each in profiles], train, raw=raw)
    found = read_profiles(tmp_path / "p.csv", train)
    assert [profile.tolist() for profile in found] == profiles
    lines = (tmp_path / "p.csv").read_text().splitlines()[1:]
    assert any(line.split(",")[1][0] in "=+@" for line in lines) == raw


def test_published_profiles_are_read(tmp_path):
    train = checkerboard().train
    path = tmp_path / "dp.json"
    path.write_text('{"target_items": ["3", 7], "fake_users": {"a": ["3", "1", "3"], "b": [7]}}')
    assert [profile.tolist() for profile in read_profiles(path, train)] == [[1, 3], [7]]
    assert read_targets(path) == ("3", "7")
    assert read_targets(tmp_path / "table.csv") == ()
    path.write_text('{"target_items": ["3"], "fake_users": {"a": ["9999"]}}')
    with pytest.raises(InputError, match="9999"):
        read_profiles(path, train)
    path.write_text('{"fake_users": {"a": "3"}}')
    with pytest.raises(InputError, match="dp.json"):
        read_profiles(path, train)
