"""Options of every command that takes embeddings from anywhere, and what they open."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from robustcf.cli.opening import PLACE_OPTIONS, OpenedRun, check_same, unfinished_option
from robustcf.cli.words import FINITE
from robustcf.errors import DownloadError, InputError

if TYPE_CHECKING:
    from robustcf.factors import Factors
    from robustcf.recommender import Recommender

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
    click.option("--min-rating", type=FINITE, help="Keep pairs rated at least this."),
    click.option(
        "--with-valid/--without-valid",
        default=None,
        help="A data set or run as PAIRS: whether its validation pairs were fit on too (default: "
        "unless they were published apart).",
    ),
    click.option(
        "--force", is_flag=True, help="Skip the alignment check of factors and interactions."
    ),
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
        return run.recommender().split
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


def open_source(
    source: tuple[str, ...],
    interactions: Any,
    held_out: str | None,
    how: dict[str, Any],
    opened: Runs,
    *,
    to_choose: bool = False,
) -> Recommender:
    """A saved recommender, or factors from elsewhere matched with their interactions.

    Args:
        source: the words of the command line.
        interactions: the pairs they were fit on, as typed or loaded; None for factors alone.
        held_out: pairs to judge by.
        how: options of reading and matching.
        opened: opens a run.
        to_choose: judge by pairs to choose by, not by test pairs.
    """
    from robustcf.adapters import from_files

    if is_run(source):
        if interactions is not None or held_out is not None:
            raise InputError(
                f"{source[0]} is a saved recommender and has its pairs: leave --interactions, "
                "--test and --valid out"
            )
        model = opened(source[0]).recommender()
    else:
        typed = isinstance(interactions, str)
        pairs = pairs_from(interactions, opened) if typed else interactions
        model = from_files(
            source,
            pairs,
            held_out,
            check=not how["force"],
            label=Path(source[0]).name,
            matching=_matching(how) if interactions is not None else {},
            fixed=how["fixed"],
            **{name: how[name] for name in READING},
        )
        if model.has_interactions:
            check_same(model.split, model.factors)
    if to_choose and held_out is None and model.has_interactions:
        # Never by the pairs that will be reported on.
        has_valid = model.fit_on == "train" and len(model.split.valid) > 0
        model = model.judged_by("valid" if has_valid else "train")
    return model


def _matching(how: dict[str, Any]) -> dict[str, Any]:
    return {name: how[name] for name in (*MATCHING, "name") if name in how}


def words_of(source: tuple[str, ...], model: Recommender) -> str:
    """What a source turned out to be, in words."""
    if is_run(source):
        return f"run {source[0]}, {model.split.name}"
    facts: Mapping[str, Any] = model.training or {}
    names = " and ".join(Path(word).name for word in source)
    return "; ".join((f"{names}, read as {facts.get('format')}", *facts.get("notes", ())))


def caveats_of(model: Recommender) -> tuple[str, ...]:
    """What could void the findings about a source."""
    facts: Mapping[str, Any] = model.training or {}
    reason = facts.get("alignment")
    return (f"The alignment check was skipped although {reason}.",) if reason else ()


def other_version(
    source: str, model: Recommender, interactions: str | None, how: dict[str, Any], opened: Runs
) -> Factors:
    """The factors of another version, rows in the order of the one that is open."""
    from robustcf.adapters.ordering import in_rows_of

    other = open_source((source,), None if is_run((source,)) else interactions, None, how, opened)
    labelled = model.user_labels is not None or model.item_labels is not None
    if not labelled or not other.has_interactions:
        return other.factors
    return in_rows_of(model.split, other.factors, other.split)


def is_run(source: tuple[str, ...]) -> bool:
    """Whether this is the folder of a run, or of a saved recommender."""
    folder = Path(source[0])
    names = ("recommender.json", "config.json")
    return len(source) == 1 and any((folder / name).is_file() for name in names)


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
