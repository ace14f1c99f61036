"""The loop: it learns, it is deterministic, its weights mean one thing, it stops when told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from robustcf.training.config import TrainConfig
from robustcf.data import Interactions, Split, checkerboard, load
from robustcf.errors import InputError, TrainingError
from robustcf.factors import Factors
from robustcf.training.loop import Stop, fit, two_to_inf
from robustcf.metrics import evaluate
from robustcf.models import BPRMF, UltraGCN
from robustcf.training.optim import Adam, schedule
from robustcf.training.presets import preset, presets
from robustcf.regularizers import MaxNorm, Regularizer, TwoToInf, WeightDecay
from robustcf.training import build_model, train

SEEDS = [0, 1, 2]
SMALL = TrainConfig(dim=8, epochs=4, block_users=500, negative_weight=20.0, eval_every=1)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("model", ["ultragcn", "bpr-mf"])
def test_learns_a_checkerboard(seed: int, model: str) -> None:
    """Four test items a user, and the only right-parity items left: they must come first."""
    split = checkerboard(60, 40, seed=seed)
    config = TrainConfig(
        model=model, dim=4, epochs=40, block_users=8, init="normal", init_std=0.1, lr=0.2,
        user_lr=0.2, negative_weight=10.0, reg_weight=1e-5, eval_every=10, seed=seed,
    )  # fmt: skip
    untrained = build_model(config, split.train).factors()
    assert evaluate(untrained, split, (4,))["recall@4"] < 0.4
    assert train(split, config).evaluate((4,))["recall@4"] == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("model", ["ultragcn", "bpr-mf"])
def test_learns_the_demo_set_better_than_popularity(model: str) -> None:
    split = load("demo")
    degrees = torch.tensor(split.train_full.item_degrees, dtype=torch.float32)
    popular = evaluate(Factors(torch.ones(2000, 1), degrees[:, None]), split)
    trained = train(split, SMALL.replace(model=model, dim=32, epochs=10))
    assert trained.evaluate()["ndcg@10"] > 1.5 * popular["ndcg@10"]


@pytest.mark.slow
@pytest.mark.realdata
def test_reaches_the_published_quality_on_ml_1m(real_data: Path) -> None:
    """Published: 0.2787 / 0.2642, its epoch chosen on test; the preset here on valid."""
    split = load("ml-1m", data_dir=real_data, download=False)
    report = train(split, preset("ml-1m").config).evaluate()
    assert report.protocol.masked == ("train",)
    assert report["recall@20"] >= 0.275
    assert report["ndcg@20"] >= 0.263


@pytest.mark.parametrize("batching", ["rows", "pairs"])
@pytest.mark.parametrize("model", ["ultragcn", "bpr-mf"])
def test_same_seed_same_bits(batching: str, model: str) -> None:
    split = checkerboard()
    config = SMALL.replace(
        model=model, batching=batching, reg="two_to_inf", estimator="twinest", reg_budget=5,
        reg_weight=1e-4, epochs=2, block_users=7, batch_size=50,
    )  # fmt: skip
    runs = [train(split, config).factors for _ in range(2)]
    assert torch.equal(runs[0].users, runs[1].users)
    assert torch.equal(runs[0].items, runs[1].items)
    other = train(split, config.replace(seed=1)).factors
    assert not torch.equal(runs[0].users, other.users)


class Recorder:
    """Stands in for Adam: notes the gradients instead of taking steps."""

    seen: list[tuple[Tensor, Tensor | None]]

    def __init__(self, parameter: Tensor, **_: Any) -> None:
        self.seen = []
        RECORDERS.append(self)

    def step(self, gradient: Tensor, lr: float, rows: Tensor | None = None) -> None:
        self.seen.append((gradient.clone(), rows))

    def total(self, shape: torch.Size) -> Tensor:
        total = torch.zeros(shape)
        for gradient, rows in self.seen:
            if rows is None:
                total += gradient
            else:
                total.index_add_(0, rows, gradient)
        return total


RECORDERS: list[Recorder] = []


class Plain(nn.Module):
    """A penalty that is no Regularizer: anybody's module."""

    def forward(self, U: Tensor, V: Tensor) -> Tensor:
        return (U.square().sum() + V.square().sum()) * 3.0


@pytest.mark.parametrize("reg", [WeightDecay(), MaxNorm(), TwoToInf(top=3), Plain()], ids=repr)
@pytest.mark.parametrize(
    ("batching", "size"), [("rows", 5), ("rows", 11), ("pairs", 16), ("pairs", 64)]
)
def test_weight_means_the_same_in_both_batchings(
    reg: nn.Module, batching: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over a pass the penalty's gradient is weight * pairs / 1024 times its own."""
    monkeypatch.setattr("robustcf.training.loop.Adam", Recorder)
    pairs = checkerboard().train

    def whole_pass(weight: float) -> tuple[Tensor, Tensor]:
        RECORDERS.clear()
        model = UltraGCN(
            pairs, 3, batching=batching, block_users=size, batch_size=size,
        )  # type: ignore[arg-type]  # fmt: skip
        fit(model, Stop(1), reg=reg, reg_weight=weight)
        users, items = RECORDERS
        return users.total(model.users.shape), items.total(model.items.shape)

    with_reg, without = whole_pass(50.0), whole_pass(0.0)
    model = UltraGCN(pairs, 3)
    U, V = model.users.requires_grad_(), model.items.requires_grad_()
    expected = torch.autograd.grad(50.0 * len(pairs) / 1024 * reg(U, V), (U, V))
    for got, base, wanted in zip(with_reg, without, expected, strict=True):
        torch.testing.assert_close(got - base, wanted, rtol=1e-3, atol=1e-3)


def test_chooses_the_best_look_and_stops_early() -> None:
    split = checkerboard()
    values = iter([0.1, 0.5, 0.3, 0.2, 0.9])
    seen = []

    def look(factors: Factors) -> float:
        seen.append(factors)
        return next(values)

    model = UltraGCN(split.train, 4, block_users=10)
    fitted = fit(model, Stop(20, look, every=1, patience=2))
    assert fitted.epochs == 2
    assert len(fitted.history) == 4
    assert torch.equal(fitted.factors.users, seen[1].users)
    assert [row["valid_ndcg@10"] for row in fitted.history] == [0.1, 0.5, 0.3, 0.2]


def test_looks_every_so_often_and_at_the_end() -> None:
    model = UltraGCN(checkerboard().train, 4)
    fitted = fit(model, Stop(5, lambda factors: 1.0, every=2))
    looked = [row["epoch"] for row in fitted.history if row["valid_ndcg@10"] is not None]
    assert looked == [2, 4, 5]


def test_refit_follows_where_valid_comes_from() -> None:
    carved = checkerboard()
    assert carved.valid_source == "carved"
    published = Split("given", carved.train, carved.valid, carved.test, valid_source="published")
    config = SMALL.replace(epochs=3, patience=0)
    assert train(carved, config).learnt_from == "train and valid"
    assert train(published, config).learnt_from == "train"
    assert train(carved, config.replace(refit="no")).learnt_from == "train"
    assert train(published, config.replace(refit="yes")).learnt_from == "train and valid"
    again = train(carved, config)
    stages = [row["stage"] for row in again.history]
    assert stages == ["train"] * 3 + ["refit"] * again.epochs
    assert again.valid is not None
    # A number of passes that is chosen already goes to all pairs at once.
    chosen = train(carved, config.replace(epochs_chosen=True))
    assert [row["stage"] for row in chosen.history] == ["refit"] * 3
    assert chosen.valid is None
    fixed = train(published, config.replace(epochs_chosen=True))
    assert fixed.epochs == 3
    assert all(row["valid_ndcg@10"] is None for row in fixed.history)
    assert fixed.valid is not None


def test_refit_takes_the_steps_of_the_same_schedule() -> None:
    """A refit is what the first passes on all pairs would have been."""
    split = checkerboard()
    config = SMALL.replace(epochs=4, epochs_chosen=True, refit="no")
    model = build_model(config, split.train)
    short = fit(model, Stop(2, planned=4), lr=config.lr)
    long = fit(build_model(config, split.train), Stop(4), lr=config.lr)
    assert short.history[1]["loss"] == long.history[1]["loss"]
    assert short.history[1]["two_to_inf"] == long.history[1]["two_to_inf"]


def test_without_valid_all_passes_are_made() -> None:
    split = checkerboard()
    nothing = split.valid.take(np.zeros(len(split.valid), dtype=bool))
    without = Split("x", split.train, nothing, split.test, valid_source="none")
    trained = train(without, SMALL.replace(refit="yes"))
    assert (trained.epochs, trained.learnt_from, trained.valid) == (4, "train", None)


def test_masks_what_was_learnt_from() -> None:
    carved = checkerboard()
    published = Split("ml-1m", carved.train, carved.valid, carved.test, valid_source="published")
    config = SMALL.replace(epochs=1)
    assert train(published, config).evaluate().protocol.masked == ("train",)
    refitted = train(published, config.replace(refit="yes"))
    assert refitted.evaluate().protocol.masked == ("train", "valid")
    assert len(refitted.seen) == len(carved.train) + len(carved.valid)


def test_recommends_what_is_not_there_yet() -> None:
    split = checkerboard()
    trained = train(split, SMALL.replace(epochs=1))
    own = set(split.train_full.items_of(3).tolist())
    assert not own & set(trained.recommend(3, k=5))


class Broken(Regularizer):
    name = "broken"

    def forward(self, U: Tensor, V: Tensor) -> Tensor:
        return U.sum() * torch.nan


def test_says_which_term_is_not_finite() -> None:
    pairs = checkerboard().train
    with pytest.raises(TrainingError, match="the regularizer broken is not finite in pass 1"):
        fit(UltraGCN(pairs, 3), Stop(2), reg=Broken(), reg_weight=1.0)
    poisoned = UltraGCN(pairs, 3)
    poisoned.users[0, 0] = torch.nan
    with pytest.raises(TrainingError, match="the loss of ultragcn is not finite"):
        fit(poisoned, Stop(2))
    with pytest.raises(TrainingError, match="not finite"):
        fit(UltraGCN(pairs, 3), Stop(5), lr=1e30)
    wild = UltraGCN(pairs, 3, block_users=10**6)
    wild.users[:] = 1e20
    with pytest.raises(TrainingError, match="ultragcn is not finite in pass 1"):
        fit(wild, Stop(1), lr=1e30)


def test_ctrl_c_leaves_the_best_so_far() -> None:
    calls = []

    def look(factors: Factors) -> float:
        calls.append(factors)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return float(len(calls))

    model = UltraGCN(checkerboard().train, 4)
    fitted = fit(model, Stop(10, look))
    assert fitted.interrupted
    assert fitted.epochs == 2
    assert torch.equal(fitted.factors.items, calls[1].items)


def test_progress_bar_shows_loss_valid_and_norm(capsys: pytest.CaptureFixture[str]) -> None:
    fit(UltraGCN(checkerboard().train, 4), Stop(2, lambda factors: 0.25), progress=True)
    shown = capsys.readouterr().err
    assert "loss " in shown
    assert "valid ndcg@10 0.2500 (pass 1)" in shown
    assert "2->inf " in shown


def test_default_configuration_is_the_preset() -> None:
    split = checkerboard()
    trained = train(split)
    assert trained.config == preset(split.name).config


def test_two_to_inf_is_the_norm_of_the_scores() -> None:
    U, V = torch.randn(20, 3), torch.randn(30, 3)
    assert two_to_inf(Factors(U, V)) == pytest.approx(float((U @ V.T).norm(dim=1).max()), rel=1e-5)


def test_cold_users_and_items_survive_training() -> None:
    pairs = Interactions.from_pairs([0, 0, 1, 2], [0, 1, 1, 2], 5, 6)[0]
    for make in (UltraGCN, BPRMF):
        model = make(pairs, 3, block_users=2)
        factors = fit(model, Stop(30), reg=WeightDecay(), reg_weight=1e-3).factors
        factors.check_finite()
        assert torch.equal(factors.users[3], factors.users[4])
        torch.testing.assert_close(factors.users[3], factors.users[:3].mean(dim=0))


def test_fit_refuses() -> None:
    model = UltraGCN(checkerboard().train, 2)
    with pytest.raises(InputError, match="every at least 1, got 1, 0"):
        fit(model, Stop(1, every=0))
    with pytest.raises(InputError, match="schedule must be one of"):
        fit(model, Stop(1), lr_schedule="steps")
    with pytest.raises(InputError, match=r"beta1 must be in \[0, 1\)"):
        fit(model, Stop(1), beta1=1.0)


# --- Adam -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_adam_is_adam(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(6, 3, generator=generator)
    ours, theirs = start.clone(), start.clone().requires_grad_()
    mine = Adam(ours, beta1=0.8, beta2=0.95)
    reference = torch.optim.Adam([theirs], lr=0.1, betas=(0.8, 0.95))
    for _ in range(10):
        gradient = torch.randn(6, 3, generator=generator)
        mine.step(gradient, 0.1)
        theirs.grad = gradient.clone()
        reference.step()
    torch.testing.assert_close(ours, theirs.detach())


@pytest.mark.parametrize("seed", SEEDS)
def test_adam_rows_count_their_own_steps(seed: int) -> None:
    """Rows left out of steps end as if those steps had never been."""
    rng = np.random.default_rng(seed)
    start = torch.tensor(rng.standard_normal((5, 2)), dtype=torch.float32)
    ours = start.clone()
    mine = Adam(ours)
    alone = [start[n : n + 1].clone() for n in range(5)]
    singles = [Adam(row) for row in alone]
    for _ in range(12):
        rows = np.flatnonzero(rng.random(5) < 0.6)
        if len(rows) == 0:
            continue
        gradient = torch.tensor(rng.standard_normal((len(rows), 2)), dtype=torch.float32)
        mine.step(gradient, 0.05, torch.tensor(rows))
        for place, row in enumerate(rows.tolist()):
            singles[row].step(gradient[place : place + 1], 0.05)
    torch.testing.assert_close(ours, torch.cat(alone))


def test_schedules() -> None:
    for name, middle, end in (("linear", 0.5, 0.0), ("cosine", 0.5, 0.0), ("constant", 1.0, 1.0)):
        assert schedule(name, 0.0) == pytest.approx(1.0)
        assert schedule(name, 0.5) == pytest.approx(middle)
        assert schedule(name, 1.0) == pytest.approx(end, abs=1e-7)
        assert schedule(name, 1.5) == pytest.approx(end, abs=1e-7)


# --- presets and configuration --------------------------------------------------------------


def test_presets_are_complete_and_say_how_they_were_found() -> None:
    for name, found in presets().items():
        dataset, model, reg, *kind = name.split(".")
        assert found.config.model == model
        assert reg in (found.config.reg, "robust")
        assert found.found["how"], name
        if dataset != "default" and kind != ["paper"]:
            assert found.config.epochs_chosen, name
    for model in ("ultragcn", "bpr-mf"):
        for reg in ("none", "weight_decay", "two_to_inf", "max_norm"):
            assert preset("something else", model, reg).name == f"default.{model}.{reg}"


@pytest.mark.parametrize("model", ["ultragcn", "bpr-mf"])
@pytest.mark.parametrize("init", ["spectral", "smooth"])
def test_no_passes_leave_the_start_as_it_is(model: str, init: str) -> None:
    split = load("demo")
    config = SMALL.replace(model=model, init=init, epochs=0)
    trained = train(split, config)
    assert trained.epochs == 0
    assert trained.history == []
    start = build_model(config, trained.seen).factors()
    assert torch.equal(trained.factors.users, start.users)
    assert torch.equal(trained.factors.items, start.items)
    with pytest.raises(InputError, match="epochs must be at least 0 and every at least 1, got -1"):
        fit(build_model(config, split.train), Stop(-1))


def test_preset_refuses() -> None:
    for model in ("svd", ""):
        with pytest.raises(InputError, match="model must be one of"):
            preset("demo", model)
    with pytest.raises(InputError, match="reg must be one of"):
        preset("demo", "ultragcn", "l1")
    with pytest.raises(InputError, match="preset must be one of tuned, robust, paper, got 'best'"):
        preset("demo", kind="best")
    with pytest.raises(InputError, match="chooses its regularizer itself, got reg 'max_norm'"):
        preset("ml-1m", reg="max_norm", kind="robust")
    with pytest.raises(InputError, match="no preset demo.ultragcn.weight_decay.paper; .* ml-1m.ul"):
        preset("demo", kind="paper")


@pytest.mark.parametrize(
    ("dataset", "file"), [("ml-1m", "robust_search.json"), ("demo", "robust_search_demo.json")]
)
def test_the_robust_preset_is_the_one_that_its_search_chose(dataset: str, file: str) -> None:
    """--preset robust without a model takes that of the best candidate that was found."""
    path = Path(__file__).resolve().parent.parent / "results" / file
    search = json.loads(path.read_text(encoding="utf-8"))
    assert search["dataset"] == dataset
    tried = {row["candidate"]: row for row in search["candidates"]}
    for model, name in search["by_model"].items():
        found = preset(dataset, model, kind="robust")
        assert found.config.model == model
        for key, value in tried[name]["changes"].items():
            assert getattr(found.config, key) == value
        assert found.found["valid"]["auto"] == tried[name]["auto"]
    best = max(search["by_model"].values(), key=lambda name: sum(tried[name]["auto"][1:]))
    assert preset(dataset, kind="robust").config.model == tried[best]["changes"]["model"]


def test_the_robust_preset_of_sets_without_a_search_keeps_the_rankings_of_weight_decay() -> None:
    for dataset in ("yelp2018", "citeulike-a", "citeulike-t"):
        found, plain = preset(dataset, kind="robust").config, preset(dataset).config
        assert found == plain.replace(gauge="balanced")
    assert preset("mine", kind="robust").name == "default.ultragcn.robust"
    assert preset("mine", "bpr-mf", kind="robust").name == "default.bpr-mf.robust"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"dmi": 3}, "unknown setting 'dmi'; did you mean 'dim'"),
        ({"zzz": 3}, "unknown setting 'zzz'; known: model"),
        ({"dim": 0}, "dim must be an integer of at least 1, got 0"),
        ({"dim": "8"}, "dim must be an integer"),
        ({"epochs": True}, "epochs must be an integer"),
        ({"lr": -1.0}, "lr must be a finite number and not negative"),
        ({"lr": 0}, "lr must be positive"),
        ({"reg_weight": float("nan")}, "reg_weight must be a finite number"),
        ({"model": "svd"}, "model must be one of ultragcn, bpr-mf, got 'svd'"),
        ({"refit": "maybe"}, "refit must be one of auto, yes, no"),
        ({"epochs_chosen": 1}, "epochs_chosen must be true or false"),
        ({"sampled_items": 0}, "sampled_items must be an integer"),
        ({"shrink": 0.5}, "shrink needs the gauge 'balanced', got 'none'"),
        ({"gauge": "round"}, "gauge must be one of none, balanced, got 'round'"),
    ],
)
def test_config_refuses(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        TrainConfig.from_dict(values)
    with pytest.raises(InputError, match=message):
        TrainConfig().replace(**values)


def test_config_round_trip() -> None:
    config = TrainConfig(dim=3, user_lr=None, sampled_items=7)
    assert TrainConfig.from_dict(config.as_dict()) == config
