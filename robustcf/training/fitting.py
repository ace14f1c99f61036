"""Trained factors from a split and a configuration: choice of epochs, refit, gauge."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from robustcf._distributed import Rows, alone, current
from robustcf._registry import MODELS, OBJECTIVES, REGULARIZERS
from robustcf._runtime import memory
from robustcf.data.interactions import Interactions
from robustcf.data.shards import Shard, SplitShard
from robustcf.data.split import Split
from robustcf.data.synthetic import checkerboard
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.metrics.evaluate import MetricReport, evaluate, evaluate_rankings
from robustcf.models import Model
from robustcf.models.factorized import FoldedScorer, served
from robustcf.models.gauge import Gauge, shrink, truncate
from robustcf.models.scorer import Scorer
from robustcf.objectives import Batches, Objective
from robustcf.recommender import FactorScorer, FoldIn, Recommender
from robustcf.regularizers import Regularizer
from robustcf.training.adversarial import Adversary, adversary
from robustcf.training.checkpoints import Checkpoint, SharedCheckpoint
from robustcf.training.config import PARTS, TrainConfig, learns_valid
from robustcf.training.loop import Fitted, Optimizer, Stop, fit, two_to_inf


@dataclass(frozen=True, eq=False)
class Trained:
    """Trained factors, or the scorer of an item-item model, and the facts of the training."""

    fitted: Factors | Scorer  # factors on one of several ranks: of its own users
    config: TrainConfig
    split: Split
    fit_on: str  # ``train``, or ``train and valid``
    epochs: int  # behind the factors
    history: list[dict[str, Any]]  # one row per epoch, of all stages
    train_seconds: float  # validations included
    valid: MetricReport | None = None  # of the factors that were fit without valid
    interrupted: bool = False
    rows: Rows | None = None  # this rank's users, if several ranks trained

    @property
    def seen(self) -> Interactions:
        """The pairs it was fit on."""
        return self.split.fit_pairs(self.fit_on)

    def evaluate(self, ks: tuple[int, ...] = (10, 20)) -> MetricReport:
        """Return test metrics by the set's protocol, with the fitted pairs masked."""
        mask = self.split.fit_mask(self.fit_on, "test")
        judged = self.split if self.rows is None else SplitShard(self.split, self.rows)
        folded = self.config.serve != "stored"
        return _evaluated(self.scorer if folded else self.fitted, judged, ks, mask=mask)

    @property
    def factors(self) -> Factors:
        """The embeddings; an InputError for a model without them."""
        if isinstance(self.fitted, Scorer):
            self.fitted.no_embeddings()
        if self.config.serve == "stored":
            return self.fitted
        return FoldedScorer.of(FactorScorer(self.fitted), self.seen).factors

    @property
    def scorer(self) -> Scorer:
        """What serves; users are stored, or computed from their histories."""
        if isinstance(self.fitted, Scorer):
            return self.fitted
        stored = FactorScorer(self.fitted, fold_in=self._fold_in())
        return served(stored, self.config.serve, self.seen)

    def gathered(self) -> Trained | None:
        """Return the training of all users on the first rank; all ranks must call it."""
        if self.rows is None:
            return self
        users = self.rows.ranks.to_first(self.factors.users.cpu())
        if users is None:
            return None
        return replace(self, fitted=Factors(users, self.factors.items.cpu()), rows=None)

    def two_to_inf(self) -> float | None:
        """Return the norm of the scores of all users; all ranks must call it.

        None for item-item models: their scores are not a product of two small factors.
        """
        if isinstance(self.fitted, Scorer):
            return None
        norm = two_to_inf(self.factors)
        return norm if self.rows is None else self.rows.ranks.greatest(norm)[0]

    def recommender(self, **training: Any) -> Recommender:
        """Return the recommender, with more facts of its training; all ranks must call it."""
        if self.rows is not None:
            whole = self.gathered()
            if whole is None:
                raise InputError("only the first rank has the factors of all users")
            return whole.recommender(**training)
        facts = {
            "config": self.config.as_dict(),
            "epochs": self.epochs,
            "train_seconds": round(self.train_seconds, 3),
            "valid": None if self.valid is None else self.valid.as_dict(),
            "history": self.history,
        }
        stored = replace(self, config=replace(self.config, serve="stored"))
        model = Recommender.of(
            stored.scorer,
            self.split,
            fit_on=self.fit_on,
            label=f"{self.config.model.name}, {self.config.reg.name}",
            training={**facts, **training},
        )
        return model if self.config.serve == "stored" else model.serving(self.config.serve)

    def _fold_in(self) -> FoldIn:
        """Return the embedding of new users: by the objective and the decay of a user's row."""
        config = self.config.resolved()
        own = MODELS[config.model.name].fold_in_by(config.model.settings, self.seen)
        if own is not None and config.gauge == "none":
            return own
        decays = config.reg.name == "weight_decay"
        weight = config.reg.settings.weight * len(self.seen) / 1024 if decays else FoldIn().ridge
        return FoldIn(
            config.objective.name,
            vars(config.objective.settings),
            ridge=weight,
            offset=config.gauge != "none",
            unit=config.gauge == "none" and getattr(config.model.settings, "normalize", False),
        )


def build_model(
    config: TrainConfig, train: Interactions, *, device: torch.device | str = "cpu", **options: Any
) -> Model[Any]:
    """Return the model of a configuration; options are ``start`` and ``shard``."""
    chosen = config.resolved().model
    kind = MODELS[chosen.name]
    return kind(train, chosen.settings, seed=config.seed, device=device, **options)


def build_objective(
    config: TrainConfig, pairs: Interactions, *, device: torch.device | str = "cpu", **options: Any
) -> Objective[Any]:
    """Return the objective of a configuration; the option is ``shard``."""
    chosen = config.resolved().objective
    return OBJECTIVES[chosen.name](pairs, chosen.settings, device=device, **options)


def build_regularizer(config: TrainConfig) -> Regularizer:
    """Return the regularizer of a configuration."""
    chosen = config.resolved().reg
    return REGULARIZERS[chosen.name].configured(chosen.settings, config.seed)


def build_adversary(config: TrainConfig, batches: Batches) -> Adversary | None:
    """Return the adversary of a configuration; None for ``none`` or a weight of 0."""
    chosen = config.resolved().adversary
    if chosen.name == "none" or chosen.settings.weight == 0:
        return None
    return adversary(chosen.name, batches, chosen.settings)


def gauged(factors: Factors, config: TrainConfig, rows: Rows | None = None) -> Factors:
    """Return factors in the gauge, shrink and rank of a configuration.

    With ``rows``, the factors are one rank's, and all ranks must call it.
    """
    if config.gauge == "none":
        return factors
    balanced = Gauge.balanced(factors.users, factors.items, rows).apply(factors)
    return truncate(shrink(balanced, config.shrink, rows), config.rank)


def check_trainable(
    split: Split, config: TrainConfig, *, device: torch.device | str = "cpu"
) -> None:
    """Raise before training for settings that would fail later, or not fit into memory.

    Combinations are tried in one epoch on a toy set; code from outside of the package is imported
    but not run. Memory is estimated.

    Cost: some hundredths of a second.
    """
    config = config.resolved()
    _check_memory(split, config, torch.device(device))
    if any(getattr(config, part).name not in table for part, table in PARTS.items()):
        return
    # Enough columns for the checks of their number.
    dim = getattr(config.model.settings, "factors", None)
    small: dict[str, Any] = {} if dim is None else {"factors": min(dim, 64)}
    small["rank"] = None if config.rank is None else min(config.rank, 64)
    whole = checkerboard()
    drawn = getattr(config.objective.settings, "sampled_items", None)
    if drawn is not None:
        if drawn > split.n_items:
            build_objective(config, split.train)  # raises for these items
        small["sampled_items"] = min(drawn, whole.n_items)
    toy = config.replace(**small, epochs=min(config.epochs, 1))
    nothing = whole.valid.take(np.zeros(len(whole.valid), dtype=bool))
    try:
        with alone():
            tried = fit_split(replace(whole, valid=nothing), toy)
    except InputError:
        raise
    except Exception:
        return  # diverged on the toy, for example: only certain errors are raised here
    if tried.interrupted:
        raise KeyboardInterrupt


def _check_memory(split: Split, config: TrainConfig, device: torch.device) -> None:
    there = memory()
    if there is None or device.type != "cpu":
        return
    dim = getattr(config.model.settings, "factors", 0)
    # Six copies: parameters, gradients, two moments, the best epoch, and temporaries.
    users = -(-split.n_users // current().size)
    counts = {f"factors={dim}": 6 * 4 * dim * (users + split.n_items)}
    if config.batching.kind == "pairs":
        negatives = getattr(config.objective.settings, "negatives", 0)
        size = min(config.batching.batch_size, len(split.train))
        words = f"negatives {negatives} with batch_size {config.batching.batch_size}"
        counts[words] = size * negatives * (8 + 2 * 4 * dim)
    for words, needed in counts.items():
        if needed > there:
            sizes = f"about {needed / 1e9:,.0f} GB of memory, got {there / 1e9:,.0f}"
            raise InputError(f"{words} needs {sizes}: choose a smaller number")


def fit_split(
    split: Split,
    config: TrainConfig | None = None,
    *,
    device: torch.device | str = "cpu",
    checkpoint: Checkpoint | None = None,
    progress: bool = False,
) -> Trained:
    """Train on a split; test pairs are never touched.

    Unless the number of epochs is already chosen, it is chosen on valid by NDCG@10, learning from
    train alone. Then, by ``config.refit``, the model is trained again for that many epochs on train
    and valid together (``auto``: if valid was carved out of the training pairs).

    Within :func:`robustcf._distributed.joined`, all ranks call this with the same arguments; each
    trains and returns its own users.

    Args:
        config: None for the preset of the split's name, or the defaults.
        checkpoint: where to keep the state, and to resume from.
    """
    if config is None:
        from robustcf.training.presets import preset  # reads all presets

        config = preset(split.name).config
    config = config.resolved()
    if not MODELS[config.model.name].has_embeddings:
        return _fit_without_embeddings(split, config, device)
    rows = Rows.of(split.n_users)
    shared = None if rows.whole else rows
    if shared is not None and config.serve != "stored":
        raise InputError("users are computed from their histories in one process: serve stored")
    judged: Split | SplitShard = split
    if shared is not None:
        judged = SplitShard(split, shared)
        checkpoint = SharedCheckpoint(checkpoint, shared)
        progress = progress and shared.ranks.first

    def fitted_on(pairs: Interactions, stop: Stop, stage: str) -> Fitted:
        shard = Shard(pairs, rows)
        options: dict[str, Any] = {} if shared is None else {"shard": shard}
        objective = build_objective(config, shard.pairs, device=device, **options)
        batches = Batches(objective, config.batching, seed=config.seed)
        reg = build_regularizer(config)
        degrees = (shard.pairs.user_degrees, shard.item_degrees)
        reg.prepare(*(torch.tensor(each, device=device) for each in degrees))
        steps = Optimizer(config.lr, config.user_lr, config.schedule, config.beta1, config.beta2)
        return fit(
            build_model(config, shard.pairs, device=device, **options),
            batches,
            stop,
            reg=reg,
            reg_weight=config.reg.settings.weight,
            adversary=build_adversary(config, batches),
            optimizer=steps,
            checkpoint=checkpoint,
            stage=stage,
            progress=progress,
        )

    def validate(factors: Factors) -> npt.NDArray[np.float64]:
        return evaluate(factors, judged, (10,), part="valid").per_user["ndcg@10"]

    refit, has_valid = learns_valid(config.refit, split), len(split.valid) > 0
    began = time.perf_counter()
    history: list[dict[str, Any]] = []
    fit_on, epochs, factors, valid = "train", config.epochs, None, None
    interrupted = False
    with alone():  # each rank has its own data from here on
        if not (config.epochs_chosen and refit):
            choosing = has_valid and not config.epochs_chosen
            chosen_by = validate if choosing else None
            stop = Stop(config.epochs, chosen_by, config.eval_every, config.patience)
            fitted = fitted_on(split.train, stop, "train")
            factors = gauged(fitted.factors, config, shared)
            history, epochs, interrupted = fitted.history, fitted.epochs, fitted.interrupted
            if has_valid:
                stage = Trained(factors, config, split, "train", epochs, [], 0.0)
                fitted_by = factors if config.serve == "stored" else stage.scorer
                valid = _evaluated(fitted_by, judged, part="valid")
        if factors is None or (refit and not interrupted):
            fitted = fitted_on(split.train_full, Stop(epochs, planned=config.epochs), "refit")
            factors = gauged(fitted.factors, config, shared)
            fit_on, epochs, interrupted = "train and valid", fitted.epochs, fitted.interrupted
            history = history + fitted.history
    # The epochs may include some of an earlier process.
    seconds = max(time.perf_counter() - began, sum(float(row["seconds"]) for row in history))
    return Trained(
        factors, config, split, fit_on, epochs, history, seconds, valid, interrupted, shared
    )


def fit_scorer(
    pairs: Interactions, settings: Mapping[str, Any], *, seed: int, device: torch.device | str
) -> Scorer:
    """Return the scorer of a model with flat settings, fit to pairs without validation."""
    nothing = pairs.take(np.zeros(len(pairs), dtype=bool))
    config = TrainConfig.of(**settings, seed=seed, epochs_chosen=True)
    trained = fit_split(Split("pairs", pairs, nothing, nothing), config, device=device)
    if trained.interrupted:
        raise KeyboardInterrupt
    return trained.recommender().scorer


def _fit_without_embeddings(
    split: Split, config: TrainConfig, device: torch.device | str
) -> Trained:
    """Fit an item-item model or an ensemble: no epochs, no gauge, one process."""
    if config.gauge != "none":
        raise InputError(f"{config.model.name} has no embeddings for a gauge: leave it out")
    if config.serve != "stored":
        raise InputError(f"{config.model.name} scores by histories already: leave serve out")
    began, valid = time.perf_counter(), None
    fit_on = "train and valid" if learns_valid(config.refit, split) else "train"
    pairs = split.fit_pairs(fit_on)
    shard = Shard(pairs, Rows.of(split.n_users))
    model: Any = build_model(config, pairs, shard=shard, device=device)
    scorer: Scorer = model.scorer()
    if fit_on == "train" and len(split.valid):
        valid = _evaluated(scorer, split, part="valid")
    seconds = time.perf_counter() - began
    return Trained(scorer, config, split, fit_on, 0, [], seconds, valid)


def _evaluated(fitted: Factors | Scorer, split: Any, *args: Any, **how: Any) -> MetricReport:
    if isinstance(fitted, Scorer):
        return evaluate_rankings(fitted.rank, split, *args, **how)
    return evaluate(fitted, split, *args, **how)
