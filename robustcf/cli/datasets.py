"""``robustcf datasets``: list, describe, prepare and download data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from robustcf._io.text import counted
from robustcf.cli.kinds import COUNT, SEED, Bytes
from robustcf.cli.options import load_options, out_option, own_table_options
from robustcf.cli.reporting import Report, command, table, typed_threads
from robustcf.cli.signatures import options
from robustcf.errors import DataError


@command(kind=click.Group, threads=False, invoke_without_command=True)
@click.option("--data-dir", metavar="DIR", help="Look here first.")
@click.pass_context
def datasets(context: click.Context, data_dir: str | None) -> Report | None:
    """List the known data sets; see the subcommands for more."""
    if context.invoked_subcommand is not None:
        if data_dir is not None:
            raise click.UsageError("--data-dir belongs behind the subcommand")
        return None
    from robustcf.data.describing import known_sets

    entries = known_sets(data_dir)
    rows = [
        (
            entry["name"] + (f" ({', '.join(entry['aliases'])})" if entry["aliases"] else ""),
            *(f"{entry[key]:,}" for key in ("n_users", "n_items", "interactions")),
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


@command(threads=False)
@click.argument("name")
@click.option("--seed", type=SEED, default=0, show_default=True, help="Seed of the random split.")
@load_options
def info(name: str, seed: int, data: dict[str, Any]) -> Report:
    """Load NAME (a known set, or a file) and describe it."""
    from robustcf.data import load
    from robustcf.data.catalog import find
    from robustcf.data.describing import describe, facts_of
    from robustcf.data.large import manifest_of
    from robustcf.data.large.opening import check_prepared

    prepared = manifest_of(Path(name).expanduser()) if find(name) is None else None
    split = load(name, seed=seed, **data)
    if prepared is not None:
        split = check_prepared(prepared)  # checks all of it
    facts = facts_of(split, find(name))
    return Report(facts, describe(facts))


@command(threads=False)
@click.argument("source")
@out_option("The folder to make.", required=True)
@options("data.large.prepare:prepare", "shards", "seed", shards=COUNT)
@click.option(
    "--memory",
    type=Bytes(),
    default="4GB",
    show_default=True,
    help="Memory limit; larger data are sorted on disk, next to --out.",
)
@click.option("--threads", type=COUNT, default=1, show_default=True, help="CPU threads.")
@own_table_options
def prepare(source: str, out: str, threads: int, **options: Any) -> Report:
    """Make a data set that is mapped, not read, from SOURCE, which may be larger than memory.

    SOURCE is a Parquet, CSV or TSV file, a folder of them (partitioned as Hive does or not), a glob
    in quotes, or a remote path such as s3://... . The folder that is made is used like a file:
    train --dataset DIR. Needs the extra 'large'.
    """
    from robustcf.data.large.prepare import prepare as make

    made = make(source, out, threads=typed_threads(threads) or 1, **options)
    facts = made.manifest
    counts = {part: facts["parts"][part]["pairs"] for part in ("train", "valid", "test")}
    told = {
        "path": str(made.path),
        **{key: facts[key] for key in ("n_users", "n_items")},
        **counts,
        "shards": len(facts["shards"]) - 1,
        "bytes": sum(file["bytes"] for file in facts["files"].values()),
        **{key: facts[key] for key in ("fingerprint", "notes")},
    }
    words = ", ".join(f"{part} {count:,}" for part, count in counts.items())
    lines = [
        f"{made.path}: {facts['n_users']:,} users x {facts['n_items']:,} items, {words}; "
        f"{counted(told['shards'], 'shard')}, {told['bytes'] / 1e9:.2f} GB",
        *(f"  note  {note}" for note in facts["notes"]),
        f"train on it with: robustcf train --dataset {made.path}",
    ]
    return Report(told, "\n".join(lines))


@command(threads=False)
@click.argument("names", nargs=-1, required=True)
@click.option("--data-dir", metavar="DIR", help="Download to here.")
def fetch(names: tuple[str, ...], data_dir: str | None) -> Report:
    """Download the missing files of NAMES."""
    from robustcf.data.describing import fetch as get

    # A wrong name is an error before any download.
    fetched = get([_files_of(name) for name in names], data_dir)
    lines = [
        f"{name}: {entry['file']} ({'downloaded' if entry['downloaded'] else 'already there'})"
        for name, files in fetched.items()
        for entry in files
    ]
    lines += [f"{name}: generated, nothing to fetch" for name in fetched if not fetched[name]]
    return Report({"fetched": fetched}, "\n".join(lines))


def _files_of(name: str) -> tuple[Any, Any]:
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


for subcommand in (info, prepare, fetch):
    datasets.add_command(subcommand)
