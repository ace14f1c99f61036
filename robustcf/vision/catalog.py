"""What is known of each named set of images, read from ``manifests/*.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from robustcf._io.fetching import (
    SOURCE_KIND,
    SourceFile,
    locate,
    parse_source,
    read_manifest,
)
from robustcf._io.schema import ABSENT, NAME, NUMBER, POSITIVE, TEXT, list_of, record, whole
from robustcf.errors import DataError

_KIND = record(
    {
        "name": NAME,
        "title": TEXT,
        "homepage": TEXT,
        "licence": TEXT,
        "citation": TEXT,
        "counts": record({"classes": whole(1), "train": whole(1), "test": whole(1)}),
        "files": list_of(SOURCE_KIND, 1),
        "mean": list_of(NUMBER, 1),
        "std": list_of(POSITIVE, 1),
        "augmentation": NAME,
    },
    others=ABSENT,
)


@dataclass(frozen=True)
class ImageManifest:
    """All that is known of a set of images before any of it is read.

    Args:
        name: the name to load it by, and of its folder.
        counts: ``classes``, ``train`` and ``test``; a loaded set that differs is an error.
        files: alternatives, any one of which will do, best first.
        mean: of each channel, as the paper normalizes.
        augmentation: the name of the paper's augmentation.
    """

    name: str
    title: str
    homepage: str
    licence: str
    citation: str
    counts: Mapping[str, int]
    files: tuple[SourceFile, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augmentation: str


@cache
def image_manifests() -> Mapping[str, ImageManifest]:
    """Every manifest by name.

    Example:
        >>> sorted(image_manifests())
        ['cifar10', 'cifar100', 'tinyimagenet']
    """
    folder = resources.files("robustcf.vision") / "manifests"
    found = {}
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.name.endswith(".json"):
            manifest = parse_image_manifest(entry.read_bytes(), entry.name)
            found[manifest.name] = manifest
    return found


def parse_image_manifest(content: bytes, source: str) -> ImageManifest:
    """A manifest from its JSON text."""
    raw = read_manifest(content, source, _KIND)
    if len(raw["mean"]) != len(raw["std"]):
        raise DataError(
            f"{source}: mean and std must be of as many channels, got {len(raw['mean'])} and "
            f"{len(raw['std'])}; correct this manifest"
        )
    raw["files"] = tuple(map(parse_source, raw["files"]))
    raw["mean"], raw["std"] = tuple(raw["mean"]), tuple(raw["std"])
    return ImageManifest(**raw)


def known_images(data_dir: str | None = None) -> list[dict[str, Any]]:
    """Return one entry per known set of images: its size, and where it is."""
    entries = []
    for manifest in image_manifests().values():
        found = locate(manifest, manifest.files, data_dir)
        where = None if found is None else str(found.path.parent)
        told = {"where": where, "title": manifest.title, "licence": manifest.licence}
        entries.append({"name": manifest.name, **manifest.counts, **told})
    return entries
