"""A toy set: its files and its entry in the catalogue."""

from __future__ import annotations

import hashlib
from typing import Any

from robustcf._io.fetching import SourceFile
from robustcf.data.catalog import Manifest

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
