"""One file that can be fetched: its name, format, checksums and addresses, as manifests say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Literal, cast, get_args

from robustcf._io.reading import parse_json
from robustcf._io.schema import (
    NAME,
    TEXT,
    Kind,
    check_kind,
    choice,
    list_of,
    nullable,
    record,
    whole,
)
from robustcf.errors import DataError, InputError

Format = Literal[
    "adjacency", "counted-lists", "json-lists", "id-list", "ratings-tsv",
    "cifar-binary", "cifar-pickle", "tiny-imagenet",
]  # fmt: skip

_CHECKSUM = re.compile(r"sha256:[0-9a-f]{64}|md5:[0-9a-f]{32}")


def _stays_inside(value: Any) -> bool:
    """Whether a path leads to a place below the folder that it is in."""
    if not isinstance(value, str) or not value or "\0" in value or "\\" in value:
        return False
    path = PurePosixPath(value)
    return not path.is_absolute() and ".." not in path.parts and bool(path.parts)


#: What a manifest must say of a file.
SOURCE_KIND = record(
    {
        "path": Kind("a path inside the set's folder", _stays_inside),
        "format": choice(*get_args(Format)),
        "checksums": list_of(
            Kind(
                "sha256: or md5: and hexadecimal digits",
                lambda value: isinstance(value, str) and _CHECKSUM.fullmatch(value) is not None,
            ),
            1,
        ),
        "urls": list_of(
            Kind(
                "an address that begins with https:// or http://",
                lambda value: isinstance(value, str) and value.startswith(("https://", "http://")),
            )
        ),
    },
    {"member": nullable(NAME), "most_bytes": nullable(whole(1)), "note": TEXT},
)


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


def read_manifest(content: bytes, source: str, kind: Kind) -> dict[str, Any]:
    """The plain values of a manifest, with no key but those that its kind knows.

    Args:
        content: JSON.
        source: for messages.
        kind: what it must hold.

    Raises:
        DataError: it is no JSON, or says something else than expected.
    """
    try:
        raw = parse_json(content)
        check_kind(source, raw, kind)
    except InputError as error:
        where = "" if str(error).startswith(source) else f"{source}: "
        raise DataError(f"{where}{error}; correct this manifest") from error
    found: dict[str, Any] = raw
    return found


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
