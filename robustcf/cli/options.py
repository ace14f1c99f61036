"""Options that several commands share."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from robustcf._registry import POISONINGS
from robustcf.cli.kinds import COUNT, SEED, SHARE, Choice, Fakes, NameOf
from robustcf.cli.reporting import typed_threads
from robustcf.cli.signatures import Decorator, options
from robustcf.errors import InputError

_LOAD, _THREAT = "data.loading:load", "robustness.threat:Threat"
_TABLE = (
    *("user_col", "item_col", "rating_col", "time_col", "min_rating"),
    *("k_core", "split", "test_ratio", "valid_ratio", "test_from", "valid_from"),
)
_FILES = ("valid_file", "test_file")
_KINDS: dict[str, Any] = {
    "split": "data.holdout:Strategy",
    **dict.fromkeys(("test_ratio", "valid_ratio"), SHARE),
    **dict.fromkeys(("k_core", "eval_users"), COUNT),
}


def together(*decorators: Decorator) -> Decorator:
    """Return one decorator that adds several options, in this order."""
    return lambda function: functools.reduce(lambda f, add: add(f), reversed(decorators), function)


def _not_empty(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and not value.strip():
        raise click.BadParameter("expected a name, got an empty one")
    return value


def out_option(what: str, metavar: str = "DIR", *, required: bool = False) -> Decorator:
    """Return ``--out``, the place that a command writes to; an empty name is refused."""
    return click.option("--out", metavar=metavar, required=required, callback=_not_empty, help=what)


serve_option = click.option(
    "--serve",
    type=Choice(["stored", "fold-in"]),
    default="stored",
    show_default=True,
    help="Stored user embeddings; or fold-in: users computed from their histories, none stored.",
)


def _seed(name: str, words: str) -> Decorator:
    return click.option(name, type=SEED, default=0, show_default=True, help=words)


eval_users_option = options(_LOAD, "eval_users", **_KINDS)
split_seed_option = _seed("--split-seed", "Seed of a drawn split.")
device_option = click.option("--device", default="cpu", show_default=True, help="Torch device.")
_own_threads_option = click.option(
    "--threads",
    type=int,
    callback=lambda context, parameter, value: typed_threads(value),
    help="CPU threads of a training (default: OMP_NUM_THREADS, or the cores).",
)
settings_option = click.option(
    "--set",
    "settings",
    metavar="KEY=VALUE",
    multiple=True,
    callback=lambda context, parameter, words: dict(map(_setting, words)),
    help="Any other training setting.",
)
budget_option = options(_THREAT, "norm=budget", norm="attacks.budgets:BUDGETS")
side_option = options(_THREAT, "side", side="robustness.threat:SURFACES")
cutoffs_option = options("robustness.measuring:measure", "ks=k", ks=COUNT)
#: How a table is read and split.
own_table_options = options(_LOAD, *_TABLE, "eval_users", **_KINDS)
#: Options of every training.
training_options = together(
    settings_option,
    _seed("--seed", "Training seed."),
    _own_threads_option,
    device_option,
    out_option("The run directory (default: a new one in runs/)."),
    click.option("--resume", metavar="RUN", help="Resume a run that was killed or interrupted."),
)


def load_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of ``robustcf.data.load``; the command gets those given as ``data``."""
    names = ("data_dir", "download", *_TABLE, *_FILES, "eval_users")

    @options(_LOAD, *names, **_KINDS)
    @functools.wraps(function)
    def command(*args: Any, **kwargs: Any) -> Any:
        given = {name: kwargs.pop(name) for name in names}
        data = {name: value for name, value in given.items() if value is not None}
        return function(*args, data=data, **kwargs)

    return command


def data_options(*, required: bool = True) -> Decorator:
    """Add ``--dataset``, ``--split-seed`` and the options of ``robustcf.data.load``.

    The command gets ``dataset`` and ``data``, its other arguments, with absolute paths.
    """
    words = "The name of a data set, or a file of your own."
    named = click.option("--dataset", metavar="NAME|FILE", required=required, help=words)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
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

        return together(named, split_seed_option, load_options)(command)

    return decorate


def unit_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--relative`` and ``--absolute``; the command gets ``unit``."""

    @click.option(
        "--relative",
        is_flag=True,
        help="Sizes in median row norms, or with --budget frobenius or spectral (where this is the "
        "default) in that norm of the factor; default for rows: each row's own length.",
    )
    @click.option("--absolute", is_flag=True, help="Absolute sizes.")
    @functools.wraps(function)
    def command(*args: Any, relative: bool, absolute: bool, **kwargs: Any) -> Any:
        if relative and absolute:
            raise click.UsageError("--relative and --absolute exclude each other: give one")
        unit = "relative" if relative or kwargs.get("budget", "row") != "row" else "own"
        return function(*args, unit="absolute" if absolute else unit, **kwargs)

    return command


def grid_options(seeds: int) -> Decorator:
    """Add the options of every grid of trainings; the command gets ``seeds`` as a tuple."""
    return together(
        click.option(
            "--seeds",
            type=click.IntRange(1, 1000),
            default=seeds,
            show_default=True,
            callback=lambda context, parameter, value: tuple(range(value)),
            help="Number of seeds per setting; they are 0, 1, ...",
        ),
        settings_option,
        _own_threads_option,
        click.option("--jobs", type=int, default=1, show_default=True, help="Trainings at a time."),
        out_option("The folder; a stopped command is resumed from it.", required=True),
    )


def accounts_options(place: str) -> Decorator:
    """Add the options of fake accounts, of the plan at ``place``; the command gets its arguments.

    Lists that were not given are left to the plan.
    """
    added = together(
        options(place, "attacks=attack", unset=True, attacks=NameOf(POISONINGS, "auto")),
        options(place, "fakes", unset=True, fakes=Fakes()),
        options(
            "poisoning.threat:Targets",
            *("count=targets", "kind=target_kind", "labels=target"),
            kind="poisoning.threat:TARGET_KINDS",
        ),
        options(
            "poisoning.threat:PoisonThreat",
            *("length", "knowledge", "known"),
            knowledge="poisoning.threat:KNOWLEDGE",
        ),
        options(place, "ks=k", unset=True, ks=COUNT),
    )

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def command(
            *args: Any, targets: int, target_kind: str, labels: tuple[str, ...], **how: Any
        ) -> Any:
            from robustcf.poisoning.threat import Targets

            if labels:
                refuse("has no effect with --target", "targets", "target_kind")
            if how["knowledge"] != "part":
                refuse("is for --knowledge part", "known")
            left = [name for name in ("attacks", "fakes", "ks") if not how[name]]
            how = {name: value for name, value in how.items() if name not in left}
            return function(*args, targets=Targets(targets, target_kind, labels), **how)

        return added(command)

    return decorate


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
        it = "it" if len(given) == 1 else "them"
        raise click.UsageError(f"{' and '.join(given)} {why}: leave {it} out")


def refuse_with_resume(*used: str) -> None:
    """Raise for options other than those that resuming a run uses."""
    names = {each.name or "" for each in click.get_current_context().command.params}
    refuse("has no effect with --resume", *names - {"resume", "as_json", "debug", *used})


def absolute(path: str) -> str:
    """Return a path that is valid from any folder."""
    return os.path.abspath(os.path.expanduser(path))


def _setting(word: str) -> tuple[str, Any]:
    """Return ``KEY=VALUE`` as key and value, which is read as JSON where it is JSON."""
    from robustcf._io.reading import parse_json  # imports numpy

    key, equals, text = word.partition("=")
    if not equals:
        raise click.UsageError(f"--set needs KEY=VALUE, got {word!r}")
    try:
        return key.replace("-", "_"), parse_json(text)
    except InputError:
        return key.replace("-", "_"), text
