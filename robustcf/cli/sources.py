"""Options of every command that takes embeddings from anywhere, and what they open."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from robustcf.cli.opening import PLACE_OPTIONS, OpenedRun, check_same, unfinished_option
from robustcf.errors import DownloadError, InputError

if TYPE_CHECKING:
    from robustcf.adapters import Imported
    from robustcf.factors import Factors
    from robustcf.metrics.evaluate import Part
    from robustcf.robustness import Target

Runs = Callable[[str], OpenedRun]

READING = (
    *("user_key", "item_key", "user_bias_key", "item_bias_key", "id_key", "vector_key"),
    *("user_ids", "item_ids", "dataset_file"),
)
MATCHING = (
    *("rows", "drop_unknown", "user_col", "item_col", "rating_col", "time_col", "min_rating"),
    "with_valid",
)
_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option("--user-key", metavar="NAME", help="The users' matrix in a file of named arrays."),
    click.option("--item-key", metavar="NAME", help="The items' matrix."),
    click.option("--user-bias-key", metavar="NAME", help="The users' biases."),
    click.option("--item-bias-key", metavar="NAME", help="The items' biases."),
    click.option("--id-key", metavar="COL", help="Parquet: the column of ids."),
    click.option("--vector-key", metavar="COL", help="Parquet: the column of vectors."),
    click.option(
        "--fixed",
        multiple=True,
        metavar="N...",
        help="Columns that are biases, from 0, or none (default: those that are constant in one "
        "factor). Attacks and certificates hold them fixed.",
    ),
    click.option(
        "--user-ids", metavar="FILE", help="What each user row is called: lines, or .npy."
    ),
    click.option("--item-ids", metavar="FILE", help="The same for items."),
    click.option(
        "--dataset-file", metavar="FILE", help="RecBole: the saved dataset, for its tokens."
    ),
    click.option(
        "--rows",
        type=click.Choice(["number", "sorted", "appearance"]),
        default="number",
        show_default=True,
        help="Factors without labels: ids are row numbers; or row n is the n-th of the distinct "
        "ids, sorted, or by first appearance.",
    ),
    click.option(
        "--drop-unknown", is_flag=True, help="Leave out pairs that the factors do not know."
    ),
    click.option("--user-col", metavar="COL", help="Interactions: user column (name, or number)."),
    click.option("--item-col", metavar="COL", help="Interactions: item column."),
    click.option("--rating-col", metavar="COL", help="Interactions: rating column."),
    click.option("--time-col", metavar="COL", help="Interactions: time column."),
    click.option("--min-rating", type=float, help="Keep pairs rated at least this."),
    click.option(
        "--with-valid/--without-valid",
        default=None,
        help="A data set or run as PAIRS: whether its validation pairs were fit on too (default: "
        "unless they were published apart).",
    ),
    click.option("--force", is_flag=True, help="Take factors that know nothing of the pairs too."),
)


def interactions_option(*, required: bool = False) -> Callable[[Any], Any]:
    """``--interactions``: what :func:`pairs_from` takes."""
    return click.option(
        "--interactions",
        metavar="PAIRS",
        required=required,
        help="The pairs that the factors were fit on: a table, adjacency text, a scipy .npz, the "
        "name of a data set, or a run directory, for its pairs.",
    )


def pairs_from(interactions: str, opened: Runs) -> Any:
    """What ``--interactions`` names: the split of a data set or of a run, else a path as it is."""
    from robustcf.data import catalog, load

    run = opened(interactions)
    if is_run((interactions,)):
        return run.split(run.trained())
    if catalog.find(interactions) is None:
        return interactions
    places = {name: run.places[name] for name in ("data_dir", "download")}
    try:
        return load(interactions, **places)
    except DownloadError as error:
        hint = "" if places["download"] else " (give --data-dir DIR, or --download)"
        raise DownloadError(f"{error}{hint}") from error


def run_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of opening a run; the command gets them as one function, ``opened``."""

    @functools.wraps(function)
    def command(*args: Any, allow_unfinished: bool, **kwargs: Any) -> Any:
        places = {name: kwargs.pop(name) for name in ("data_dir", "download", "dataset")}

        def opened(path: str) -> OpenedRun:
            return OpenedRun(path, allow_unfinished, places)

        return function(*args, opened=opened, **kwargs)

    for option in reversed((unfinished_option, *PLACE_OPTIONS)):
        command = option(command)
    return command


def source_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of reading and matching; the command gets them as one dict, ``how``."""

    @functools.wraps(function)
    def command(*args: Any, **kwargs: Any) -> Any:
        how = {name: kwargs.pop(name) for name in (*READING, *MATCHING, "fixed", "force")}
        how["fixed"] = _columns(how["fixed"])
        return function(*args, how=how, **kwargs)

    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@dataclass(frozen=True, eq=False)
class Opened:
    """What a source turned out to be.

    Args:
        target: its embeddings with their pairs.
        imported: what was read, where it is no run; its rows are those of the target.
        caveats: what is to be said about it.
        words: what it is, in words.
    """

    target: Target
    imported: Imported | None
    caveats: tuple[str, ...]
    words: str


def read_source(source: tuple[str, ...], how: dict[str, Any]) -> Imported:
    """Factors from a file, without pairs."""
    from robustcf.adapters import read

    return read(source, fixed=how["fixed"], **{name: how[name] for name in READING})


def open_source(
    source: tuple[str, ...],
    interactions: str | None,
    held_out: str | None,
    how: dict[str, Any],
    opened: Runs,
    *,
    to_choose: bool = False,
) -> Opened:
    """A run, or factors from elsewhere matched with their interactions.

    Args:
        source: the words of the command line.
        interactions: the pairs they were fit on.
        held_out: pairs to judge by.
        how: options of reading and matching.
        opened: opens a run.
        to_choose: judge by pairs to choose by, not by the test pairs of a data set.
    """
    from robustcf.adapters import match, smell
    from robustcf.adapters.matching import fit_on_of
    from robustcf.robustness import Target

    if is_run(source):
        return _open_run(opened(source[0]), interactions)
    if interactions is None:
        raise InputError(
            f"{' '.join(source)} holds embeddings and no pairs: give those they were fit on with "
            "--interactions PAIRS"
        )
    imported = read_source(source, how)
    pairs = pairs_from(interactions, opened)
    split, notes = match(imported, pairs, held_out, **{name: how[name] for name in MATCHING})
    found = smell(imported, split.train)
    if not how["force"]:
        found.require()
    caveats = () if found.good else (f"Taken by force although {found.reason}.",)
    users, items = imported.factors
    check_same(split, imported.factors)
    fit_on = fit_on_of(split, how["with_valid"])
    part: Part | None = None
    if to_choose and held_out is None:  # never by the pairs that will be reported on
        part = "valid" if fit_on == "train" and len(split.valid) else "train"
    target = Target(
        users,
        items,
        split,
        part=part,
        fixed=imported.fixed,
        fit_on=fit_on,
        label=Path(source[0]).name,
    )
    names = " and ".join(Path(word).name for word in source)
    said = "; ".join((f"{names}, read as {imported.format}", *imported.notes, *notes))
    return Opened(target, imported, caveats, said)


def other_version(
    source: str, target: Target, interactions: str | None, how: dict[str, Any], opened: Runs
) -> Factors:
    """The factors of another version, rows in the order of the one that is open."""
    from robustcf.adapters import match
    from robustcf.adapters.writing import in_rows_of

    labelled = target.split.user_labels is not None or target.split.item_labels is not None
    if is_run((source,)):
        run = opened(source)
        trained = run.trained()
        factors = trained.factors()
        return in_rows_of(target.split, factors, run.split(trained)) if labelled else factors
    imported = read_source((source,), how)
    if interactions is None:
        return imported.factors
    pairs = pairs_from(interactions, opened)
    split, _ = match(imported, pairs, **{name: how[name] for name in MATCHING})
    return in_rows_of(target.split, imported.factors, split)


def is_run(source: tuple[str, ...]) -> bool:
    """Whether this is the folder of a run."""
    return len(source) == 1 and (Path(source[0]) / "config.json").is_file()


def _open_run(opened: OpenedRun, interactions: str | None) -> Opened:
    if interactions is not None:
        raise InputError(
            f"{opened.path} is a run and knows its pairs: leave --interactions and --test out"
        )
    run = opened.trained()
    split = opened.split(run)
    return Opened(run.target(split), None, (), f"run {run.path}, {split.name}")


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
