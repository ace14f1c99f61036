"""From a split and a configuration to trained factors: choosing epochs, refitting, the gauge."""

from __future__ import annotations

import time
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
from robustcf.metrics.evaluate import MetricReport, evaluate
from robustcf.models import Model
from robustcf.models.gauge import Gauge, shrink, truncate
from robustcf.objectives import Batches, Objective
from robustcf.recommender import FactorScorer, FoldIn, Recommender
from robustcf.regularizers import Regularizer
from robustcf.training.adversarial import Adversary, adversary
from robustcf.training.checkpoints import Checkpoint, SharedCheckpoint
from robustcf.training.config import PARTS, TrainConfig, learns_valid
from robustcf.training.loop import Fitted, Optimizer, Stop, fit, two_to_inf


@dataclass(frozen=True, eq=False)
class Trained:
    """Trained factors and how they came about."""

    factors: Factors  # on one of several ranks, of its own users
    config: TrainConfig
    split: Split
    fit_on: str  # ``train``, or ``train and valid``
    epochs: int  # behind the factors
    history: list[dict[str, Any]]  # one row per epoch, of all stages
    train_seconds: float  # validations included
    valid: MetricReport | None = None  # of the factors that were fit without valid
    interrupted: bool = False
    rows: Rows | None = None  # the users of the factors, where several ranks trained

    @property
    def seen(self) -> Interactions:
        """Return the pairs it was fit on."""
        return self.split.fit_pairs(self.fit_on)

    def evaluate(self, ks: tuple[int, ...] = (10, 20)) -> MetricReport:
        """Return test metrics by the set's protocol; the pairs it was fit on are masked."""
        mask = self.split.fit_mask(self.fit_on, "test")
        judged = self.split if self.rows is None else SplitShard(self.split, self.rows)
        return evaluate(self.factors, judged, ks, mask=mask)

    def gathered(self) -> Factors | None:
        """Return the factors of all users, on the first of several ranks; all ranks must ask."""
        if self.rows is None:
            return self.factors
        users = self.rows.ranks.to_first(self.factors.users.cpu())
        return None if users is None else Factors(users, self.factors.items.cpu())

    def two_to_inf(self) -> float:
        """Return the norm of the scores of all users; of several ranks, all must ask."""
        norm = two_to_inf(self.factors)
        return norm if self.rows is None else self.rows.ranks.greatest(norm)[0]

    def recommender(self, **training: Any) -> Recommender:
        """Return the recommender, with more facts of its training; all ranks must ask."""
        factors = self.gathered()
        if factors is None:
            raise InputError("the first rank has the factors of all users: ask there")
        facts = {
            "config": self.config.as_dict(),
            "epochs": self.epochs,
            "train_seconds": round(self.train_seconds, 3),
            "valid": None if self.valid is None else self.valid.as_dict(),
            "history": self.history,
        }
        return Recommender.of(
            FactorScorer(factors, fold_in=self._fold_in()),
            self.split,
            fit_on=self.fit_on,
            label=f"{self.config.model.name}, {self.config.reg.name}",
            training={**facts, **training},
        )

    def _fold_in(self) -> FoldIn:
        """Return how a new user is embedded: by the objective, and by the decay of a user's row."""
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
    """Return the model of a configuration on these pairs; options are a ``start``, a ``shard``."""
    chosen = config.resolved().model
    kind = MODELS[chosen.name]
    return kind(train, chosen.settings, seed=config.seed, device=device, **options)


def build_objective(
    config: TrainConfig, pairs: Interactions, *, device: torch.device | str = "cpu", **options: Any
) -> Objective[Any]:
    """Return the objective of a configuration on these pairs; the option is a ``shard``."""
    chosen = config.resolved().objective
    return OBJECTIVES[chosen.name](pairs, chosen.settings, device=device, **options)


def build_regularizer(config: TrainConfig) -> Regularizer:
    """Return the regularizer of a configuration."""
    chosen = config.resolved().reg
    return REGULARIZERS[chosen.name].configured(chosen.settings, config.seed)


def build_adversary(config: TrainConfig, batches: Batches) -> Adversary | None:
    """Return the adversary of a configuration; None for ``none``, or where its weight is 0."""
    chosen = config.resolved().adversary
    if chosen.name == "none" or chosen.settings.weight == 0:
        return None
    return adversary(chosen.name, batches, chosen.settings)


def gauged(factors: Factors, config: TrainConfig, rows: Rows | None = None) -> Factors:
    """Return trained factors in the gauge, shrunk and cut to a rank, as a configuration says.

    With ``rows``, those of the users of one of several ranks, all of which must ask.
    """
    if config.gauge == "none":
        return factors
    balanced = Gauge.balanced(factors.users, factors.items, rows).apply(factors)
    return truncate(shrink(balanced, config.shrink, rows), config.rank)


def check_trainable(
    split: Split, config: TrainConfig, *, device: torch.device | str = "cpu"
) -> None:
    """Raise for what would only be found wrong once a training has begun.

    Names, ranges and combinations that do not go together are found by one epoch on a toy set; code
    from outside of the package is imported, and not run. What would not fit into memory is found by
    a rough count of bytes.

    Cost: some hundredths of a second.
    """
    config = config.resolved()
    _check_memory(split, config, torch.device(device))
    if any(getattr(config, part).name not in table for part, table in PARTS.items()):
        return
    # Enough columns for what is said of their number, and no more.
    dim = getattr(config.model.settings, "dim", None)
    small: dict[str, Any] = {} if dim is None else {"dim": min(dim, 64)}
    small["rank"] = None if config.rank is None else min(config.rank, 64)
    whole = checkerboard()
    drawn = getattr(config.objective.settings, "sampled_items", None)
    if drawn is not None:
        if drawn > split.n_items:
            build_objective(config, split.train)  # which refuses it, of these items
        small["sampled_items"] = min(drawn, whole.n_items)
    toy = config.replace(**small, epochs=min(config.epochs, 1))
    nothing = whole.valid.take(np.zeros(len(whole.valid), dtype=bool))
    try:
        with alone():
            tried = fit_split(replace(whole, valid=nothing), toy)
    except InputError:
        raise
    except Exception:
        # Diverged on the toy, say: only what is surely wrong is refused here.
        return
    if tried.interrupted:
        raise KeyboardInterrupt


def _check_memory(split: Split, config: TrainConfig, device: torch.device) -> None:
    there = memory()
    if there is None or device.type != "cpu":
        return
    dim = getattr(config.model.settings, "dim", 0)
    # Parameters, gradients, two moments, the best epoch's, and room to work.
    users = -(-split.n_users // current().size)
    counts = {f"dim {dim}": 6 * 4 * dim * (users + split.n_items)}
    if config.batching.kind == "pairs":
        negatives = getattr(config.objective.settings, "negatives", 0)
        size = min(config.batching.batch_size, len(split.train))
        words = f"negatives {negatives} with batch_size {config.batching.batch_size}"
        counts[words] = size * negatives * (8 + 2 * 4 * dim)
    for words, needed in counts.items():
        if needed > there:
            raise InputError(
                f"{words} needs about {needed / 1e9:,.0f} GB of memory, and this machine has "
                f"{there / 1e9:,.0f}: choose a smaller number"
            )


def fit_split(
    split: Split,
    config: TrainConfig | None = None,
    *,
    device: torch.device | str = "cpu",
    checkpoint: Checkpoint | None = None,
    progress: bool = False,
) -> Trained:
    """Train on a split as a configuration says; test pairs are never touched.

    Where the number of epochs is not chosen yet, it is chosen on valid by NDCG@10, learning
    from train alone. Then, by ``config.refit``, that many epochs are made again on train and
    valid together: ``auto`` does so where valid was carved out of the training pairs. A
    configuration whose number of epochs is already chosen goes there at once.

    Within :func:`robustcf._distributed.joined`, all ranks call this with the same split and
    configuration: each trains its own users, and has their factors in the end.

    Args:
        split: the data.
        config: None takes the preset of the split's name, or the defaults.
        device: where the tensors live.
        checkpoint: where to keep the state, and to resume from.
        progress: whether to show a bar.
    """
    if config is None:
        from robustcf.training.presets import preset  # reads all presets: only where one is used

        config = preset(split.name).config
    config = config.resolved()
    rows = Rows.of(split.n_users)
    shared = None if rows.whole else rows
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
        return fit(
            build_model(config, shard.pairs, device=device, **options),
            batches,
            stop,
            reg=reg,
            reg_weight=config.reg.settings.weight,
            adversary=build_adversary(config, batches),
            optimizer=Optimizer(
                config.lr, config.user_lr, config.schedule, config.beta1, config.beta2
            ),
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
    with alone():  # each rank has data of its own from here on, and says itself what it shares
        interrupted = False
        if not (config.epochs_chosen and refit):
            choosing = has_valid and not config.epochs_chosen
            chosen_by = validate if choosing else None
            stop = Stop(config.epochs, chosen_by, config.eval_every, config.patience)
            fitted = fitted_on(split.train, stop, "train")
            factors = gauged(fitted.factors, config, shared)
            history, epochs, interrupted = fitted.history, fitted.epochs, fitted.interrupted
            valid = evaluate(factors, judged, part="valid") if has_valid else None
        if factors is None or (refit and not interrupted):
            fitted = fitted_on(split.train_full, Stop(epochs, planned=config.epochs), "refit")
            factors = gauged(fitted.factors, config, shared)
            fit_on, epochs, interrupted = "train and valid", fitted.epochs, fitted.interrupted
            history = history + fitted.history
    # The time of this process, or of the epochs where an earlier one made some of them.
    seconds = max(time.perf_counter() - began, sum(float(row["seconds"]) for row in history))
    return Trained(
        factors, config, split, fit_on, epochs, history, seconds, valid, interrupted, shared
    )
