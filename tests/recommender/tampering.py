"""Changing the files of a saved recommender, with checksums that fit the change or do not."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np


def change_json(path: Path, **values: Any) -> None:
    """Replace some values of a JSON file."""
    facts = json.loads(path.read_text())
    path.write_text(json.dumps({**facts, **values}))


def sign(folder: Path) -> None:
    """Write lengths and checksums of the files as they are now, as an attacker would."""
    path = folder / "recommender.json"
    names = json.loads(path.read_text())["files"]
    contents = {name: (folder / name).read_bytes() for name in names}
    stamps = {
        name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in contents.items()
    }
    change_json(path, files=stamps)


def change_arrays(folder: Path, **arrays: Any) -> None:
    """Replace some arrays of interactions.npz (None removes one), and sign it."""
    path = folder / "interactions.npz"
    with np.load(path) as found:
        known = {name: found[name] for name in found.files}
    changed = {**known, **arrays}
    np.savez(path, **{name: value for name, value in changed.items() if value is not None})
    sign(folder)
