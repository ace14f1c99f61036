"""The table of docs/promises.md."""

from __future__ import annotations

import re

from tests.conftest import ROOT

ROWS = [
    [cell.strip() for cell in line.strip("|\n").split("|")]
    for line in (ROOT / "docs" / "promises.md").read_text().splitlines()
    if line.startswith("|") and not line.startswith(("|---", "| Promise"))
]


def words_in(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def counted(kind: str) -> list[tuple[str, list[str], int]]:
    """Promise, tests and number of the rows that count this."""
    found = []
    for promise, tests, cases in ROWS:
        number, unit = cases.split()
        if unit in (kind, f"{kind}s"):
            found.append((promise, words_in(tests), int(number.replace(",", ""))))
    return found
