"""Threats: what is out of range is refused, and targets are what they are said to be."""

from __future__ import annotations

import math

import numpy as np
import pytest

from robustcf.data import Interactions
from robustcf.errors import InputError
from robustcf.poisoning import Knowledge, PoisonThreat, Targets, parse_fakes
from robustcf.poisoning.threat import fakes_name


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"fakes": -1}, "fakes must be a finite number and not negative, got -1"),
        ({"fakes": -0.1}, "not negative"),
        ({"fakes": math.nan}, "fakes must be a finite number"),
        ({"fakes": math.inf}, "fakes must be a finite number"),
        ({"fakes": 1.5}, "share of at most 1 or a whole number"),
        ({"fakes": "many"}, "fakes must be a finite number"),
        ({"length": 0}, "the length of a profile must be an integer of at least 1"),
        ({"goal": "win"}, "goal must be one of promote, demote, availability"),
        ({"knowledge": "all"}, "knowledge must be one of data, part, none"),
        ({"known": 0.0}, "known must be a share above 0 and at most 1"),
        ({"known": 2}, "known must be a share"),
    ],
)
def test_what_is_out_of_range_is_refused(wrong, words):
    with pytest.raises(InputError, match=words):
        PoisonThreat(**wrong)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"count": 0}, "the number of targets must be an integer of at least 1"),
        ({"kind": "odd"}, "the kind of targets must be one of rare, middle, popular"),
        ({"labels": ("a", "a")}, "target labels must differ"),
        ({"labels": "a"}, "target labels must be a list"),
    ],
)
def test_targets_out_of_range_are_refused(wrong, words):
    with pytest.raises(InputError, match=words):
        Targets(**wrong)


def test_budgets_that_do_not_fit_the_data_are_refused():
    with pytest.raises(InputError, match="at most as many as the 10 genuine users, got 11"):
        PoisonThreat(fakes=11).budget(10, 20, 5.0)
    with pytest.raises(InputError, match="21 items is longer than the catalogue of 20"):
        PoisonThreat(length=21).budget(10, 20, 5.0)
    assert PoisonThreat(fakes=0).budget(10, 20, 5.4) == (0, 5)
    assert PoisonThreat(fakes=0.0).budget(10, 20, 5.4) == (0, 5)
    assert PoisonThreat(fakes=0.001).budget(10, 20, 0.2) == (1, 1)
    assert PoisonThreat(fakes=10).budget(10, 20, 5.6) == (10, 6)


@pytest.mark.parametrize("text", ["-1", "-1%", "nan", "inf%", "some", "", "150%"])
def test_words_that_are_no_number_of_fakes_are_refused(text):
    with pytest.raises(InputError, match="fakes must be"):
        parse_fakes(text)


@pytest.mark.parametrize(
    ("text", "fakes", "name"),
    [("1%", 0.01, "1%"), ("0.5%", 0.005, "0.5%"), ("7", 7, "7"), ("0.25", 0.25, "25%")],
)
def test_fakes_are_read_and_named(text, fakes, name):
    found = parse_fakes(text)
    assert (found, type(found)) == (fakes, type(fakes))
    assert fakes_name(found) == name


@pytest.mark.parametrize("seed", range(3))
def test_targets_come_from_their_band(split, seed):
    degrees = split.train.item_degrees
    ranked = np.sort(degrees)
    rare, middle, popular = (
        degrees[Targets(4, kind).choose(split.train, seed)]
        for kind in ("rare", "middle", "popular")
    )
    fifth = len(ranked) // 5
    assert rare.max() <= ranked[fifth - 1]
    assert popular.min() >= ranked[-fifth]
    assert ranked[2 * fifth - 1] <= middle.min()
    assert middle.max() <= ranked[3 * fifth]
    again = Targets(4).choose(split.train, seed)
    assert again.tolist() == Targets(4).choose(split.train, seed).tolist()
    assert len(set(again.tolist())) == 4


def test_other_seeds_draw_other_targets(split):
    assert len({tuple(Targets(4).choose(split.train, seed)) for seed in range(5)}) > 1


def test_items_without_pairs_are_no_targets():
    pairs = Interactions(np.array([0, 1]), np.array([1, 2]), 2, 5)
    assert Targets(2).choose(pairs, 0).tolist() == [1, 2]
    with pytest.raises(InputError, match="3 targets cannot be drawn from 2 items with pairs"):
        Targets(3).choose(pairs, 0)


def test_targets_by_label(split):
    assert Targets(labels=("i7", "i3")).choose(split.train, 0).tolist() == [3, 7]
    with pytest.raises(InputError, match=r"there is no item 'i400' .* did you mean 'i4"):
        Targets(labels=("i400",)).choose(split.train, 0)
    with pytest.raises(InputError, match="look into the data"):
        Targets(labels=("zzz",)).choose(split.train, 0)
    bare = Interactions(np.array([0]), np.array([1]), 1, 3)
    assert Targets(labels=("1",)).choose(bare, 0).tolist() == [1]
    for label in ("3", "-1", "x", "01", "\u0661", "1" * 5000):
        with pytest.raises(InputError, match="the data has no labels, give ids from 0 to 2"):
            Targets(labels=(label,)).choose(bare, 0)


def test_two_labels_of_one_item_are_refused(split):
    # Text of fixed width ends before its last NUL.
    with pytest.raises(InputError, match="target labels must be of different items"):
        Targets(labels=("i3", "i3\0")).choose(split.train, 0)


def test_words_of_targets():
    assert Targets(1).words() == "1 rare item"
    assert Targets(2, "middle").words() == "2 middle items"
    assert Targets(labels=("a", "b")).words() == "the items a, b"


def test_knowledge_is_no_more_than_granted(split):
    train = split.train
    data, part, none = (
        Knowledge.of(train, PoisonThreat(knowledge=kind, known=0.5), seed=1)
        for kind in ("data", "part", "none")
    )
    assert data.pairs("me") is train
    assert none.sample is None
    with pytest.raises(InputError, match="me needs pairs to learn from and knows none"):
        none.pairs("me")
    sample = part.pairs("me")
    assert sample.n_users == 30
    assert part.popularity.tolist() == sample.item_degrees.tolist()
    known = {tuple(train.items_of(user)) for user in range(train.n_users)}
    assert {tuple(sample.items_of(user)) for user in range(30)} <= known
    other = Knowledge.of(train, PoisonThreat(knowledge="part", known=0.5), seed=2)
    assert other.pairs("me") != sample
