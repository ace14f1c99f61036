"""Every check lets good values through as plain ones, and says what was wrong with the others."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

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


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3)])
def test_integers(value: Any) -> None:
    found = check_integer("k", value)
    assert found == 3
    assert type(found) is int
    assert check_integer("k", 0, least=0) == 0
    assert check_integer("k", -2, least=-2) == -2


@pytest.mark.parametrize("value", [0, -1, 2.0, 2.5, "3", None, True, np.float64(3), float("nan")])
def test_no_integers(value: Any) -> None:
    with pytest.raises(InputError) as caught:
        check_integer("k", value)
    assert str(caught.value) == f"k must be an integer of at least 1, got {value!r}"
    with pytest.raises(InputError, match="k must be an integer of at least 5, got 4"):
        check_integer("k", 4, least=5)


@pytest.mark.parametrize("value", [0.5, np.float32(0.5), np.float64(0.5), Fraction(1, 2)])
def test_numbers(value: Any) -> None:
    found = check_number("lr", value, positive=True)
    assert found == 0.5
    assert type(found) is float
    assert check_number("lr", 0) == 0.0
    assert type(check_number("lr", 2)) is float


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf"), "1", None, True, 1j, [1.0]])
def test_no_numbers(value: Any) -> None:
    with pytest.raises(InputError) as caught:
        check_number("lr", value)
    assert str(caught.value) == f"lr must be a finite number and not negative, got {value!r}"


@pytest.mark.parametrize("value", [0, 0.0, -1, float("nan")])
def test_not_positive(value: Any) -> None:
    with pytest.raises(InputError, match="lr must be a finite number and positive, got"):
        check_number("lr", value, positive=True)


def test_choices() -> None:
    check_choice("side", "users", ("users", "items"))
    check_choice("side", "users", iter(["users"]))
    for value in ("left", None, 3, "user"):
        with pytest.raises(InputError) as caught:
            check_choice("side", value, ("users", "items"))
        assert str(caught.value) == f"side must be one of users, items, got {value!r}"


@pytest.mark.parametrize(
    ("given", "expected"),
    [([20, 10], (10, 20)), ((5, 5), (5,)), (np.array([20, 10]), (10, 20)), (range(1, 3), (1, 2))],
)
def test_cutoffs(given: Any, expected: tuple[int, ...]) -> None:
    assert check_cutoffs(given) == expected
    assert all(type(k) is int for k in check_cutoffs(given))


def test_no_cutoffs() -> None:
    for nothing in ([], (), np.array([], dtype=int)):
        with pytest.raises(InputError, match="ks must name at least one cutoff, got none"):
            check_cutoffs(nothing)
    with pytest.raises(InputError, match="every cutoff must be an integer of at least 1, got 0"):
        check_cutoffs([10, 0])
    with pytest.raises(InputError, match="every cutoff must be an integer of at least 1, got 1.5"):
        check_cutoffs([1.5])


def test_epsilons() -> None:
    for given in ([0, 0.5], (0, 0.5), np.array([0.0, 0.5], dtype=np.float32)):
        found = check_epsilons(given)
        assert found == (0.0, 0.5)
        assert all(type(epsilon) is float for epsilon in found)
    assert check_epsilons([0.3]) == (0.3,)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "epsilons must name at least one attack size, got none"),
        ([0, -0.1], "epsilons must be finite and not negative, got -0.1"),
        ([0, float("nan")], "epsilons must be finite and not negative, got nan"),
        ([float("inf")], "epsilons must be finite and not negative, got inf"),
        ([0.2, 0.1], "epsilons must be ascending and differ, got 0.2, 0.1: sort them"),
        ([0, 0.1, 0.1], "epsilons must be ascending and differ, got 0, 0.1, 0.1: sort them"),
    ],
)
def test_no_epsilons(given: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        check_epsilons(given)
    assert str(caught.value) == message


@dataclass
class Settings:
    dim: int = 2
    layers: int = 1
    rate: float = 0.5
    other: float | None = None
    count: int | None = None
    flag: bool = False
    word: str = "x"


def test_known_settings() -> None:
    check_known(Settings, {"dim": 3, "word": "y"})
    check_known(Settings, {})
    with pytest.raises(InputError, match=r"^unknown setting 'dmi'; did you mean 'dim'\?$"):
        check_known(Settings, {"dim": 1, "dmi": 3})
    known = "known: dim, layers, rate, other, count, flag, word"
    with pytest.raises(InputError, match=f"^unknown setting 'zzz'; {known}$"):
        check_known(Settings, {"zzz": 3})
    assert unknown_setting("laiers", ["dim", "layers"]).endswith("did you mean 'layers'?")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"dim": 0}, "dim must be an integer of at least 1, got 0"),
        ({"dim": None}, "dim must be an integer of at least 1, got None"),
        ({"dim": True}, "dim must be an integer of at least 1, got True"),
        ({"layers": -1}, "layers must be an integer of at least 0, got -1"),
        ({"rate": -1.0}, "rate must be a finite number and not negative, got -1.0"),
        ({"rate": None}, "rate must be a finite number and not negative, got None"),
        ({"other": float("nan")}, "other must be a finite number and not negative, got nan"),
        ({"count": 0}, "count must be an integer of at least 1, got 0"),
        ({"flag": 1}, "flag must be true or false, got 1"),
        ({"flag": None}, "flag must be true or false, got None"),
    ],
)
def test_fields_are_checked_by_their_types(values: dict[str, Any], message: str) -> None:
    # The same with annotations that are types, as in a module without the future import.
    types = {"dim": int, "layers": int, "rate": float, "flag": bool}
    plain = dataclasses.make_dataclass(
        "Plain",
        [
            ("dim", int, 2), ("layers", int, 1), ("rate", float, 0.5),
            ("other", float | None, None), ("count", int | None, None), ("flag", bool, False),
        ],
    )  # fmt: skip
    assert {entry.name: entry.type for entry in dataclasses.fields(plain)}.items() >= types.items()
    for kind in (Settings, plain):
        check_numbers(kind())
        check_numbers(kind(layers=0), may_be_zero=("layers",))
        with pytest.raises(InputError) as caught:
            check_numbers(kind(**values), may_be_zero=("layers",))
        assert str(caught.value) == message
        with pytest.raises(InputError) as caught:
            check_numbers(kind(**values), may_be_zero=("layers",), prefix="reg_")
        assert str(caught.value) == f"reg_{message}"


def test_numbers_of_numpy_become_plain_ones() -> None:
    settings = Settings(dim=np.int64(3), rate=np.float32(0.25), count=np.uint8(7), word=None)
    check_numbers(settings)
    assert (settings.dim, settings.rate, settings.count) == (3, 0.25, 7)
    assert [type(v) for v in (settings.dim, settings.rate, settings.count)] == [int, float, int]

    @dataclass(frozen=True)
    class Frozen:
        rate: float = 1.0

    frozen = Frozen(np.float64(0.5))
    check_numbers(frozen)
    assert type(frozen.rate) is float
    # A whole number stays one: 1 and 1.0 are written alike.
    whole = Frozen(1)
    check_numbers(whole)
    assert type(whole.rate) is int


@pytest.mark.parametrize("check", [check_cutoffs, check_epsilons])
def test_a_single_value_is_no_list(check: Any) -> None:
    name = {check_cutoffs: "ks", check_epsilons: "epsilons"}[check]
    for value in (10, np.int64(10), 10.5):
        with pytest.raises(InputError) as caught:
            check(value)
        assert str(caught.value) == f"{name} must be a list, got {value!r}: give [{value!r}]"
    for value in (None, "10", {10: 1}, np.array(10)):
        with pytest.raises(InputError, match=f"^{name} must be a list, got "):
            check(value)
    assert check(np.array([10, 20])) == (10, 20)
    assert check(value for value in (10, 20)) == (10, 20)


def test_sizes_that_are_no_numbers() -> None:
    with pytest.raises(InputError, match=r"epsilons must be numbers, got \['a', None\]"):
        check_epsilons(["a", None])  # type: ignore[list-item]


def test_integers_and_numbers_beyond_all_use() -> None:
    for value in (2**63, 10**400, 10**5000):
        with pytest.raises(InputError, match="k must be an integer of at least 1 and at most 9223"):
            check_integer("k", value)
    with pytest.raises(InputError, match="x must be a finite number"):
        check_number("x", 10**400)
    with pytest.raises(InputError, match="epsilons must be numbers"):
        check_epsilons([10**400])

    @dataclasses.dataclass
    class Settings:
        count: int = 1
        rate: float = 1.0
        word: str = "a"
        seed: int = 0

    for changes, message in (
        ({"count": 2**31}, "count must be an integer of at least 1 and at most 2147483647"),
        ({"rate": 1e31}, r"rate must be at most 1e\+30"),
        ({"word": [1]}, r"word must be text, got \[1\]"),
        ({"seed": 2**63}, "seed must be an integer"),
    ):
        with pytest.raises(InputError, match=message):
            check_numbers(Settings(**changes), may_be_zero=("seed",))
    large = Settings(rate=10**30, seed=2**63 - 1)
    check_numbers(large, may_be_zero=("seed",))
    assert type(large.rate) is float


@pytest.mark.parametrize("value", [[], {}, 5, None])
def test_a_choice_that_is_no_text(value: object) -> None:
    with pytest.raises(InputError, match="side must be one of users, items, got"):
        check_choice("side", value, ("users", "items"))
    with pytest.raises(InputError, match="model must be one of"):
        MODELS[value]  # type: ignore[index]
