"""One file that can be fetched: its name, format, checksums and addresses, as manifests say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

Format = Literal[
    "adjacency", "counted-lists", "json-lists", "id-list", "ratings-tsv",
    "cifar-binary", "cifar-pickle", "tiny-imagenet",
]  # fmt: skip


@dataclass(frozen=True)
class SourceFile:
    """One file that can serve as a part of a data set.

    Args:
        path: its name inside the data set's folder.
        format: how to read it.
        checksums: ``sha256:...`` or ``md5:...`` of every byte sequence that counts as right.
        urls: where it can be downloaded; none for files that are only ever put there by hand.
        member: for an archive, the name of the file inside.
        most_bytes: no right form of it is larger: its size where that is known, else a generous
            bound. None: the limit ``download_bytes`` holds.
    """

    path: str
    format: Format
    checksums: tuple[str, ...]
    urls: tuple[str, ...] = ()
    member: str | None = None
    most_bytes: int | None = None


def parse_source(entry: Mapping[str, Any]) -> SourceFile:
    """One alternative, as a manifest spells it."""
    return SourceFile(
        path=entry["path"],
        format=cast(Format, entry["format"]),
        checksums=tuple(entry["checksums"]),
        urls=tuple(entry["urls"]),
        member=entry.get("member"),
        most_bytes=entry.get("most_bytes"),
    )
