"""The folder of a prepared set: its files, its manifest, and what both must hold.

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
from robustcf.data.mapped import COLUMNS
from robustcf.errors import DataError, InputError

MANIFEST = "manifest.json"
FORMAT, VERSION = "robustcf prepared set", 1
PARTS = ("train", "valid", "test")
#: What to do about a folder that is not what its manifest says.
AGAIN = "prepare the set again, or copy the folder anew"

_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_MOST = 2**31 - 1
_FILE_NAME = Kind(
    "the plain name of a file in the folder",
    lambda value: isinstance(value, str) and _PLAIN_NAME.fullmatch(value) is not None,
)
_SHA256 = Kind(
    "64 hexadecimal digits",
    lambda value: isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None,
)
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
    """What the manifest of a prepared set says, checked.

    Args:
        folder: where the files are.
        digest: sha256 of the manifest itself.
        facts: its content.
    """

    folder: Path
    digest: str
    facts: Mapping[str, Any]

    @property
    def shards(self) -> list[tuple[int, int]]:
        """The range of users of each shard."""
        return list(pairwise(self.facts["shards"]))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of every shard."""
        return tuple(self.facts["columns"])

    def labels(self, kind: str) -> str | None:
        """The file of the labels of ``users`` or ``items``, or None."""
        name: str | None = self.facts.get("labels", {}).get(kind)
        return name


def manifest_of(path: Path) -> Path | None:
    """The manifest that a path names, as a folder or itself; None: it is no prepared set."""
    file = path / MANIFEST if path.is_dir() else path
    return file if file.name == MANIFEST and file.is_file() else None


def read_manifest(file: Path) -> Manifest:
    """Read and check a manifest; of the other files only the names are looked at.

    Raises:
        DataError: it is no such manifest, of a later version, or contradicts itself.

    Cost: the manifest.
    """
    try:
        content = read_plain(file)
        facts = parse_json(content)
        if not isinstance(facts, dict) or facts.get("format") != FORMAT:
            got = shown(facts.get("format") if isinstance(facts, dict) else facts)
            raise DataError(f"{file}: format must be {FORMAT!r}, got {got}: it is no prepared set")
        version = facts.get("version")
        if version != VERSION:
            raise DataError(
                f"{file}: version must be {VERSION}, got {shown(version)}: it was written for "
                "another version of robustcf; update robustcf, or prepare the set again"
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
    """Raise where parts of a manifest contradict each other."""

    def wrong(key: str, expected: str, got: object) -> DataError:
        return DataError(f"{file}: {key} must be {expected}, got {shown(got)}; {AGAIN}")

    columns, edges = facts["columns"], facts["shards"]
    if not {"user", "item"} <= set(columns) or len(set(columns)) != len(columns):
        raise wrong("columns", "user, item and others, each once", columns)
    if edges[0] != 0 or edges[-1] != facts["n_users"] or any(a > b for a, b in pairwise(edges)):
        raise wrong("shards", f"users from 0 to {facts['n_users']}, ascending", edges)
    if facts["parts"]["train"]["pairs"] == 0:
        raise wrong("parts.train.pairs", "at least 1", 0)
    names = []
    for part in PARTS:
        found = facts["parts"][part]
        if len(found["shards"]) != len(edges) - 1:
            raise wrong(f"parts.{part}.shards", f"{len(edges) - 1} names", found["shards"])
        names += [found["offsets"], *found["shards"]]
    names += [name for name in facts.get("labels", {}).values() if name is not None]
    if len(set(names)) != len(names) or MANIFEST in names:
        raise wrong("names of files", "different", sorted(names))
    # Every file that is listed is opened, also one that no part names.
    for name in facts["files"]:
        if not _FILE_NAME.fits(name):
            raise wrong("names of files", _FILE_NAME.words, name)
    for name in names:
        if name not in facts["files"]:
            raise DataError(f"{file}: files must say how long {name!r} is, got nothing; {AGAIN}")
