"""Parsed sets on disk, so that a file is parsed once.

An entry is named after everything that made it (checksums of the sources, options, version of
this format): change any and the name changes, so a stale entry is never read. It is an npz
without pickle, written to a temporary file and renamed, so two processes that write the same
entry do each other no harm. A cache that cannot be read or written costs time, nothing else.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from robustcf.data.interactions import Interactions
from robustcf.fetching.places import cache_dir

_FORMAT = 2
_MOST_BYTES = 2 << 30  # older entries make room beyond this
_OPTIONAL = ("timestamps", "weights")


def key_of(name: str, sources: Mapping[str, str], options: Mapping[str, Any]) -> str:
    """The file name of an entry: readable start, then a digest of all that it depends on."""
    identity = json.dumps([_FORMAT, name, dict(sources), dict(options)], sort_keys=True)
    stem = "".join(c if c.isalnum() or c in "-_" else "_" for c in Path(name).stem)[:40]
    return f"{stem}-{hashlib.sha256(identity.encode()).hexdigest()[:24]}.npz"


def read(key: str) -> tuple[dict[str, Interactions], tuple[str, ...]] | None:
    """The parts and notes of an entry, or None where there is no usable one."""
    path = _folder() / key
    try:
        # Opened here, not by numpy, which leaves a damaged file open.
        with path.open("rb") as handle, np.load(handle, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        meta = json.loads(str(arrays["meta"]))
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
        return parts, tuple(meta["notes"])
    except Exception:
        # Absent, or damaged in one of the many ways a zip can be: parsing again is always right.
        return None


def write(key: str, parts: Mapping[str, Interactions], notes: tuple[str, ...]) -> bool:
    """Store parts that share ids and labels; False where the cache cannot be written."""
    first = next(iter(parts.values()))
    meta = {
        "parts": list(parts),
        "n_users": first.n_users,
        "n_items": first.n_items,
        "notes": list(notes),
    }
    arrays: dict[str, npt.NDArray[Any] | None] = {
        "meta": np.array(json.dumps(meta)),
        "user_labels": first.user_labels,
        "item_labels": first.item_labels,
    }
    for part, pairs in parts.items():
        for name in ("users", "items", *_OPTIONAL):
            arrays[f"{part}.{name}"] = getattr(pairs, name)
    stored = {name: array for name, array in arrays.items() if array is not None}
    temporary: str | None = None
    try:
        _folder().mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=_folder(), prefix=".", suffix=".tmp")
        with os.fdopen(handle, "wb") as file:
            np.savez(file, **stored)  # type: ignore[arg-type]
        os.replace(temporary, _folder() / key)
        _make_room(keep=key)
    except OSError:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        return False
    return True


def _make_room(keep: str) -> None:
    """Remove the entries written longest ago while the cache is larger than it may be."""
    entries = [(path.stat(), path) for path in _folder().glob("*.npz")]
    total = sum(facts.st_size for facts, _ in entries)
    for facts, path in sorted(entries, key=lambda entry: entry[0].st_mtime):
        if total <= _MOST_BYTES:
            break
        if path.name != keep:
            path.unlink(missing_ok=True)
            total -= facts.st_size


def _folder() -> Path:
    return cache_dir() / "parsed"
