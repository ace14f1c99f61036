"""``robustcf detect``: users of a data set who look fake."""

from __future__ import annotations

from typing import Any

import click

from robustcf.cli.kinds import Choice
from robustcf.cli.options import data_options, out_option, refuse
from robustcf.cli.reporting import Report, command, table

_SHOWN = 20


@command()
@click.option(
    "--by",
    type=Choice(["pca", "twins", "groups"]),
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

    The pairs of all splits count. Users that are listed are suspects: look at them before you
    remove any.
    """
    from robustcf.data import load
    from robustcf.poisoning.defences.suspects import find_suspects, write_suspects

    if out is None:
        refuse("is for --out", "raw")
    facts = find_suspects(load(dataset, **data), by)
    if out is not None:
        write_suspects(facts, out, raw=raw)
        facts["file"] = out
    suspects, items = facts["suspects"], facts["items"]
    counts = ", ".join(f"{key} {count:,}" for key, count in facts["by"].items())
    many = f"{len(suspects):,} of {facts['users']:,} users look fake ({counts})"
    lines = [f"{facts['dataset']}: {many}"]
    if suspects:
        rows = [
            (str(row["user"]), f"{row['pairs']:,}", ", ".join(row["flagged by"]))
            for row in suspects[:_SHOWN]
        ]
        lines += ["", table(("user", "pairs", "flagged by"), rows, left=(0, 2))]
        if len(suspects) > _SHOWN:
            lines.append(f"... and {len(suspects) - _SHOWN:,} more: --out FILE has all")
    if items:
        shown = [
            (str(item), f"{held['suspects']:,}", f"{held['users']:,}")
            for item, held in zip(items[:_SHOWN], facts["held by"], strict=False)
        ]
        lines += ["", "items that they promote:", table(("item", "suspects", "users"), shown)]
        if len(items) > _SHOWN:
            lines.append(f"... and {len(items) - _SHOWN:,} more: --json has all")
    elif suspects:
        lines += ["", "no item is held by more of them than its popularity explains"]
    if out is not None:
        lines += ["", f"written: {out}"]
    return Report(facts, "\n".join(lines))
