"""``robustcf evaluate``: metrics of a run, with their protocol."""

from __future__ import annotations

from typing import Any

import click

from robustcf.cli.kinds import Choice
from robustcf.cli.options import cutoffs_option, eval_users_option
from robustcf.cli.reporting import Report, command, say_capped
from robustcf.cli.sources import Opener, opens_run

part_option = click.option(
    "--part",
    type=Choice(["test", "valid"]),
    default="test",
    show_default=True,
    help="The held-out pairs to judge by; choose by valid, report test.",
)


@command()
@cutoffs_option
@part_option
@click.option(
    "--mask",
    type=Choice(["train", "valid", "test"]),
    multiple=True,
    help="Leave the items of these splits out of the ranking (overrides the protocol).",
)
@eval_users_option
@opens_run
def evaluate(run: str, opener: Opener, ks: tuple[int, ...], part: Any, **given: Any) -> Report:
    """Evaluate RUN: full ranking, the protocol of its data set."""
    from robustcf._checks import check_cutoffs

    cutoffs = check_cutoffs(ks)
    model = opener.recommender(run).with_eval_users(given["eval_users"])
    if part != "test":
        model = model.judged_by(part)
    report = model.evaluate(cutoffs, mask=given["mask"] or None)
    say_capped(cutoffs, model.n_items)
    return Report({"run": run, report.protocol.part: report.as_dict()}, str(report))
