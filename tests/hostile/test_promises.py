"""The table of promises names tests that are there."""

from __future__ import annotations

import re

import pytest

from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "promises.md").read_text()


@pytest.mark.parametrize("test", sorted(set(re.findall(r"`(tests/[^`]+)`", PAGE))))
def test_every_test_is_there(test: str) -> None:
    path, _, name = test.partition("::")
    assert (ROOT / path).exists()
    assert not name or f"def {name}(" in (ROOT / path).read_text()
