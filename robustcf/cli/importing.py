"""``robustcf import``: another library's factors in, a run directory out."""

from __future__ import annotations

import sys
from typing import Any

import click

from robustcf.cli.options import out_option
from robustcf.cli.reporting import Report, reports
from robustcf.cli.sources import (
    MATCHING,
    Runs,
    interactions_option,
    pairs_from,
    read_source,
    run_options,
    source_options,
)
from robustcf.cli.words import ListCommand


@click.command("import", cls=ListCommand)
@click.argument("source", nargs=-1, required=True, metavar="SOURCE [ITEMS]")
@interactions_option(required=True)
@click.option("--test", metavar="FILE", help="Held-out pairs to judge by.")
@out_option("The run directory to make.", "RUN", required=True)
@click.option("--name", help="What to call the data (default: the name of the file).")
@click.option("--label", help="What to call it in tables and pictures (default: its source).")
@run_options
@source_options
@reports
def import_(
    source: tuple[str, ...],
    interactions: str,
    test: str | None,
    out: str,
    name: str | None,
    label: str | None,
    how: dict[str, Any],
    opened: Runs,
) -> Report:
    """Make a run of factors that another library trained.

    SOURCE is implicit's saved .npz, a .npz or .safetensors with two matrices, a .pth or .pt of
    RecBole or torch, a folder of Spark's ALS model; or two files, users first: .npy and .npy, or
    Parquet and Parquet with ids and vectors. Nothing in a file is run.

    evaluate, recommend, attack, certify and compare work on the run as on any other. Biases become
    columns that attacks and certificates hold fixed. Ids are matched by labels where the source has
    them, else they are row numbers. Factors that know nothing of the given pairs are refused.
    """
    from robustcf.adapters import import_run

    imported = read_source(source, how)
    run = import_run(
        imported,
        pairs_from(interactions, opened),
        out,
        test=test,
        force=how["force"],
        name=name,
        label=label,
        progress=sys.stderr.isatty(),
        **{option: how[option] for option in MATCHING},
    )
    result = run.metrics()
    part = "train" if result["test"] is None else "test"
    values = result[part]
    shown = ("ndcg@10", "recall@20", "mrr@10", "coverage@10")
    held = ", ".join(map(str, run.fixed)) or "none"
    lines = [
        repr(imported),
        *(f"- {note}" for note in result["imported"]["notes"]),
        f"columns held fixed: {held}",
        f"{part:6}" + "  ".join(f"{name} {values[name]:.4f}" for name in shown),
        f"run: {run.path}",
    ]
    return Report({**result, "fixed": list(run.fixed)}, "\n".join(lines))
