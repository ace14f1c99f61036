"""Presets: complete, documented, those that the searches chose; and what a change does to one."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from robustcf.errors import InputError
from robustcf.training import TrainConfig
from robustcf.training.presets import adapted, preset, presets

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
    mine = preset("ml-1m", "robustcf.models.factorizations:BPRMF", "robustcf.regularizers:MaxNorm")
    assert mine.name == "default.robustcf.models.factorizations:BPRMF.robustcf.regularizers:MaxNorm"
    assert mine.config.model.name == "robustcf.models.factorizations:BPRMF"
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


@pytest.mark.parametrize("change", [{"dim": 8}, {"gauge": "balanced"}, {"seed": 3}, {"lr": 0.1}])
def test_a_change_leaves_the_number_of_epochs_to_be_chosen_again(change: dict[str, Any]) -> None:
    base = preset("ml-1m").config
    assert base.epochs_chosen
    found = adapted(base, change)
    assert (found.epochs_chosen, found.epochs) == (False, base.epochs)
    assert adapted(base, {**change, "epochs_chosen": True}).epochs_chosen
    # Nothing, and how to refit, is no such change.
    assert adapted(base, {}) is base
    assert adapted(base, {"refit": "yes"}) == base.replace(refit="yes")


def test_the_users_learning_rate_follows_that_of_the_items() -> None:
    base = preset("ml-1m").config
    assert base.user_lr is not None
    found = adapted(base, {"lr": 3 * base.lr})
    assert found.user_lr == pytest.approx(3 * base.user_lr)
    assert adapted(base, {"lr": 0.5, "user_lr": 0.25}).user_lr == 0.25
    same = base.replace(user_lr=None)
    assert adapted(same, {"lr": 0.5}).user_lr is None


def test_pairs_take_the_published_procedure_along() -> None:
    base = preset("ml-1m").config
    found = adapted(base, {"batching": "pairs"})
    assert (found.lr, found.user_lr, found.schedule) == (1e-3, None, "constant")
    assert found.batching.kind == "pairs"
    assert adapted(base, {"batching": "pairs", "lr": 0.5}).lr == 0.5
    # A preset of pairs keeps what it says.
    own = base.replace(batching="pairs", lr=0.3)
    assert adapted(own, {"batching": "pairs", "dim": 3}).lr == 0.3


def test_without_a_model_the_best_on_valid_is_taken_and_with_a_regularizer_ultragcn() -> None:
    for dataset in ("ml-1m", "yelp2018", "citeulike-a", "citeulike-t", "demo"):
        entries = {
            name.split(".")[1]: entry.found["valid"]["ndcg@20"]
            for name, entry in presets().items()
            if name.split(".")[0] == dataset
            and name.split(".")[1:] in (["softmax-mf", "none"], ["ultragcn", "weight_decay"])
        }
        assert preset(dataset).config.model.name == max(entries, key=lambda model: entries[model])
        assert preset(dataset, reg="two_to_inf").config.model.name == "ultragcn"
        assert preset(dataset, reg="none").config.model.name == "ultragcn"
