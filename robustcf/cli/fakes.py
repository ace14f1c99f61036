"""``robustcf fakes``: what fake accounts do to a model and to a vote, on one page."""

from __future__ import annotations

import sys
from typing import Any

import click

from robustcf._registry import MODELS
from robustcf.cli.kinds import NameOf
from robustcf.cli.options import accounts_options, data_options, grid_options
from robustcf.cli.reporting import Report, command
from robustcf.cli.signatures import options


@command(threads=False)
@click.option("--model", type=NameOf(MODELS), help="Model (default: the best known for the data).")
@options("experiments.poison:PoisonPlan", "preset")
@accounts_options("experiments.fakes:FakesPlan")
@grid_options(seeds=3)
@data_options()
def fakes(model: str | None, settings: dict[str, Any], jobs: int, out: str, **how: Any) -> Report:
    """Report what fake accounts do to a model of a data set, and to a vote.

    The model and the vote are trained again for each attack, number of accounts and seed. The
    report counts the users who see a promoted item, and shows what the vote certifies, what the
    detectors find and what quality both keep. It is written as HTML, JSON and text.
    """
    from robustcf.experiments.fakes import FakesPlan, fakes_report

    plan = FakesPlan(models=(model,) if model else (), changes=settings, **how)
    found = fakes_report(plan, out, jobs=jobs, progress=sys.stderr.isatty())
    page = f"{out}/report.html"
    return Report({**found.as_dict(), "page": page}, f"{found}\n\nreport: {page}")
