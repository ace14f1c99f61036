"""Every check lets good values through as plain ones, and says what was wrong with the others."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest

from robustcf._checks import (
    check_choice,
    check_cutoffs,
    check_epsilons,
    check_integer,
    check_known,
    check_number,
    check_numbers,
    unknown_setting,
)
from robustcf._registry import MODELS
from robustcf.errors import InputError

NAN, INFINITE = float("nan"), float("inf")


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3)])
def test_integers(value):
    found = check_integer("k", value)
    assert found == 3
    assert type(found) is int
    assert check_integer("k", -2, least=-2) == -2


@pytest.mark.parametrize("value", [0, -1, 2.0, 2.5, "3", None, True, np.float64(3), NAN])
def test_no_integers(value):
    with pytest.raises(InputError) as caught:
        check_integer("k", value)
    assert str(caught.value) == f"k must be an integer of at least 1, got {value!r}"


@pytest.mark.parametrize("value", [2**63, 10**400, 10**5000], ids=["64 bits", "400", "5000"])
def test_integers_beyond_all_use(value):
    with pytest.raises(InputError, match="at most 9223"):
        check_integer("k", value)
    with pytest.raises(InputError, match="at most 2147483647"):
        check_cutoffs([value])


@pytest.mark.parametrize("value", [0.5, np.float32(0.5), np.float64(0.5), Fraction(1, 2), 0, 2])
def test_numbers(value):
    found = check_number("lr", value)
    assert found == value
    assert type(found) is float


@pytest.mark.parametrize("value", [-0.1, NAN, INFINITE, "1", None, True, 1j, [1.0], 10**400])
def test_no_numbers(value):
    for positive in (False, True):
        with pytest.raises(InputError, match="lr must be a finite number"):
            check_number("lr", value, positive=positive)
    with pytest.raises(InputError, match="positive"):
        check_number("lr", 0.0, positive=True)


@pytest.mark.parametrize("value", ["left", "user", [], {}, 5, None])
def test_choices(value):
    check_choice("side", "users", iter(["users"]))
    with pytest.raises(InputError, match="users"):
        check_choice("side", value, ("users", "items"))
    with pytest.raises(InputError, match="model"):
        MODELS[value]


@pytest.mark.parametrize(
    ("given", "expected"),
    [([20, 10], (10, 20)), ((5, 5), (5,)), (np.array([20, 10]), (10, 20)), (range(1, 3), (1, 2))],
)
def test_cutoffs(given, expected):
    assert check_cutoffs(given) == expected
    assert all(type(k) is int for k in check_cutoffs(given))


@pytest.mark.parametrize("given", [[0, 0.5], (0, 0.5), np.array([0.0, 0.5], dtype=np.float32)])
def test_epsilons(given):
    found = check_epsilons(given)
    assert found == (0.0, 0.5)
    assert all(type(epsilon) is float for epsilon in found)


@pytest.mark.parametrize(
    ("check", "given", "word"),
    [
        *((check_cutoffs, nothing, "none") for nothing in ([], (), np.array([], dtype=int))),
        *((check_cutoffs, bad, "every cutoff") for bad in ([10, 0], [1.5])),
        (check_epsilons, [], "none"),
        *((check_epsilons, bad, "finite") for bad in ([0, -0.1], [0, NAN], [INFINITE])),
        *((check_epsilons, bad, "ascending") for bad in ([0.2, 0.1], [0, 0.1, 0.1])),
        *((check_epsilons, bad, "numbers") for bad in (["a", None], [10**400])),
    ],
)
def test_lists_that_are_refused(check, given, word):
    with pytest.raises(InputError, match=word):
        check(given)


@pytest.mark.parametrize("check", [check_cutoffs, check_epsilons])
def test_a_single_value_is_no_list(check):
    for value in (10, np.int64(10), 10.5, None, "10", {10: 1}, np.array(10)):
        with pytest.raises(InputError, match="list"):
            check(value)
    assert check(value for value in (10, 20)) == (10, 20)


@dataclass
class Settings:
    factors: int = 2
    layers: int = 1
    rate: float = 0.5
    other: float | None = None
    count: int | None = None
    flag: bool = False
    word: str = "x"
    seed: int = 0


# The same with annotations that are types, as in a module without the future import.
Plain = dataclasses.make_dataclass(
    "Plain",
    [
        *(("factors", int, 2), ("layers", int, 1), ("rate", float, 0.5)),
        ("other", float | None, None),
        *(("count", int | None, None), ("flag", bool, False), ("word", str, "x"), ("seed", int, 0)),
    ],
)
ZERO = ("layers", "seed")


def test_known_settings():
    check_known(Settings, {"factors": 3, "word": "y"})
    with pytest.raises(InputError, match="mean"):
        check_known(Settings, {"factors": 1, "dim": 3})
    with pytest.raises(InputError, match="known: factors, layers"):
        check_known(Settings, {"zzz": 3})
    assert unknown_setting("laiers", ["factors", "layers"]).endswith("did you mean 'layers'?")


@pytest.mark.parametrize("kind", [Settings, Plain])
@pytest.mark.parametrize(
    ("values", "word"),
    [
        *(({"factors": bad}, "at least 1") for bad in (0, None, True, 2**31)),
        ({"layers": -1}, "at least 0"),
        *(({"rate": bad}, "finite") for bad in (-1.0, None)),
        ({"rate": 1e31}, "at most"),
        ({"rate": 1e-320}, "at least 1e-30"),
        ({"other": NAN}, "finite"),
        ({"count": 0}, "at least 1"),
        *(({"flag": bad}, "true or false") for bad in (1, None)),
        ({"word": [1]}, "text"),
        ({"seed": 2**63}, "integer"),
    ],
)
def test_fields_are_checked_by_their_types(kind, values, word):
    check_numbers(kind(layers=0), ZERO)
    for prefix in ("", "reg_"):
        with pytest.raises(InputError, match=f"^{prefix}{next(iter(values))} must be .*{word}"):
            check_numbers(kind(**values), ZERO, prefix)


def test_numbers_of_numpy_become_plain_ones():
    settings = Settings(factors=np.int64(3), rate=np.float32(0.25), count=np.uint8(7), word=None)
    check_numbers(settings, ZERO)
    assert (settings.factors, settings.rate, settings.count) == (3, 0.25, 7)
    assert [type(v) for v in (settings.factors, settings.rate, settings.count)] == [int, float, int]

    @dataclass(frozen=True)
    class Frozen:
        rate: float = 1.0

    # A whole number stays one: 1 and 1.0 are written alike.
    for value, expected in ((np.float64(0.5), float), (1, int), (10**30, float)):
        frozen = Frozen(value)
        check_numbers(frozen)
        assert type(frozen.rate) is expected
