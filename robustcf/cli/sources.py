"""Options of commands that take a run, or embeddings from anywhere, and what they open."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from robustcf.cli.signatures import Decorator, choice, options
from robustcf.errors import DownloadError, InputError

if TYPE_CHECKING:
    from robustcf.factors import Factors
    from robustcf.recommender import Recommender

_READING = (
    *("user_key", "item_key", "user_bias_key", "item_bias_key", "id_key", "vector_key"),
    *("user_ids", "item_ids", "dataset_file"),
)
_COLUMNS = ("user_col", "item_col", "rating_col", "time_col", "min_rating")
_MATCHING = ("rows", "drop_unknown", *_COLUMNS, "with_valid")

unfinished_option = click.option(
    "--allow-unfinished", is_flag=True, help="Use a run whose training was interrupted, as it is."
)
code_option = click.option(
    "--allow-code",
    is_flag=True,
    help="Import the modules that the run names, if it was trained with code from outside.",
)
source_argument = click.argument("source", nargs=-1, required=True, metavar="SOURCE [ITEMS]")


@dataclass(frozen=True)
class Opener:
    """Opens what a command is given, with its options of opening a run."""

    allow_unfinished: bool
    places: Mapping[str, Any]

    def recommender(self, path: str, *, allow_code: bool = False) -> Recommender:
        """Open a run or a saved recommender."""
        from robustcf.experiments.starting import open_shared

        how = {"allow_unfinished": self.allow_unfinished, "allow_code": allow_code}
        return open_shared(path, self.places, **how)

    def pairs(self, interactions: str) -> Any:
        """Return the split of a data set or of a run that is named, else the path as it is."""
        from robustcf.data import catalog, load

        if is_run((interactions,)):
            return self.recommender(interactions).split
        if catalog.find(interactions) is None:
            return interactions
        places = {name: self.places[name] for name in ("data_dir", "download")}
        try:
            return load(interactions, **places)
        except DownloadError as error:
            hint = "" if places["download"] else " (give --data-dir DIR, or --download)"
            raise DownloadError(f"{error}{hint}") from error


def run_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of opening a run; the command gets them as an ``opener``."""

    @unfinished_option
    @click.option("--data-dir", metavar="DIR", help="Data of a run without interactions.")
    @click.option("--download", is_flag=True, help="Fetch data that are missing.")
    @click.option(
        "--dataset", metavar="PATH", help="Prepared set or file of a run without interactions."
    )
    @functools.wraps(function)
    def command(*args: Any, allow_unfinished: bool, **kwargs: Any) -> Any:
        places = {name: kwargs.pop(name) for name in ("data_dir", "download", "dataset")}
        return function(*args, opener=Opener(allow_unfinished, places), **kwargs)

    return command


def opens_run(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the argument RUN and the options of opening it."""
    return click.argument("run")(run_options(function))


def interactions_option(*, required: bool = False) -> Decorator:
    """Return ``--interactions``: what :meth:`Opener.pairs` takes."""
    return click.option(
        "--interactions",
        metavar="PAIRS",
        required=required,
        help="Pairs that the factors were fit on: a table, adjacency text, a scipy .npz, a data "
        "set by name, or a run directory.",
    )


def source_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of reading and matching; the command gets them as one dict, ``how``."""
    match = "recommender.matching:match"

    @options("adapters.reading:read", *_READING)
    @click.option(
        "--fixed",
        multiple=True,
        metavar="N...",
        help="Columns that are biases, from 0, or none (default: those constant in one factor).",
    )
    @options(match, "rows", "drop_unknown", rows=choice("recommender.matching:ROWS"))
    @options(match, *_COLUMNS)
    @click.option(
        "--with-valid/--without-valid",
        default=None,
        help="Whether the validation pairs of a data set or run were fit on too.",
    )
    @click.option("--force", is_flag=True, help="Skip the alignment check.")
    @functools.wraps(function)
    def command(*args: Any, **kwargs: Any) -> Any:
        how = {name: kwargs.pop(name) for name in (*_READING, *_MATCHING, "fixed", "force")}
        how["fixed"] = _columns(how["fixed"])
        return function(*args, how=how, **kwargs)

    return command


def open_source(
    source: tuple[str, ...],
    interactions: Any,
    held_out: str | None,
    how: Mapping[str, Any],
    opener: Opener,
    *,
    to_choose: bool = False,
) -> Recommender:
    """Open a saved recommender, or factors from elsewhere matched with their interactions.

    Args:
        source: the words of the command line.
        interactions: the pairs they were fit on, as typed or loaded; None for factors alone.
        held_out: pairs to judge by.
        how: options of reading and matching.
        opener: opens a run.
        to_choose: whether to judge by pairs to choose by, not by test pairs.
    """
    from robustcf.adapters import from_files
    from robustcf.experiments.starting import check_same

    if is_run(source):
        if interactions is not None or held_out is not None:
            raise InputError(
                f"{source[0]} is a saved recommender and has its pairs: leave --interactions, "
                "--test and --valid out"
            )
        model = opener.recommender(source[0])
    else:
        typed = isinstance(interactions, str)
        model = from_files(
            source,
            opener.pairs(interactions) if typed else interactions,
            held_out,
            check=not how["force"],
            label=Path(source[0]).name,
            matching=(
                {name: how[name] for name in (*_MATCHING, "name") if name in how}
                if interactions is not None
                else {}
            ),
            fixed=how["fixed"],
            **{name: how[name] for name in _READING},
        )
        if model.has_interactions:
            check_same(model.split, model.factors)
    if to_choose and held_out is None and model.has_interactions:
        # Never by the pairs that will be reported on.
        has_valid = model.fit_on == "train" and len(model.split.valid) > 0
        model = model.judged_by("valid" if has_valid else "train")
    return model


def words_of(source: tuple[str, ...], model: Recommender) -> str:
    """Return what a source turned out to be, in words."""
    if is_run(source):
        return f"run {source[0]}, {model.split.name}"
    facts: Mapping[str, Any] = model.training or {}
    names = " and ".join(Path(word).name for word in source)
    return "; ".join((f"{names}, read as {facts.get('format')}", *facts.get("notes", ())))


def caveats_of(model: Recommender) -> tuple[str, ...]:
    """Return what could void the findings about a source."""
    facts: Mapping[str, Any] = model.training or {}
    reason = facts.get("alignment")
    return (f"The alignment check was skipped although {reason}.",) if reason else ()


def other_version(
    source: str,
    model: Recommender,
    interactions: str | None,
    how: Mapping[str, Any],
    opener: Opener,
) -> Factors:
    """Return the factors of another version, rows in the order of the one that is open."""
    from robustcf.adapters.ordering import in_rows_of

    other = open_source((source,), None if is_run((source,)) else interactions, None, how, opener)
    labelled = model.user_labels is not None or model.item_labels is not None
    if not labelled or not other.has_interactions:
        return other.factors
    return in_rows_of(model.split, other.factors, other.split)


def is_run(source: tuple[str, ...]) -> bool:
    """Whether this is the folder of a run, or of a saved recommender."""
    names = ("recommender.json", "config.json")
    return len(source) == 1 and any((Path(source[0]) / name).is_file() for name in names)


def _columns(given: tuple[str, ...]) -> tuple[int, ...] | None:
    """``--fixed``: numbers, or none; None where it was not given."""
    if not given:
        return None
    if given == ("none",):
        return ()
    if not all(word.isdecimal() for word in given):
        raise click.UsageError(
            f"--fixed takes column numbers from 0, or none, got {' '.join(given)}"
        )
    return tuple(int(word) for word in given)
