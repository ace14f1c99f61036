"""``robustcf datasets``: what there is, what it holds, and fetching it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from robustcf._io.text import counted
from robustcf.cli.options import data_options, out_option, own_table_options, typed_threads
from robustcf.cli.reporting import Report, reports, table
from robustcf.cli.words import SEED, Bytes
from robustcf.errors import DataError, DownloadError

if TYPE_CHECKING:
    from robustcf._io.fetching import Named, SourceFile
    from robustcf.data import Split
    from robustcf.data.catalog import Manifest


@click.group(invoke_without_command=True)
@click.option("--data-dir", metavar="DIR", help="Look here first.")
@reports
@click.pass_context
def datasets(context: click.Context, data_dir: str | None) -> Report | None:
    """List the known data sets; see the subcommands for more."""
    if context.invoked_subcommand is not None:
        if data_dir is not None:
            raise click.UsageError("--data-dir belongs behind the subcommand")
        return None
    from robustcf.data.catalog import manifests

    entries = [_entry(manifest, data_dir) for manifest in manifests().values()]
    rows = [
        (
            entry["name"] + (f" ({', '.join(entry['aliases'])})" if entry["aliases"] else ""),
            f"{entry['n_users']:,}",
            f"{entry['n_items']:,}",
            f"{entry['interactions']:,}",
            f"{entry['density']:.3%}",
            "yes" if entry["present"] else "no",
            entry["where"] or "-",
        )
        for entry in entries
    ]
    header = ("name", "users", "items", "interactions", "density", "present", "where")
    text = table(header, rows, left=(0, 5, 6))
    if not all(entry["present"] for entry in entries):
        text += "\n\nGet a missing one with: robustcf datasets fetch NAME"
    return Report({"datasets": entries}, text)


@datasets.command()
@click.argument("name")
@click.option(
    "--seed",
    type=SEED,
    default=0,
    show_default=True,
    help="Seed of the random split.",
)
@data_options
@reports
def info(name: str, seed: int, data: dict[str, Any]) -> Report:
    """Load NAME (a known set, or a file) and say what it holds."""
    from robustcf.data import load
    from robustcf.data.catalog import find
    from robustcf.data.large.layout import manifest_of
    from robustcf.data.large.opening import check_prepared

    prepared = manifest_of(Path(name).expanduser()) if find(name) is None else None
    split = load(name, seed=seed, **{**data, "download": data["download"] is not False})
    if prepared is not None:
        split = check_prepared(prepared)  # all of it, where load looks at what is asked for
    facts = _facts(split, find(name))
    return Report(facts, _describe(split, facts))


@datasets.command()
@click.argument("source")
@out_option("The folder to make.", required=True)
@click.option(
    "--shards",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Files of each part, by ranges of users: one for each process that trains.",
)
@click.option("--seed", type=SEED, default=0, show_default=True, help="Seed of the split.")
@click.option(
    "--memory",
    type=Bytes(),
    default="4GB",
    show_default=True,
    help="Memory to keep to: what does not fit is sorted on disk, next to --out.",
)
@click.option(
    "--threads", type=click.IntRange(min=1), default=1, show_default=True, help="CPU threads."
)
@own_table_options
@reports
def prepare(source: str, out: str, **options: Any) -> Report:
    """Make a data set that is mapped, not read, from SOURCE, which may be larger than memory.

    SOURCE is a Parquet, CSV or TSV file, a folder of them (partitioned as Hive does or not), a glob
    in quotes, or a remote path such as s3://... . The folder that is made is used like a file:
    train --dataset DIR. Needs the extra 'large'.
    """
    from robustcf.data.large.prepare import prepare as make

    options["threads"] = typed_threads(options["threads"])
    made = make(source, out, **options)
    facts = made.manifest
    counts = {part: facts["parts"][part]["pairs"] for part in ("train", "valid", "test")}
    told = {
        "path": str(made.path),
        "n_users": facts["n_users"],
        "n_items": facts["n_items"],
        **counts,
        "shards": len(facts["shards"]) - 1,
        "bytes": sum(file["bytes"] for file in facts["files"].values()),
        "fingerprint": facts["fingerprint"],
        "notes": facts["notes"],
    }
    words = ", ".join(f"{part} {count:,}" for part, count in counts.items())
    lines = [
        f"{made.path}: {facts['n_users']:,} users x {facts['n_items']:,} items, {words}; "
        f"{counted(told['shards'], 'shard')}, {told['bytes'] / 1e9:.2f} GB"
    ]
    lines += [f"  note  {note}" for note in facts["notes"]]
    lines.append(f"train on it with: robustcf train --dataset {made.path}")
    return Report(told, "\n".join(lines))


@datasets.command()
@click.argument("names", nargs=-1, required=True)
@click.option("--data-dir", metavar="DIR", help="Download to here.")
@reports
def fetch(names: tuple[str, ...], data_dir: str | None) -> Report:
    """Download each of NAMES that is not there yet; what is present and right is left alone."""
    from robustcf._io.fetching import locate, obtain

    wanted = [_files_of(name) for name in names]  # a wrong name is an error before any download
    fetched: dict[str, list[dict[str, Any]]] = {}
    failures = []
    for manifest, parts in wanted:
        files = fetched[manifest.name] = []
        for alternatives in parts:
            present = locate(manifest, alternatives, data_dir) is not None
            try:
                found = obtain(manifest, alternatives, data_dir)
            except DownloadError as error:  # what can be had is fetched before anything is said
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
    lines = [
        f"{name}: {entry['file']} ({'downloaded' if entry['downloaded'] else 'already there'})"
        for name, files in fetched.items()
        for entry in files
    ]
    lines += [
        f"{name}: generated, nothing to fetch" for name, files in fetched.items() if not files
    ]
    return Report({"fetched": fetched}, "\n".join(lines))


def _files_of(name: str) -> tuple[Named, list[tuple[SourceFile, ...]]]:
    """The manifest of a set of interactions or of images, and its parts' alternatives."""
    from robustcf.data.catalog import find, unknown_name

    manifest = find(name)
    if manifest is not None:
        return manifest, list(manifest.parts.values())
    from robustcf.vision.catalog import image_manifests

    images = image_manifests().get(name.lower())
    if images is None:
        raise DataError(f"{unknown_name(name)}, or of images: {', '.join(image_manifests())}")
    return images, [images.files]


def _entry(manifest: Manifest, data_dir: str | None) -> dict[str, Any]:
    from robustcf._io.fetching import locate

    found = [locate(manifest, files, data_dir) for files in manifest.parts.values()]
    present = all(file is not None for file in found)
    where = str(found[0].path.parent) if present and found and found[0] is not None else None
    cells = manifest.counts["users"] * manifest.counts["items"]
    return {
        "name": manifest.name,
        "aliases": list(manifest.aliases),
        "title": manifest.title,
        "n_users": manifest.counts["users"],
        "n_items": manifest.counts["items"],
        "interactions": manifest.n_interactions,
        "density": manifest.n_interactions / cells,
        "present": present,
        "where": where or ("generated" if manifest.layout == "generated" else None),
        "licence": manifest.licence,
    }


def _facts(split: Split, manifest: Manifest | None) -> dict[str, Any]:
    import numpy as np

    def spread(degrees: Any) -> dict[str, float]:
        return {
            "min": int(degrees.min()),
            "median": float(np.median(degrees)),
            "max": int(degrees.max()),
        }

    facts: dict[str, Any] = {
        "name": split.name,
        "n_users": split.n_users,
        "n_items": split.n_items,
        "train": len(split.train),
        "valid": len(split.valid),
        "test": len(split.test),
        "density": split.n_interactions / (split.n_users * split.n_items),
        "valid_source": split.valid_source,
        "train_items_per_user": spread(split.train.user_degrees),
        "train_users_per_item": spread(split.train.item_degrees),
        "labels": {
            "users": split.user_labels is not None,
            "items": split.item_labels is not None,
        },
        "notes": list(split.notes),
        "sources": dict(split.sources),
        "fingerprint": split.fingerprint,
    }
    if manifest is not None:
        facts |= {
            "title": manifest.title,
            "homepage": manifest.homepage,
            "licence": manifest.licence,
            "citation": manifest.citation,
        }
    return facts


def _describe(split: Split, facts: dict[str, Any]) -> str:
    how = {
        "published": "published in a file of its own",
        "carved": "drawn from the training pairs",
        "none": "none",
    }[split.valid_source]
    per_user, per_item = facts["train_items_per_user"], facts["train_users_per_item"]
    lines = [
        facts.get("title", split.name),
        "",
        f"  users         {split.n_users:>12,}   train items each: min {per_user['min']:,}, "
        f"median {per_user['median']:,.0f}, max {per_user['max']:,}",
        f"  items         {split.n_items:>12,}   train users each: min {per_item['min']:,}, "
        f"median {per_item['median']:,.0f}, max {per_item['max']:,}",
        f"  train         {facts['train']:>12,}",
        f"  valid         {facts['valid']:>12,}   {how}",
        f"  test          {facts['test']:>12,}",
        f"  density       {facts['density']:>12.3%}",
    ]
    lines += [f"  note          {note}" for note in split.notes]
    lines += [f"  {name:<13} {facts[name]}" for name in ("licence", "citation") if facts.get(name)]
    return "\n".join(lines)
