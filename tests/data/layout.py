"""The layout of a prepared set, written as the guide describes it, by pyarrow alone."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

PAIRS = {
    "train": [(0, 0), (0, 2), (1, 1), (3, 0), (3, 1), (3, 3), (4, 2)],
    "valid": [(0, 1), (3, 2)],
    "test": [(0, 3), (1, 0), (4, 3)],
}
N_USERS, N_ITEMS = 5, 4


def arrow(path: Path, columns: dict[str, Any], batches: int = 1) -> None:
    table = pa.table(columns)
    size = max(1, -(-len(table) // batches))
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=size)


def write_layout(folder: Path, edges: tuple[int, ...] = (0, N_USERS), batches: int = 1) -> Path:
    """Write a small set; returns its manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    parts: dict[str, Any] = {}
    for part, pairs in PAIRS.items():
        users = np.array([user for user, _ in pairs], dtype=np.int32)
        items = np.array([item for _, item in pairs], dtype=np.int32)
        times = (users * 10 + items).astype(np.int64)
        weights = (items / 2).astype(np.float32)
        offsets = np.searchsorted(users, np.arange(N_USERS + 1)).astype(np.int64)
        arrow(folder / f"{part}-places.arrow", {"offset": offsets})
        names = []
        for number, (first, last) in enumerate(pairwise(edges)):
            here = slice(offsets[first], offsets[last])
            names.append(f"{part}.{number}.arrow")
            columns = {
                "user": users[here], "item": items[here],
                "time": times[here], "weight": weights[here],
            }  # fmt: skip
            arrow(folder / names[-1], columns, batches)
        parts[part] = {"pairs": len(pairs), "offsets": f"{part}-places.arrow", "shards": names}
    arrow(folder / "who.arrow", {"label": [f"u{n}" for n in range(N_USERS)]}, batches)
    arrow(folder / "what.arrow", {"label": np.arange(N_ITEMS) * 10}, batches)
    manifest = {
        "format": "robustcf prepared set",
        "version": 1,
        "name": "by hand",
        "n_users": N_USERS,
        "n_items": N_ITEMS,
        "columns": ["user", "item", "time", "weight"],
        "shards": list(edges),
        "parts": parts,
        "labels": {"users": "who.arrow", "items": "what.arrow"},
        "files": {
            path.name: {"bytes": path.stat().st_size} for path in sorted(folder.glob("*.arrow"))
        },
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder / "manifest.json"


def replace_file(manifest: Path, name: str, content: bytes) -> None:
    """Another content of a file, with the length that the manifest says of it."""
    (manifest.parent / name).write_bytes(content)
    facts = json.loads(manifest.read_text())
    facts["files"][name] = {"bytes": len(content)}
    manifest.write_text(json.dumps(facts))
