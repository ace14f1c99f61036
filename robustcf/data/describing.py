"""Facts about data sets: the catalogue, its files, and the content of a split."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from robustcf._io.fetching import locate, obtain
from robustcf.data.catalog import Manifest, manifests
from robustcf.data.split import Split
from robustcf.errors import DownloadError

_VALID = {
    "published": "published in a file of its own",
    "carved": "drawn from the training pairs",
    "none": "none",
}


def known_sets(data_dir: str | None = None) -> list[dict[str, Any]]:
    """Return one entry per known data set: its size, and the folder of its files."""

    def entry(manifest: Manifest) -> dict[str, Any]:
        found = [locate(manifest, files, data_dir) for files in manifest.parts.values()]
        present = all(file is not None for file in found)
        where = "generated" if manifest.layout == "generated" else None
        users, items = manifest.counts["users"], manifest.counts["items"]
        return {
            "name": manifest.name,
            "aliases": list(manifest.aliases),
            "title": manifest.title,
            "n_users": users,
            "n_items": items,
            "interactions": manifest.n_interactions,
            "density": manifest.n_interactions / (users * items),
            "present": present,
            "where": str(found[0].path.parent) if present and found and found[0] else where,
            "licence": manifest.licence,
        }

    return [entry(manifest) for manifest in manifests().values()]


def facts_of(split: Split, manifest: Manifest | None = None) -> dict[str, Any]:
    """Return the facts of a split and of its manifest, ready for JSON."""
    facts: dict[str, Any] = {
        "name": split.name,
        "n_users": split.n_users,
        "n_items": split.n_items,
        "train": len(split.train),
        "valid": len(split.valid),
        "test": len(split.test),
        "density": split.n_interactions / (split.n_users * split.n_items),
        "valid_source": split.valid_source,
        "train_items_per_user": _spread(split.train.user_degrees),
        "train_users_per_item": _spread(split.train.item_degrees),
        "labels": {"users": split.user_labels is not None, "items": split.item_labels is not None},
        "notes": list(split.notes),
        "sources": dict(split.sources),
        "fingerprint": split.fingerprint,
    }
    told = ("title", "homepage", "licence", "citation") if manifest is not None else ()
    return facts | {name: getattr(manifest, name) for name in told}


def _spread(degrees: Any) -> dict[str, float]:
    middle = float(np.median(degrees))
    return {"min": int(degrees.min()), "median": middle, "max": int(degrees.max())}


def fetch(wanted: Iterable[tuple[Any, Any]], data_dir: str | None = None) -> dict[str, Any]:
    """Download missing files of manifests, each given with the alternatives of its parts.

    Returns name -> path, digest and whether each was downloaded; a DownloadError comes last.
    """
    fetched: dict[str, list[dict[str, Any]]] = {}
    failures = []
    for manifest, parts in wanted:
        files = fetched[manifest.name] = []
        for alternatives in parts:
            present = locate(manifest, alternatives, data_dir) is not None
            try:
                found = obtain(manifest, alternatives, data_dir)
            except DownloadError as error:
                failures.append(str(error))
                continue
            files.append(
                {"file": str(found.path), "sha256": found.sha256, "downloaded": not present}
            )
    if failures:
        there = sum(map(len, fetched.values()))
        raise DownloadError(
            f"{there} files are there, {len(failures)} failed: {' | '.join(failures)}"
        )
    return fetched


def describe(facts: dict[str, Any]) -> str:
    """Return the text of :func:`facts_of`."""

    def each(name: str, key: str) -> str:
        low, middle, high = facts[key].values()
        return f"train {name} each: min {low:,}, median {middle:,.0f}, max {high:,}"

    lines = [
        facts.get("title", facts["name"]),
        "",
        f"  users         {facts['n_users']:>12,}   {each('items', 'train_items_per_user')}",
        f"  items         {facts['n_items']:>12,}   {each('users', 'train_users_per_item')}",
        f"  train         {facts['train']:>12,}",
        f"  valid         {facts['valid']:>12,}   {_VALID[facts['valid_source']]}",
        f"  test          {facts['test']:>12,}",
        f"  density       {facts['density']:>12.3%}",
    ]
    lines += [f"  note          {note}" for note in facts["notes"]]
    lines += [f"  {name:<13} {facts[name]}" for name in ("licence", "citation") if facts.get(name)]
    return "\n".join(lines)
