"""``robustcf evaluate``: metrics of a run, with their protocol."""

from __future__ import annotations

from typing import Literal

import click

from robustcf.cli.common import ListCommand, OpenedRun, Report, opens_run, reports


@click.command(cls=ListCommand)
@click.option("--k", "ks", type=int, multiple=True, metavar="K...", help="Cutoffs (default 10 20).")
@click.option(
    "--part", type=click.Choice(["test", "valid"]), default="test", show_default=True,
    help="The held-out pairs to compare with.",
)  # fmt: skip
@click.option(
    "--mask",
    type=click.Choice(["train", "valid", "test"]),
    multiple=True,
    help="Leave the items of these parts out of the ranking (overrides the protocol).",
)
@opens_run()
@reports
def evaluate(
    opened: OpenedRun,
    ks: tuple[int, ...],
    part: Literal["test", "valid"],
    mask: tuple[str, ...],
) -> Report:
    """Evaluate the factors of RUN: full ranking, the protocol of its data set."""
    trained = opened.trained()
    cutoffs = ks or (10, 20)
    report = trained.evaluate(opened.split(trained), cutoffs, part=part, mask=mask or None)
    return Report({"run": opened.path, part: report.as_dict()}, str(report))
