"""Threats: ranges, targets and knowledge."""

from __future__ import annotations

import math

import numpy as np
import pytest

from robustcf.data import Interactions
from robustcf.errors import InputError
from robustcf.poisoning import Knowledge, PoisonThreat, Targets, parse_fakes
from robustcf.poisoning.threat import fakes_name

# Ten users of twenty items, six each; without labels.
PAIRS = Interactions(*np.divmod(np.flatnonzero(np.arange(200) % 20 % 7 < 2), 20), 10, 20)


@pytest.mark.parametrize(
    ("kind", "wrong", "word"),
    [
        *((PoisonThreat, {"fakes": value}, "negative") for value in (-1, -0.1)),
        *((PoisonThreat, {"fakes": value}, "finite") for value in (math.nan, math.inf, "many")),
        (PoisonThreat, {"fakes": 1.5}, "share"),
        *((PoisonThreat, {"known": value}, "known") for value in (0.0, 2)),
        *((PoisonThreat, {name: 0}, name) for name in ("length", "goal", "knowledge")),
        (Targets, {"count": 0}, "number"),
        (Targets, {"kind": "odd"}, "kind"),
        (Targets, {"labels": ("a", "a")}, "differ"),
        (Targets, {"labels": "a"}, "list"),
    ],
)
def test_values_out_of_range_are_refused(kind, wrong, word):
    with pytest.raises(InputError, match=word):
        kind(**wrong)


@pytest.mark.parametrize(
    ("threat", "word"),
    [
        (PoisonThreat(fakes=11), "genuine users"),
        (PoisonThreat(length=21), "catalogue"),
        (PoisonThreat(length=2, targets=Targets(3)), "do not fit"),
        (PoisonThreat(goal="demote", targets=Targets(labels=tuple(map(str, range(20))))), "all 20"),
        (PoisonThreat(targets=Targets(7), length=9), "drawn"),
    ],
)
def test_threats_that_do_not_fit_the_data_are_refused(threat, word):
    with pytest.raises(InputError, match=word):
        threat.granted(PAIRS, 0)


@pytest.mark.parametrize(
    ("threat", "granted"),
    [
        (PoisonThreat(fakes=0), (0, 6)),
        (PoisonThreat(fakes=0.0), (0, 6)),
        (PoisonThreat(fakes=0.001), (1, 6)),
        (PoisonThreat(fakes=10, length=5), (10, 5)),
        (PoisonThreat(fakes=1, length=2, targets=Targets(3), goal="demote"), (1, 2)),
    ],
)
def test_what_a_threat_grants(threat, granted):
    assert threat.granted(PAIRS, 0)[:2] == granted
    no_users = PAIRS.take(np.zeros(0, dtype=np.int64))
    assert PoisonThreat(1, targets=Targets(labels=("0",))).granted(no_users, 0)[:2] == (1, 1)


@pytest.mark.parametrize("text", ["-1", "-1%", "nan", "inf%", "some", "", "150%"])
def test_invalid_numbers_of_fakes_are_refused(text):
    with pytest.raises(InputError, match="fakes"):
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
    ranked, fifth = np.sort(degrees), len(degrees) // 5
    rare, middle, popular = (
        degrees[Targets(4, kind).choose(split.train, seed)]
        for kind in ("rare", "middle", "popular")
    )
    assert rare.max() <= ranked[fifth - 1]
    assert popular.min() >= ranked[-fifth]
    assert ranked[2 * fifth - 1] <= middle.min() <= middle.max() <= ranked[3 * fifth]
    one, again, other = (
        Targets(4).choose(split.train, each).tolist() for each in (seed, seed, seed + 1)
    )
    assert one == again != other
    assert len(set(one)) == 4
    few = Interactions(np.array([0, 1]), np.array([1, 2]), 2, 5)
    assert Targets(2).choose(few, seed).tolist() == [1, 2], "items without pairs are not drawn"


def test_targets_by_label_and_in_words(split):
    assert Targets(labels=("i7", "i3")).choose(split.train, 0).tolist() == [3, 7]
    assert Targets(labels=("1",)).choose(PAIRS, 0).tolist() == [1]
    assert Targets(1).words() == "1 rare item"
    assert Targets(2, "middle").words() == "2 middle items"
    assert Targets(labels=("a", "b")).words() == "the items a, b"


@pytest.mark.parametrize(
    ("labels", "word"),
    [
        (("i400",), "did you mean 'i4"),
        (("zzz",), "look into"),
        # Text of fixed width ends before its last NUL.
        (("i3", "i3\0"), "different items"),
        *(((label,), "no labels") for label in ("20", "-1", "x", "01", "\u0661", "1" * 5000)),
    ],
)
def test_unknown_and_double_labels_are_refused(split, labels, word):
    with pytest.raises(InputError, match=word):
        Targets(labels=labels).choose(PAIRS if word == "no labels" else split.train, 0)


def test_knowledge_is_no_more_than_granted(split):
    train = split.train
    data, part, none = (
        Knowledge.of(train, PoisonThreat(knowledge=kind, known=0.5), seed=1)
        for kind in ("data", "part", "none")
    )
    assert data.pairs("me") is train
    assert none.sample is None
    sample = part.pairs("me")
    assert sample.n_users == 30
    assert part.popularity.tolist() == sample.item_degrees.tolist()
    known = {tuple(train.items_of(user)) for user in range(train.n_users)}
    assert {tuple(sample.items_of(user)) for user in range(30)} <= known
    other = Knowledge.of(train, PoisonThreat(knowledge="part", known=0.5), seed=2)
    assert other.pairs("me") != sample
