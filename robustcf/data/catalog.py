"""The catalogue of named data sets, read from ``manifests/*.json``.

A manifest lists the parts of a set, a part its alternative files in order of preference, and a
file its valid checksums and URLs.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Literal, get_args

from robustcf._io.fetching import SOURCE_KIND, SourceFile, parse_source, read_manifest
from robustcf._io.schema import ABSENT, NAME, TEXT, choice, list_of, record, whole
from robustcf.errors import DataError

Layout = Literal["split", "pairs", "generated"]
_PART = list_of(SOURCE_KIND, 1)
_KIND = record(
    {
        "name": NAME,
        "title": TEXT,
        "homepage": TEXT,
        "licence": TEXT,
        "citation": TEXT,
        "layout": choice(*get_args(Layout)),
        "counts": record({"users": whole(1), "items": whole(1)}, others=whole()),
        "parts": record({}, others=_PART),
        "labels": record({}, others=_PART),
    },
    {"aliases": list_of(NAME), "least_per_user": whole(1)},
    others=ABSENT,
)


@dataclass(frozen=True)
class Manifest:
    """The description of a named data set."""

    name: str
    title: str
    layout: Layout  # published train and test files, one file to split, or generated
    counts: Mapping[str, int]  # users, items, and pairs of each part; checked on loading
    parts: Mapping[str, tuple[SourceFile, ...]]  # name -> alternatives
    labels: Mapping[str, tuple[SourceFile, ...]]  # "users", "items" -> lists of original ids
    homepage: str
    licence: str
    citation: str
    aliases: tuple[str, ...] = ()
    least_per_user: int = 1  # users with fewer pairs are left out (unsplit sets only)

    @property
    def n_interactions(self) -> int:
        """Pairs in all parts together."""
        return sum(count for part, count in self.counts.items() if part not in ("users", "items"))


@cache
def manifests() -> Mapping[str, Manifest]:
    """Return every manifest by name, generated sets first."""
    folder = resources.files("robustcf.data") / "manifests"
    found = [
        parse_manifest(entry.read_bytes(), entry.name)
        for entry in folder.iterdir()
        if entry.name.endswith(".json")
    ]
    found.sort(key=lambda manifest: (manifest.layout != "generated", manifest.name))
    return {manifest.name: manifest for manifest in found}


def find(name: str) -> Manifest | None:
    """Return the manifest of a name or alias, in any case, or None."""
    known = (m for m in manifests().values() if name.lower() in (m.name, *m.aliases))
    return next(known, None)


def get(name: str) -> Manifest:
    """Return the manifest of a name or alias; raises for an unknown name, and suggests others.

    Example:
        >>> get("citeulike").name
        'citeulike-t'
    """
    manifest = find(name)
    if manifest is None:
        raise DataError(unknown_name(name))
    return manifest


def unknown_name(name: str) -> str:
    """Return the message for a name that is neither a set nor a file."""
    known = sorted({n for m in manifests().values() for n in (m.name, *m.aliases)})
    close = difflib.get_close_matches(name.lower(), known, n=1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    what = "give a file, or"
    if Path(name).is_dir():
        what = "for a folder of tables run 'robustcf datasets prepare' first; or give"
    return f"no data set or file is called {name!r}{hint}; {what} one of {', '.join(known)}"


def parse_manifest(content: bytes, source: str) -> Manifest:
    """Return a manifest from its JSON text."""
    raw = read_manifest(content, source, _KIND)
    for group in ("parts", "labels"):
        raw[group] = {part: tuple(map(parse_source, files)) for part, files in raw[group].items()}
    return Manifest(**{**raw, "aliases": tuple(raw.get("aliases", ()))})
