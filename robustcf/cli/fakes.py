"""``robustcf fakes``: what fake accounts do to a model and to a vote, on one page."""

from __future__ import annotations

import sys
from typing import Any

import click

from robustcf._registry import MODELS, POISONINGS
from robustcf.cli.kinds import COUNT, NameOf
from robustcf.cli.options import data_options, out_option, settings_option
from robustcf.cli.reporting import Report, command
from robustcf.cli.signatures import options

_REPORT = "experiments.fakes:report"


@command()
@click.option("--model", type=NameOf(MODELS), help="Model (default: the best known for the data).")
@click.option(
    "--fakes",
    metavar="N|P%...",
    multiple=True,
    help="Fake users, as numbers or in percent of the genuine ones (default 10 50).",
)
@options(
    _REPORT,
    *("attacks=attack", "targets", "target_kind", "seeds", "k"),
    attacks=NameOf(POISONINGS),
    target_kind="poisoning.threat:TARGET_KINDS",
    targets=COUNT,
    k=COUNT,
)
@settings_option
@out_option("The folder; a stopped report is resumed from it.", required=True)
@data_options()
def fakes(
    dataset: str,
    data: dict[str, Any],
    model: str | None,
    fakes: tuple[str, ...],
    settings: dict[str, Any],
    out: str,
    **how: Any,
) -> Report:
    """Report what fake accounts do to a model, and to a vote, of a data set.

    Both are trained anew for each attack, number of accounts and seed. Users who see a promoted
    item are counted, next to the certificate of the vote, the suspects of the detectors and the
    quality of both. Writes HTML, JSON and text into the folder.
    """
    from robustcf.data import load
    from robustcf.experiments.fakes import FakesPlan, fakes_report
    from robustcf.experiments.poison import PoisonPlan
    from robustcf.poisoning.threat import parse_fakes

    chosen = PoisonPlan(dataset, models=(model,) if model else (), changes=settings)
    config, _ = chosen.train_config(chosen.models[0], 0)
    plan = FakesPlan(
        fakes=tuple(map(parse_fakes, fakes)) or (10, 50),
        **{**how, "attacks": tuple(how["attacks"])},
    )
    split = load(dataset, **data)
    shows = sys.stderr.isatty()
    found: Any = fakes_report(split, config, plan, out, progress=shows)
    page = f"{out}/report.html"
    return Report({**found.as_dict(), "page": page}, f"{found}\n\nreport: {page}")
