"""A command that is killed inside any write, and repeated, leaves what it would have left."""

from __future__ import annotations

import json
import textwrap
from typing import Any

import pytest

from tests.hostile.kills import COMMANDS
from tests.hostile.test_fuzz import python


def kills(*words: str, timeout: float = 1000) -> list[dict[str, Any]]:
    done = python("-m", "tests.hostile.kills", *words, timeout=timeout)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    faults = [entry for entry in found if entry["fault"]]
    assert not faults, json.dumps(faults, indent=2)[:4000]
    assert done.returncode == 0, done.stderr[-2000:]
    return found


@pytest.mark.slow
def test_killed_in_some_writes() -> None:
    """Of all commands."""
    found = kills(*COMMANDS, "--every", "50", "--first", "3")
    assert {entry["command"] for entry in found if "point" in entry} == set(COMMANDS)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("command", COMMANDS)
def test_killed_in_every_write(command: str) -> None:
    found = kills(command, timeout=1700)
    points = next(entry["points"] for entry in found if "points" in entry)
    assert [entry["point"] for entry in found if "point" in entry] == list(range(len(points)))


IN_PLACE = """
    import sys
    from robustcf._io import files

    def in_place(path, parts):
        with open(path, "wb") as file:
            file.write(b"".join(parts))

    files.write_parts = in_place
    from tests.hostile import kills
    sys.exit(kills.main(["train", "--every", "2", "--first", "24"]))
"""


@pytest.mark.slow
def test_files_that_are_written_in_place_are_noticed() -> None:
    done = python("-c", textwrap.dedent(IN_PLACE))
    found = [json.loads(line) for line in done.stdout.splitlines()]
    faults = {entry["what"]: entry["fault"] for entry in found if entry["fault"]}
    assert done.returncode == 1, done.stderr[-2000:]
    assert any(what.startswith("write /out/") for what in faults)
    assert any("readable" in fault for fault in faults.values())
