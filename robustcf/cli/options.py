"""Options that several commands have, and what they stand for."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from robustcf._cpus import cpu_quota
from robustcf._io.reading import parse_json
from robustcf.cli.reporting import say
from robustcf.cli.words import FINITE, SEED, FiniteRange
from robustcf.errors import InputError

Command = TypeVar("Command", bound=Callable[..., Any])
_SHARE = FiniteRange(0, 1, min_open=True, max_open=True)
eval_users_option = click.option(
    "--eval-users",
    type=click.IntRange(min=1),
    metavar="N",
    help="Evaluate on a seeded sample of N users (default: all, or as a prepared set says).",
)
_DATA_OPTIONS: tuple[Callable[[Command], Command], ...] = (
    click.option("--data-dir", metavar="DIR", help="Look here first, and download to here."),
    click.option(
        "--download/--no-download",
        default=None,
        help="Fetch a missing file (the default, but with --resume).",
    ),
    click.option("--user-col", metavar="COL", help="Own table: user column (name, or number)."),
    click.option("--item-col", metavar="COL", help="Own table: item column."),
    click.option("--rating-col", metavar="COL", help="Own table: rating column."),
    click.option("--time-col", metavar="COL", help="Own table: time column."),
    click.option("--min-rating", type=FINITE, help="Keep pairs rated at least this."),
    click.option(
        "--k-core",
        type=click.IntRange(min=1),
        metavar="K",
        help="Own data: users and items with at least K pairs.",
    ),
    click.option(
        "--split",
        type=click.Choice(["random", "leave-one-out", "time"]),
        help="Own data: random pairs of each user (default), the latest one, or one cut in time.",
    ),
    click.option(
        "--test-ratio",
        type=_SHARE,
        help="Own data: share for test (default 0.1); the latest with --split time.",
    ),
    click.option(
        "--valid-ratio", type=_SHARE, help="Own data: share of the rest for valid (default 0.1)."
    ),
    click.option(
        "--test-from",
        metavar="WHEN",
        help="With --split time: test begins at this ISO date or number.",
    ),
    click.option(
        "--valid-from",
        metavar="WHEN",
        help="With --split time: valid begins at this ISO date or number.",
    ),
    click.option("--valid-file", metavar="FILE", help="Own data: a file for valid."),
    click.option("--test-file", metavar="FILE", help="Own data: a file for test."),
    eval_users_option,
)
_DATA_NAMES = (
    *("data_dir", "download", "user_col", "item_col", "rating_col", "time_col", "min_rating"),
    *("k_core", "split", "test_ratio", "valid_ratio", "test_from", "valid_from"),
    *("valid_file", "test_file", "eval_users"),
)


def data_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of ``robustcf.data.load``; the command gets them as one dict, ``data``.

    What was not given is None there: see :func:`load_arguments`.
    """

    @functools.wraps(function)
    def command(*args: Any, **kwargs: Any) -> Any:
        data = {name: kwargs.pop(name) for name in _DATA_NAMES}
        return function(*args, data=data, **kwargs)

    for option in reversed(_DATA_OPTIONS):
        command = option(command)
    return command


def own_table_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add those options of ``robustcf.data.load`` that say how a table is read and split."""
    places = ("data_dir", "download", "valid_file", "test_file")
    for name, option in reversed(list(zip(_DATA_NAMES, _DATA_OPTIONS, strict=True))):
        if name not in places:
            function = option(function)
    return function


budget_option = click.option(
    "--budget",
    type=click.Choice(["row", "frobenius", "spectral"]),
    default="row",
    show_default=True,
    help="The norm that epsilon bounds, for each factor.",
)


def _unit_options(words: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """``--relative [own]`` and ``--absolute``; the command gets ``unit``, or None for neither."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @click.option(
            "--relative",
            type=click.Choice(["median", "own"]),
            is_flag=False,
            flag_value="median",
            metavar="[own]",
            help=words,
        )
        @click.option("--absolute", is_flag=True, help="Sizes as they are.")
        @functools.wraps(function)
        def command(*args: Any, relative: str | None, absolute: bool, **kwargs: Any) -> Any:
            if relative and absolute:
                raise click.UsageError("--relative and --absolute exclude each other: give one")
            unit = "own" if relative == "own" else "relative"
            return function(*args, unit="absolute" if absolute else unit, **kwargs)

        return command

    return decorate


unit_options = _unit_options(
    "Sizes in units of the factors' own size (median row norm, Frobenius or spectral norm, by the "
    "budget), which compares models of different scale: the default. With own: each row's size in "
    "its own length."
)
row_unit_options = _unit_options(
    "Sizes in median row norms of the factors: the default. With own: each row's size in its own "
    "length."
)
side_option = click.option(
    "--side",
    type=click.Choice(["both", "users", "items"]),
    default="both",
    show_default=True,
    help="Which factors are perturbed.",
)


def _cutoffs_option(words: str) -> Callable[[Command], Command]:
    return click.option(
        "--k", "ks", type=click.IntRange(min=1), multiple=True, metavar="K...",
        help=f"{words}; beyond the catalogue: all items.",
    )  # fmt: skip


cutoffs_option = _cutoffs_option("Cutoffs of the metrics (default 10 20)")
exposure_cutoffs_option = _cutoffs_option("Cutoffs of the exposure (default 10 50)")


def _not_empty(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and not value.strip():
        raise click.BadParameter("must be a name, got an empty one")
    return value


def out_option(what: str, metavar: str = "DIR", *, required: bool = False) -> Callable[..., Any]:
    """``--out``: where a command writes; an empty name is refused."""
    return click.option("--out", metavar=metavar, required=required, callback=_not_empty, help=what)


def threads_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--threads``; the command runs with so many, and does not get the number itself."""

    @click.option(
        "--threads",
        type=int,
        metavar="N",
        help="CPU threads (default: OMP_NUM_THREADS, or the cores, fewer for small data).",
    )
    @functools.wraps(function)
    def command(*args: Any, threads: int | None, **kwargs: Any) -> Any:
        if threads is None and cpu_quota() is None:
            return function(*args, **kwargs)  # torch, when it is loaded, knows the rest
        from robustcf._runtime import threads_used

        with threads_used(typed_threads(threads), exact=True):
            return function(*args, **kwargs)

    return command


def typed_threads(threads: int | None) -> int | None:
    """``--threads`` as it was typed, at most the CPUs that may be used; says so on stderr."""
    if threads is None:
        return None
    from robustcf._runtime import usable_threads

    return usable_threads(threads, lambda line: say(f"robustcf: {line}"))


def grid_options(part: str, whole: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """What every grid of trainings has: settings and threads of each, jobs, and the folder.

    Args:
        part: one of them, in a word.
        whole: all together, in a word.
    """
    options = (
        click.option(
            "--set",
            "settings",
            metavar="KEY=VALUE",
            multiple=True,
            help="A training setting, for all of them.",
        ),
        click.option(
            "--split-seed", type=SEED, default=0, show_default=True, help="Seed of a drawn split."
        ),
        click.option(
            "--threads",
            type=int,
            metavar="N",
            help=f"CPU threads per {part} (default: OMP_NUM_THREADS, or the cores shared by the "
            "jobs).",
        ),
        click.option(
            "--jobs", type=int, default=1, show_default=True, help=f"{part.title()}s at a time."
        ),
        out_option(f"The folder; a stopped {whole} goes on.", required=True),
    )

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def load_arguments(
    dataset: str, data: Mapping[str, Any], split_seed: int
) -> tuple[str, dict[str, Any]]:
    """The arguments of ``robustcf.data.load`` from what was typed: paths that stay valid."""
    from robustcf.data.catalog import find
    from robustcf.data.large.layout import manifest_of

    options = {"download": True} | {k: value for k, value in data.items() if value is not None}
    options["seed"] = split_seed
    if find(dataset) is None and os.path.exists(os.path.expanduser(dataset)):
        dataset = os.path.abspath(os.path.expanduser(dataset))
        # The manifest has the checksums of a prepared set, and a run that of the manifest.
        dataset = os.fspath(manifest_of(Path(dataset)) or dataset)
    for key in ("data_dir", "valid_file", "test_file"):
        if key in options:
            options[key] = os.path.abspath(os.path.expanduser(options[key]))
    return dataset, options


def parse_settings(settings: Sequence[str]) -> dict[str, Any]:
    """``KEY=VALUE`` words as training settings; values are read as JSON where they are JSON."""
    values = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals:
            raise click.UsageError(f"--set needs KEY=VALUE, got {setting!r}")
        try:
            values[key.replace("-", "_")] = parse_json(text)
        except InputError:
            values[key.replace("-", "_")] = text
    return values


def free_folder(name: str) -> Path:
    """A folder in ``runs/`` that is not there yet."""
    folder, number = Path("runs") / name, 1
    while folder.exists():
        number += 1
        folder = Path("runs") / f"{name}-{number}"
    return folder
