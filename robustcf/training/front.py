"""``train``: data in, a recommender out, by a preset, a search or given settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from robustcf._io.progress import shows
from robustcf._registry import FITTERS, MODELS, TRAINING
from robustcf._runtime import threads_used
from robustcf.data.loading import load
from robustcf.data.split import Split
from robustcf.errors import InputError
from robustcf.models.base import Model
from robustcf.recommender import Recommender
from robustcf.training.config import TrainConfig
from robustcf.training.fitting import fit_split
from robustcf.training.presets import adapted, check_used, choose
from robustcf.training.search import search, search_settings


def train(
    data: Any,
    model: str | TrainConfig | None = None,
    *,
    reg: str | None = None,
    preset: str | None = None,
    minutes: float | None = None,
    trials: int | None = None,
    memory: float | None = None,
    seed: int | None = None,
    device: torch.device | str = "cpu",
    threads: int | None = None,
    progress: bool | None = None,
    report: Callable[[str], None] | None = None,
    **settings: Any,
) -> Recommender:
    """Train a recommender; test pairs are never touched.

    Data with a tuned preset get the best known model. Other data get a search on their validation
    pairs, unless a model, a preset or settings are given.

    Args:
        data: a :class:`robustcf.data.Split`, or anything that :func:`robustcf.load` takes.
        model: a name (``softmax-mf``, ``ultragcn``, ``als``, ``vote``, ...), ``module:Class``, or a
            whole :class:`TrainConfig`; None for the best known or found.
        reg: the regularizer; None for the model's own.
        preset: ``tuned``, ``robust`` (for quality under attack), ``paper``, ``auto`` (search), or a
            file that ``robustcf tune`` wrote.
        minutes: CPU time of a search at most, as for ``trials`` and ``memory``, see
            :func:`robustcf.training.search.search`.
        seed: of training and search; None for 0, or the configuration's.
        threads: CPU threads; None for ``OMP_NUM_THREADS`` or the available cores.
        progress: whether to show a bar; None for terminals and notebooks only.
        report: called with a line per trial of a search; None shows them with the bar.
        **settings: settings by their flat names: ``factors=64``, ``lr=0.01``, ``epochs=20``.

    Returns:
        The recommender; ``.training`` holds the settings and the history.

    Raises:
        InputError: a name or a setting is unknown, out of range or without effect.
        TrainingError: training diverged.
        KeyboardInterrupt: a search was interrupted.

    Cost: seconds for a preset; a search takes five minutes at most.

    Example:
        >>> from robustcf.data import checkerboard
        >>> model = train(checkerboard(), "bpr-mf", factors=4, epochs=2)
        >>> model.recommend(0, k=3).columns.tolist()
        ['user', 'rank', 'item', 'score']
    """
    split = data if isinstance(data, Split) else load(data)
    limits: dict[str, Any] = {"minutes": minutes, "trials": trials, "memory": memory}
    named = {"reg": reg, "preset": preset, **limits}
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
            if not chosen.searches and any(own is not None for own in limits.values()):
                raise InputError(f"{', '.join(limits)} are for a search: this training has none")
            config, facts["preset"] = adapted(chosen.config, settings), chosen.name
            check_used(config, settings)
            if chosen.under_attack:
                if trials is not None or memory is not None:
                    raise InputError(
                        "the preset robust is searched for by minutes: leave trials and memory out"
                    )
                found = TRAINING["frontier"](split, minutes=minutes, seed=seed or 0, report=report)
                config = adapted(found.config, settings) if settings else found.config
                facts["frontier"] = {**vars(found.chosen), "kept": found.kept, "size": found.size}
            elif chosen.searches:
                how = {**search_settings(**limits), "seed": seed or 0, "device": device}
                found = search(split, report=report, progress=shows(progress), **how)
                config, facts["search"] = found.config, found.summary()
            config = config.replace(seed=seed or 0)
        trained = fit_split(split, config, device=device, progress=shows(progress))
        return trained.recommender(**facts, interrupted=trained.interrupted)


def model_config(kind: type[Model[Any]], settings: Mapping[str, Any]) -> TrainConfig:
    """Return the configuration of an importable model class with flat settings."""
    known = kind.name in MODELS and MODELS[kind.name] is kind
    name = kind.name if known else f"{kind.__module__}:{kind.__qualname__}"
    if not known and ("." in kind.__qualname__ or kind.__module__ == "__main__"):
        raise InputError(f"{kind.__qualname__} must be defined at the top of an importable module")
    return TrainConfig.of(model=name, **settings)
