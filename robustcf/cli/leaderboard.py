"""``robustcf submit``, ``verify`` and ``leaderboard``: entries, their evidence, and the pages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from robustcf.cli.options import out_option
from robustcf.cli.reporting import Report, command, shows_progress
from robustcf.cli.signatures import options
from robustcf.cli.sources import Source, takes_source
from robustcf.errors import InputError

if TYPE_CHECKING:
    from robustcf.recommender import Recommender

_SUBMIT = ("name", "authors", "paper", "code", "notes", "steps", "precision", "others", "commands")


@command()
@out_option("The folder of the entry; an interrupted one is resumed.", "DIR", required=True)
@click.option("--attack", metavar="MODULE:CLASS", help="An attack made for this model.")
@options("auditing.battery:submit", *_SUBMIT, precision="auditing.entries:PRECISIONS")
@takes_source()
def submit(source: Source, out: str, attack: str | None, **given: Any) -> Report:
    """Measure a recommender for a leaderboard and write its entry.

    SOURCE is a run directory; or a source of 'robustcf import', or module:Class of a model that is
    trained here, with --dataset NAME. The entry is a JSON file with the evidence next to it: the
    model as it was measured, and the perturbation that did the damage.
    """
    from robustcf.auditing.battery import submit as run_submit

    model = _opened(source)
    built = None
    if attack is not None:
        from robustcf._registry import ATTACKS
        from robustcf.auditing.entries import entry_threat

        built = ATTACKS[attack](**entry_threat().options(model))
    if not given["name"]:
        raise click.UsageError("Missing option '--name': the model's name in tables")
    entry = run_submit(model, out, attack=built, progress=shows_progress(), **given)
    flags = [f"{flag['name']}: {flag['sentence']}" for flag in entry.facts["flags"]]
    rows = [f"{row['epsilon']:g}: {row['value']:.4f}" for row in entry.facts["attacked"]]
    lines = [f"NDCG@10 by size of the attack: {', '.join(rows)}", *flags, f"entry: {entry.path}"]
    return Report({"path": str(entry.path), **entry.facts}, "\n".join(lines))


def _opened(source: Source) -> Recommender:
    """Open or train the model of an entry, with the rows and pairs of its data set."""
    from robustcf.adapters.ordering import ordered
    from robustcf.data import Split

    if source.is_run:
        return source.open()
    given = replace(source, interactions=source.interactions or source.opener.places["dataset"])
    split = given.pairs
    if not isinstance(split, Split):
        raise click.UsageError("an entry needs a data set by its name: give --dataset NAME")
    (first, *more) = given.words
    if not more and ":" in first and not Path(first).exists():
        from robustcf.training.front import train

        return train(split, first, progress=shows_progress())
    model = ordered(given.open(), split)
    if model.split.fingerprint != split.fingerprint:
        words = "users and items of the model are not those of"
        raise InputError(f"{words} {split.name}: fit it on the training pairs of that data set")
    return model


@command()
@click.argument("entries", nargs=-1, required=True, metavar="ENTRY...")
@click.option("--data-dir", metavar="DIR", help="Folder with the data sets.")
@click.option("--download", is_flag=True, help="Fetch data sets that are missing.")
def verify(entries: tuple[str, ...], data_dir: str | None, download: bool) -> Report:
    """Measure the numbers of entries again, from their evidence.

    An entry is refused, with exit code 1, if a number differs, its perturbation is larger than the
    budget, or its split is another one.
    """
    from robustcf.auditing.entries import verify as run_verify
    from robustcf.data import load

    found = [run_verify(path, lambda name: load(name, data_dir, download)) for path in entries]
    refused = [one.entry.facts["name"] for one in found if not one.passed]
    failed = f"refused: {', '.join(refused)}" if refused else ""
    text = "\n\n".join(str(one) for one in found)
    return Report({"entries": [one.as_dict() for one in found]}, text, failed)


@command(threads=False)
@click.argument("folder", metavar="DIR")
@out_option("The folder of the pages; it must not exist yet.", "SITE")
@click.option("--markdown", metavar="FILE", help="Write the tables in Markdown, too.")
@click.option("--most", type=click.IntRange(1), metavar="N", help="Rows per Markdown table.")
def leaderboard(folder: str, out: str | None, markdown: str | None, most: int | None) -> Report:
    """Write the pages of a leaderboard from the entries in DIR."""
    from robustcf._io.files import write_bytes
    from robustcf.auditing.leaderboard import markdown_table, read_boards, write_site

    boards = read_boards(folder)
    if out is not None and Path(out).exists():
        raise InputError(f"{out} exists already: choose another folder")
    index = None if out is None else str(write_site(boards, out))
    text = markdown_table(boards, most)
    if markdown is not None:
        write_bytes(Path(markdown), f"{text}\n".encode())
    counts = {f"{one.dataset}, {one.surface}": len(one.entries) for one in boards}
    return Report({"page": index, "markdown": markdown, "entries": counts}, text)
