"""The limits on sizes: their defaults, how they are raised, what a refusal says."""

from __future__ import annotations

import dataclasses
import re

import pytest

from robustcf._io.limits import VARIABLE, Limits, check_expansion, limits, raised_limits
from robustcf.errors import DataError, InputError
from tests.conftest import ROOT


def test_a_file_may_become_a_multiple_of_itself_or_a_small_number_of_bytes():
    held = Limits(expansion=10, small_bytes=1000)
    assert [held.allowance(size) for size in (0, 99, 100, 101)] == [1000, 1000, 1000, 1010]
    assert held.reader_allowance(0) == held.reader_bytes
    assert held.reader_allowance(10**9) == 12 * 10**9
    assert held.reader_time(10**9) == held.reader_seconds + 50
    with raised_limits(expansion=10, small_bytes=1000):
        check_expansion("f", "it", 1000, 1)
        check_expansion("f", "it", 5000, 500)
        with pytest.raises(DataError, match="5,001"):
            check_expansion("f", "it", 5001, 500)


@pytest.mark.parametrize(("needed", "size"), [(10**9, 1), (10**9, 0), (10**12 + 1, 3)])
def test_the_advice_of_a_refusal_works(needed, size, monkeypatch):
    with pytest.raises(DataError) as refusal:
        check_expansion("f", "it", needed, size)
    advice = str(refusal.value).rpartition(f"{VARIABLE}=")[2]
    monkeypatch.setenv(VARIABLE, advice)
    check_expansion("f", "it", needed, max(size, 1))


def test_limits_are_raised_for_a_block_and_nest():
    before = limits()
    with raised_limits(columns=7):
        with raised_limits(expansion=9):
            assert (limits().columns, limits().expansion) == (7, 9)
        assert (limits().columns, limits().expansion) == (7, before.expansion)
    assert limits() == before


def test_limits_come_from_the_variable(monkeypatch):
    monkeypatch.setenv(VARIABLE, "columns=20000, image_pixels=5")
    assert limits() == dataclasses.replace(Limits(), columns=20000, image_pixels=5)


@pytest.mark.parametrize(
    "text",
    [
        *("colums=3", "columns", "columns=-1", "columns=x", "columns=" + "9" * 30),
        *("columns=\u00b2", "columns=0"),
    ],
)
def test_a_variable_that_makes_no_sense_is_refused(monkeypatch, text):
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(InputError):
        limits()


@pytest.mark.parametrize("changes", [{"lines": 3}, {"columns": 0}])
def test_limits_that_are_none_are_refused(changes):
    with pytest.raises(InputError), raised_limits(**changes):
        pass


def test_the_guide_has_every_limit_with_its_default():
    guide = (ROOT / "docs" / "guides" / "data.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| (\d+) \|", guide, re.MULTILINE))
    assert {name: int(value) for name, value in rows.items()} == dataclasses.asdict(Limits())
