"""Small data: a named set with its entry in the catalogue, rows of a table, equality of splits."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

from robustcf._io.fetching import SourceFile
from robustcf.data import Split
from robustcf.data.catalog import Manifest

if TYPE_CHECKING:
    import pandas as pd

TRAIN = b"0 0 1 2\n1 1 3\n"
TEST = b"0 3\n1 0\n"


def sha256(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def toy_manifest(**changes: Any) -> Manifest:
    facts = dict(
        name="toy",
        title="a toy",
        layout="split",
        counts={"users": 2, "items": 4, "train": 5, "test": 2},
        parts={
            "train": (SourceFile("train.txt", "adjacency", (sha256(TRAIN),)),),
            "test": (SourceFile("test.txt", "adjacency", (sha256(TEST),)),),
        },
        labels={},
        homepage="",
        licence="",
        citation="",
        aliases=("plaything",),
    )
    return Manifest(**{**facts, **changes})


def rows(seed: int = 0, count: int = 900, *, labels: str = "text") -> pd.DataFrame:
    """Rows with repeats, ties in time, and a few users and items with next to nothing."""
    import pandas as pd  # not for processes that tests start

    rng = np.random.default_rng(seed)
    users = (rng.pareto(1.0, count) * 8).astype(int) % 70
    items = (rng.pareto(0.8, count) * 6).astype(int) % 45
    # Text is sorted otherwise than numbers, and some is beyond ASCII.
    text = {
        "user": [f"ü{n}" if n % 5 else f"U-{n}" for n in users],
        "item": [f"{n:x}" for n in items],
    }
    numbers = {"user": users * 7919 - 2**40, "item": items * 3}
    return pd.DataFrame(
        (text if labels == "text" else numbers)
        | {"rating": rng.integers(1, 11, count) / 2, "timestamp": rng.integers(0, 60, count)}
    )


def same(one: Split, two: Split) -> None:
    for part in ("train", "valid", "test"):
        left, right = getattr(one, part), getattr(two, part)
        assert left == right, part
        for name in ("users", "items", "timestamps", "weights", "user_labels", "item_labels"):
            mine, theirs = getattr(left, name), getattr(right, name)
            assert mine is None or mine.dtype.kind == theirs.dtype.kind, name
    for fact in ("fingerprint", "valid_source", "protocol"):
        assert getattr(one, fact) == getattr(two, fact)
