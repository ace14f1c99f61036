"""``robustcf detect``: which users of a data set look fake."""

from __future__ import annotations

from typing import Any

import click

from robustcf.cli.options import data_options, out_option, refuse
from robustcf.cli.reporting import Report, command, table

_SHOWN = 20


@command()
@click.option(
    "--by",
    type=click.Choice(["pca", "twins", "groups"]),
    multiple=True,
    help="How to look (default: all). pca: profiles unlike all others; twins: copied profiles that "
    "add the same items; groups: users who share few items that others rarely have.",
)
@out_option("Write the suspects to this CSV file.", "FILE")
@click.option(
    "--raw",
    is_flag=True,
    help="Leave labels in the file as they are, also those a spreadsheet would run as formulas.",
)
@data_options()
def detect(
    dataset: str, by: tuple[str, ...], out: str | None, raw: bool, data: dict[str, Any]
) -> Report:
    """List the users of a data set who look fake, and the items that they promote.

    All pairs count, whatever split they are in. The number of fakes is not known; there may be
    none. Users that are listed are suspects: look at them before you remove any.
    """
    from robustcf.data import load
    from robustcf.poisoning.defences.suspects import find_suspects, write_suspects

    if out is None:
        refuse("is for --out", "raw")
    facts = find_suspects(load(dataset, **data), by)
    if out is not None:
        write_suspects(facts, out, raw=raw)
        facts["file"] = out
    return Report(facts, _words(facts))


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
        lines += ["", f"items that they promote: {shown}{more}"]
    if "file" in facts:
        lines += ["", f"written: {facts['file']}"]
    return "\n".join(lines)
