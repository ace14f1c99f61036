"""Data larger than memory: prepared out of core, and used over memory maps."""

from __future__ import annotations

from pathlib import Path

MANIFEST = "manifest.json"


def manifest_of(path: Path) -> Path | None:
    """Return the manifest that a path names, as a folder or itself; None: not a prepared set."""
    file = path / MANIFEST if path.is_dir() else path
    return file if file.name == MANIFEST and file.is_file() else None
