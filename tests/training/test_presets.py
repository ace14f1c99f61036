"""Presets: complete, documented, those that the searches chose; and what a change does to one."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from robustcf.data import checkerboard
from robustcf.errors import InputError
from robustcf.training import TrainConfig, train
from robustcf.training.presets import adapted, check_used, preset, presets, read_preset

RESULTS = Path(__file__).resolve().parents[2] / "results"
TUNED = ("none", "weight_decay", "two_to_inf", "max_norm")


def test_presets_are_complete_and_say_how_they_were_found() -> None:
    for name, found in presets().items():
        dataset, model, reg, *kind = name.split(".")
        assert found.name == name
        assert found.config.model.name == model
        assert reg in (found.config.reg.name, "robust")
        assert found.found["how"], name
        if dataset != "default" and kind != ["paper"]:
            assert found.config.epochs_chosen, name
    for model in ("ultragcn", "bpr-mf"):
        for reg in TUNED:
            assert preset("something else", model, reg).name == f"default.{model}.{reg}"


def test_a_preset_is_its_file_over_the_defaults() -> None:
    folder = resources.files("robustcf.training.presets")
    files = [entry for entry in folder.iterdir() if entry.name.endswith(".json")]
    assert len(files) == len(presets()) > 60
    for entry in files:
        name = entry.name.removesuffix(".json")
        raw = json.loads(entry.read_text(encoding="utf-8"))
        flat = presets()[name].config.flat()
        if flat["epochs"]:
            check_used(presets()[name].config, raw["config"])
        for key, value in raw["config"].items():
            assert flat[key] == value, (name, key)
        own = TrainConfig.of(
            model=flat["model"], objective=flat["objective"], reg=flat["reg"],
            adversarial=flat["adversarial"],
        ).flat()  # fmt: skip
        assert all(flat[key] == own[key] for key in flat if key not in raw["config"]), name


def test_models_and_regularizers_without_a_file_take_their_own_defaults() -> None:
    found = preset("ml-1m", "lightgcn")
    assert found.name == "default.lightgcn.weight_decay"
    assert found.config == TrainConfig.of(model="lightgcn")
    assert "defaults" in found.found["how"]
    model, reg = "robustcf.models.factorizations:BPRMF", "robustcf.regularizers:MaxNorm"
    mine = preset("ml-1m", model, reg)
    assert (mine.name, mine.config.model.name) == (f"default.{model}.{reg}", model)
    assert not mine.config.epochs_chosen


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"model": "svd"}, "model"),
        ({"model": ""}, "model"),
        ({"model": "ultragcn", "reg": "l1"}, "regularizer"),
        ({"kind": "best"}, "tuned, robust, paper"),
        ({"reg": "max_norm", "kind": "robust"}, "itself"),
        ({"kind": "paper"}, "demo.ultragcn.weight_decay.paper"),
    ],
)
def test_preset_refuses(options: dict[str, str], word: str) -> None:
    with pytest.raises(InputError, match=word):
        preset("demo", **options)


@pytest.mark.parametrize(
    ("dataset", "file"), [("ml-1m", "robust_search.json"), ("demo", "robust_search_demo.json")]
)
def test_the_robust_preset_is_the_one_that_its_search_chose(dataset: str, file: str) -> None:
    """--preset robust without a model takes that of the best candidate that was found."""
    search = json.loads((RESULTS / file).read_text(encoding="utf-8"))
    assert search["dataset"] == dataset
    tried = {row["candidate"]: row for row in search["candidates"]}
    # A model whose defences all cost too much has no robust preset.
    chosen = {m: name for m, name in search["by_model"].items() if "balanced" in name}
    for model, name in chosen.items():
        found = preset(dataset, model, kind="robust")
        assert found.config.model.name == model
        flat = found.config.flat()
        for key, value in tried[name]["changes"].items():
            assert flat[key] == value
        assert found.found["valid"]["joint"] == tried[name]["joint"]
    best = max(chosen.values(), key=lambda name: sum(tried[name]["joint"][1:]))
    assert best == search["chosen"]
    assert preset(dataset, kind="robust").config.model.name == tried[best]["changes"]["model"]


def test_the_robust_preset_of_sets_without_a_search_keeps_the_rankings_of_weight_decay() -> None:
    found, plain = preset("citeulike-a", kind="robust").config, preset("citeulike-a", "ultragcn")
    assert found == plain.config.replace(gauge="balanced")
    searched = {name: preset(name, kind="robust").config for name in ("yelp2018", "citeulike-t")}
    assert [config.rank for config in searched.values()] == [256, 128]
    assert preset("mine", kind="robust").name == "default.ultragcn.robust"
    assert preset("mine", "bpr-mf", kind="robust").name == "default.bpr-mf.robust"


# --- changes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change", [{"factors": 8}, {"gauge": "balanced"}, {"seed": 3}, {"lr": 0.1}]
)
def test_a_change_leaves_the_number_of_epochs_to_be_chosen_again(change: dict[str, Any]) -> None:
    base = preset("ml-1m").config
    assert base.epochs_chosen
    found = adapted(base, change)
    assert (found.epochs_chosen, found.epochs) == (False, base.epochs)
    assert adapted(base, {**change, "epochs_chosen": True}).epochs_chosen
    # An empty change, or one of `refit` alone, keeps the number of epochs.
    assert adapted(base, {}) is base
    assert adapted(base, {"refit": "yes"}) == base.replace(refit="yes")


def test_learning_rates_follow_changes() -> None:
    base = preset("ml-1m").config
    assert base.user_lr is not None
    assert adapted(base, {"lr": 3 * base.lr}).user_lr == pytest.approx(3 * base.user_lr)
    assert adapted(base, {"lr": 0.5, "user_lr": 0.25}).user_lr == 0.25
    assert adapted(base.replace(user_lr=None), {"lr": 0.5}).user_lr is None
    # Pairs take the published procedure along.
    found = adapted(base, {"batching": "pairs"})
    assert (found.lr, found.user_lr, found.schedule) == (1e-3, None, "constant")
    assert found.batching.kind == "pairs"
    assert adapted(base, {"batching": "pairs", "lr": 0.5}).lr == 0.5
    # A preset of pairs keeps its own.
    own = base.replace(batching="pairs", lr=0.3)
    assert adapted(own, {"batching": "pairs", "factors": 3}).lr == 0.3


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"reg": "none", "reg_weight": 0.1}, "reg_weight"),
        ({"batch_size": 64}, "batch_size"),
        ({"batching": "pairs", "block_users": 64}, "block_users"),
        ({"model": "als", "lr": 0.1}, "lr"),
        ({"model": "ease", "batching": "pairs"}, "batching"),
    ],
)
def test_settings_without_effect_are_refused(
    settings: dict[str, Any], word: str, tmp_path: Path
) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"config": {"model": "ultragcn", **settings}}))
    with pytest.raises(InputError, match=f"{word} has no effect"):
        read_preset(path)
    with pytest.raises(InputError, match=f"{word} has no effect"):
        train(checkerboard(), **{"model": "ultragcn", **settings})


def test_without_a_model_the_best_on_valid_is_taken_and_with_a_regularizer_ultragcn() -> None:
    for dataset in ("ml-1m", "yelp2018", "citeulike-a", "citeulike-t", "demo"):
        entries = {}
        for model, reg in (("softmax-mf", "none"), ("ultragcn", "weight_decay")):
            found = presets().get(f"{dataset}.{model}.{reg}")
            entries |= {} if found is None else {model: found.found["valid"]["ndcg@20"]}
        assert preset(dataset).config.model.name == max(entries, key=lambda model: entries[model])
        assert preset(dataset, reg="two_to_inf").config.model.name == "ultragcn"
        assert preset(dataset, reg="none").config.model.name == "ultragcn"
