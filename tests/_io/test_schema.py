"""Kinds of values, and what is said of one that is of another."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from robustcf._io.schema import (
    ABSENT,
    FLAG,
    NAME,
    NOT_NEGATIVE,
    NUMBER,
    OBJECT,
    POSITIVE,
    TEXT,
    Kind,
    check_kind,
    choice,
    either,
    list_of,
    nullable,
    record,
    shown,
    whole,
)
from robustcf.errors import InputError

EVERYTHING: list[Any] = [
    *(None, True, False, 0, 1, -1, 3, 2**31, 2**63, -(10**400), 10**400, 0.0, 0.5, -0.5),
    *(float("nan"), float("inf"), "", "a", "zz", [], [1], ["a"], [1, 2], {}, {"a": 1}),
]


@pytest.mark.parametrize(
    ("kind", "accepted"),
    [
        (TEXT, ["", "a", "zz"]),
        (NAME, ["a", "zz"]),
        (FLAG, [True, False]),
        (NUMBER, [0, 1, -1, 3, 2**31, 2**63, 0.0, 0.5, -0.5]),
        (POSITIVE, [1, 3, 2**31, 2**63, 0.5]),
        (NOT_NEGATIVE, [0, 1, 3, 2**31, 2**63, 0.0, 0.5]),
        (OBJECT, [{}, {"a": 1}]),
        (whole(), [0, 1, 3, 2**31]),
        (whole(1, 2), [1]),
        (choice("a", "b"), ["a"]),
        (nullable(FLAG), [None, True, False]),
        (either(TEXT, FLAG), [True, False, "", "a", "zz"]),
        (list_of(whole(2)), [[]]),
        (list_of(whole(), 2, 2), [[1, 2]]),
        (list_of(either(whole(), TEXT), 1), [[1], ["a"], [1, 2]]),
        (record({"a": whole()}), [{"a": 1}]),
        (record({}, {"a": TEXT}), [{}]),
        (record({}, others=ABSENT), [{}]),
        (nullable(record({"a": TEXT})), [None]),
    ],
    ids=lambda value: value.words if isinstance(value, Kind) else "",
)
def test_kinds_take_what_they_say(kind: Kind, accepted: list[Any]) -> None:
    taken = []
    for value in EVERYTHING:
        with suppress(InputError):
            check_kind("file", value, kind)
            taken.append((type(value), value))
    assert taken == [(type(value), value) for value in accepted]


def test_the_place_is_named() -> None:
    kind = record({"a": list_of(record({"b": nullable(whole(1))}))})
    with pytest.raises(InputError, match=r"^x.json: a\[1\]\.b must be an integer .*null, got 0$"):
        check_kind("x.json", {"a": [{"b": 1}, {"b": 0}]}, kind)
    with pytest.raises(InputError, match=r"^x.json: a\[0\]\.b must be .*, got nothing$"):
        check_kind("x.json", {"a": [{}]}, kind)
    with pytest.raises(InputError, match=r"^the content must be an object, got \[\]$"):
        check_kind("", [], kind)


def test_values_are_shown_in_few_words() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for value in (deep, "x" * 10**6, list(range(10**5)), 10**5000, {str(n): n for n in range(99)}):
        assert len(shown(value)) < 300
    while deep:  # Python takes a deep list down by recursion
        deep = deep[0]
