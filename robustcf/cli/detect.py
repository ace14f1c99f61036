"""``robustcf detect``: which users of a data set look fake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from robustcf.cli.options import data_options, load_arguments, out_option, threads_option
from robustcf.cli.reporting import Report, reports, table
from robustcf.cli.words import SEED, ListCommand

_SHOWN = 20


@click.command(cls=ListCommand)
@click.option("--dataset", metavar="NAME|FILE", required=True, help="A known set, or a file.")
@click.option(
    "--by",
    "detectors",
    type=click.Choice(["pca", "twins", "groups"]),
    multiple=True,
    help="How to look (default: all). pca: profiles that have nothing to do with the others; "
    "twins: copied profiles that add the same items; groups: users who share the same few items "
    "that others rarely have.",
)
@click.option(
    "--split-seed", type=SEED, default=0, show_default=True, help="Seed of a drawn split."
)
@out_option("Write the suspects to this CSV file.", "FILE")
@click.option(
    "--raw",
    is_flag=True,
    help="In the file, leave labels as they are; by default, those that a spreadsheet would run as "
    "formulas get an apostrophe in front.",
)
@data_options
@threads_option
@reports
def detect(
    dataset: str,
    detectors: tuple[str, ...],
    split_seed: int,
    out: str | None,
    raw: bool,
    data: dict[str, Any],
) -> Report:
    """List the users of a data set who look fake, and the items that they push.

    All pairs count, whatever part of a split they are in. Nobody says how many fakes there are;
    there may be none. Whoever is listed is a suspect, not a culprit: look at them before you remove
    anybody.
    """
    from robustcf._io.files import csv_bytes, write_bytes
    from robustcf.data import load
    from robustcf.poisoning.defences.detectors import AllDetectors, union

    name, options = load_arguments(dataset, data, split_seed)
    split = load(name, **options)
    pairs = split.train_full.union(split.test)
    found = {
        detector.name: detector.detect(pairs)
        for detector in AllDetectors().detectors
        if not detectors or detector.name in detectors
    }
    together = union(list(found.values()))
    suspects: list[dict[str, Any]] = [
        {
            "user": _label(pairs.user_labels, user),
            "pairs": int(pairs.user_degrees[user]),
            "flagged by": [key for key, each in found.items() if each.flagged[user]],
            **{f"{key} score": round(float(each.scores[user]), 4) for key, each in found.items()},
        }
        for user in together.flagged.nonzero()[0].tolist()
    ]
    items = [_label(pairs.item_labels, item) for item in together.items.tolist()]
    facts: dict[str, Any] = {
        "dataset": split.name,
        "users": pairs.n_users,
        "suspects": suspects,
        "items": items,
        "by": {key: int(each.flagged.sum()) for key, each in found.items()},
    }
    if out is not None:
        rows = [{**row, "flagged by": " ".join(row["flagged by"])} for row in suspects]
        head = ("user", "pairs", "flagged by", *(f"{key} score" for key in found))
        content = csv_bytes(rows, raw=raw) if rows else (",".join(head) + "\n").encode()
        write_bytes(Path(out), content)
        facts["file"] = out
    return Report(facts, _words(facts))


def _label(labels: Any, place: int) -> Any:
    return place if labels is None else labels[place].item()


def _words(facts: dict[str, Any]) -> str:
    suspects, items = facts["suspects"], facts["items"]
    lines = [
        f"{facts['dataset']}: {len(suspects):,} of {facts['users']:,} users look fake "
        f"({', '.join(f'{key} {count:,}' for key, count in facts['by'].items())})"
    ]
    if suspects:
        rows = [
            (str(row["user"]), f"{row['pairs']:,}", ", ".join(row["flagged by"]))
            for row in suspects[:_SHOWN]
        ]
        lines += ["", table(("user", "pairs", "flagged by"), rows, left=(0, 2))]
        if len(suspects) > _SHOWN:
            lines.append(f"... and {len(suspects) - _SHOWN:,} more: --out FILE has all")
    if items:
        shown = ", ".join(str(item) for item in items[:_SHOWN])
        more = f" and {len(items) - _SHOWN:,} more" if len(items) > _SHOWN else ""
        lines += ["", f"items that they push: {shown}{more}"]
    if "file" in facts:
        lines += ["", f"written: {facts['file']}"]
    return "\n".join(lines)
