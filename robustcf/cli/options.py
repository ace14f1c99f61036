"""Options that several commands have, and what is made of them."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from robustcf.cli.kinds import COUNT, SEED, SHARE
from robustcf.cli.reporting import typed_threads
from robustcf.cli.signatures import Decorator, choice, options
from robustcf.errors import InputError

_LOAD = "data.loading:load"
# How a table is read and split, and where files are.
_READ = ("user_col", "item_col", "rating_col", "time_col", "min_rating")
_SPLIT = ("k_core", "split", "test_ratio", "valid_ratio", "test_from", "valid_from")
_FILES = ("valid_file", "test_file")
_KINDS: dict[str, Any] = {
    "k_core": COUNT,
    "split": choice("data.holdout:Strategy"),
    **dict.fromkeys(("test_ratio", "valid_ratio"), SHARE),
    "eval_users": COUNT,
}

eval_users_option = options(_LOAD, "eval_users", **_KINDS)
seed_option = click.option("--seed", type=SEED, default=0, show_default=True, help="Training seed.")
split_seed_option = click.option(
    "--split-seed", type=SEED, default=0, show_default=True, help="Seed of a drawn split."
)
device_option = click.option("--device", default="cpu", show_default=True, help="Torch device.")
own_threads_option = click.option(
    "--threads",
    type=int,
    callback=lambda context, parameter, value: typed_threads(value),
    help="CPU threads of a training, kept with it (default: OMP_NUM_THREADS, or the cores).",
)
settings_option = click.option(
    "--set",
    "settings",
    metavar="KEY=VALUE",
    multiple=True,
    callback=lambda context, parameter, words: dict(map(_setting, words)),
    help="Any other training setting.",
)
budget_option = options(
    "robustness.threat:Threat", "norm=budget", norm=choice("attacks.budgets:BUDGETS")
)
side_option = options("robustness.threat:Threat", "side", side=choice("attacks.base:SIDES"))
cutoffs_option = click.option(
    "--k", "ks", type=COUNT, multiple=True, default=(10, 20), show_default=True, metavar="K...",
    help="Cutoffs; beyond the catalogue: all items.",
)  # fmt: skip


def own_table_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of ``robustcf.data.load`` that say how a table is read and split."""
    return options(_LOAD, *_READ, *_SPLIT, "eval_users", **_KINDS)(function)


def load_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of ``robustcf.data.load``; the command gets those given as ``data``."""
    names = ("data_dir", "download", *_READ, *_SPLIT, *_FILES, "eval_users")

    @options(_LOAD, *names, **_KINDS)
    @functools.wraps(function)
    def command(*args: Any, **kwargs: Any) -> Any:
        given = {name: kwargs.pop(name) for name in names}
        data = {name: value for name, value in given.items() if value is not None}
        return function(*args, data=data, **kwargs)

    return command


def data_options(*, required: bool = True) -> Decorator:
    """Add ``--dataset``, ``--split-seed`` and those of ``robustcf.data.load``.

    The command gets ``dataset`` and ``data``, its other arguments, with paths that stay valid.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @click.option(
            "--dataset",
            metavar="NAME|FILE",
            required=required,
            help="A known set, or a file of your own.",
        )
        @split_seed_option
        @load_options
        @functools.wraps(function)
        def command(
            *args: Any, dataset: str | None, split_seed: int, data: dict[str, Any], **kwargs: Any
        ) -> Any:
            from robustcf.data.catalog import find
            from robustcf.data.large import manifest_of

            data = {"download": True, **data, "seed": split_seed}
            if dataset and find(dataset) is None and os.path.exists(os.path.expanduser(dataset)):
                # The manifest has the checksums of a prepared set, and a run that of the manifest.
                dataset = os.fspath(manifest_of(Path(absolute(dataset))) or absolute(dataset))
            data |= {key: absolute(data[key]) for key in ("data_dir", *_FILES) if key in data}
            return function(*args, dataset=dataset, data=data, **kwargs)

        return command

    return decorate


def training_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add what every training has: settings, seed, threads, device, and its run directory."""
    resume = click.option(
        "--resume", metavar="RUN", help="Resume a run that was killed or interrupted."
    )
    out = out_option("The run directory (default: a new one in runs/).")
    for option in (resume, out, device_option, own_threads_option, seed_option, settings_option):
        function = option(function)
    return function


def unit_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--relative [own]`` and ``--absolute``; the command gets ``unit``."""

    @click.option(
        "--relative",
        type=click.Choice(["median", "own"]),
        is_flag=False,
        flag_value="median",
        metavar="[own]",
        help="Sizes in units of the factors (median row norm, Frobenius or spectral norm): the "
        "default. own: in each row's own length.",
    )
    @click.option("--absolute", is_flag=True, help="Sizes as they are.")
    @functools.wraps(function)
    def command(*args: Any, relative: str | None, absolute: bool, **kwargs: Any) -> Any:
        if relative and absolute:
            raise click.UsageError("--relative and --absolute exclude each other: give one")
        unit = "own" if relative == "own" else "relative"
        return function(*args, unit="absolute" if absolute else unit, **kwargs)

    return command


def _not_empty(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and not value.strip():
        raise click.BadParameter("must be a name, got an empty one")
    return value


def out_option(what: str, metavar: str = "DIR", *, required: bool = False) -> Decorator:
    """Return ``--out``: where a command writes; an empty name is refused."""
    return click.option("--out", metavar=metavar, required=required, callback=_not_empty, help=what)


def grid_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add what every grid of trainings has: settings, threads and jobs, and the folder."""
    jobs = click.option(
        "--jobs", type=int, default=1, show_default=True, help="Trainings at a time."
    )
    out = out_option("The folder; a stopped command is resumed from it.", required=True)
    for option in (out, jobs, own_threads_option, settings_option):
        function = option(function)
    return function


def refuse(why: str, *names: str) -> None:
    """Raise for options that were typed and would be ignored, by the names of their parameters."""
    context = click.get_current_context()
    typed = click.core.ParameterSource.COMMANDLINE
    given = [
        (p.secondary_opts if p.secondary_opts and not context.params[p.name or ""] else p.opts)[0]
        for p in context.command.params
        if p.name in names and context.get_parameter_source(p.name) is typed
    ]
    if given:
        raise click.UsageError(
            f"{' and '.join(given)} {why}: leave {'it' if len(given) == 1 else 'them'} out"
        )


def refuse_with_resume(*used: str) -> None:
    """Raise for options other than those that resuming a run uses."""
    names = {each.name or "" for each in click.get_current_context().command.params}
    refuse("has no effect with --resume", *names - {"resume", "as_json", "debug", *used})


def absolute(path: str) -> str:
    """Return a path that is valid from any folder."""
    return os.path.abspath(os.path.expanduser(path))


def _setting(word: str) -> tuple[str, Any]:
    """Return ``KEY=VALUE`` as key and value, which is read as JSON where it is JSON."""
    from robustcf._io.reading import parse_json  # numpy comes with it

    key, equals, text = word.partition("=")
    if not equals:
        raise click.UsageError(f"--set needs KEY=VALUE, got {word!r}")
    try:
        return key.replace("-", "_"), parse_json(text)
    except InputError:
        return key.replace("-", "_"), text
