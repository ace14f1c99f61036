"""Parsed sets on disk, so that a file is parsed once.

An entry is named after everything that made it (checksums of the sources, options, version of
this format), so a stale entry is never read. It holds arrays in numpy's own format, without pickle,
behind the sha256 of its name and of all its other bytes: a damaged or altered entry is removed and
made again. It is written to a temporary file and renamed, so processes do not disturb each other.
A cache that cannot be read or written costs time only.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np

from robustcf._io.fetching import cache_dir
from robustcf._io.reading import open_regular
from robustcf._io.temporary import temporary_file
from robustcf.data.interactions import Interactions
from robustcf.data.times import TimeUnit
from robustcf.errors import DataError

_FORMAT = 4
_DIGEST_BYTES = 32
_BLOCK = 1 << 20
_MOST_BYTES = 2 << 30  # older entries make room beyond this
_LABELS = ("user_labels", "item_labels")
_COLUMNS = ("users", "items", "timestamps", "weights")


class DamagedEntry(Exception):
    """An entry is not what was written; it has been removed."""


class Parsed(NamedTuple):
    """Content of an entry: sets of pairs with the same ids, notes, and the unit of times."""

    parts: dict[str, Interactions]
    notes: tuple[str, ...] = ()
    unit: TimeUnit = "numbers"


def cached(
    name: str,
    sources: Mapping[str, str],
    options: Mapping[str, Any],
    parse: Callable[[], Parsed],
    enabled: bool | Literal["read"],
) -> Parsed:
    """Return the entry of these checksums and options, or parse and keep the result.

    Args:
        enabled: False: no cache at all; ``read``: write no entry.
    """
    if not enabled:
        return parse()
    identity = json.dumps([_FORMAT, name, dict(sources), dict(options)], sort_keys=True)
    stem = "".join(c if c.isalnum() or c in "-_" else "_" for c in Path(name).stem)[:40]
    key = f"{stem}-{hashlib.sha256(identity.encode()).hexdigest()[:24]}.parsed"
    damaged: tuple[str, ...] = ()
    try:
        stored = read(key)
    except DamagedEntry as entry:
        stored = None
        damaged = (f"the parsed copy {entry} had been altered or damaged; it was made again",)
    if stored is not None:
        return stored
    parsed = parse()
    if enabled != "read":
        write(key, parsed)
    return parsed._replace(notes=(*parsed.notes, *damaged))


def read(key: str) -> Parsed | None:
    """Return the content of an entry, or None where there is none.

    Raises:
        DamagedEntry: there was one that had been altered, or was damaged.
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
    digest = hashlib.sha256(key.encode())
    while block := handle.read(_BLOCK):
        digest.update(block)
    return digest.digest()


def _parse(handle: BinaryIO) -> Parsed:
    def array() -> Any:
        return np.lib.format.read_array(handle, allow_pickle=False)

    meta = json.loads(str(array()))
    arrays = {name: array() for name in meta["arrays"]}
    shared: dict[str, Any] = {kind: arrays.get(kind) for kind in _LABELS}
    shared |= {name: meta[name] for name in ("n_users", "n_items")}
    parts = {
        part: Interactions(**shared | {name: arrays.get(f"{part}.{name}") for name in _COLUMNS})
        for part in meta["parts"]
    }
    return Parsed(parts, tuple(meta["notes"]), meta["unit"])


def write(key: str, parsed: Parsed) -> bool:
    """Store an entry; False where the cache cannot be written."""
    first = next(iter(parsed.parts.values()))
    arrays = {kind: getattr(first, kind) for kind in _LABELS}
    for part, pairs in parsed.parts.items():
        arrays |= {f"{part}.{name}": getattr(pairs, name) for name in _COLUMNS}
    stored = {name: array for name, array in arrays.items() if array is not None}
    meta = {
        "parts": list(parsed.parts),
        "n_users": int(first.n_users),
        "n_items": int(first.n_items),
        "notes": list(parsed.notes),
        "unit": parsed.unit,
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
            # Still open, and so still locked: no other process takes it for a leftover.
            os.replace(temporary, _folder() / key)
        _make_room(keep=key)
    except OSError:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        return False
    return True


def _make_room(keep: str) -> None:
    """Remove the oldest entries while all together are too large."""
    entries = [(path.stat(), path) for path in _folder().glob("*.parsed")]
    total = sum(facts.st_size for facts, _ in entries)
    for facts, path in sorted(entries, key=lambda entry: entry[0].st_mtime):
        if total <= _MOST_BYTES:
            break
        if path.name != keep:
            path.unlink(missing_ok=True)
            total -= facts.st_size


def _folder() -> Path:
    return cache_dir() / "parsed"
