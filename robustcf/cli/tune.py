"""``robustcf tune``: search for the best settings of a data set and write them as a preset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from robustcf.cli.options import data_options, load_arguments, out_option, threads_option
from robustcf.cli.reporting import Report, reports, say
from robustcf.cli.words import FINITE, SEED


@click.command()
@click.option(
    "--dataset", metavar="NAME|FILE", required=True, help="A known set, or a file of your own."
)
@click.option("--minutes", type=FINITE, help="Time at most (default 5).")
@click.option("--seed", type=SEED, default=0, show_default=True, help="Training seed.")
@click.option(
    "--split-seed", type=SEED, default=0, show_default=True, help="Seed of a drawn split."
)
@click.option("--device", default="cpu", show_default=True, help="Torch device.")
@out_option("The preset to write, a .json file.", "FILE", required=True)
@click.option("--resume", is_flag=True, help="Go on with a search that was stopped.")
@data_options
@threads_option
@reports
def tune(
    dataset: str,
    minutes: float | None,
    seed: int,
    split_seed: int,
    device: str,
    out: str,
    resume: bool,
    data: dict[str, Any],
) -> Report:
    """Search for the best model and settings on validation data and write them as a preset.

    The search tries baselines first, then short trainings of several models, and improves the best
    while time is left. Then: robustcf train --dataset NAME --preset FILE. Test data are never
    touched.
    """
    from robustcf._runtime import device_of, threads_used
    from robustcf.data import load
    from robustcf.training.search import tune_to_file

    dataset, options = load_arguments(dataset, data, split_seed)
    split = load(dataset, **options)
    with threads_used(None, split.n_users, split.n_items):
        found = tune_to_file(
            split,
            Path(out),
            minutes=minutes,
            seed=seed,
            device=device_of(device),
            resume=resume,
            report=say,
        )
    chosen = found.summary()
    text = f"{found.table()}\n\n{chosen['chosen']}\npreset: {out}"
    return Report({"preset": out, **found.as_dict()}, text)
