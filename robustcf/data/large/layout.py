"""The folder of a prepared set: its manifest, and what it must hold.

The layout is described in the guide *Large data*, so that any engine can write it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from robustcf._io.reading import parse_json, read_plain
from robustcf._io.schema import (
    NAME,
    TEXT,
    Kind,
    check_kind,
    choice,
    list_of,
    nullable,
    record,
    shown,
    whole,
)
from robustcf.data.large import MANIFEST
from robustcf.data.large.mapped import COLUMNS
from robustcf.data.split import PARTS
from robustcf.errors import DataError, InputError

FORMAT, VERSION = "robustcf prepared set", 1
#: What to do about a folder that is not what its manifest says.
AGAIN = "prepare the set again, or copy the folder anew"

_MOST = 2**31 - 1


def _matching(words: str, pattern: str) -> Kind:
    def fits(value: Any) -> bool:
        return isinstance(value, str) and re.fullmatch(pattern, value) is not None

    return Kind(words, fits)


_FILE_NAME = _matching("the plain name of a file in the folder", "[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_SHA256 = _matching("64 hexadecimal digits", "[0-9a-f]{64}")
_PART = record({"pairs": whole(), "offsets": _FILE_NAME, "shards": list_of(_FILE_NAME, 1)})
_KIND = record(
    {
        "name": NAME,
        "n_users": whole(1, _MOST),
        "n_items": whole(1, _MOST),
        "columns": list_of(choice(*COLUMNS), 2, len(COLUMNS)),
        "shards": list_of(whole(0, _MOST), 2),
        "parts": record(dict.fromkeys(PARTS, _PART)),
        "files": record({}, others=record({"bytes": whole()}, {"sha256": _SHA256})),
    },
    {
        "labels": record({}, {"users": nullable(_FILE_NAME), "items": nullable(_FILE_NAME)}),
        "valid_source": choice("published", "carved", "none"),
        "eval_users": nullable(whole(1)),
        "fingerprint": nullable(_SHA256),
        "notes": list_of(TEXT),
    },
)


@dataclass(frozen=True)
class Manifest:
    """The checked manifest of a prepared set."""

    folder: Path
    digest: str  # its sha256
    facts: Mapping[str, Any]

    @property
    def shards(self) -> list[tuple[int, int]]:
        """The range of users of each shard."""
        return list(pairwise(self.facts["shards"]))


def read_manifest(file: Path) -> Manifest:
    """Read and check a manifest, without opening the other files.

    Raises:
        DataError: it is not a manifest, of another version, or contradicts itself.
    """
    try:
        content = read_plain(file)
        facts = parse_json(content)
        if not isinstance(facts, dict) or facts.get("format") != FORMAT:
            got = shown(facts.get("format") if isinstance(facts, dict) else facts)
            raise DataError(f"{file}: format must be {FORMAT!r}, got {got}: not a prepared set")
        if facts.get("version") != VERSION:
            raise DataError(
                f"{file}: version must be {VERSION}, got {shown(facts.get('version'))}: written "
                "for another version of robustcf; update robustcf, or prepare the set again"
            )
        check_kind(file, facts, _KIND)
    except DataError:
        raise
    except InputError as error:
        reason = str(error) if str(file) in str(error) else f"{file}: {error}"
        raise DataError(reason) from error
    _check_sense(file, facts)
    return Manifest(file.parent, hashlib.sha256(content).hexdigest(), facts)


def _check_sense(file: Path, facts: Mapping[str, Any]) -> None:
    """Raise where entries of a manifest contradict each other."""

    def check(fine: bool, key: str, expected: str, got: object) -> None:
        if not fine:
            raise DataError(f"{file}: {key} must be {expected}, got {shown(got)}; {AGAIN}")

    columns, edges, n_users = facts["columns"], facts["shards"], facts["n_users"]
    once = {"user", "item"} <= set(columns) and len(set(columns)) == len(columns)
    check(once, "columns", "user, item and others, each once", columns)
    ascending = edges[0] == 0 and edges[-1] == n_users and sorted(edges) == edges
    check(ascending, "shards", f"users from 0 to {n_users}, ascending", edges)
    check(facts["parts"]["train"]["pairs"] > 0, "parts.train.pairs", "at least 1", 0)
    labels = facts.get("labels", {})  # other keys may be there, of any kind
    names = [labels[kind] for kind in ("users", "items") if labels.get(kind) is not None]
    for part in PARTS:
        offsets, shards = facts["parts"][part]["offsets"], facts["parts"][part]["shards"]
        count = len(edges) - 1
        check(len(shards) == count, f"parts.{part}.shards", f"{count} names", shards)
        names += [offsets, *shards]
    differ = len(set(names)) == len(names) and MANIFEST not in names
    check(differ, "names of files", "different", sorted(names))
    # Every file that is listed is opened, also one that no part names.
    for name in facts["files"]:
        check(_FILE_NAME.fits(name), "names of files", _FILE_NAME.words, name)
    for name in names:
        check(name in facts["files"], "files", f"an object that says how long {name!r} is", None)
