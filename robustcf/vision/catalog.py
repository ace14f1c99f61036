"""The named sets of images, read from ``manifests/*.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from robustcf._io.fetching import SOURCE_KIND, SourceFile, locate, parse_source, read_manifest
from robustcf._io.schema import ABSENT, NAME, NUMBER, POSITIVE, TEXT, list_of, record, whole
from robustcf.errors import DataError

_KIND = record(
    {
        **dict.fromkeys(("name", "augmentation"), NAME),
        **dict.fromkeys(("title", "homepage", "licence", "citation"), TEXT),
        "counts": record(dict.fromkeys(("classes", "train", "test"), whole(1))),
        "files": list_of(SOURCE_KIND, 1),
        "mean": list_of(NUMBER, 1),
        "std": list_of(POSITIVE, 1),
    },
    others=ABSENT,
)


@dataclass(frozen=True)
class ImageManifest:
    """All that is known of a set of images before it is read."""

    name: str  # to load it by, and of its folder
    title: str
    homepage: str
    licence: str
    citation: str
    counts: Mapping[str, int]  # classes, train and test images; others are an error
    files: tuple[SourceFile, ...]  # alternatives, best first
    mean: tuple[float, ...]  # per channel, as the paper normalizes
    std: tuple[float, ...]
    augmentation: str


@cache
def image_manifests() -> Mapping[str, ImageManifest]:
    """Return every manifest by name.

    Example:
        >>> sorted(image_manifests())
        ['cifar10', 'cifar100', 'tinyimagenet']
    """
    folder = resources.files("robustcf.vision") / "manifests"
    entries = sorted(folder.iterdir(), key=lambda entry: entry.name)
    found = [
        parse_image_manifest(entry.read_bytes(), entry.name)
        for entry in entries
        if entry.name.endswith(".json")
    ]
    return {manifest.name: manifest for manifest in found}


def parse_image_manifest(content: bytes, source: str) -> ImageManifest:
    """Return a manifest from its JSON text."""
    raw = read_manifest(content, source, _KIND)
    mean, std = tuple(raw["mean"]), tuple(raw["std"])
    if len(mean) != len(std):
        raise DataError(
            f"{source}: expected mean and std of as many channels, got {len(mean)} and {len(std)}; "
            "correct this manifest"
        )
    files = tuple(map(parse_source, raw["files"]))
    return ImageManifest(**{**raw, "files": files, "mean": mean, "std": std})


def known_images(data_dir: str | None = None) -> list[dict[str, Any]]:
    """Return one entry per known set of images: its size, and where it is."""
    entries = []
    for manifest in image_manifests().values():
        found = locate(manifest, manifest.files, data_dir)
        where = None if found is None else str(found.path.parent)
        told = {"where": where, "title": manifest.title, "licence": manifest.licence}
        entries.append({"name": manifest.name, **manifest.counts, **told})
    return entries
