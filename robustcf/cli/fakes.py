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
    """Report what fake accounts do to a model, and to a vote, of a data set.

    Both are trained anew for each attack, number of accounts and seed. Users who see a promoted
    item are counted, next to the certificate of the vote, the suspects of the detectors and the
    quality of both. Writes HTML, JSON and text into the folder.
    """
    from robustcf.experiments.fakes import FakesPlan, fakes_report

    plan = FakesPlan(models=(model,) if model else (), changes=settings, **how)
    found = fakes_report(plan, out, jobs=jobs, progress=sys.stderr.isatty())
    page = f"{out}/report.html"
    return Report({**found.as_dict(), "page": page}, f"{found}\n\nreport: {page}")
