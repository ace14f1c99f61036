"""``fit``: the one training loop; ``train``: a split and a configuration in, factors out."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from robustcf.adversarial import Adversary, adversary
from robustcf.config import TrainConfig
from robustcf.data.interactions import Interactions, Split
from robustcf.errors import InputError, TrainingError
from robustcf.estimators.lowrank import LowRank
from robustcf.factors import Factors
from robustcf.gauge import Gauge, shrink
from robustcf.metrics.evaluate import MetricReport, default_mask, evaluate
from robustcf.metrics.topk import top_items
from robustcf.models import BPRMF, Batch, Gradient, Model, UltraGCN
from robustcf.optim import Adam, schedule
from robustcf.regularizers import (
    MaxNorm,
    NoPenalty,
    Regularizer,
    TwoToInf,
    WeightDecay,
    add_gradient,
)

# The loss is looked at in one step out of this many: as a number to watch, that is enough.
_VALUE_EVERY = 16
_PAIRS_A_UNIT = 1024


class Checkpoint(Protocol):
    """Where a fit keeps its state between passes, so that it can go on after a kill."""

    def load(self, stage: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The state saved last for this stage, or None."""

    def save(
        self, stage: str, tensors: dict[str, Tensor], facts: dict[str, Any], *, final: bool
    ) -> None:
        """Replace the stage's state, all or nothing; unless final, it may find it too early."""


@dataclass(frozen=True)
class Stop:
    """When a fit ends, and whether the best pass is chosen by the looks at valid.

    Args:
        epochs: passes at most; with 0 the model stays as it starts.
        look: the value to maximize, for factors; None: nothing is chosen.
        every: passes between looks.
        patience: looks without improvement before stopping; 0 never.
        planned: passes the learning rate falls over (``epochs`` where it is None).
    """

    epochs: int
    look: Callable[[Factors], float] | None = None
    every: int = 1
    patience: int = 0
    planned: int | None = None


@dataclass(frozen=True, eq=False)
class Fitted:
    """What a fit leaves.

    Args:
        factors: of the chosen pass.
        epochs: the passes these factors took.
        history: one row a pass.
        interrupted: whether Ctrl-C ended it.
    """

    factors: Factors
    epochs: int
    history: list[dict[str, Any]]
    interrupted: bool = False


def fit(
    model: Model,
    stop: Stop,
    *,
    reg: nn.Module | None = None,
    reg_weight: float = 0.0,
    adversary: Adversary | None = None,
    lr: float = 7e-3,
    user_lr: float | None = None,
    lr_schedule: str = "linear",
    beta1: float = 0.9,
    beta2: float = 0.999,
    checkpoint: Checkpoint | None = None,
    stage: str = "fit",
    progress: bool = False,
) -> Fitted:
    """Train a model in place: Adam on batch gradients plus the regularizer's.

    The objective of a pass is the model's, summed over its pairs, plus the adversary's, plus
    ``reg_weight * pairs / 1024 * reg(U, V)``. Every step takes its share, so the weight means
    the same for both batchings and for every size of a step. A step of ``rows`` updates its
    users only; such a user is visited once a pass and then takes the whole pass's share.

    Deterministic for a seed and a number of threads, resumed or not.

    Args:
        model: its parameters are updated.
        stop: when to end and how to choose.
        reg: any module of two tensors.
        reg_weight: see above.
        adversary: a second loss at attacked factors, see :mod:`robustcf.adversarial`.
        lr: learning rate of the items.
        user_lr: of the users; None for the same.
        lr_schedule: how both fall over the passes.
        beta1: Adam's first decay.
        beta2: Adam's second decay.
        checkpoint: where to keep the state, and to go on from.
        stage: the name of the state in the checkpoint.
        progress: whether to show a bar (loss a pair, valid, norm of the scores).

    Returns:
        The factors of the best pass by ``stop.look``, of the last one where there is none.

    Raises:
        TrainingError: something is not finite; the message says which term.

    Cost: that of the model's passes and of the adversary's; the parameters and two moments in
    memory, and once more the parameters where a pass is chosen.

    Example:
        >>> from robustcf.data import checkerboard
        >>> model = UltraGCN(checkerboard().train, dim=4, negative_weight=10.0)
        >>> fit(model, Stop(epochs=3), reg=WeightDecay(), reg_weight=1e-5).epochs
        3
    """
    if stop.epochs < 0 or stop.every < 1:
        raise InputError(
            f"epochs must be at least 0 and every at least 1, got {stop.epochs}, {stop.every}"
        )
    schedule(lr_schedule, 0.0)
    penalty: nn.Module = NoPenalty() if reg is None else reg
    U, V = model.users, model.items
    users, items = Adam(U, beta1=beta1, beta2=beta2), Adam(V, beta1=beta1, beta2=beta2)
    steps = model.n_steps
    planned = (stop.planned or stop.epochs) * steps
    share = reg_weight * len(model.train) / (_PAIRS_A_UNIT * steps)
    history: list[dict[str, Any]] = []
    best: tuple[float, int, Factors] | None = None
    looks_since = 0

    saved = checkpoint.load(stage) if checkpoint is not None else None
    if saved is not None:
        tensors, facts = saved
        U.copy_(tensors["users"])
        V.copy_(tensors["items"])
        users.load("adam.users", tensors)
        items.load("adam.items", tensors)
        for name in penalty.state_dict():
            setattr(penalty, name, tensors[f"reg.{name}"])
        history, looks_since = facts["history"], facts["looks_since"]
        if facts["best"] is not None:
            value, epoch = facts["best"]
            best = value, epoch, Factors(tensors["best.users"], tensors["best.items"])

    interrupted = False
    done = len(history)
    bar = tqdm(
        total=stop.epochs, initial=done, desc=stage, unit="pass", disable=not progress,
        file=sys.stderr,
    )  # fmt: skip
    try:
        for epoch in range(done, stop.epochs):
            if stop.patience and looks_since >= stop.patience:
                break
            began = time.perf_counter()
            loss = attacked = pairs = 0.0
            penalized = 0.0
            for number, (batch, theirs) in enumerate(_rounds(model, adversary, epoch)):
                look_at_loss = number % _VALUE_EVERY == 0
                gradient = model.gradient(batch, U, V, value=look_at_loss)
                _check(gradient.users, model.name, "the loss", epoch)
                if look_at_loss and gradient.value is not None:
                    loss += gradient.value
                    pairs += _pairs_in(model, gradient.rows, len(batch.users))
                if adversary is not None:
                    own = gradient if adversary.objective is model else None
                    at_attack = adversary.add_gradient(
                        theirs, U, V, gradient, own=own, value=look_at_loss
                    )
                    _check(gradient.users, model.name, "the adversarial loss", epoch)
                    attacked += at_attack or 0.0
                if share:
                    penalized = _penalize(penalty, U, V, gradient, share, steps)
                    if not math.isfinite(penalized):
                        raise TrainingError(_astray(f"the regularizer {_name(penalty)}", epoch))
                factor = schedule(lr_schedule, (epoch * steps + number) / planned)
                users.step(gradient.users, (user_lr or lr) * factor, gradient.rows)
                items.step(gradient.items, lr * factor)
            _check(U, model.name, "the update of the users", epoch)
            _check(V, model.name, "the update of the items", epoch)
            row: dict[str, Any] = {
                "stage": stage,
                "epoch": epoch + 1,
                "loss": loss / max(pairs, 1.0),
                "penalty": penalized,
                "valid_ndcg@10": None,
                "two_to_inf": two_to_inf(model.factors()),
                "seconds": time.perf_counter() - began,
            }
            if adversary is not None:
                row["attacked_loss"] = attacked / max(pairs, 1.0)
            last = epoch + 1 == stop.epochs
            if stop.look is not None and ((epoch + 1) % stop.every == 0 or last):
                factors = model.factors()
                value = stop.look(factors)
                row["valid_ndcg@10"] = value
                looks_since += 1
                if best is None or value > best[0]:
                    best, looks_since = (value, epoch + 1, factors), 0
            history.append(row)
            bar.set_postfix_str(_postfix(row, best))
            bar.update()
            if checkpoint is not None:
                state = _state(U, V, users, items, penalty, history, best, looks_since)
                ends = last or (stop.patience > 0 and looks_since >= stop.patience)
                checkpoint.save(stage, *state, final=ends)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        bar.close()
    if best is not None:
        return Fitted(best[2], best[1], history, interrupted)
    return Fitted(model.factors(), len(history), history, interrupted)


def _rounds(model: Model, adversary: Adversary | None, epoch: int) -> Iterator[tuple[Batch, Batch]]:
    if adversary is not None:
        return adversary.rounds(model, epoch)
    return ((batch, batch) for batch in model.batches(epoch))


def _penalize(
    penalty: nn.Module, U: Tensor, V: Tensor, gradient: Gradient, share: float, steps: int
) -> float:
    rows, scale = gradient.rows, 1.0 if gradient.rows is None else float(steps)
    places = (gradient.users, gradient.items)
    if isinstance(penalty, Regularizer):
        return penalty.add_gradient(U, V, rows, *places, weight=share, row_scale=scale)
    return add_gradient(penalty, U, V, rows, *places, weight=share, row_scale=scale)


def _pairs_in(model: Model, rows: Tensor | None, size: int) -> float:
    if rows is None:
        return float(size)
    return float(model.train.user_degrees[rows.cpu().numpy()].sum())


def _check(values: Tensor, model: str, what: str, epoch: int) -> None:
    if not bool(torch.isfinite(values.sum(dtype=torch.float64))):
        raise TrainingError(_astray(f"{what} of {model}", epoch))


def _astray(what: str, epoch: int) -> str:
    return (
        f"{what} is not finite in pass {epoch + 1}: lower the learning rate or the weights "
        "of the terms"
    )


def _name(penalty: nn.Module) -> str:
    return str(getattr(penalty, "name", "") or type(penalty).__name__)


def _postfix(row: Mapping[str, Any], best: tuple[float, int, Factors] | None) -> str:
    valid = "" if best is None else f", valid ndcg@10 {best[0]:.4f} (pass {best[1]})"
    return f"loss {row['loss']:.4f}{valid}, 2->inf {row['two_to_inf']:.1f}"


def _state(
    U: Tensor,
    V: Tensor,
    users: Adam,
    items: Adam,
    penalty: nn.Module,
    history: list[dict[str, Any]],
    best: tuple[float, int, Factors] | None,
    looks_since: int,
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors = {"users": U, "items": V, **users.state("adam.users"), **items.state("adam.items")}
    tensors |= {f"reg.{name}": value for name, value in penalty.state_dict().items()}
    if best is not None:
        tensors |= {"best.users": best[2].users, "best.items": best[2].items}
    facts = {
        "history": history,
        "looks_since": looks_since,
        "best": None if best is None else [best[0], best[1]],
    }
    return tensors, facts


def two_to_inf(factors: Factors) -> float:
    """||U V^T||_{2->inf}: the largest norm of a user's scores over the whole catalogue.

    Example:
        >>> two_to_inf(Factors(torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [4.0]])))
        10.0
    """
    norms = LowRank(factors.users, factors.items).row_norms()
    return float(norms.max()) if len(norms) else 0.0


# --- a split and a configuration in, factors out --------------------------------------------


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
