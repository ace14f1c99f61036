"""``train`` and ``fit`` of a model: presets, settings, searches, and the same bits each time."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch

import robustcf
from robustcf.data import Split, checkerboard, load
from robustcf.errors import InputError
from robustcf.models import ALS, BPRMF, MODELS, Model, ModelConfig, UltraGCN
from robustcf.models.base import FitAtOnce
from robustcf.models.voting import VoteConfig, fit_vote
from robustcf.recommender import Recommender
from robustcf.training import TrainConfig, train
from robustcf.training.fitting import fit_split
from robustcf.training.front import model_config
from robustcf.training.presets import choose, preset


@dataclasses.dataclass(frozen=True)
class LongConfig(ModelConfig):
    """Settings of a model that is defined in this module."""

    length: float = 2.0


class Long(Model[LongConfig]):
    """A plain factorization that starts longer than others."""

    Config = LongConfig
    objective = "bpr"
    base_logit = 0.0

    def _start(self) -> tuple[torch.Tensor, torch.Tensor]:
        users, items = super()._start()
        return self.config.length * users, self.config.length * items


def table(seed: int = 0, users: int = 40, items: int = 30) -> pd.DataFrame:
    """Two tastes and some noise, with labels that are not row numbers."""
    rng = np.random.default_rng(seed)
    chances = np.where(np.arange(users)[:, None] % 2 == np.arange(items) % 2, 0.6, 0.04)
    rows, columns = np.nonzero(rng.random((users, items)) < chances)
    names = {"user": [f"u{row}" for row in rows], "item": [f"i{column}" for column in columns]}
    return pd.DataFrame(names).sample(frac=1, random_state=seed)


def same_bits(one: Recommender, other: Recommender) -> bool:
    first, second = (model.scorer.stored().tensors for model in (one, other))
    assert first.keys() == second.keys()
    return all(torch.equal(first[name], second[name]) for name in first)


# --- train ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_set_with_presets_gets_the_best_model_known_for_it() -> None:
    split = load("demo")
    model = train(split)
    chosen = preset("demo")
    facts = {"preset": chosen.name, "config": chosen.config.as_dict(), "interrupted": False}
    assert (model.training or {}).items() >= facts.items()
    assert choose("demo").name == chosen.name
    assert same_bits(model, fit_split(split, chosen.config).recommender())
    assert model.evaluate()["ndcg@10"] > 0.1


def test_a_named_model_takes_its_preset_and_the_settings_that_are_given() -> None:
    split = load("demo")
    model = train(split, "ultragcn", factors=4, epochs=1)
    assert model.training is not None
    assert model.training["preset"] == "demo.ultragcn.weight_decay"
    config = TrainConfig.from_dict(model.training["config"]).resolved()
    tuned = preset("demo", "ultragcn").config
    assert (config.model.settings.factors, config.epochs, config.epochs_chosen) == (4, 1, False)
    assert config.lr == tuned.lr
    assert (model.label, model.fit_on) == ("ultragcn, weight_decay", "train and valid")
    other = train(split, "ultragcn", reg="two_to_inf", factors=4, epochs=1)
    assert other.label == "ultragcn, two_to_inf"
    assert (
        train("demo", "ultragcn", factors=4, epochs=1).recommend(k=3).equals(model.recommend(k=3))
    )


def test_a_preset_is_taken_by_its_kind_or_from_a_file(tmp_path) -> None:
    split = checkerboard()
    robust = train(split, "bpr-mf", preset="robust", epochs=1)
    assert (robust.training or {})["preset"] == "default.bpr-mf.robust"
    file = tmp_path / "mine.json"
    file.write_text('{"config": {"model": "als", "factors": 3}, "found": {}}')
    mine = train(split, preset=str(file))
    assert (mine.training or {})["preset"] == "mine"
    assert mine.factors.dim == 3
    with pytest.raises(InputError, match="als"):
        train(split, "bpr-mf", preset=str(file))


@pytest.mark.parametrize("name", [name for name in MODELS if name != "lightgcn"])
def test_every_model_trains_and_repeats_bit_by_bit(name: str) -> None:
    split = checkerboard()
    kind = MODELS[name]
    settings: dict[str, Any] = {"factors": 4} if hasattr(kind.Config(), "factors") else {}
    if not issubclass(kind, FitAtOnce):
        settings["epochs"] = 2
    first, again = (train(split, name, **settings) for _ in range(2))
    assert same_bits(first, again)
    assert first.kind == (
        "factors" if kind.has_embeddings else name if name == "ensemble" else "item-item"
    )
    assert first.split is split
    seeds = [train(split, name, seed=seed, **settings) for seed in (1, 1, 2)]
    assert same_bits(*seeds[:2])
    if name in ("ultragcn", "bpr-mf"):  # the others start from an SVD, or have a closed form
        assert not same_bits(*seeds[1:])
        assert not same_bits(first, seeds[0])


def test_a_whole_configuration_is_taken_as_it_is() -> None:
    split = checkerboard()
    config = TrainConfig.of(model="bpr-mf", factors=4, epochs=3, seed=5, refit="no")
    model = train(split, config)
    assert same_bits(model, fit_split(split, config).recommender())
    assert model.fit_on == "train"
    assert (model.training or {})["config"] == config.resolved().as_dict()
    other = train(split, config, seed=6)
    assert same_bits(other, fit_split(split, config.replace(seed=6)).recommender())
    assert not same_bits(model, other)


def test_a_vote_is_trained_by_its_name() -> None:
    split = checkerboard()
    model = train(split, "vote", cap=0.2, damping=0.3)
    assert model.kind == "vote"
    expected = fit_vote(split, VoteConfig(cap=0.2, damping=0.3))
    assert model.recommend(k=4).equals(expected.recommend(k=4))
    frame = train(table(), "vote", cap=0.2, damping=0.3).recommend("u3", k=2)
    assert frame["user"].tolist() == ["u3", "u3"]


@pytest.mark.slow
def test_data_without_a_preset_are_searched_on() -> None:
    lines: list[str] = []
    model = train(table(), minutes=0.05, report=lines.append)
    facts = model.training or {}
    assert facts["preset"] == "auto"
    assert facts["search"]["trials"] == len(lines) > 3
    assert facts["search"]["chosen"]
    own = model.recommend("u1", k=5)["item"]
    assert np.mean([int(item[1:]) % 2 for item in own]) > 0.5, "the odd taste"
    asked = train(load(table()), preset="auto", minutes=0.05)
    assert (asked.training or {})["search"]["trials"] > 3


def test_an_interrupted_training_says_so(monkeypatch) -> None:
    def stopped(*given: Any, **options: Any) -> Any:
        return dataclasses.replace(fit_split(*given, **options), interrupted=True)

    monkeypatch.setattr("robustcf.training.front.fit_split", stopped)
    found = train(checkerboard(), "bpr-mf", factors=4, epochs=1)
    assert (found.training or {})["interrupted"] is True


NAMED = {"reg": "none", "preset": "tuned", "minutes": 1.0}


@pytest.mark.parametrize(
    ("model", "options", "word"),
    [
        *((model, {}, "model") for model in (UltraGCN, UltraGCN(factors=4), 3, {"model": "als"})),
        *((model, {"dim": 3}, "factors") for model in ("bpr-mf", None)),
        *(("bpr-mf", {name: 0}, name) for name in ("factors", "threads")),
        ("bpr-mf", {"reg": "dropout"}, "dropout"),
        ("bprmf", {}, "bpr-mf"),
        (None, {"preset": "best"}, "preset"),
        (None, {"preset": "auto", "factors": 3}, "auto"),
        ("als", {"minutes": 1.0}, "minutes"),
        *(
            (TrainConfig.of(), {name: value}, name)
            for name, value in {**NAMED, "factors": 3}.items()
        ),
        *(("vote", {name: value}, name) for name, value in {**NAMED, "cup": 0.2}.items()),
        ("vote", {"device": "cuda"}, "cpu"),
        ("no_such_module:Model", {}, "no_such_module"),
        ("tests.training.test_front:table", {}, "subclass"),
    ],
)
def test_train_refuses(model: Any, options: dict[str, Any], word: str) -> None:
    with pytest.raises(InputError, match=word):
        train(checkerboard(), model, **options)


# --- fit --------------------------------------------------------------------------------------


def test_a_model_is_fit_to_tables_matrices_and_splits_and_saved(tmp_path) -> None:
    frame = table()
    by_frame = UltraGCN(factors=8, epochs=1).fit(frame)
    assert by_frame.user_labels is not None
    assert set(by_frame.user_labels) == set(frame["user"])
    assert by_frame.recommend("u3", k=2)["item"].str.startswith("i").all()
    split = load(frame)
    by_split = UltraGCN(factors=8, epochs=1).fit(split)
    assert by_split.split is split
    assert same_bits(by_frame, by_split)
    opened = robustcf.open(by_frame.save(tmp_path / "model"))
    assert same_bits(by_frame, opened)
    assert opened.recommend("u3", k=4).equals(by_frame.recommend("u3", k=4))
    assert opened.training == by_frame.training
    matrix = sp.csr_matrix(np.random.default_rng(0).random((40, 30)) < 0.2)
    by_matrix = UltraGCN(factors=8, epochs=1).fit(matrix)
    assert (by_matrix.n_users, by_matrix.n_items, by_matrix.user_labels) == (40, 30, None)
    assert len(by_matrix.split.test) > 0, "held out as load does"
    assert same_bits(by_matrix, UltraGCN(factors=8, epochs=1).fit(load(matrix)))


@pytest.mark.parametrize("name", ["ultragcn", "bpr-mf", "softmax-mf", "als", "ease"])
def test_fit_gives_the_bits_of_the_same_configuration(name: str) -> None:
    split = checkerboard()
    settings: dict[str, Any] = {"factors": 4, "seed": 3}
    if name not in ("als", "ease"):
        settings |= {"epochs": 2, "lr": 0.02}
    fitted = MODELS[name](**settings).fit(split)
    config = TrainConfig.of(model=name, **settings)
    assert same_bits(fitted, fit_split(split, config).recommender())
    assert (fitted.training or {})["config"] == config.resolved().as_dict()
    assert fitted.label.startswith(f"{name}, ")


def test_training_settings_and_regularizers_are_settings_too() -> None:
    model = UltraGCN(factors=4, epochs=1, reg="two_to_inf", reg_weight=0.5, refit="no")
    fitted = model.fit(checkerboard(), progress=False, threads=1)
    assert (fitted.label, fitted.fit_on) == ("ultragcn, two_to_inf", "train")
    both = {"config": UltraGCN.Config(factors=4), "factors": 5}
    for wrong in ({"dim": 4}, {"factors": 0}, {"reg": "dropout"}, {"epochs": -1}, both):
        with pytest.raises(InputError):
            UltraGCN(**wrong)  # before any data are there
    whole = UltraGCN(config=UltraGCN.Config(factors=4)).fit(checkerboard())
    assert same_bits(whole, UltraGCN(factors=4).fit(checkerboard()))


def test_fit_takes_the_device_and_refuses_what_it_cannot_use(monkeypatch) -> None:
    devices = []

    def spy(split: Split, config: TrainConfig, *, device: Any, **options: Any) -> Any:
        devices.append(str(device))
        return fit_split(split, config, **options)

    monkeypatch.setattr("robustcf.training.front.fit_split", spy)
    split = checkerboard()
    BPRMF(factors=4, epochs=1, device="meta").fit(split)
    BPRMF(factors=4, epochs=1, device="meta").fit(split, device="cpu")
    BPRMF(factors=4, epochs=1).fit(split)
    assert devices == ["meta", "cpu", "cpu"]
    start = BPRMF(split.train, factors=4).factors()
    for wrong in ({"start": start}, {"dtype": torch.float64}):
        with pytest.raises(InputError, match="need pairs"):
            BPRMF(factors=4, **wrong)
    with pytest.raises(InputError, match="pairs"):
        ALS(split.train, factors=4).fit(split)


def test_a_class_of_ones_own_is_fit_and_named_by_its_module() -> None:
    split = checkerboard()
    name = f"{Long.__module__}:Long"
    fitted = Long(factors=4, length=3.0, epochs=1).fit(split)
    assert fitted.label == f"{name}, weight_decay"
    assert model_config(Long, {"length": 3.0}).model.settings.length == 3.0
    by_name = train(split, name, factors=4, length=3.0, epochs=1)
    config = TrainConfig.of(model=name, factors=4, length=3.0, epochs=1)
    for other in (by_name, fit_split(split, config).recommender()):
        assert same_bits(fitted, other)
    assert not same_bits(fitted, Long(factors=4, length=1.0, epochs=1).fit(split))


def test_a_class_that_cannot_be_imported_is_refused() -> None:
    class Hidden(Long):
        pass

    with pytest.raises(InputError, match="Hidden"):
        Hidden(factors=4)
