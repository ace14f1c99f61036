"""Parsed sets on disk, so that a file is parsed once.

An entry is named after everything that made it (checksums of the sources, options, version of
this format): change any and the name changes, so a stale entry is never read. It is a row of
arrays in numpy's own format, without pickle, written to a temporary file and renamed, so two
processes that write the same entry do each other no harm. A cache that cannot be read or written
costs time, nothing else.

An entry begins with the sha256 of its name and of all its other bytes, which is checked before
any of them is looked at: one that is damaged, altered or was put under another name is removed,
and what it held is made again.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from robustcf._io.fetching import cache_dir
from robustcf._io.reading import open_regular
from robustcf._io.temporary import temporary_file
from robustcf.data.interactions import Interactions
from robustcf.data.times import TimeUnit
from robustcf.errors import DataError

_FORMAT = 4
_SUFFIX = ".parsed"
_SUFFIXES = (_SUFFIX, ".npz")  # the latter of versions before
_DIGEST_BYTES = 32
_BLOCK = 1 << 20
_MOST_BYTES = 2 << 30  # older entries make room beyond this
_LONGEST_WRITE = 3600  # seconds; a temporary file of versions before that is older is left over
_OPTIONAL = ("timestamps", "weights")


def key_of(name: str, sources: Mapping[str, str], options: Mapping[str, Any]) -> str:
    """The file name of an entry: readable start, then a digest of all that it depends on."""
    identity = json.dumps([_FORMAT, name, dict(sources), dict(options)], sort_keys=True)
    stem = "".join(c if c.isalnum() or c in "-_" else "_" for c in Path(name).stem)[:40]
    return f"{stem}-{hashlib.sha256(identity.encode()).hexdigest()[:24]}{_SUFFIX}"


class DamagedEntry(Exception):
    """An entry is not what was written; it has been removed."""


class Parsed(NamedTuple):
    """What an entry holds: sets of pairs, what is to be said of them, what their times are."""

    parts: dict[str, Interactions]
    notes: tuple[str, ...]
    unit: TimeUnit = "numbers"


def read(key: str) -> Parsed | None:
    """What an entry holds, or None where there is none.

    Raises:
        DamagedEntry: there was one that had been altered, or was damaged.

    Cost: the bytes are read twice, once to check them; of a first load it is a small part.
    """
    path = _folder() / key
    try:
        handle = open_regular(path)
    except (OSError, DataError):
        return None
    with handle:
        if handle.read(_DIGEST_BYTES) == _digest(key, handle):
            handle.seek(_DIGEST_BYTES)
            # An entry with the right checksum may still be of a newer version, or forged.
            with suppress(Exception):
                return _parse(handle)
    with suppress(OSError):
        path.unlink()
    raise DamagedEntry(str(path))


def _digest(key: str, handle: BinaryIO) -> bytes:
    """Of the name and of what is left of a file."""
    digest = hashlib.sha256(key.encode())
    while block := handle.read(_BLOCK):
        digest.update(block)
    return digest.digest()


def _parse(handle: BinaryIO) -> Parsed:
    meta = json.loads(str(_next_array(handle)))
    arrays = {name: _next_array(handle) for name in meta["arrays"]}
    labels = {kind: arrays.get(f"{kind}_labels") for kind in ("user", "item")}
    parts = {
        part: Interactions(
            arrays[f"{part}.users"],
            arrays[f"{part}.items"],
            meta["n_users"],
            meta["n_items"],
            user_labels=labels["user"],
            item_labels=labels["item"],
            **{name: arrays.get(f"{part}.{name}") for name in _OPTIONAL},
        )
        for part in meta["parts"]
    }
    return Parsed(parts, tuple(meta["notes"]), meta["unit"])


def _next_array(handle: BinaryIO) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = np.lib.format.read_array(handle, allow_pickle=False)
    return array


def write(
    key: str,
    parts: Mapping[str, Interactions],
    notes: tuple[str, ...],
    unit: TimeUnit = "numbers",
) -> bool:
    """Store parts that share ids and labels; False where the cache cannot be written."""
    first = next(iter(parts.values()))
    arrays: dict[str, npt.NDArray[Any] | None] = {
        "user_labels": first.user_labels,
        "item_labels": first.item_labels,
    }
    for part, pairs in parts.items():
        for name in ("users", "items", *_OPTIONAL):
            arrays[f"{part}.{name}"] = getattr(pairs, name)
    stored = {name: array for name, array in arrays.items() if array is not None}
    meta = {
        "parts": list(parts),
        "n_users": int(first.n_users),
        "n_items": int(first.n_items),
        "notes": list(notes),
        "unit": unit,
        "arrays": list(stored),
    }
    temporary: Path | None = None
    try:
        _folder().mkdir(parents=True, exist_ok=True)
        handle, temporary = temporary_file(_folder() / key)
        with os.fdopen(handle, "w+b") as file:
            file.write(bytes(_DIGEST_BYTES))
            for array in (np.array(json.dumps(meta)), *stored.values()):
                np.lib.format.write_array(file, array, allow_pickle=False)
            file.seek(_DIGEST_BYTES)
            digest = _digest(key, file)
            file.seek(0)
            file.write(digest)
            file.flush()
            # Still open, and so still locked: nobody takes it for a leftover.
            os.replace(temporary, _folder() / key)
        _make_room(keep=key)
    except OSError:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        return False
    return True


def _make_room(keep: str) -> None:
    """Remove the oldest entries while there are too many, and what older versions left."""
    for left in _folder().glob(".*.tmp"):
        if time.time() - left.stat().st_mtime > _LONGEST_WRITE:
            left.unlink(missing_ok=True)
    entries = [(path.stat(), path) for path in _folder().iterdir() if path.suffix in _SUFFIXES]
    total = sum(facts.st_size for facts, _ in entries)
    for facts, path in sorted(entries, key=lambda entry: entry[0].st_mtime):
        if total <= _MOST_BYTES:
            break
        if path.name != keep:
            path.unlink(missing_ok=True)
            total -= facts.st_size


def _folder() -> Path:
    return cache_dir() / "parsed"
