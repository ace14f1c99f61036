"""TrainConfig: flat and nested forms, changes, errors, code from outside of the package."""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robustcf._registry import ADVERSARIES, MODELS, OBJECTIVES, REGULARIZERS
from robustcf.errors import InputError
from robustcf.models import LightGCNConfig, ModelConfig
from robustcf.objectives import BatchConfig, BCEConfig, BPRConfig, SoftmaxConfig
from robustcf.regularizers import RegularizerConfig, TwoToInfConfig
from robustcf.training import TrainConfig
from robustcf.training.adversarial import AdversaryConfig, NoAdversaryConfig
from robustcf.training.config import DEFAULT_MODEL, Chosen
from robustcf.training.presets import preset

NAMES = ("model", "objective", "reg", "adversarial")
CHOICES = dict(zip(NAMES, (MODELS, OBJECTIVES, REGULARIZERS, ADVERSARIES), strict=True))
OWN = {
    "gauge", "serve", "shrink", "rank", "epochs", "epochs_chosen", "lr", "user_lr", "schedule",
    "beta1", "beta2", "eval_every", "patience", "refit", "seed",
}  # fmt: skip


ULTRAGCN = TrainConfig.of(model="ultragcn")


def combinations(model: str) -> list[dict[str, str]]:
    chosen = itertools.product([model], *(CHOICES[name] for name in NAMES[1:]))
    return [dict(zip(NAMES, names, strict=True)) for names in chosen]


def other(value: Any) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | None):
        return 3 if value is None else value + 1
    if isinstance(value, list | tuple):
        return list(reversed(value))
    return 0.5 * value + 0.001


# --- flat and nested ------------------------------------------------------------------------


def test_the_defaults_are_those_of_the_parts_and_of_the_command() -> None:
    config = TrainConfig.of(model="ultragcn")
    assert config.model == Chosen("ultragcn", ModelConfig())
    assert config.objective == Chosen("bce", BCEConfig())
    assert config.reg == Chosen("weight_decay", RegularizerConfig())
    assert config.adversary == Chosen("none", NoAdversaryConfig())
    assert config.batching == BatchConfig()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.lr = 1.0  # type: ignore[misc]
    # The model of the command for data without a preset.
    assert TrainConfig.of() == TrainConfig.of(model=DEFAULT_MODEL)
    assert preset("my-file.csv").config.model.name == DEFAULT_MODEL


FAST = ("ultragcn", "softmax-mf")


@pytest.mark.parametrize(
    "model",
    [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in MODELS],
)
def test_every_combination_goes_flat_and_nested_and_back(model: str) -> None:
    for names in combinations(model):
        config = TrainConfig.of(**names)
        parts = (config.model, config.objective, config.reg, config.adversary)
        assert [part.name for part in parts] == list(names.values())
        flat = config.flat()
        assert {key: flat[key] for key in names} == names
        assert flat.keys() > OWN
        assert TrainConfig.of(**flat) == config
        # Every setting, changed: by flat names, and it is there again by either way.
        changed = {
            key: 0.5 if key.endswith("max_share") else other(value)
            for key, value in flat.items()
            if not isinstance(value, str)
        } | {"gauge": "balanced", "serve": "fold-in"}
        second = TrainConfig.of(**names, **changed)
        for key, value in changed.items():
            assert second.flat()[key] == value, key
        assert TrainConfig.of(**second.flat()) == second
        for each in (config, second):
            nested = json.loads(json.dumps(each.as_dict()))
            assert TrainConfig.from_dict(nested) == each
            assert each.resolved() == each
            assert each.replace() == each
            assert each.replace(**each.flat()) == each


def test_flat_names_reach_their_parts() -> None:
    config = TrainConfig.of(
        model="lightgcn", factors=5, init="normal", init_std=0.3, layers=2, objective="bce",
        negatives=6, negative_weight=7.0, item_weight=0.1, neighbours=3, w1=0.1, w2=0.2, w3=0.3,
        w4=0.4, sampled_items=9, reg="two_to_inf", reg_weight=0.5, estimator="exact",
        reg_budget=11, reg_top=2, reg_side="items", reg_every=3, reg_refresh=4,
        adversarial="softmax", adv_eps=0.7, adv_weight=0.8, batching="pairs", block_users=12,
        batch_size=13, lr=0.01, user_lr=None, seed=4,
    )  # fmt: skip
    assert config.model == Chosen("lightgcn", LightGCNConfig(5, "normal", 0.3, layers=2))
    assert config.objective == Chosen("bce", BCEConfig(6, 7.0, 0.1, 3, 0.1, 0.2, 0.3, 0.4, 9))
    assert config.reg == Chosen("two_to_inf", TwoToInfConfig(0.5, "exact", 11, 2, "items", 3, 4))
    assert config.adversary == Chosen("softmax", AdversaryConfig(0.7, 0.8))
    assert config.batching == BatchConfig("pairs", 12, 13)
    assert (config.lr, config.user_lr, config.seed) == (0.01, None, 4)


def test_nested_json_is_what_it_says() -> None:
    values = TrainConfig.of(model="bpr-mf", factors=5, reg="none", adversarial="bpr").as_dict()
    assert values["model"] == {
        "name": "bpr-mf", "factors": 5, "init": "spectral", "init_std": 1e-3, "popularity": 0.25,
    }  # fmt: skip
    assert values["objective"] == {
        "name": "bpr", "negatives": 1, "sampled_items": 64, "max_share": None,
    }  # fmt: skip
    assert values["reg"] == {"name": "none", "weight": 6.5e-5}
    assert values["adversary"] == {"name": "bpr", "eps": 0.1, "weight": 1.0, "size": "same"}
    assert ULTRAGCN.as_dict()["adversary"] == {"name": "none"}
    assert values["batching"] == {"kind": "rows", "block_users": 256, "batch_size": 1024}
    assert set(values) - {"model", "objective", "reg", "adversary", "batching"} == OWN
    # What is left out takes its default.
    parts = {key: values[key] for key in ("model", "objective", "reg", "adversary")}
    assert TrainConfig.from_dict(parts).as_dict() == values
    assert TrainConfig.from_dict({}) == TrainConfig.of()
    fewer = {**parts, "reg": {"name": "max_norm"}}
    assert TrainConfig.from_dict(fewer).reg.settings.weight == 6.5e-5


@pytest.mark.parametrize(
    ("dotted", "flat"),
    [
        ({"model.factors": 5}, {"factors": 5}),
        ({"model": "ultragcn", "objective.w1": 0.5}, {"model": "ultragcn", "w1": 0.5}),
        ({"reg.weight": 0.5}, {"reg_weight": 0.5}),
        ({"reg": "two_to_inf", "reg.estimator": "twinest"},
         {"reg": "two_to_inf", "estimator": "twinest"}),
        ({"adversarial": "bpr", "adversary.weight": 0.5},
         {"adversarial": "bpr", "adv_weight": 0.5}),
        ({"batching.kind": "pairs"}, {"batching": "pairs"}),
        ({"batching.block_users": 5}, {"block_users": 5}),
        ({"model": "lightgcn", "model.layers": 5}, {"model": "lightgcn", "layers": 5}),
        # What suits a model yields to what is given, under either name.
        ({"model": "lightgcn", "batching.block_users": 7},
         {"model": "lightgcn", "block_users": 7}),
    ],
)  # fmt: skip
def test_dotted_names_are_the_flat_ones(dotted: dict[str, Any], flat: dict[str, Any]) -> None:
    assert TrainConfig.of(**dotted) == TrainConfig.of(**flat)
    base = TrainConfig.of(**{key: value for key, value in flat.items() if key in CHOICES})
    assert base.replace(**dotted) == base.replace(**flat) == TrainConfig.of(**flat)


def test_a_model_brings_its_objective_and_what_suits_it() -> None:
    for name in MODELS:
        config = TrainConfig.of(model=name)
        assert config.objective.name == MODELS[name].objective
        assert config.flat().items() >= MODELS[name].training_defaults.items()
    assert TrainConfig.of(model="lightgcn", lr=0.5).lr == 0.5
    assert TrainConfig.of(model="lightgcn").user_lr is None


def test_numbers_of_numpy_become_plain_ones() -> None:
    config = TrainConfig.of(
        factors=np.int64(5),
        lr=np.float32(0.5),
        reg_weight=np.float64(0.25),
        block_users=np.uint8(7),
    )
    assert config == TrainConfig.of(factors=5, lr=0.5, reg_weight=0.25, block_users=7)
    assert TrainConfig.from_dict(json.loads(json.dumps(config.as_dict()))) == config
    for value in (config.model.settings.factors, config.lr, config.batching.block_users):
        assert type(value) in (int, float)


# --- changes --------------------------------------------------------------------------------


def test_replace_keeps_what_the_new_part_knows() -> None:
    base = TrainConfig.of(
        model="ultragcn", factors=5, negatives=6, negative_weight=7.0, sampled_items=9,
        reg_weight=0.5, lr=0.5, user_lr=0.25, block_users=11, epochs=3, seed=4,
    )  # fmt: skip
    found = base.replace(model="bpr-mf")
    assert found.model == Chosen("bpr-mf", ModelConfig(5))
    assert found.objective == Chosen("bpr", BPRConfig(6, 9))
    assert (found.lr, found.user_lr, found.epochs, found.seed) == (0.5, 0.25, 3, 4)
    assert found.batching.block_users == 11
    assert (found.reg, found.adversary) == (base.reg, base.adversary)

    graph = base.replace(model="lightgcn", layers=2)
    assert (graph.model.settings.factors, graph.model.settings.layers) == (5, 2)
    assert (graph.lr, graph.user_lr, graph.batching.block_users) == (0.5, 0.25, 11)

    penalized = base.replace(reg="two_to_inf", reg_top=3)
    assert penalized.reg == Chosen("two_to_inf", TwoToInfConfig(weight=0.5, top=3))
    assert penalized.replace(reg="max_norm").reg.settings == RegularizerConfig(0.5)
    attacked = base.replace(adversarial="bpr", adv_eps=0.3).replace(adversarial="margin")
    assert attacked.adversary == Chosen("margin", AdversaryConfig(0.3))
    softmax = base.replace(objective="softmax")
    assert softmax.objective == Chosen("softmax", SoftmaxConfig(sampled_items=9))
    assert softmax.model == base.model


def test_replace_takes_the_new_parts_defaults_where_the_old_ones_stood() -> None:
    """200 negatives and no sample are defaults of UltraGCN that the caller did not choose."""
    softmax = ULTRAGCN.replace(objective="softmax")
    assert softmax.replace(factors=3, model="ultragcn").objective.name == "softmax"
    assert softmax.replace(model="bpr-mf").objective.name == "bpr"
    base = TrainConfig.of(model="ultragcn", factors=5)
    assert base.replace(model="bpr-mf") == TrainConfig.of(model="bpr-mf", factors=5)
    assert base.replace(model="lightgcn") == TrainConfig.of(model="lightgcn", factors=5)
    assert base.replace(objective="bpr").objective.settings == BPRConfig()
    back = TrainConfig.of(model="lightgcn", factors=5).replace(model="ultragcn")
    assert back == base
    kept = TrainConfig.of(model="lightgcn", factors=5, lr=0.5).replace(model="ultragcn")
    assert kept == base.replace(lr=0.5)


@pytest.mark.parametrize("model", list(MODELS))
def test_any_part_may_be_replaced_by_any_other(model: str) -> None:
    has_columns = hasattr(MODELS[model].Config(), "factors")
    shared = {"seed": 3, "epochs": 9} | ({"factors": 7} if has_columns else {})
    base = TrainConfig.of(**shared)
    for names in combinations(model):
        found = base.replace(**names)
        assert found == TrainConfig.of(**names, **shared)
        assert found.replace(**{key: base.flat()[key] for key in CHOICES}) == base


# --- errors ---------------------------------------------------------------------------------


NAN = float("nan")
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"dim": 3}, "did you mean 'factors'"),
    ({"zzz": 3}, "known: gauge"),
    ({"batching.kin": "rows"}, "did you mean 'batching'"),
    ({"model": "svd"}, "model"),
    ({"model": "ultragc"}, "did you mean 'ultragcn'"),
    ({"objective": "hinge"}, "objective"),
    ({"reg": "l1"}, "regularizer"),
    ({"adversarial": "pgd"}, "adversary"),
    ({"adversarial": "bpr", "adv_weight": NAN}, "adv_weight"),
    *(({"reg": "two_to_inf", key: value}, key) for key, value in [
        ("reg_top", 0), ("reg_side", "left"), ("estimator", "guess"), ("reg_estimator", "exact"),
    ]),
    ({"reg": "two_to_inf", "estimator": "save", "reg_top": 2}, "exact"),
    ({"rank": 0, "gauge": "balanced"}, "rank"),
    ({"w3": 0.0, "w4": 0.0}, "w3 and w4"),
    *(({key: value}, key) for key, value in [
        ("factors", 0), ("factors", "8"), ("epochs", True), ("lr", -1.0), ("lr", 0),
        ("user_lr", -1.0), ("reg_weight", NAN), ("batching", "cells"), ("block_users", 0),
        ("schedule", "steps"), ("epochs_chosen", 1), ("sampled_items", 0), ("shrink", 0.5),
        ("refit", "maybe"), ("rank", 5), ("gauge", "round"), ("patience", -1), ("seed", -1),
        ("init", "zeros"),
    ]),
]  # fmt: skip


@pytest.mark.parametrize(("values", "word"), WRONG)
def test_refuses(values: dict[str, Any], word: str) -> None:
    for make in (TrainConfig.of, ULTRAGCN.replace):
        with pytest.raises(InputError, match=word):
            make(**{"model": "ultragcn", **values})


@pytest.mark.parametrize(
    ("chosen", "key", "kind", "owner", "instead"),
    [
        ({"model": "bpr-mf"}, "negative_weight", "objective", "bce", "bpr"),
        ({"objective": "softmax"}, "w1", "objective", "bce", "softmax"),
        ({"objective": "softmax"}, "negatives", "objective", "bce", "softmax"),
        ({}, "layers", "model", "lightgcn", "ultragcn"),
        ({}, "model.layers", "model", "lightgcn", "ultragcn"),
        ({}, "reg_top", "regularizer", "two_to_inf", "weight_decay"),
        ({}, "estimator", "regularizer", "two_to_inf", "weight_decay"),
        ({"reg": "max_norm"}, "reg.budget", "regularizer", "two_to_inf", "max_norm"),
        ({}, "adv_eps", "adversary", "bpr", "none"),
    ],
)
def test_a_setting_of_another_part_says_so(
    chosen: dict[str, str], key: str, kind: str, owner: str, instead: str
) -> None:
    named = {"model": "ultragcn", **chosen}
    for make in (TrainConfig.of, TrainConfig.of(**named).replace):
        with pytest.raises(InputError, match=f"{key} .* {kind} {owner}, .*{kind} is {instead}"):
            make(**named, **{key: 3})
    # Where the owner is chosen, the name is known.
    flat = next(name for name, table in CHOICES.items() if table.kind == kind)
    wanted = TrainConfig.of(**{**named, flat: owner})
    assert wanted.replace(**{key: "exact" if key == "estimator" else 3}) is not None


@pytest.mark.parametrize(
    ("values", "word"),
    [
        *((values, "object") for values in ([], None)),
        *(({"model": model}, "model .* name") for model in (None, {"factors": 3}, {"name": 3})),
        ({"reg": "weight_decay"}, "reg .* name"),
        ({"adversary": None}, "adversary .* name"),
        *(({"batching": batching}, "batching .* object") for batching in ("rows", None)),
        ({"batching": {"kin": "rows"}}, "did you mean 'kind'"),
        ({"batching": {"kind": "cells"}}, "batching"),
        ({"model": {"name": "ultragcn", "dim": 3}}, "did you mean 'factors'"),
        ({"model": {"name": "ultragcn", "factors": "3"}}, "factors"),
        ({"objective": {"name": "bpr", "w1": 3.0}}, "known: negatives"),
        ({"lrr": 1}, "did you mean 'lr'"),
        *(({name: value}, name) for name, value in (("lr", "fast"), ("shrink", 0.5))),
    ],
)
def test_nested_values_are_refused(values: Any, word: str) -> None:
    whole = {**ULTRAGCN.as_dict(), **values} if values else values
    with pytest.raises(InputError, match=word):
        TrainConfig.from_dict(whole)


# --- code from outside ----------------------------------------------------------------------

OUTSIDE = """
from dataclasses import dataclass
from robustcf.models import BPRMF, ModelConfig
from robustcf.objectives import Softmax
from robustcf.regularizers import MaxNorm, RegularizerConfig
from robustcf.training.adversarial import Margin

@dataclass(frozen=True)
class MineConfig(ModelConfig):
    power: float = 2.0
    negatives: int = 50  # a name that the objective has too
    lr: float = 9.0  # a name that training has too

class Mine(BPRMF):
    name = "mine"
    Config = MineConfig
    training_defaults = {"lr": 0.25, "sampled_items": 5, "negative_weight": 3.0}

class MyLoss(Softmax): ...

@dataclass(frozen=True)
class PenaltyConfig(RegularizerConfig):
    steps: int = 3

class Penalty(MaxNorm):
    Config = PenaltyConfig

class Rival(Margin): ...
"""


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module in the working folder that is not imported yet."""
    (tmp_path / "outside_rcf.py").write_text(OUTSIDE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "outside_rcf", raising=False)
    yield "outside_rcf"
    sys.modules.pop("outside_rcf", None)


def nested(outside: str) -> dict[str, Any]:
    return {
        **ULTRAGCN.as_dict(),
        "model": {"name": f"{outside}:Mine", "factors": 3, "power": 4.0},
        "objective": {"name": f"{outside}:MyLoss"},
        "reg": {"name": f"{outside}:Penalty", "weight": 0.5, "steps": 7},
        "adversary": {"name": f"{outside}:Rival", "eps": 0.2},
    }


def test_reading_imports_no_code_and_resolving_does(outside: str) -> None:
    values = nested(outside)
    config = TrainConfig.from_dict(values)
    assert config.model.name == "outside_rcf:Mine"
    assert config.as_dict() == values
    again = TrainConfig.from_dict(json.loads(json.dumps(config.as_dict())))
    assert again == config
    assert repr(config)
    assert outside not in sys.modules, "nothing was imported so far"

    found = config.resolved()
    assert outside in sys.modules
    assert (found.model.settings.factors, found.model.settings.power) == (3, 4.0)
    assert (found.reg.settings.weight, found.reg.settings.steps) == (0.5, 7)
    assert found.adversary.settings == AdversaryConfig(0.2)
    assert found.resolved() == found
    assert found.as_dict()["model"]["init"] == "spectral", "complete now"
    assert TrainConfig.from_dict(found.as_dict()).resolved() == found


@pytest.mark.parametrize(
    ("part", "values", "word"),
    [
        ("model", {"name": "svd"}, "one of"),
        ("model", {"name": "nowhere_rcf:X"}, "imported"),
        ("model", {"name": "outside_rcf:Missing"}, "Missing"),
        ("model", {"name": "outside_rcf:Penalty"}, "subclass"),
        ("model", {"name": "outside_rcf:Mine", "powr": 3}, "did you mean"),
        ("model", {"name": "outside_rcf:Mine", "factors": 0}, "factors"),
        ("reg", {"name": "outside_rcf:Penalty", "steps": 0}, "reg_steps"),
    ],
)
def test_unresolvable_names_are_refused(
    outside: str, part: str, values: dict[str, Any], word: str
) -> None:
    config = TrainConfig.from_dict({**ULTRAGCN.as_dict(), part: values})
    for ask in (config.resolved, config.flat):
        with pytest.raises(InputError, match=word):
            ask()


def test_training_defaults_of_a_model_from_outside(outside: str) -> None:
    config = TrainConfig.of(model=f"{outside}:Mine")
    assert config.lr == 0.25
    assert config.objective.settings.sampled_items == 5
    reached = TrainConfig.of(
        model=f"{outside}:Mine", power=3.0, reg=f"{outside}:Penalty", reg_steps=2,
        objective=f"{outside}:MyLoss", adversarial=f"{outside}:Rival", adv_eps=0.4,
    )  # fmt: skip
    assert (reached.model.settings.power, reached.reg.settings.steps) == (3.0, 2)
    assert (reached.adversary.settings.eps, reached.lr) == (0.4, 0.25)
    assert TrainConfig.of(**reached.flat()) == reached
    moved = ULTRAGCN.replace(model=f"{outside}:Mine")
    assert moved == config


def test_a_field_that_two_parts_have_goes_by_its_dotted_name(outside: str) -> None:
    """The short name means the first that has it: training, then the model, then the objective."""
    expected = {"negatives": 60, "objective.negatives": 7, "lr": 0.5, "model.lr": 8.0}
    config = TrainConfig.of(model=f"{outside}:Mine", **expected)
    assert config.model.settings.negatives == 60
    assert config.objective.settings.negatives == 7
    assert (config.lr, config.model.settings.lr) == (0.5, 8.0)
    flat = config.flat()
    assert flat.items() >= expected.items()
    assert TrainConfig.of(**flat) == config
    assert config.replace(seed=1).replace(seed=0) == config
    # With another model, the objective keeps what is its own.
    plain = config.replace(model="bpr-mf")
    assert plain.objective.settings.negatives == 7
    assert plain.replace(model=f"{outside}:Mine").objective.settings.negatives == 7
