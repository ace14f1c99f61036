"""``fit``: the training loop of every model, objective, regularizer and adversary."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from robustcf._io.files import REMOVE
from robustcf._io.progress import bar as progress_bar
from robustcf.errors import InputError, TrainingError
from robustcf.estimators.lowrank import LowRank
from robustcf.factors import Factors
from robustcf.models import Model
from robustcf.objectives import Batch, Batches, Gradient
from robustcf.objectives.base import no_gradient
from robustcf.regularizers import Accumulator, NoPenalty, Regularizer, add_gradient
from robustcf.training.adversarial import Adversary
from robustcf.training.checkpoints import Checkpoint, FitState, Values, check_like, place_of
from robustcf.training.optim import Adam, schedule

# Steps between two values of the loss, which is only shown.
_VALUE_EVERY = 16
_PAIRS_PER_UNIT = 1024


@dataclass(frozen=True)
class Stop:
    """When a fit ends, and whether the best epoch is chosen by validation.

    Validation returns the value to maximize, or the values of single users, whose mean it is. With
    values per user, an epoch counts as worse if it is below the best by at least the standard error
    of the difference; if neither better nor worse, patience is three times as long.
    """

    epochs: int  # at most; with 0 the model stays as it starts
    validate: Callable[[Factors], float | Values] | None = None
    every: int = 1  # epochs between validations
    patience: int = 0  # validations that are worse than the best before stopping; 0 never
    planned: int | None = None  # epochs of the learning rate schedule, if not ``epochs``


@dataclass(frozen=True)
class Optimizer:
    """Settings of Adam, with a learning rate for the items and one for the users."""

    lr: float = 7e-3
    user_lr: float | None = None  # None for the same
    schedule: str = "linear"
    beta1: float = 0.9
    beta2: float = 0.999


@dataclass(frozen=True, eq=False)
class Fitted:
    """The result of a fit."""

    factors: Factors  # of the chosen epoch
    epochs: int  # behind these factors
    history: list[dict[str, Any]]  # one row per epoch
    interrupted: bool = False


def fit(
    model: Model[Any],
    batches: Batches,
    stop: Stop,
    *,
    reg: nn.Module | None = None,
    reg_weight: float = 0.0,
    adversary: Adversary | None = None,
    optimizer: Optimizer | None = None,
    checkpoint: Checkpoint | None = None,
    stage: str = "fit",
    progress: bool = False,
) -> Fitted:
    """Train a model in place: Adam on batch gradients plus the regularizer's.

    An epoch minimizes the objective, summed over its pairs, plus the adversary's term, plus
    ``reg_weight * pairs / 1024 * reg(U, V)``, for every batching. A step of ``rows`` updates its
    users only; each is visited once per epoch and takes the whole epoch's share of the penalty.
    Deterministic for a seed and a number of threads, resumed or not.

    On several ranks (see :mod:`robustcf.data.shards`) all ranks call this with their own users and
    together take the steps of one process; the items' gradient is summed over ranks in each step.

    Args:
        stop: when to end; the factors are those of the best epoch by its validation, or the last.
        reg: any module of two tensors.
        stage: the name of the state in the checkpoint.

    Raises:
        TrainingError: a value is not finite; the message names the term.

    Cost: the epochs' and the adversary's; memory of the parameters and two moments, and once more
    the parameters if an epoch is chosen.

    Example:
        >>> from robustcf.data import checkerboard
        >>> from robustcf.models import UltraGCN
        >>> from robustcf.objectives import BCE
        >>> train = checkerboard().train
        >>> fit(UltraGCN(train, factors=4), Batches(BCE(train)), Stop(3)).epochs
        3
    """
    if stop.epochs < 0 or stop.every < 1:
        raise InputError(
            f"epochs must be at least 0 and every at least 1, got {stop.epochs}, {stop.every}"
        )
    how = Optimizer() if optimizer is None else optimizer
    planned = (stop.planned or stop.epochs) * batches.n_steps
    steps = _Steps(
        model,
        batches,
        NoPenalty() if reg is None else reg,
        share=reg_weight * model.shard.n_pairs / (_PAIRS_PER_UNIT * batches.n_steps),
        adversary=adversary,
        users=Adam(model.users, beta1=how.beta1, beta2=how.beta2),
        items=Adam(model.items, beta1=how.beta1, beta2=how.beta2),
        rates=(how.user_lr or how.lr, how.lr),
        factor=lambda step: schedule(how.schedule, step / planned),
    )
    state = FitState()
    saved = checkpoint.load(stage) if checkpoint is not None else None
    if saved is not None:
        try:
            steps.restore(saved[0])
            state = FitState.restored(*saved)
        except InputError as error:
            raise InputError(f"{place_of(checkpoint, stage)}: {error}; {REMOVE}") from error
    interrupted = False
    done = len(state.history)
    bar = progress_bar(stop.epochs, stage, "epoch", progress, initial=done)
    try:
        for epoch in range(done, stop.epochs):
            if state.out_of(stop.patience):
                break
            row = {"stage": stage, **steps.one_epoch(epoch)}
            last = epoch + 1 == stop.epochs
            if stop.validate is not None and ((epoch + 1) % stop.every == 0 or last):
                row["valid_ndcg@10"] = state.validate(stop.validate, model.factors(), epoch + 1)
            state.history.append(row)
            best = state.best
            valid = "" if best is None else f", valid ndcg@10 {best[0]:.4f} (epoch {best[1]})"
            bar.set_postfix_str(f"loss {row['loss']:.4f}{valid}, 2->inf {row['two_to_inf']:.1f}")
            bar.update()
            if checkpoint is not None:
                tensors, facts = state.saved()
                final = last or state.out_of(stop.patience)
                checkpoint.save(stage, {**steps.state(), **tensors}, facts, final=final)
    except KeyboardInterrupt:
        if not model.shard.rows.whole:
            raise  # ranks stop at different places: only a checkpoint is common
        interrupted = True
        if checkpoint is not None:
            checkpoint.flush()
    finally:
        bar.close()
    _, epochs, factors = state.best or (None, len(state.history), model.factors())
    return Fitted(factors, epochs, state.history, interrupted)


@dataclass
class _Steps:
    """The steps of an epoch: gradients of objective, adversary and penalty, then Adam."""

    model: Model[Any]
    batches: Batches
    penalty: nn.Module
    share: float  # the weight of the penalty in one step
    adversary: Adversary | None
    users: Adam
    items: Adam
    rates: tuple[float, float]  # of the users and of the items
    factor: Callable[[int], float]  # of both, by the number of the step

    def one_epoch(self, epoch: int) -> dict[str, Any]:
        """Take every batch once and return the row of the history."""
        model, objective, rival = self.model, self.batches.objective, self.adversary
        ranks = model.shard.ranks
        name = _name(model)
        began = time.perf_counter()
        loss = attacked = pairs = penalized = 0.0
        rounds = None if rival is None else rival.rounds(self.batches, epoch)
        rounds = rounds or ((batch, batch) for batch in self.batches.epoch(epoch))
        for number, (batch, theirs) in enumerate(rounds):
            with_value = number % _VALUE_EVERY == 0
            U, V = model.scored()
            if len(batch.users):
                gradient = objective.gradient(batch, U, V, value=with_value)
            else:
                gradient = no_gradient(batch, U, V)
            if not self.batches.by_rows:
                # A user's pairs are spread over many steps: every step updates all users.
                gradient = gradient.whole(len(U))
            _check(gradient.users, f"the loss of {name}", epoch)
            if with_value and gradient.value is not None:
                loss += gradient.value
                pairs += self._pairs_in(batch)
            if rival is not None:
                own = gradient if rival.objective is objective else None
                found = rival.add_gradient(theirs, U, V, gradient, own=own, value=with_value)
                _check(gradient.users, f"the adversarial loss of {name}", epoch)
                attacked += found or 0.0
            ranks.sum(gradient.items)
            on_parameters = getattr(self.penalty, "on", "scored") == "parameters"
            if self.share and not on_parameters:
                penalized = self._penalize(U, V, gradient)
            gradient = model.pull_back(gradient)
            if self.share and on_parameters:
                penalized = self._penalize(model.users, model.items, gradient)
            _check(penalized, f"the regularizer {_name(self.penalty)}", epoch)
            factor = self.factor(epoch * self.batches.n_steps + number)
            self.users.step(gradient.users, self.rates[0] * factor, gradient.rows)
            self.items.step(gradient.items, self.rates[1] * factor)
            model.updated(gradient.rows)
        _check(model.users, f"the update of the users of {name}", epoch)
        _check(model.items, f"the update of the items of {name}", epoch)
        self._check_replicas()
        loss, attacked, pairs = ranks.total(loss, attacked, pairs)
        row: dict[str, Any] = {
            "epoch": epoch + 1,
            "loss": loss / max(pairs, 1.0),
            "penalty": penalized,
            "valid_ndcg@10": None,
            "two_to_inf": ranks.greatest(two_to_inf(model.factors()))[0],
            "seconds": time.perf_counter() - began,
        }
        if rival is not None:
            row["attacked_loss"] = attacked / max(pairs, 1.0)
        return row

    def _pairs_in(self, batch: Batch) -> float:
        if batch.items is not None:
            return float(len(batch.users))
        return float(self.model.train.user_degrees[batch.users.cpu().numpy()].sum())

    def _penalize(self, U: Tensor, V: Tensor, gradient: Gradient) -> float:
        scale = 1.0 if gradient.rows is None else float(self.batches.n_steps)
        into = Accumulator(
            gradient.users, gradient.items, gradient.rows, self.share, scale, self.model.shard.rows
        )
        if isinstance(self.penalty, Regularizer):
            return self.penalty.add_gradient(U, V, into)
        return add_gradient(self.penalty, U, V, into)

    def _check_replicas(self) -> None:
        """Raise unless all ranks have the same items."""
        ranks = self.model.shard.ranks
        if ranks.size == 1:
            return
        mark = float(self.model.items.double().sum())
        if ranks.greatest(mark, -mark) != (mark, -mark):
            raise TrainingError(
                "the ranks' copies of the items differ: use the same machine type, torch version "
                "and number of threads on all ranks"
            )

    def state(self) -> dict[str, Tensor]:
        """Return the tensors to keep in a checkpoint."""
        return {
            "users": self.model.users,
            "items": self.model.items,
            **self.users.state("adam.users"),
            **self.items.state("adam.items"),
            **{f"reg.{name}": value for name, value in self.penalty.state_dict().items()},
        }

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take the tensors of a checkpoint back."""
        for name, mine in self.state().items():
            # The state of a regularizer may change its length from step to step.
            of_reg = name.startswith("reg.") and mine.ndim > 0
            check_like(name, tensors.get(name), mine, shape=not of_reg)
            # Integers are counts of steps and numbers of rows.
            if not mine.is_floating_point() and bool((tensors[name] < 0).any()):
                raise InputError(f"the tensor {name} must not be negative")
        side = getattr(self.penalty, "side", "users")
        rows = len(self.model.items) if side == "items" else self.model.shard.rows.count
        for name in getattr(self.penalty, "row_numbers", ()):
            if bool((tensors[f"reg.{name}"] >= rows).any()):
                raise InputError(f"the tensor reg.{name} must hold numbers of rows below {rows}")
        self.model.users.copy_(tensors["users"])
        self.model.items.copy_(tensors["items"])
        self.model.updated(None)
        self.users.load("adam.users", tensors)
        self.items.load("adam.items", tensors)
        for name in self.penalty.state_dict():
            setattr(self.penalty, name, tensors[f"reg.{name}"])


def _check(values: Tensor | float, what: str, epoch: int) -> None:
    total = values if isinstance(values, float) else values.sum(dtype=torch.float64)
    if not math.isfinite(total):
        raise TrainingError(
            f"{what} is not finite in epoch {epoch + 1}: lower the learning rate or the weights "
            "of the terms"
        )


def _name(part: Any) -> str:
    return getattr(part, "name", "") or type(part).__name__


def two_to_inf(factors: Factors) -> float:
    """Return ||U V^T||_{2->inf}: the largest norm of a user's scores over the whole catalogue."""
    norms = LowRank(factors.users, factors.items).row_norms()
    return float(norms.max()) if len(norms) else 0.0
