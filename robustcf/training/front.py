"""``train``: data in, a recommender out, by a preset, by a search, or by settings of your own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from robustcf._io.progress import shows
from robustcf._registry import FITTERS, MODELS
from robustcf._runtime import threads_used
from robustcf.data.loading import load
from robustcf.data.split import Split
from robustcf.errors import InputError
from robustcf.models.base import Model
from robustcf.recommender import Recommender
from robustcf.training.config import TrainConfig
from robustcf.training.fitting import fit_split
from robustcf.training.presets import adapted, choose
from robustcf.training.search import MINUTES, search


def train(
    data: Any,
    model: str | TrainConfig | None = None,
    *,
    reg: str | None = None,
    preset: str | None = None,
    minutes: float | None = None,
    seed: int | None = None,
    device: torch.device | str = "cpu",
    threads: int | None = None,
    progress: bool | None = None,
    report: Callable[[str], None] | None = None,
    **settings: Any,
) -> Recommender:
    """Train a recommender; test pairs are never touched.

    Data with a tuned preset get the best model known for them, other data a search over models and
    settings on their validation pairs, unless a model, a preset or settings are given.

    Args:
        data: a :class:`robustcf.data.Split`, or anything that :func:`robustcf.load` takes.
        model: a name (``softmax-mf``, ``ultragcn``, ``als``, ``vote``, ...), ``module:Class``, or a
            whole :class:`TrainConfig`; None for the best known or found.
        reg: the regularizer; None for the model's own.
        preset: ``tuned``, ``robust`` (chosen for quality under attack), ``paper``, ``auto``
            (search), or a file that ``robustcf tune`` wrote.
        minutes: time of a search at most; it ends earlier where more does not pay.
        seed: of training and of the search; None for 0, or the configuration's.
        device: where the tensors live.
        threads: CPU threads; None for ``OMP_NUM_THREADS`` or the cores that may be used.
        progress: whether to show a bar; None: in a terminal and in a notebook.
        report: called with a line for each trial of a search; None shows them with the bar.
        **settings: training settings by their flat names: ``dim=64``, ``lr=0.01``, ``epochs=20``.

    Returns:
        The recommender; ``.training`` says how it came about.

    Raises:
        InputError: a name or a setting is unknown or out of range.
        TrainingError: training diverged.
        KeyboardInterrupt: it was interrupted in a search, before any model was trained.

    Cost: seconds for a preset; a search takes five minutes at most.

    Example:
        >>> from robustcf.data import checkerboard
        >>> model = train(checkerboard(), "bpr-mf", dim=4, epochs=2)
        >>> model.recommend(0, k=3).columns.tolist()
        ['user', 'rank', 'item', 'score']
    """
    split = data if isinstance(data, Split) else load(data)
    named = {"reg": reg, "preset": preset, "minutes": minutes}
    given = [name for name, value in named.items() if value is not None]
    with threads_used(threads, split.n_users, split.n_items):
        if isinstance(model, str) and model in FITTERS:
            if given:
                raise InputError(f"{model} has no {' and '.join(given)}: leave it out")
            if torch.device(device).type != "cpu":
                raise InputError(f"{model} is fit on the cpu, got the device {str(device)!r}")
            fitted: Recommender = FITTERS[model](split, seed=seed or 0, **settings)
            return fitted
        facts: dict[str, Any] = {}
        if isinstance(model, TrainConfig):
            given += [name for name, value in settings.items() if value is not None]
            if given:
                raise InputError(
                    f"a TrainConfig has all settings in it: leave {', '.join(given)} out, or use "
                    "config.replace(...)"
                )
            config = model if seed is None else model.replace(seed=seed)
        else:
            chosen = choose(split.name, model, reg, preset, changed=settings)
            if minutes is not None and not chosen.searches:
                raise InputError("minutes is the time of a search, and none is made here")
            config, facts["preset"] = adapted(chosen.config, settings), chosen.name
            if chosen.searches:
                limit = MINUTES if minutes is None else minutes
                found = search(
                    split,
                    minutes=limit,
                    seed=seed or 0,
                    device=device,
                    report=report,
                    progress=shows(progress),
                )
                config, facts["search"] = found.config, found.summary()
            config = config.replace(seed=seed or 0)
        trained = fit_split(split, config, device=device, progress=shows(progress))
        return trained.recommender(**facts, interrupted=trained.interrupted)


def model_config(kind: type[Model[Any]], settings: Mapping[str, Any]) -> TrainConfig:
    """Return the configuration of a model class, which its name must find, and flat settings."""
    known = kind.name in MODELS and MODELS[kind.name] is kind
    name = kind.name if known else f"{kind.__module__}:{kind.__qualname__}"
    if not known and ("." in kind.__qualname__ or kind.__module__ == "__main__"):
        raise InputError(
            f"{kind.__qualname__} must be importable by its name to be trained and saved: define "
            "it at the top of a module that can be imported"
        )
    return TrainConfig.of(model=name, **settings)
