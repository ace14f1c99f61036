"""``robustcf evaluate``: metrics of a run, with their protocol."""

from __future__ import annotations

from typing import Literal

import click

from robustcf.cli.opening import OpenedRun, opens_run
from robustcf.cli.options import eval_users_option, threads_option
from robustcf.cli.reporting import Report, reports, say_capped
from robustcf.cli.words import ListCommand


@click.command(cls=ListCommand)
@click.option(
    "--k",
    "ks",
    type=int,
    multiple=True,
    metavar="K...",
    help="Cutoffs (default 10 20); beyond the catalogue: all items.",
)
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
@eval_users_option
@opens_run
@threads_option
@reports
def evaluate(
    opened: OpenedRun,
    ks: tuple[int, ...],
    part: Literal["test", "valid"],
    mask: tuple[str, ...],
    eval_users: int | None,
) -> Report:
    """Evaluate RUN: full ranking, the protocol of its data set."""
    from robustcf._checks import check_cutoffs

    cutoffs = check_cutoffs(ks or (10, 20))
    model = opened.recommender().with_eval_users(eval_users)
    if part != "test":
        model = model.judged_by(part)
    report = model.evaluate(cutoffs, mask=mask or None)
    say_capped(cutoffs, model.n_items)
    return Report({"run": opened.path, report.protocol.part: report.as_dict()}, str(report))
