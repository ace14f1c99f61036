"""``robustcf import``: another library's factors in, a run directory out."""

from __future__ import annotations

from typing import Any

import click

from robustcf.cli.common import ListCommand, Report, reports

_READING = ("user_key", "item_key", "user_bias_key", "item_bias_key", "id_key", "vector_key")
_FILES = ("user_ids", "item_ids", "dataset_file")
_MATCHING = (
    "rows",
    "drop_unknown",
    "user_col",
    "item_col",
    "rating_col",
    "time_col",
    "min_rating",
    "name",
)


@click.command("import", cls=ListCommand)
@click.argument("source", nargs=-1, required=True, metavar="SOURCE [ITEMS]")
@click.option(
    "--interactions",
    required=True,
    metavar="FILE",
    help="The pairs that the factors were fit on: a table, adjacency text, or a scipy .npz.",
)
@click.option("--test", metavar="FILE", help="Held-out pairs to judge by.")
@click.option("--out", required=True, metavar="RUN", help="The run directory to make.")
@click.option("--name", help="What to call the data (default: the name of the file).")
@click.option("--label", help="What to call it in tables and pictures (default: its source).")
@click.option("--user-key", metavar="NAME", help="The users' matrix in a file of named arrays.")
@click.option("--item-key", metavar="NAME", help="The items' matrix.")
@click.option("--user-bias-key", metavar="NAME", help="The users' biases.")
@click.option("--item-bias-key", metavar="NAME", help="The items' biases.")
@click.option("--id-key", metavar="COL", help="Parquet: the column of ids.")
@click.option("--vector-key", metavar="COL", help="Parquet: the column of vectors.")
@click.option(
    "--fixed",
    multiple=True,
    metavar="N...",
    help="Columns that are biases, from 0, or none (default: those that are constant in one "
    "factor). Attacks and certificates hold them fixed.",
)
@click.option("--user-ids", metavar="FILE", help="What each user row is called: lines, or .npy.")
@click.option("--item-ids", metavar="FILE", help="The same for items.")
@click.option("--dataset-file", metavar="FILE", help="RecBole: the saved dataset, for its tokens.")
@click.option(
    "--rows",
    type=click.Choice(["number", "sorted", "appearance"]),
    default="number",
    show_default=True,
    help="Factors without labels: ids are row numbers; or row n is the n-th of the distinct ids, "
    "sorted, or by first appearance.",
)
@click.option("--drop-unknown", is_flag=True, help="Leave out pairs that the factors do not know.")
@click.option("--user-col", metavar="COL", help="Interactions: user column (name, or number).")
@click.option("--item-col", metavar="COL", help="Interactions: item column.")
@click.option("--rating-col", metavar="COL", help="Interactions: rating column.")
@click.option("--time-col", metavar="COL", help="Interactions: time column.")
@click.option("--min-rating", type=float, help="Keep pairs rated at least this.")
@click.option("--force", is_flag=True, help="Import factors that know nothing of the pairs too.")
@reports
def import_(
    source: tuple[str, ...],
    interactions: str,
    test: str | None,
    out: str,
    label: str | None,
    fixed: tuple[str, ...],
    force: bool,
    **options: Any,
) -> Report:
    """Make a run of factors that another library trained.

    SOURCE is implicit's saved .npz, a .npz or .safetensors with two matrices, a .pth or .pt of
    RecBole or torch, a folder of Spark's ALS model; or two files, users first: .npy and .npy, or
    Parquet and Parquet with ids and vectors. Nothing in a file is run.

    evaluate, recommend, attack, certify and compare work on the run as on any other. Biases become
    columns that attacks and certificates hold fixed. Ids are matched by labels where the source has
    them, else they are row numbers. Factors that know nothing of the given pairs are refused.
    """
    from robustcf.adapters import import_run, read

    imported = read(
        source,
        fixed=_columns(fixed),
        **{name: options[name] for name in (*_READING, *_FILES)},
    )
    run = import_run(
        imported,
        interactions,
        out,
        test=test,
        force=force,
        label=label,
        **{name: options[name] for name in _MATCHING},
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


def _columns(given: tuple[str, ...]) -> tuple[int, ...] | None:
    """``--fixed``: numbers, or none; nothing where it was not given."""
    if not given:
        return None
    if given == ("none",):
        return ()
    if not all(word.isdecimal() for word in given):
        raise click.UsageError(
            f"--fixed takes column numbers from 0, or none, got {' '.join(given)}"
        )
    return tuple(int(word) for word in given)
