"""``robustcf tune``: search for the best settings of a data set and write them as a preset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from robustcf.cli.options import data_options, device_option, out_option
from robustcf.cli.reporting import Report, command, say
from robustcf.cli.signatures import options


@command()
@options("training.search:tune_to_file", "minutes", "trials", "memory", "seed")
@device_option
@out_option("The preset to write, a .json file.", "FILE", required=True)
@click.option("--resume", is_flag=True, help="Resume a search that was stopped.")
@data_options()
def tune(dataset: str, device: str, out: str, data: dict[str, Any], **how: Any) -> Report:
    """Search for the best model and settings on validation data and write them as a preset.

    The search tries baselines first, then short trainings of several models, and improves the best
    while time is left. Then: robustcf train --dataset NAME --preset FILE. Test data are not used.
    """
    from robustcf._runtime import device_of, threads_used
    from robustcf.data import load
    from robustcf.training.search import tune_to_file

    split = load(dataset, **data)
    with threads_used(None, split.n_users, split.n_items):
        found = tune_to_file(split, Path(out), device=device_of(device), report=say, **how)
    text = f"{found.table()}\n\n{found.summary()['chosen']}\npreset: {out}"
    return Report({"preset": out, **found.as_dict()}, text)
