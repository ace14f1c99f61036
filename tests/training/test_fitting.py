"""``train``: it learns, chooses on valid, refits, masks what it was fit on, never sees test."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from robustcf.data import EvaluationProtocol, Interactions, Split, checkerboard, load
from robustcf.factors import Factors
from robustcf.metrics import evaluate
from robustcf.models import LightGCN
from robustcf.objectives import Batches, Softmax
from robustcf.regularizers import DegreeDecay, TwoToInf
from robustcf.training import TrainConfig
from robustcf.training.adversarial import Margin
from robustcf.training.fitting import (
    build_adversary,
    build_model,
    build_objective,
    build_regularizer,
    fit_split,
    gauged,
)
from robustcf.training.loop import Optimizer, Stop, fit
from robustcf.training.presets import preset

SEEDS = [0, 1, 2]
SMALL = TrainConfig.of(
    model="ultragcn", dim=8, epochs=4, block_users=500, negative_weight=20.0, eval_every=1
)
FACTORIZATIONS = ["ultragcn", "bpr-mf"]


def none_of(pairs: Interactions) -> Interactions:
    return pairs.take(np.zeros(len(pairs), dtype=bool))


def published(split: Split) -> Split:
    """The same pairs, with validation pairs that came in a file of their own."""
    return Split(
        "given", split.train, split.valid, split.test, valid_source="published",
        protocol=EvaluationProtocol(test=("train",)),
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("model", "objective", "batching", "lr"),
    [
        ("ultragcn", "bce", "rows", 0.2),
        ("bpr-mf", "bpr", "rows", 0.2),
        ("bpr-mf", "softmax", "rows", 0.2),
        ("ultragcn", "softmax", "rows", 0.2),
        ("ultragcn", "softmax", "pairs", 0.1),
    ],
)
def test_learns_a_checkerboard(
    seed: int, model: str, objective: str, batching: str, lr: float
) -> None:
    """Four test items a user, and the only right-parity items left: they must come first."""
    split = checkerboard(60, 40, seed=seed)
    weights = {"negative_weight": 10.0} if objective == "bce" else {}
    config = TrainConfig.of(
        model=model, objective=objective, batching=batching, dim=4, epochs=40, block_users=8,
        batch_size=64, init="normal", init_std=0.1, lr=lr, user_lr=lr, reg_weight=1e-5,
        eval_every=10, seed=seed, **weights,
    )  # fmt: skip
    untrained = build_model(config, split.train).factors()
    assert evaluate(untrained, split, (4,))["recall@4"] < 0.4
    assert fit_split(split, config).evaluate((4,))["recall@4"] > (0.9 if lr == 0.1 else 0.999)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "objective"),
    [("ultragcn", "bce"), ("ultragcn", "softmax"), ("bpr-mf", "bpr"), ("lightgcn", "bpr")],
)
def test_learns_the_demo_set_better_than_popularity(model: str, objective: str) -> None:
    split = load("demo")
    degrees = torch.tensor(split.train_full.item_degrees, dtype=torch.float32)
    popular = evaluate(Factors(torch.ones(2000, 1), degrees[:, None]), split)
    config = SMALL.replace(model=model, objective=objective, dim=32, epochs=10)
    trained = fit_split(split, config)
    assert trained.evaluate()["ndcg@10"] > 1.5 * popular["ndcg@10"]


@pytest.mark.slow
@pytest.mark.realdata
def test_reaches_the_published_quality_on_ml_1m(real_data: Path) -> None:
    """Published: 0.2787 / 0.2642, its epoch chosen on test; the preset here on valid."""
    split = load("ml-1m", data_dir=real_data, download=False)
    report = fit_split(split, preset("ml-1m").config).evaluate()
    assert report.protocol.masked == ("train",)
    assert report["recall@20"] >= 0.275
    assert report["ndcg@20"] >= 0.263


@pytest.mark.parametrize("batching", ["rows", "pairs"])
@pytest.mark.parametrize("model", ["ultragcn", "bpr-mf", "lightgcn"])
def test_same_seed_same_bits(batching: str, model: str) -> None:
    split = checkerboard()
    config = SMALL.replace(
        model=model, batching=batching, reg="two_to_inf", estimator="twinest", reg_budget=5,
        reg_weight=1e-4, epochs=2, block_users=7, batch_size=50,
    )  # fmt: skip
    runs = [fit_split(split, config).factors for _ in range(2)]
    assert torch.equal(runs[0].users, runs[1].users)
    assert torch.equal(runs[0].items, runs[1].items)
    other = fit_split(split, config.replace(seed=1)).factors
    assert not torch.equal(runs[0].users, other.users)


def test_refit_follows_where_valid_comes_from() -> None:
    carved = checkerboard()
    assert carved.valid_source == "carved"
    given = published(carved)
    config = SMALL.replace(epochs=3, patience=0)
    assert fit_split(carved, config).fit_on == "train and valid"
    assert fit_split(given, config).fit_on == "train"
    assert fit_split(carved, config.replace(refit="no")).fit_on == "train"
    assert fit_split(given, config.replace(refit="yes")).fit_on == "train and valid"
    again = fit_split(carved, config)
    stages = [row["stage"] for row in again.history]
    assert stages == ["train"] * 3 + ["refit"] * again.epochs
    assert again.valid is not None
    # A number of epochs that is chosen already goes to all pairs at once.
    chosen = fit_split(carved, config.replace(epochs_chosen=True))
    assert [row["stage"] for row in chosen.history] == ["refit"] * 3
    assert chosen.valid is None
    fixed = fit_split(given, config.replace(epochs_chosen=True))
    assert fixed.epochs == 3
    assert all(row["valid_ndcg@10"] is None for row in fixed.history)
    assert fixed.valid is not None


def test_refit_takes_the_steps_of_the_same_schedule() -> None:
    """A refit is what the first epochs on all pairs would have been."""
    split = checkerboard()
    config = SMALL.replace(epochs=4, epochs_chosen=True, refit="no")
    how = Optimizer(config.lr)
    short, long = (
        fit(
            build_model(config, split.train),
            Batches(build_objective(config, split.train), config.batching),
            stop,
            optimizer=how,
        )
        for stop in (Stop(2, planned=4), Stop(4))
    )
    assert short.history[1]["loss"] == long.history[1]["loss"]
    assert short.history[1]["two_to_inf"] == long.history[1]["two_to_inf"]


def test_without_valid_all_epochs_are_made() -> None:
    split = checkerboard()
    without = Split("x", split.train, none_of(split.valid), split.test, valid_source="none")
    trained = fit_split(without, SMALL.replace(refit="yes"))
    assert (trained.epochs, trained.fit_on, trained.valid) == (4, "train", None)


def test_test_pairs_are_never_touched() -> None:
    """The bits are those of a training that has no test pairs at all."""
    split = checkerboard()
    bare = Split("bare", split.train, split.valid, none_of(split.test))
    one, two = (fit_split(each, SMALL).factors for each in (split, bare))
    assert torch.equal(one.users, two.users)
    assert torch.equal(one.items, two.items)


def test_masks_what_it_was_fit_on() -> None:
    carved = checkerboard()
    given = published(carved)
    config = SMALL.replace(epochs=1)
    assert fit_split(given, config).evaluate().protocol.masked == ("train",)
    refitted = fit_split(given, config.replace(refit="yes"))
    assert refitted.evaluate().protocol.masked == ("train", "valid")
    assert len(refitted.seen) == len(carved.train) + len(carved.valid)
    # Data of one's own mask both, whatever was learnt from.
    own = Split("own", carved.train, carved.valid, carved.test)
    assert fit_split(own, config.replace(refit="no")).evaluate().protocol.masked == (
        "train",
        "valid",
    )


@pytest.mark.parametrize("model", FACTORIZATIONS)
@pytest.mark.parametrize("init", ["spectral", "smooth"])
def test_no_epochs_leave_the_start_as_it_is(model: str, init: str) -> None:
    split = load("demo")
    config = SMALL.replace(model=model, init=init, epochs=0)
    trained = fit_split(split, config)
    assert trained.epochs == 0
    assert trained.history == []
    start = build_model(config, trained.seen).factors()
    assert torch.equal(trained.factors.users, start.users)
    assert torch.equal(trained.factors.items, start.items)


def test_the_gauge_is_taken_after_the_choice_of_the_epoch() -> None:
    split = checkerboard()
    config = SMALL.replace(epochs=3, gauge="balanced", shrink=0.3)
    plain, found = (
        fit_split(split, config.replace(gauge="none", shrink=0.0)),
        fit_split(split, config),
    )
    assert plain.epochs == found.epochs
    expected = gauged(plain.factors, config)
    assert torch.equal(found.factors.users, expected.users)
    assert torch.equal(found.factors.items, expected.items)
    assert not torch.equal(found.factors.users, plain.factors.users)


# --- what a configuration describes ---------------------------------------------------------


def test_parts_are_built_as_the_configuration_says() -> None:
    pairs = checkerboard().train
    config = TrainConfig.of(
        model="lightgcn", dim=3, layers=2, seed=5, objective="softmax", reg="two_to_inf",
        reg_top=4, reg_side="items", adversarial="margin", adv_eps=0.3, adv_weight=2.0,
        batching="pairs", batch_size=77,
    )  # fmt: skip
    model = build_model(config, pairs)
    assert isinstance(model, LightGCN)
    assert (model.dim, model.config.layers, model.seed) == (3, 2, 5)
    objective = build_objective(config, pairs)
    assert isinstance(objective, Softmax)
    reg = build_regularizer(config)
    assert isinstance(reg, TwoToInf)
    assert (reg.top, reg.side, reg.seed) == (4, "items", 5)
    batches = Batches(objective, config.batching, seed=config.seed)
    rival = build_adversary(config, batches)
    assert isinstance(rival, Margin)
    assert rival.objective is objective
    assert (rival.config.eps, rival.config.weight) == (0.3, 2.0)
    assert build_adversary(config.replace(adv_weight=0.0), batches) is None
    assert build_adversary(config.replace(adversarial="none"), batches) is None
    start = Factors(torch.ones(20, 9), torch.ones(30, 9))
    assert build_model(config, pairs, start=start).dim == 9


def test_a_regularizer_is_told_the_degrees_of_what_is_learnt_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = []
    prepare = DegreeDecay.prepare

    def spy(self: DegreeDecay, users: torch.Tensor, items: torch.Tensor) -> None:
        told.append((users.tolist(), items.tolist()))
        prepare(self, users, items)

    monkeypatch.setattr(DegreeDecay, "prepare", spy)
    split = checkerboard()
    fit_split(split, SMALL.replace(reg="degree_decay", epochs=1))
    assert told == [
        (pairs.user_degrees.tolist(), pairs.item_degrees.tolist())
        for pairs in (split.train, split.train_full)
    ]
