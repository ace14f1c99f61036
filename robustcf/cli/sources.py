"""Options of commands that take a run, or embeddings from elsewhere, and how these are opened."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from robustcf.cli.options import together
from robustcf.cli.signatures import Decorator, options
from robustcf.errors import DownloadError, InputError

if TYPE_CHECKING:
    from robustcf.factors import Factors
    from robustcf.recommender import Recommender

_READING = (
    *("user_key", "item_key", "user_bias_key", "item_bias_key", "id_key", "vector_key"),
    *("user_ids", "item_ids", "dataset_file"),
)
_MATCHING = (
    *("rows", "drop_unknown", "user_col", "item_col", "rating_col", "time_col", "min_rating"),
)
_PLACES = ("data_dir", "download", "dataset")

unfinished_option = click.option(
    "--allow-unfinished", is_flag=True, help="Use a run whose training was interrupted, as it is."
)
code_option = click.option(
    "--allow-code",
    is_flag=True,
    help="Import the modules that the run names, if it was trained with custom code.",
)


@dataclass(frozen=True)
class Opener:
    """Opens runs, with the options of :func:`run_options`."""

    allow_unfinished: bool
    places: Mapping[str, Any]

    def recommender(self, path: str, *, allow_code: bool = False) -> Recommender:
        """Open a run or a saved recommender."""
        from robustcf.experiments.opening import open_shared

        how = {"allow_unfinished": self.allow_unfinished, "allow_code": allow_code}
        return open_shared(path, self.places, **how)

    def pairs(self, interactions: str) -> Any:
        """Return the split of a named data set or of a run, or the path of a file as it is."""
        from robustcf.data import catalog, load

        if is_run(interactions):
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
        places = {name: kwargs.pop(name) for name in _PLACES}
        return function(*args, opener=Opener(allow_unfinished, places), **kwargs)

    return command


#: The argument RUN and the options of opening it.
opens_run = together(click.argument("run"), run_options)


@dataclass(frozen=True)
class Source:
    """A saved recommender, or files of another library.

    Args:
        words: the files or the folder.
        interactions: the pairs they were fit on, as typed; None for factors alone.
        how: options of reading and matching.
        opener: opens a run.
    """

    words: tuple[str, ...]
    interactions: str | None
    how: Mapping[str, Any]
    opener: Opener

    @property
    def is_run(self) -> bool:
        """Whether this is the folder of a run, or of a saved recommender."""
        return len(self.words) == 1 and is_run(self.words[0])

    @cached_property
    def pairs(self) -> Any:
        """The split or the path of the interactions."""
        return None if self.interactions is None else self.opener.pairs(self.interactions)

    def open(self, held_out: str | None = None, **matching: Any) -> Recommender:
        """Open it, matched with its interactions; ``held_out`` are pairs to judge by."""
        from robustcf.adapters import from_files
        from robustcf.experiments.opening import check_same

        if self.is_run:
            if self.interactions is not None or held_out is not None:
                words = f"{self.words[0]} is a saved recommender and has its pairs"
                raise InputError(f"{words}: leave --interactions, --test and --valid out")
            return self.opener.recommender(self.words[0])
        matching |= {name: self.how[name] for name in (*_MATCHING, "with_valid")}
        model = from_files(
            self.words,
            self.pairs,
            held_out,
            check=not self.how["force"],
            label=Path(self.words[0]).name,
            matching=matching if self.interactions is not None else {},
            **{name: self.how[name] for name in (*_READING, "fixed")},
        )
        if model.has_interactions:
            check_same(model.split, model.factors)
        return model

    def describe(self, model: Recommender) -> str:
        """Return what was opened, in words."""
        if self.is_run:
            data = f", {model.split.name}" if model.has_interactions else ""
            return f"run {self.words[0]}{data}"
        facts: Mapping[str, Any] = model.training or {}
        names = " and ".join(Path(word).name for word in self.words)
        return "; ".join((f"{names}, read as {facts.get('format')}", *facts.get("notes", ())))

    def other_version(self, path: str, model: Recommender) -> Factors:
        """Return the factors of another version, rows in the order of the one that is open."""
        from robustcf.adapters.ordering import in_rows_of

        pairs = None if is_run(path) else self.interactions
        other = replace(self, words=(path,), interactions=pairs).open()
        labelled = model.user_labels is not None or model.item_labels is not None
        if not labelled or not other.has_interactions:
            return other.factors
        return in_rows_of(model.split, other.factors, other.split)


def takes_source(*, pairs_required: bool = False) -> Decorator:
    """Add SOURCE and the options of reading it; the command gets them as one ``source``."""
    names = (*_READING, *_MATCHING, "with_valid", "fixed", "force")

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @click.argument("source", nargs=-1, required=True, metavar="SOURCE [ITEMS]")
        @click.option(
            "--interactions",
            metavar="PAIRS",
            required=pairs_required,
            help="Pairs that the factors were fit on: a table, adjacency text, a scipy .npz, a "
            "data set by name, or a run directory.",
        )
        @run_options
        @options("adapters.reading:read", *_READING)
        @click.option(
            "--fixed",
            multiple=True,
            metavar="N...",
            callback=_columns,
            help="Bias columns, from 0, or none (default: those constant in one factor).",
        )
        @options("recommender.matching:match", *_MATCHING, rows="recommender.matching:ROWS")
        @click.option(
            "--with-valid/--without-valid",
            default=None,
            help="Whether the validation pairs (of a data set or run) are training pairs, too.",
        )
        @click.option("--force", is_flag=True, help="Skip the alignment check.")
        @functools.wraps(function)
        def command(
            source: tuple[str, ...], interactions: str | None, opener: Opener, **kwargs: Any
        ) -> Any:
            how = {name: kwargs.pop(name) for name in names}
            return function(source=Source(source, interactions, how, opener), **kwargs)

        return command

    return decorate


def is_run(path: str) -> bool:
    """Whether this is the folder of a run, or of a saved recommender."""
    return any((Path(path) / name).is_file() for name in ("recommender.json", "config.json"))


def _columns(
    context: click.Context, parameter: click.Parameter, given: tuple[str, ...]
) -> tuple[int, ...] | None:
    """Return the numbers of ``--fixed``: empty for ``none``, None where it was not given."""
    if not given or given == ("none",):
        return () if given else None
    if not all(word.isdecimal() for word in given):
        raise click.BadParameter(f"expected column numbers from 0, or none, got {' '.join(given)}")
    return tuple(int(word) for word in given)
