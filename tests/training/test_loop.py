"""The training loop: weights, learning rates, validation, checkpoints, errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from robustcf._io.files import CheckpointFiles
from robustcf.data import Interactions, checkerboard
from robustcf.errors import InputError, TrainingError
from robustcf.factors import Factors
from robustcf.models import BPRMF, LightGCN, UltraGCN
from robustcf.objectives import BCE, BPR, BatchConfig, Batches, Softmax
from robustcf.regularizers import DegreeDecay, MaxNorm, Regularizer, TwoToInf, WeightDecay
from robustcf.training.adversarial import AdversaryConfig, adversary
from robustcf.training.checkpoints import FitState
from robustcf.training.loop import Fitted, Optimizer, Stop, fit, two_to_inf

SEEDS = [0, 1, 2]
BOARD = checkerboard().train
OBJECTIVES = {"bce": BCE, "bpr": BPR, "softmax": Softmax}
MODELS = {"bce": UltraGCN, "bpr": BPRMF, "softmax": UltraGCN}


def batches_of(
    pairs: Interactions = BOARD, name: str = "bce", *, seed: int = 0, **sizes: Any
) -> Batches:
    return Batches(OBJECTIVES[name](pairs), BatchConfig(**sizes), seed=seed)


def fitted(stop: Stop, *, dim: int = 4, **options: Any) -> Fitted:
    return fit(UltraGCN(BOARD, factors=dim), batches_of(), stop, **options)


class Recorder:
    """Stands in for Adam: notes the gradients instead of taking steps."""

    seen: list[tuple[Tensor, Tensor | None, float]]

    def __init__(self, parameter: Tensor, **_: Any) -> None:
        self.seen = []
        RECORDERS.append(self)

    def step(self, gradient: Tensor, lr: float, rows: Tensor | None = None) -> None:
        self.seen.append((gradient.clone(), rows, lr))

    def total(self, shape: torch.Size) -> Tensor:
        total = torch.zeros(shape)
        for gradient, rows, _ in self.seen:
            total.index_add_(0, torch.arange(len(total)) if rows is None else rows, gradient)
        return total


RECORDERS: list[Recorder] = []


class Plain(nn.Module):
    """A penalty that is a plain module and not a Regularizer."""

    def forward(self, U: Tensor, V: Tensor) -> Tensor:
        return (U.square().sum() + V.square().sum()) * 3.0


def by_degree() -> DegreeDecay:
    reg = DegreeDecay()
    reg.prepare(torch.tensor(BOARD.user_degrees), torch.tensor(BOARD.item_degrees))
    return reg


@pytest.mark.parametrize(
    "reg", [WeightDecay(), MaxNorm(), TwoToInf(top=3), by_degree(), Plain()], ids=repr
)
@pytest.mark.parametrize(
    ("batching", "size"), [("rows", 5), ("rows", 11), ("pairs", 16), ("pairs", 64)]
)
@pytest.mark.parametrize("name", OBJECTIVES)
def test_weight_means_the_same_in_both_batchings(
    reg: nn.Module, batching: str, size: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over an epoch the penalty's gradient is weight * pairs / 1024 times its own."""
    monkeypatch.setattr("robustcf.training.loop.Adam", Recorder)

    def whole_epoch(weight: float) -> tuple[Tensor, Tensor]:
        RECORDERS.clear()
        model = MODELS[name](BOARD, factors=3)
        batches = batches_of(name=name, kind=batching, block_users=size, batch_size=size)
        fit(model, batches, Stop(1), reg=reg, reg_weight=weight)
        users, items = RECORDERS
        assert all((rows is None) == (batching == "pairs") for _, rows, _ in users.seen)
        return users.total(model.users.shape), items.total(model.items.shape)

    with_reg, without = whole_epoch(50.0), whole_epoch(0.0)
    model = MODELS[name](BOARD, factors=3)
    U, V = model.users.requires_grad_(), model.items.requires_grad_()
    expected = torch.autograd.grad(50.0 * len(BOARD) / 1024 * reg(U, V), (U, V))
    for got, base, wanted in zip(with_reg, without, expected, strict=True):
        torch.testing.assert_close(got - base, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("rival", ["bpr", "bce", "softmax", "margin"])
@pytest.mark.parametrize("batching", ["rows", "pairs"])
def test_every_objective_goes_with_every_adversary(name: str, rival: str, batching: str) -> None:
    model = UltraGCN(BOARD, factors=3)
    batches = batches_of(name=name, kind=batching, block_users=7, batch_size=50)
    against = adversary(rival, batches, AdversaryConfig(eps=0.1, weight=0.5))
    found = fit(model, batches, Stop(2), adversary=against, reg=MaxNorm(), reg_weight=1e-3)
    found.factors.check_finite()
    assert all(row["attacked_loss"] > 0 for row in found.history)


def test_the_learning_rates_are_those_of_the_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("robustcf.training.loop.Adam", Recorder)
    for user_lr, first in ((0.5, 0.5), (None, 0.1)):
        RECORDERS.clear()
        fit(
            UltraGCN(BOARD, factors=2), batches_of(block_users=5), Stop(2, planned=4),
            optimizer=Optimizer(lr=0.1, user_lr=user_lr, schedule="linear"),
        )  # fmt: skip
        # Twenty users in blocks of five: four steps per epoch, of sixteen that are planned.
        for recorder, lr in zip(RECORDERS, (first, 0.1), strict=True):
            rates = [rate for _, _, rate in recorder.seen]
            assert rates == pytest.approx([lr * (1 - n / 16) for n in range(8)])


def test_chooses_the_best_validation_and_stops_early() -> None:
    values = iter([0.1, 0.5, 0.3, 0.2, 0.9])
    seen = []

    def validate(factors: Factors) -> float:
        seen.append(factors)
        return next(values)

    found = fitted(Stop(20, validate, every=1, patience=2))
    assert (found.epochs, len(found.history)) == (2, 4)
    assert torch.equal(found.factors.users, seen[1].users)
    assert [row["valid_ndcg@10"] for row in found.history] == [0.1, 0.5, 0.3, 0.2]


def users_of(*rows: list[float] | float) -> Any:
    """A validation with given values, of single users or their mean, epoch by epoch."""
    values = iter(row if isinstance(row, float) else np.array(row) for row in rows)
    return lambda factors: next(values)


BEST, NOISY, WORSE, BETTER = [0.1, 0.9], [0.4, 0.56], [0.0, 0.8], [0.2, 0.9]


@pytest.mark.parametrize(
    ("rows", "patience", "epochs", "made"),
    [
        # NOISY is below BEST by less than the standard error: three times the patience.
        ([BEST, *[NOISY] * 30], 2, 1, 7),
        ([BEST, *[NOISY] * 30], 0, 1, 30),
        # No change at all is not noise.
        ([BEST] * 30, 2, 1, 3),
        ([BEST, NOISY, NOISY, WORSE, NOISY, WORSE], 2, 1, 6),
        # A better epoch restarts the count.
        ([BEST, WORSE, BETTER, WORSE, NOISY, NOISY, WORSE], 2, 3, 7),
    ],
)
def test_noise_does_not_use_up_patience(rows: Any, patience: int, epochs: int, made: int) -> None:
    found = fitted(Stop(30, users_of(*rows), patience=patience))
    assert (found.epochs, len(found.history)) == (epochs, made)
    values = [row["valid_ndcg@10"] for row in found.history]
    assert values == pytest.approx([np.mean(row) for row in rows[:made]])


def test_validates_every_so_often_and_at_the_end() -> None:
    found = fitted(Stop(5, lambda factors: 1.0, every=2))
    validated = [row["epoch"] for row in found.history if row["valid_ndcg@10"] is not None]
    assert validated == [2, 4, 5]
    assert found.epochs == 2, "of equal ones the first"


class Broken(Regularizer):
    name = "broken"

    def forward(self, U: Tensor, V: Tensor) -> Tensor:
        return U.sum() * torch.nan


def test_says_which_term_is_not_finite() -> None:
    with pytest.raises(TrainingError, match="regularizer"):
        fitted(Stop(2), dim=3, reg=Broken(), reg_weight=1.0)
    with pytest.raises(TrainingError, match="not finite"):
        fitted(Stop(5), dim=3, optimizer=Optimizer(lr=1e30))
    for value, lr in ((torch.nan, 0.01), (1e20, 1e30)):
        model = UltraGCN(BOARD, factors=3)
        model.users[:] = value
        with pytest.raises(TrainingError, match="ultragcn"):
            fit(model, batches_of(block_users=10**6), Stop(1), optimizer=Optimizer(lr=lr))


def test_ctrl_c_leaves_the_best_so_far() -> None:
    calls = []

    def validate(factors: Factors) -> float:
        calls.append(factors)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return float(len(calls))

    found = fitted(Stop(10, validate))
    assert found.interrupted
    assert found.epochs == 2
    assert torch.equal(found.factors.items, calls[1].items)


def test_progress_bar_shows_loss_valid_and_norm(capsys: pytest.CaptureFixture[str]) -> None:
    fitted(Stop(2, lambda factors: 0.25), progress=True)
    shown = capsys.readouterr().err
    assert "loss " in shown
    assert "valid ndcg@10 0.2500 (epoch 1)" in shown
    assert "2->inf " in shown
    fitted(Stop(2))
    assert capsys.readouterr().err == ""


def test_the_history_has_a_row_for_each_epoch() -> None:
    found = fitted(Stop(3), reg=WeightDecay(), reg_weight=1e-3)
    assert [row["epoch"] for row in found.history] == [1, 2, 3]
    for row in found.history:
        assert (row["stage"], row["valid_ndcg@10"]) == ("fit", None)
        assert min(row["loss"], row["penalty"], row["seconds"]) > 0
        assert "attacked_loss" not in row
    U, V = found.factors
    assert found.history[-1]["two_to_inf"] == pytest.approx(float((U @ V.T).norm(dim=1).max()))
    assert two_to_inf(Factors(torch.zeros(0, 2), torch.zeros(3, 2))) == 0.0


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("batching", ["rows", "pairs"])
def test_the_loss_shown_is_that_of_the_first_steps_per_pair(name: str, batching: str) -> None:
    """In one step out of sixteen it is computed; here there is but one."""
    batches = batches_of(name=name, kind=batching, block_users=50, batch_size=10**4)
    model = MODELS[name](BOARD, factors=3)
    U, V = (part.clone() for part in model.scored())
    (batch,) = batches.epoch(0)
    expected = batches.objective.gradient(batch, U, V, value=True).value
    found = fit(model, batches, Stop(1))
    assert found.history[0]["loss"] == pytest.approx(expected / len(BOARD), rel=1e-6)


@pytest.mark.parametrize(
    ("make", "name"), [*((MODELS[n], n) for n in OBJECTIVES), (LightGCN, "bpr")]
)
@pytest.mark.parametrize("batching", ["rows", "pairs"])
def test_cold_users_and_items_survive_training(make: Any, name: str, batching: str) -> None:
    pairs = Interactions.from_pairs([0, 0, 1, 2], [0, 1, 1, 2], 5, 6)[0]
    batches = batches_of(pairs, name, kind=batching, block_users=2, batch_size=2)
    factors = fit(
        make(pairs, factors=3), batches, Stop(30), reg=WeightDecay(), reg_weight=1e-3
    ).factors
    factors.check_finite()
    assert torch.equal(factors.users[3], factors.users[4])
    torch.testing.assert_close(factors.users[3], factors.users[:3].mean(dim=0))


@pytest.mark.parametrize(
    ("stop", "options", "word"),
    [
        (Stop(1, every=0), {}, "every"),
        (Stop(-1), {}, "epochs"),
        (Stop(1), {"optimizer": Optimizer(schedule="steps")}, "schedule"),
        (Stop(1), {"optimizer": Optimizer(beta1=1.0)}, "beta1"),
        (Stop(1), {"reg": DegreeDecay(), "reg_weight": 1.0}, "prepare"),
    ],
)
def test_fit_refuses(stop: Stop, options: dict[str, Any], word: str) -> None:
    with pytest.raises(InputError, match=word):
        fitted(stop, **options)


# --- resuming -------------------------------------------------------------------------------


class Stopped(Exception):
    """A killed process."""


class Plug(CheckpointFiles):
    """Keeps every state, and stops after some."""

    def __init__(self, folder: Path, left: int = 0) -> None:
        super().__init__(folder, every=0.0)
        self.left = left

    def save(self, *arguments: Any, **options: Any) -> None:
        super().save(*arguments, **options)
        self.left -= 1
        if self.left == 0:
            raise Stopped


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("batching", ["rows", "pairs"])
@pytest.mark.parametrize(
    "reg", [lambda: TwoToInf("twinest", budget=5), lambda: TwoToInf(refresh=8, every=2)]
)
def test_a_resumed_fit_has_the_same_bits(
    name: str, batching: str, reg: Any, tmp_path: Path
) -> None:
    def once(checkpoint: Plug | None) -> Fitted:
        batches = batches_of(name=name, kind=batching, block_users=6, batch_size=40)
        return fit(
            MODELS[name](BOARD, factors=4), batches, Stop(7, lambda factors: -two_to_inf(factors)),
            reg=reg(), reg_weight=1e-3, checkpoint=checkpoint,
            adversary=adversary("softmax", batches, AdversaryConfig(weight=0.1)),
        )  # fmt: skip

    whole = once(None)
    for left in (3, 2):
        with pytest.raises(Stopped):
            once(Plug(tmp_path, left))
    resumed = once(Plug(tmp_path))
    assert all(map(torch.equal, resumed.factors, whole.factors))
    assert resumed.epochs == whole.epochs
    for one, two in zip(resumed.history, whole.history, strict=True):
        assert one | {"seconds": 0} == two | {"seconds": 0}
    # A finished one is not made again.
    assert once(Plug(tmp_path)).history == resumed.history


@pytest.mark.parametrize(
    ("rows", "patience", "made"),
    [([0.5, 0.4, 0.3, 0.2, 0.9], 3, 4), ([BEST, NOISY, WORSE, NOISY, WORSE, [0.9, 0.9]], 2, 5)],
)
@pytest.mark.parametrize("left", [1, 2, 3])
def test_a_resumed_fit_keeps_its_patience_and_its_best(
    left: int, rows: Any, patience: int, made: int, tmp_path: Path
) -> None:
    stop = Stop(20, users_of(*rows), patience=patience)
    with pytest.raises(Stopped):
        fitted(stop, checkpoint=Plug(tmp_path, left))
    found = fitted(stop, checkpoint=Plug(tmp_path))
    assert (found.epochs, len(found.history)) == (1, made)


@pytest.mark.parametrize(
    ("facts", "values", "word"),
    [
        ({"worse": 2}, None, "worse"),
        ({}, torch.zeros(2), "float64"),
        ({}, torch.zeros(2, 1, dtype=torch.float64), "float64"),
        ({}, torch.zeros((), dtype=torch.int64), "float64"),
        ({}, torch.tensor([0.1, torch.nan], dtype=torch.float64), "finite"),
    ],
)
def test_damaged_states_are_refused(facts: Any, values: Tensor | None, word: str) -> None:
    U, V = torch.zeros(3, 2), torch.zeros(4, 2)
    tensors = {"users": U, "items": V, "best.users": U, "best.items": V}
    tensors |= {} if values is None else {"best.values": values}
    whole = {"history": [], "since_best": 1, "worse": 1, "best": [0.5, 1]}
    with pytest.raises(InputError, match=word):
        FitState.restored(tensors, whole | facts)
