"""Fitting a split: choice of epochs on valid, refit, masks, and test pairs left alone."""

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
from robustcf.training import TrainConfig, fitting
from robustcf.training.adversarial import Margin
from robustcf.training.fitting import build_adversary, build_model, build_objective, fit_split
from robustcf.training.loop import Optimizer, Stop, fit
from robustcf.training.presets import preset

SEEDS = [0, 1, 2]
SMALL = TrainConfig.of(
    model="ultragcn", factors=8, epochs=4, block_users=500, negative_weight=20.0, eval_every=1
)
RIVALS = ("bpr", "bce", "softmax", "margin")


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
    ("model", "objective", "batching", "adversarial"),
    [
        *(("ultragcn", "bce", "rows", rival) for rival in ("none", *RIVALS)),
        *(("bpr-mf", "bpr", "rows", rival) for rival in ("none", *RIVALS)),
        *(("ultragcn", "softmax", "rows", rival) for rival in ("none", "softmax", "margin")),
        ("bpr-mf", "softmax", "rows", "none"),
        ("ultragcn", "softmax", "pairs", "none"),
    ],
)
def test_learns_a_checkerboard(
    seed: int, model: str, objective: str, batching: str, adversarial: str
) -> None:
    """The test items are the only items of the right parity left: they must come first."""
    split = checkerboard(30, 40, seed=seed)
    lr = 0.1 if batching == "pairs" else 0.2
    config = TrainConfig.of(
        model=model, objective=objective, batching=batching, adversarial=adversarial, factors=4,
        epochs=30, block_users=8, batch_size=64, init="normal", init_std=0.1, lr=lr, user_lr=lr,
        reg_weight=1e-5, eval_every=10, seed=seed,
        **({"negative_weight": 10.0} if objective == "bce" else {}),
    )  # fmt: skip
    untrained = build_model(config, split.train).factors()
    assert evaluate(untrained, split, (4,))["recall@4"] < 0.4
    least = 0.9 if batching == "pairs" else 0.999 if adversarial == "none" else 0.95
    assert fit_split(split, config).evaluate((4,))["recall@4"] > least


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "objective"),
    [("ultragcn", "bce"), ("ultragcn", "softmax"), ("bpr-mf", "bpr"), ("lightgcn", "bpr")],
)
def test_learns_the_demo_set_better_than_popularity(model: str, objective: str) -> None:
    split = load("demo")
    degrees = torch.tensor(split.train_full.item_degrees, dtype=torch.float32)
    popular = evaluate(Factors(torch.ones(2000, 1), degrees[:, None]), split)
    config = SMALL.replace(model=model, objective=objective, factors=32, epochs=10)
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
    assert all(map(torch.equal, *runs))
    other = fit_split(split, config.replace(seed=1)).factors
    assert not torch.equal(runs[0].users, other.users)


def test_refit_follows_where_valid_comes_from() -> None:
    carved = checkerboard()
    assert carved.valid_source == "carved"
    given = published(carved)
    config = SMALL.replace(epochs=3, patience=0)
    again = fit_split(carved, config)
    fits = [again, fit_split(given, config), fit_split(carved, config.replace(refit="no"))]
    fits.append(fit_split(given, config.replace(refit="yes")))
    both = "train and valid"
    assert [fitted.fit_on for fitted in fits] == [both, "train", "train", both]
    assert [row["stage"] for row in again.history] == ["train"] * 3 + ["refit"] * again.epochs
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
    assert all(map(torch.equal, *(fit_split(each, SMALL).factors for each in (split, bare))))


def test_masks_what_it_was_fit_on() -> None:
    carved = checkerboard()
    given = published(carved)
    config = SMALL.replace(epochs=1)
    assert fit_split(given, config).evaluate().protocol.masked == ("train",)
    refitted = fit_split(given, config.replace(refit="yes"))
    assert refitted.evaluate().protocol.masked == ("train", "valid")
    assert len(refitted.seen) == len(carved.train) + len(carved.valid)
    # The user's own data mask both splits, also where the model was fit on train alone.
    own = Split("own", carved.train, carved.valid, carved.test)
    found = fit_split(own, config.replace(refit="no")).evaluate()
    assert found.protocol.masked == ("train", "valid")


@pytest.mark.parametrize("model", ["ultragcn", "bpr-mf"])
@pytest.mark.parametrize("init", ["spectral", "smooth"])
def test_no_epochs_leave_the_start_as_it_is(model: str, init: str) -> None:
    split = load("demo")
    config = SMALL.replace(model=model, init=init, epochs=0)
    trained = fit_split(split, config)
    assert trained.epochs == 0
    assert trained.history == []
    assert all(map(torch.equal, trained.factors, build_model(config, trained.seen).factors()))


def test_the_gauge_is_taken_after_the_choice_of_the_epoch() -> None:
    split = checkerboard()
    config = SMALL.replace(epochs=3, gauge="balanced", shrink=0.3)
    plain = fit_split(split, config.replace(gauge="none", shrink=0.0))
    found = fit_split(split, config)
    assert plain.epochs == found.epochs
    assert all(map(torch.equal, found.factors, fitting.gauged(plain.factors, config)))
    assert not torch.equal(found.factors.users, plain.factors.users)


# --- what a configuration describes ---------------------------------------------------------


def test_parts_are_built_as_the_configuration_says() -> None:
    pairs = checkerboard().train
    config = TrainConfig.of(
        model="lightgcn", factors=3, layers=2, seed=5, objective="softmax", reg="two_to_inf",
        reg_top=4, reg_side="items", adversarial="margin", adv_eps=0.3, adv_weight=2.0,
        batching="pairs", batch_size=77,
    )  # fmt: skip
    model = build_model(config, pairs)
    assert isinstance(model, LightGCN)
    assert (model.dim, model.config.layers, model.seed) == (3, 2, 5)
    objective = build_objective(config, pairs)
    assert isinstance(objective, Softmax)
    reg = fitting.build_regularizer(config)
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
