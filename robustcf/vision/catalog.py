"""What is known of each named set of images, read from ``manifests/*.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from robustcf.fetching.sources import SourceFile, parse_source


@dataclass(frozen=True)
class ImageManifest:
    """All that is known of a set of images before any of it is read.

    Args:
        name: the name to load it by, and of its folder.
        title: one line about it.
        homepage: where it comes from.
        licence: under which terms.
        citation: what to cite.
        counts: ``classes``, ``train`` and ``test``; a loaded set that differs is an error.
        files: alternatives, any one of which will do, best first.
        mean: of each channel, as the paper normalizes.
        std: likewise.
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
            raw = json.loads(entry.read_text(encoding="utf-8"))
            raw["files"] = tuple(map(parse_source, raw["files"]))
            raw["mean"], raw["std"] = tuple(raw["mean"]), tuple(raw["std"])
            found[raw["name"]] = ImageManifest(**raw)
    return found
