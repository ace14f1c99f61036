"""Options of every command that takes embeddings from anywhere, and what they open."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from robustcf.cli.common import PLACE_OPTIONS, OpenedRun, check_same, unfinished_option
from robustcf.errors import InputError

if TYPE_CHECKING:
    from robustcf.adapters import Imported
    from robustcf.factors import Factors
    from robustcf.robustness import Target

Runs = Callable[[str], OpenedRun]

READING = (
    *("user_key", "item_key", "user_bias_key", "item_bias_key", "id_key", "vector_key"),
    *("user_ids", "item_ids", "dataset_file"),
)
MATCHING = ("rows", "drop_unknown", "user_col", "item_col", "rating_col", "time_col", "min_rating")
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
    click.option("--force", is_flag=True, help="Take factors that know nothing of the pairs too."),
)


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
) -> Opened:
    """A run, or factors from elsewhere matched with their interactions."""
    from robustcf.adapters import match, smell
    from robustcf.robustness import Target

    if is_run(source):
        return _open_run(opened(source[0]), interactions)
    if interactions is None:
        raise InputError(
            f"{' '.join(source)} holds embeddings and no pairs: give those they were fit on with "
            "--interactions FILE"
        )
    imported = read_source(source, how)
    split, notes = match(
        imported, interactions, held_out, **{name: how[name] for name in MATCHING}
    )  # fmt: skip
    found = smell(imported, split.train)
    if not how["force"]:
        found.require()
    caveats = () if found.good else (f"Taken by force although {found.reason}.",)
    users, items = imported.factors
    check_same(split, imported.factors)
    target = Target(users, items, split, fixed=imported.fixed, label=Path(source[0]).name)
    said = "; ".join((repr(imported), *imported.notes, *notes))
    return Opened(target, imported, caveats, said)


def other_version(
    source: str, target: Target, interactions: str | None, how: dict[str, Any], opened: Runs
) -> Factors:
    """The factors of another version, rows in the order of the one that is open."""
    from robustcf.adapters import match
    from robustcf.adapters.writing import in_label_order, in_order_of

    if is_run((source,)):
        return opened(source).trained().factors()
    imported = read_source((source,), how)
    if interactions is None:
        return imported.factors
    split, _ = match(imported, interactions, **{name: how[name] for name in MATCHING})
    theirs, _ = in_label_order(imported.factors, split)
    return in_order_of(target.split, theirs)


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
