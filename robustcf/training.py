"""``train``: a split and a configuration in, factors out."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from robustcf.adversarial import Adversary, adversary
from robustcf.config import TrainConfig
from robustcf.data.interactions import Interactions, Split
from robustcf.factors import Factors
from robustcf.fitting import Checkpoint, Stop, fit
from robustcf.gauge import Gauge, shrink
from robustcf.metrics.evaluate import MetricReport, default_mask, evaluate
from robustcf.metrics.topk import top_items
from robustcf.models import BPRMF, Model, UltraGCN
from robustcf.regularizers import MaxNorm, NoPenalty, Regularizer, TwoToInf, WeightDecay


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained recommender and how it came about.

    Args:
        factors: the embeddings.
        config: what it was trained with.
        split: the data.
        learnt_from: ``train``, or ``train and valid``.
        epochs: passes behind the factors.
        history: one row a pass, of all stages.
        train_seconds: time spent learning, looks at valid included.
        valid: metrics on valid of the factors that were learnt without it, or None.
        interrupted: whether Ctrl-C ended it.
    """

    factors: Factors
    config: TrainConfig
    split: Split
    learnt_from: str
    epochs: int
    history: list[dict[str, Any]]
    train_seconds: float
    valid: MetricReport | None = None
    interrupted: bool = False
    notes: tuple[str, ...] = field(default=())

    @property
    def seen(self) -> Interactions:
        """The pairs it learnt from."""
        return self.split.train if self.learnt_from == "train" else self.split.train_full

    def evaluate(self, ks: tuple[int, ...] = (10, 20)) -> MetricReport:
        """Test metrics by the protocol of the set; what was learnt from is masked in any case."""
        mask = default_mask(self.split, "test")
        if self.learnt_from != "train":
            mask = ("train", "valid")
        return evaluate(self.factors, self.split, ks, mask=mask)

    def recommend(self, user: int, k: int = 10) -> list[int]:
        """The ids of the k best items that a user (an id) does not have yet."""
        top = top_items(self.factors, [user], k, self.split.train_full)[0]
        return [int(item) for item in top if item >= 0]


def build_model(
    config: TrainConfig,
    train: Interactions,
    *,
    device: torch.device | str = "cpu",
    start: Factors | None = None,
) -> Model:
    """The model a configuration describes, on these pairs.

    Example:
        >>> from robustcf.data import checkerboard
        >>> build_model(TrainConfig(model="bpr-mf", dim=3), checkerboard().train).dim
        3
    """
    options: dict[str, Any] = {
        "batching": config.batching,
        "batch_size": config.batch_size,
        "block_users": config.block_users,
        "init": config.init,
        "init_std": config.init_std,
        "seed": config.seed,
        "device": device,
        "start": start,
    }
    for name in ("negatives", "sampled_items"):
        if getattr(config, name) is not None:
            options[name] = getattr(config, name)
    if config.model == "bpr-mf":
        return BPRMF(train, config.dim, base_logit=0.0, **options)
    for name in ("negative_weight", "item_weight", "neighbours", "w1", "w2", "w3", "w4"):
        options[name] = getattr(config, name)
    return UltraGCN(train, config.dim, **options)


def build_regularizer(config: TrainConfig) -> Regularizer:
    """The regularizer a configuration describes.

    Example:
        >>> build_regularizer(TrainConfig(reg="two_to_inf", reg_top=8))
        TwoToInf(estimator=exact, top=8, side=users)
    """
    if config.reg == "two_to_inf":
        return TwoToInf(
            config.estimator,
            budget=config.reg_budget,
            top=config.reg_top,
            side=config.reg_side,  # type: ignore[arg-type]
            every=config.reg_every,
            refresh=config.reg_refresh,
            seed=config.seed,
        )
    return {"none": NoPenalty, "weight_decay": WeightDecay, "max_norm": MaxNorm}[config.reg]()


def build_adversary(config: TrainConfig, model: Model) -> Adversary | None:
    """The adversary a configuration describes; None where there is none, or its weight is 0.

    Example:
        >>> from robustcf.data import checkerboard
        >>> config = TrainConfig(adversarial="softmax", adv_eps=0.05)
        >>> build_adversary(config, build_model(config, checkerboard().train)).eps
        0.05
    """
    if config.adversarial == "none" or config.adv_weight == 0:
        return None
    weights = {name: getattr(config, name) for name in ("negative_weight", "w1", "w2", "w3", "w4")}
    return adversary(
        config.adversarial, model, eps=config.adv_eps, weight=config.adv_weight,
        **weights,
    )  # fmt: skip


def gauged(factors: Factors, config: TrainConfig) -> Factors:
    """Trained factors in the gauge, and shrunk, as a configuration says.

    Example:
        >>> factors = Factors(torch.ones(2, 1), torch.tensor([[4.0], [8.0]]))
        >>> (gauged(factors, TrainConfig(gauge="balanced")).items ** 2).round(decimals=3).tolist()
        [[2.0], [2.0]]
    """
    if config.gauge == "none":
        return factors
    return shrink(Gauge.balanced(*factors).apply(factors), config.shrink)


def train(
    split: Split,
    config: TrainConfig | None = None,
    *,
    device: torch.device | str = "cpu",
    checkpoint: Checkpoint | None = None,
    progress: bool = False,
) -> Trained:
    """Train on a split as a configuration says; test pairs are never looked at.

    Where the number of passes is not chosen yet, it is chosen on valid by NDCG@10, learning
    from train alone. Then, by ``config.refit``, that many passes are made again on train and
    valid together: ``auto`` does so where valid was carved out of the training pairs. A
    configuration whose number of passes is already chosen goes there at once.

    Args:
        split: the data.
        config: None takes the preset of the split's name, or the defaults.
        device: where the tensors live.
        checkpoint: where to keep the state, and to go on from.
        progress: whether to show a bar.

    Returns:
        The factors and how they came about.

    Example:
        >>> from robustcf.data import checkerboard
        >>> trained = train(checkerboard(), TrainConfig(dim=4, epochs=2, negative_weight=10.0))
        >>> len(trained.recommend(0, k=3))
        3
    """
    if config is None:
        from robustcf.presets import preset

        config = preset(split.name).config
    refit = config.refit == "yes" or (config.refit == "auto" and split.valid_source == "carved")
    has_valid = len(split.valid) > 0
    refit = refit and has_valid
    common: dict[str, Any] = {
        "reg_weight": config.reg_weight,
        "lr": config.lr,
        "user_lr": config.user_lr,
        "lr_schedule": config.schedule,
        "beta1": config.beta1,
        "beta2": config.beta2,
        "checkpoint": checkpoint,
        "progress": progress,
    }
    began = time.perf_counter()
    history: list[dict[str, Any]] = []
    epochs, valid = config.epochs, None
    if not (config.epochs_chosen and refit):

        def look(factors: Factors) -> float:
            return evaluate(factors, split, (10,), part="valid")["ndcg@10"]

        choosing = has_valid and not config.epochs_chosen
        stop = Stop(
            config.epochs,
            look if choosing else None,
            every=config.eval_every,
            patience=config.patience,
        )
        model = build_model(config, split.train, device=device)
        fitted = fit(
            model, stop, reg=build_regularizer(config), adversary=build_adversary(config, model),
            stage="train", **common,
        )  # fmt: skip
        history, epochs = fitted.history, fitted.epochs
        if has_valid:
            valid = evaluate(gauged(fitted.factors, config), split, part="valid")
        if not refit or fitted.interrupted:
            return Trained(
                gauged(fitted.factors, config), config, split, "train", epochs, history,
                _seconds(began, history), valid, fitted.interrupted,
            )  # fmt: skip
    model = build_model(config, split.train_full, device=device)
    stop = Stop(epochs, planned=config.epochs)
    fitted = fit(
        model, stop, reg=build_regularizer(config), adversary=build_adversary(config, model),
        stage="refit", **common,
    )  # fmt: skip
    history = history + fitted.history
    return Trained(
        gauged(fitted.factors, config), config, split, "train and valid", fitted.epochs, history,
        _seconds(began, history), valid, fitted.interrupted,
    )  # fmt: skip


def _seconds(began: float, history: list[dict[str, Any]]) -> float:
    """Time of this process, or of the passes where more of them were made by an earlier one."""
    return max(time.perf_counter() - began, float(np.sum([row["seconds"] for row in history])))
