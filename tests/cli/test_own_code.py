"""Custom code, ``module:Class``: from the command line, from Python, and by mistake."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from robustcf.errors import InputError
from robustcf.experiments import RunDir
from robustcf.recommender import open_recommender
from robustcf.robustness import AttackSpec, Threat, measure
from tests.robustness.helpers import random_target

MODULE = '''
from dataclasses import dataclass

import torch

from robustcf.attacks import FGM, Attack
from robustcf.models import Model, ModelConfig
from robustcf.objectives import BPR, BPRConfig
from robustcf.regularizers import Regularizer, RegularizerConfig


class Upwards(Attack):
    """Everything in one direction."""

    def propose(self, factors, allowed):
        return tuple(1e6 * torch.ones_like(part) for part in factors)


class Backwards(FGM):
    """The gradient downhill, which improves rankings."""

    def climb(self, view, sizes):
        users, items = super().climb(view, sizes)
        return -users, -items


@dataclass(frozen=True)
class WideConfig(ModelConfig):
    width: float = 2.0


class Wide(Model[WideConfig]):
    Config = WideConfig
    objective = "bpr"
    base_logit = 0.0

    def _start(self):
        users, items = super()._start()
        return self.config.width * users, self.config.width * items


@dataclass(frozen=True)
class RowSumConfig(RegularizerConfig):
    power: int = 2


class RowSum(Regularizer):
    Config = RowSumConfig

    def __init__(self, power=2):
        super().__init__()
        self.power = power

    @classmethod
    def configured(cls, config, seed=0):
        return cls(config.power)

    def forward(self, U, V):
        return sum((part.sum(dim=1).abs() ** self.power).sum() for part in (U, V))


class Twice(BPR):
    def gradient(self, batch, U, V, *, value=False):
        once = super().gradient(batch, U, V, value=value)
        once.add(once)
        return once


not_a_class = 3


class Nothing:
    pass
'''


@pytest.fixture
def here(table, tmp_path, monkeypatch):
    """The current folder, with a module and a small table in it."""
    (tmp_path / "my_module.py").write_text(MODULE)
    shutil.copy(table, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.delitem(sys.modules, "my_module", raising=False)
    yield tmp_path
    sys.modules.pop("my_module", None)


@pytest.fixture
def answer(found, monkeypatch):
    """The JSON of a command that succeeds, without pictures, which are slow."""
    draw = "robustcf.experiments.results._draw"
    monkeypatch.setattr(draw, lambda result, saved: ["a.png", "a.svg"])
    monkeypatch.setattr("robustcf.robustness.plots.plot_curves", lambda curves, path, **_: path)
    return found


@pytest.fixture
def refusal(call):
    def ask(*words, code=1):
        got, _, err = call(*words)
        assert got == code
        return err

    return ask


SHORT = ("--epochs", "2", "--factors", "4", "--threads", "1", "--set", "block_users=20")
SIZES = ("--epsilons", "0", "0.3")


def train(answer, out, *words):
    return answer("train", "--dataset", "mine.csv", "--out", out, *words, *SHORT)


def test_attacks_and_objectives_of_custom_code(here, answer):
    train(answer, "run")
    target, names = open_recommender("run"), {}
    for name, words, objective in (
        ("my_module:Upwards", [], None),
        ("my_module:Backwards", [], "softmax"),
        ("my_module:Backwards", ["--objective", "bce", "--side", "users"], "bce"),
        ("fgm", ["--objective", "my_module:Twice"], "my_module:Twice"),
        ("pgd", ["--objective", "my_module:Twice"], "my_module:Twice"),
    ):
        mine = answer("attack", "run", "--attack", name, *words, *SIZES)
        assert (mine["attack"], mine["objective"]) == (name, objective)
        spec = f"{name}-{objective}" if objective else name
        assert Path(mine["file"]).name.startswith(f"{spec.replace(':', '.')}-")
        side = "users" if "--side" in words else "both"
        python = measure(target, spec, Threat(side=side), [0, 0.3])
        assert python.curve.as_lists().items() <= mine.items(), "the same from Python"
        assert python.control.as_lists() == mine["random"], "with the control every attack has"
        names[spec] = python.curve
    U = target.factors.users.double().numpy()
    length = 0.3 * np.sort(np.linalg.norm(U, axis=1))[(len(U) - 1) // 2]
    assert names["my_module:Upwards"].realised[1]["users"] == pytest.approx(length, rel=1e-4)
    once = measure(target, "fgm-bpr", epsilons=[0, 0.3]).curve
    assert names["fgm-my_module:Twice"]["ndcg@10"].tolist() == once["ndcg@10"].tolist()
    known = Threat(knowledge="labels")
    helped = measure(target, "my_module:Backwards", known, [0, 0.3]).curve["ndcg@10"]
    assert helped[1] > helped[0], "it does the opposite of an attack"
    from my_module import Upwards

    built = measure(target, Upwards(), epsilons=[0, 0.3]).curve
    assert built.as_lists() == names["my_module:Upwards"].as_lists()
    assert built.name == names["my_module:Upwards"].name
    with pytest.raises(InputError, match="knows nothing"):
        measure(target, "my_module:Backwards", Threat(knowledge="none"), [0.1])


def test_a_custom_model_and_regularizer_in_every_command(here, answer):
    own = ("--model", "my_module:Wide", "--reg", "my_module:RowSum")
    found = train(answer, "own", *own, "--set", "width=3.5", "--set", "reg_power=4")
    assert (found["model"], found["reg"]) == ("my_module:Wide", "my_module:RowSum")
    config = RunDir("own").config.train.resolved()
    assert (config.model.settings.width, config.reg.settings.power) == (3.5, 4)
    assert config.objective.name == "bpr"
    expected = found["test"]
    assert answer("evaluate", "own")["test"] == expected
    attacked = answer("attack", "own", "--attack", "fgm", "--objective", "softmax", *SIZES)
    assert attacked["ndcg@10"][0] == found["test"]["ndcg@10"]
    assert attacked["ndcg@10"][1] < attacked["ndcg@10"][0]
    assert open_recommender("own").label == "my_module:Wide, my_module:RowSum"
    answer("certify", "own", "--epsilons", "0", "0.01")
    (entry,) = answer("recommend", "own", "--user", "u3", "-k", "3")["recommendations"]
    assert len(entry["items"]) == 3
    new = ("--items", "i0", "i2", "i4", "-k", "3")
    (entry,) = answer("recommend", "own", *new, "--allow-code")["recommendations"]
    assert not {"i0", "i2", "i4"} & set(entry["items"])
    train(answer, "plain", "--model", "bpr-mf", "--reg", "none")
    answer("attack", "plain", "--attack", "fgm", "--objective", "softmax", *SIZES)
    compared = answer("compare", "own", "plain", "--resamples", "999")
    labels = [group["label"] for group in compared["groups"]]
    assert labels == ["my_module:Wide, my_module:RowSum", "bpr-mf, none"]
    # A run is compared, and attacked, where its code is not.
    (here / "my_module.py").unlink()
    sys.modules.pop("my_module")
    assert answer("compare", "own", "plain", "--resamples", "999") == compared
    assert answer("evaluate", "own")["test"] == expected
    assert answer("attack", "own", "--objective", "softmax", *SIZES)["replaced"] is False


def test_runs_under_an_attack_of_custom_code_are_compared(here, answer, refusal):
    for name, reg in (("a", "none"), ("b", "weight_decay")):
        train(answer, name, "--reg", reg)
    answer("attack", "a", "--attack", "my_module:Backwards", *SIZES)
    said = refusal("compare", "a", "b", "--attack", "my_module:Backwards")
    command = said.split("make it with: ")[1].split()
    assert command[:3] == ["robustcf", "attack", "b"]
    answer(*command[1:])
    found = answer("compare", "a", "b", "--attack", "my_module.Backwards", "--resamples", "999")
    assert (found["attack"], found["objective"]) == ("my_module:Backwards", "softmax")
    # What is called fgm is fgm: an attack that derives from it is never taken for it.
    assert "no run has a saved curve of an attack" in refusal("compare", "a", "b")


def test_a_sweep_of_custom_code_attack_and_regularizer(here, answer, monkeypatch):
    draw = "robustcf.experiments.grid.plot_panels"
    monkeypatch.setattr(draw, lambda panels, path, **options: path)
    words = ("--regs", "none", "my_module:RowSum", "--seeds", "1", "--attacks")
    found = answer(
        "sweep", "--dataset", "mine.csv", *words, "my_module:Backwards", *SIZES, "--threads", "1",
        "--set", "factors=4", "--set", "epochs=1", "--out", "swept",
    )  # fmt: skip
    assert set(found["curves"]) == {"my_module:Backwards", "random", "certificate"}
    mine = found["curves"]["my_module:Backwards"]
    assert set(mine) == {"none", "my_module:RowSum"}
    run_path = "swept/runs/my_module:RowSum-seed0"
    before = sorted((here / run_path / "robustness").iterdir())
    alone = answer("attack", run_path, "--attack", "my_module:Backwards", *SIZES)
    assert alone["replaced"] is False
    assert sorted((here / run_path / "robustness").iterdir()) == before, "the very same file"
    assert mine["my_module:RowSum"]["ndcg@10"][0] == pytest.approx(alone["ndcg@10"], abs=1e-7)


def test_a_run_whose_code_is_gone_says_so_where_it_is_needed(here, answer, refusal):
    """Only the objective is: a new user is folded in by it."""
    train(answer, "own", "--objective", "my_module:Twice", "--model", "bpr-mf")
    config = json.loads((here / "own" / "config.json").read_text())["train"]
    assert config["objective"]["name"] == "my_module:Twice"
    assert open_recommender("own").bce is None
    train(answer, "other", "--reg", "my_module:RowSum")
    new = ("--items", "i0")
    assert "--allow-code" in refusal("recommend", "own", *new)
    assert answer("recommend", "own", *new, "--allow-code")["recommendations"]
    (here / "my_module.py").unlink()
    sys.modules.pop("my_module")
    assert "--allow-code" in refusal("recommend", "own", *new)
    assert "my_module" in refusal("recommend", "own", *new, "--allow-code")
    assert answer("recommend", "own", "--user", "u3")["recommendations"]
    assert answer("recommend", "other", *new)["recommendations"]


def test_attacks_of_installed_packages_have_names(here, monkeypatch, answer):
    class Point:
        name = "mine"

        @staticmethod
        def load():
            import my_module

            return my_module.Upwards

    def points(group):
        return [Point()] if group == "robustcf.attacks" else []

    monkeypatch.setattr("robustcf._registry.entry_points", points)
    monkeypatch.setattr("importlib.metadata.entry_points", points)
    monkeypatch.setattr(sys, "path", [str(here), *sys.path])
    train(answer, "run")
    named = answer("attack", "run", "--attack", "mine", *SIZES)
    spelled = answer("attack", "run", "--attack", "my_module:Upwards", *SIZES)
    assert named["ndcg@10"] == spelled["ndcg@10"]
    assert named["attack"] == "mine"
    with pytest.raises(InputError, match="fgm-bce"):
        AttackSpec("yours")


@pytest.mark.parametrize(
    ("option", "base"),
    [
        ("--attack", "robustcf.attacks.base.Attack"),
        ("--fgm-objective", "robustcf.objectives.base.Objective"),
        ("--model", "robustcf.models.base.Model"),
        ("--reg", "robustcf.regularizers.base.Regularizer"),
        ("--objective", "robustcf.objectives.base.Objective"),
        ("--adversarial", "robustcf.training.adversarial.Adversary"),
    ],
)
def test_invalid_classes_are_refused(here, answer, refusal, option, base):
    (here / "broken_module.py").write_text("import no_such_thing_at_all\n")
    command = ("train", "--dataset", "mine.csv", "--out", "new", option)
    if option in ("--attack", "--fgm-objective"):
        train(answer, "run")
        command = ("attack", "run", "--attack")
        command += () if option == "--attack" else ("fgm", "--objective")
    for name, message in (
        ("no_such_module:Thing", "'no_such_module:Thing' cannot be imported"),
        ("broken_module:Model", "no_such_thing_at_all"),
        ("my_module:Absent", "my_module has no 'Absent'"),
        ("my_module:", "my_module has no ''"),
        (":Thing", "':Thing' cannot be imported"),
        ("my_module:not_a_class", f"must be a subclass of {base}"),
        ("my_module:Nothing", f"must be a subclass of {base}"),
        ("robustcf.factors:Factors", f"must be a subclass of {base}"),
    ):
        assert message in refusal(*command, name), name
    assert not (here / "new").exists()
    assert "is not one of" in refusal(*command, "my_module", code=2)


def test_names_of_the_package_differ_from_custom_ones():
    names = ("robustcf.attacks:FGM-bpr", "fgm-bpr")
    one, two = (measure(random_target(0), name, epsilons=[0, 0.2]).curve for name in names)
    assert one.as_lists() == two.as_lists()
    assert one.name != two.name
