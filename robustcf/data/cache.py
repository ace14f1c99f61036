"""Parsed sets on disk, so that a file is parsed once.

The name of an entry depends on the checksums of the sources, the options and the version of this
format. It holds numpy arrays, without pickle, behind a sha256 of its name and content: a damaged
entry is removed and made again. Errors of reading and writing are ignored.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np

from robustcf._io.fetching import cache_dir
from robustcf._io.files import write_bytes
from robustcf._io.reading import open_regular
from robustcf.data.interactions import Interactions
from robustcf.data.times import TimeUnit
from robustcf.errors import DataError

_FORMAT = 4
_DIGEST_BYTES = 32
_MOST_BYTES = 2 << 30  # beyond this, the oldest entries are removed
_LABELS = ("user_labels", "item_labels")
_COLUMNS = ("users", "items", "timestamps", "weights")


class DamagedEntry(Exception):
    """An entry was altered or damaged; it has been removed."""


class Parsed(NamedTuple):
    """Sets of pairs with the same ids, notes, and the unit of times."""

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
    """Return the entry of these checksums and options, or parse; ``read`` writes no entry."""
    if not enabled:
        return parse()
    identity = json.dumps([_FORMAT, name, dict(sources), dict(options)], sort_keys=True)
    stem = "".join(c if c.isalnum() or c in "-_" else "_" for c in Path(name).stem)[:40]
    key = f"{stem}-{hashlib.sha256(identity.encode()).hexdigest()[:24]}.parsed"
    damaged: tuple[str, ...] = ()
    try:
        if (stored := read(key)) is not None:
            return stored
    except DamagedEntry as entry:
        damaged = (f"the parsed copy {entry} had been altered or damaged; it was made again",)
    parsed = parse()
    if enabled != "read":
        write(key, parsed)
    return parsed._replace(notes=(*parsed.notes, *damaged))


def read(key: str) -> Parsed | None:
    """Return the content of an entry, or None where it is missing; a damaged one is removed."""
    path = _folder() / key
    try:
        handle = open_regular(path)
    except (OSError, DataError):
        return None
    with handle:
        wanted = handle.read(_DIGEST_BYTES)
        found = hashlib.file_digest(handle, lambda: hashlib.sha256(key.encode()))  # type: ignore[arg-type]
        if found.digest() == wanted:
            handle.seek(_DIGEST_BYTES)
            # With the right checksum it may still be of a newer version, or forged.
            with suppress(Exception):
                return _parse(handle)
    with suppress(OSError):
        path.unlink()
    raise DamagedEntry(str(path))


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
    content = io.BytesIO()
    content.seek(_DIGEST_BYTES)
    for array in (np.array(json.dumps(meta)), *stored.values()):
        np.lib.format.write_array(content, array, allow_pickle=False)
    digest = hashlib.sha256(key.encode())
    whole = content.getbuffer()
    digest.update(whole[_DIGEST_BYTES:])
    whole[:_DIGEST_BYTES] = digest.digest()
    try:
        _folder().mkdir(parents=True, exist_ok=True)
        write_bytes(_folder() / key, whole)
        _make_room(keep=key)
    except OSError:
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
