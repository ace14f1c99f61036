"""Grids of poisoning: the right numbers, the same after a stop, never a silent mix."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from robustcf._io.temporary import alone_in
from robustcf._registry import POISONINGS
from robustcf.cli.main import run
from robustcf.data import load
from robustcf.errors import InputError, Interrupted
from robustcf.experiments import grid
from robustcf.experiments import poison as poison_module
from robustcf.experiments.poison import (
    LOST,
    Part,
    PoisonPlan,
    PoisonSummary,
    Row,
    poison,
    stands_out,
)
from robustcf.poisoning import PoisonThreat, RandomItems, Targets, read_profiles, retrained
from robustcf.poisoning.defences.base import Defence, Defended
from robustcf.training import TrainConfig

FILES = ("results.json", "results.csv", "report.md", "report.txt", "poison.png", "poison.svg")
SMALL = {"factors": 4, "iterations": 1}


@pytest.fixture(scope="module")
def plan(table) -> PoisonPlan:
    return PoisonPlan(
        table,
        models=("als",),
        changes=SMALL,
        attacks=("random", "auto"),
        fakes=(0, 3, 0.2),
        targets=Targets(2),
        knowledge="none",
        seeds=(0, 1),
        ks=(3, 5),
    )


@pytest.fixture(scope="module")
def whole(plan, tmp_path_factory) -> PoisonSummary:
    return poison(plan, tmp_path_factory.mktemp("grid") / "out")


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_cells_are_what_retraining_gives(plan, whole):
    split = load(plan.dataset)
    for seed in plan.seeds:
        config = TrainConfig.of(model="als", seed=seed, epochs_chosen=False, **SMALL)
        assert plan.train_config("als", seed)[0] == config
        threat = PoisonThreat(fakes=3, targets=Targets(2), knowledge="none")
        found = RandomItems().attack(split.train, threat, seed)
        outcome = retrained(split, config, found.profiles, found.targets, ks=(3, 5))
        clean = retrained(split, config, [], found.targets, ks=(3, 5))
        for metric in ("hit_rate@5", "ndcg@3", "share@5"):
            values = whole.values(Row("als", "none", "random", 3), f"target {metric}")
            assert values[seed] == outcome.exposure[metric]
            values = whole.values(Row("als", "none", "clean", 0), f"target {metric}")
            assert values[seed] == clean.exposure[metric]
        lost = clean.quality["ndcg@10"] - outcome.quality["ndcg@10"]
        assert whole.values(Row("als", "none", "random", 3), LOST)[seed] == lost


def test_auto_is_the_worst_for_each_seed(plan, whole):
    assert plan.tried == ("random", "bandwagon")
    for fakes in (3, 0.2):
        each = [
            whole.values(Row("als", "none", name, fakes), "target hit_rate@5")
            for name in plan.tried
        ]
        auto = whole.values(Row("als", "none", "auto", fakes), "target hit_rate@5")
        assert np.array_equal(auto, np.max(each, axis=0))
        assert set(whole.chosen(Row("als", "none", "auto", fakes))) <= set(plan.tried)


def test_profiles_are_kept_and_can_be_looked_at(plan, whole):
    train = load(plan.dataset).train
    threat = PoisonThreat(fakes=3, targets=Targets(2), knowledge="none")
    found = RandomItems().attack(train, threat, 1)
    kept = read_profiles(whole.out / "profiles" / "random-3-seed1.csv", train)
    assert all(map(np.array_equal, kept, found.profiles))


def test_files_say_what_the_summary_says(whole):
    assert all((whole.out / name).is_file() for name in FILES)
    written = json.loads((whole.out / "results.json").read_text())
    assert len(written["results"]) == 1 + 2 * 3
    first = next(row for row in written["results"] if row["attack"] == "bandwagon")
    values = whole.values(Row("als", "none", "bandwagon", 3), "target share@3")
    assert first["target share@3"] == np.round(values, 7).tolist()
    assert first["spent"]["fakes"] == 3
    with open(whole.out / "results.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 7 * len(whole.metrics) * 2
    report = (whole.out / "report.md").read_text()
    assert all(finding in report for finding in whole.findings())
    assert whole.plan.command() in report
    low, mean, high = whole.target_spread(Row("als", "none", "random", 3))
    assert low <= mean <= high


@pytest.mark.slow
def test_a_stopped_grid_goes_on_and_ends_with_the_same_files(plan, whole, tmp_path, monkeypatch):
    out = tmp_path / "out"
    made = []

    def stopping(*arguments, **options):
        if len(made) == 4:
            raise KeyboardInterrupt
        made.append(arguments)
        return retrained(*arguments, **options)

    monkeypatch.setattr(poison_module, "retrained", stopping)
    with pytest.raises(Interrupted, match="command"):
        poison(plan, out)
    monkeypatch.undo()
    # A cell that is spoilt is made again, too.
    one, other, third, *_ = (out / "cells").glob("*.json")
    one.write_text("{}")
    for path, key in ((other, f"hit_rate@{plan.ks[0]}"), (third, "hit_rate@10000")):
        cell = json.loads(path.read_text())
        cell["exposure"][key] = 1e308  # no rate; of a cutoff that is not the plan's
        path.write_text(json.dumps(cell))
    poison(plan, out)
    assert contents(out) == contents(whole.out)


@pytest.mark.slow
def test_jobs_do_not_change_anything(plan, whole, tmp_path):
    poison(plan, tmp_path / "out", jobs=2)
    assert contents(tmp_path / "out") == contents(whole.out)


def test_a_folder_belongs_to_one_plan(plan, whole, table, tmp_path):
    other = PoisonPlan(table, models=("als",), changes=SMALL, knowledge="none", fakes=(1,))
    with pytest.raises(InputError, match="poisoning"):
        poison(other, whole.out)
    with (
        alone_in(whole.out, "another process", file=".lock"),
        pytest.raises(InputError, match="poisoning"),
    ):
        poison(plan, whole.out)
    (tmp_path / "poison.json").write_text("[]")
    with pytest.raises(InputError, match="poisoning"):
        poison(plan, tmp_path)
    with pytest.raises(InputError, match="jobs"):
        poison(plan, tmp_path, jobs=0)


@pytest.fixture
def begun(monkeypatch):
    """Begin a grid and stop before its first cell."""

    def stopping(*_):
        raise RuntimeError("stopped")

    def begin(plan, out):
        with monkeypatch.context() as patch:
            patch.setattr(PoisonPlan, "complete", stopping)
            with pytest.raises(RuntimeError, match="stopped"):
                poison(plan, out)

    return begin


@pytest.mark.parametrize("older", [{"regularization": 0.5}, None])
def test_defaults_that_were_others_when_it_was_begun_are_another_plan(plan, tmp_path, begun, older):
    begun(plan, tmp_path)
    kept = json.loads((tmp_path / "poison.json").read_text())
    settings = kept.pop("settings of als")
    assert settings["model"]["factors"] == 4
    if older is not None:
        kept["settings of als"] = {**settings, "model": settings["model"] | older}
    (tmp_path / "poison.json").write_text(json.dumps(kept))
    with pytest.raises(InputError, match="settings of als"):
        poison(plan, tmp_path)


def test_a_preset_file_that_was_changed_is_another_plan(table, tmp_path, begun):
    preset, out = tmp_path / "mine.json", tmp_path / "out"
    preset.write_text(json.dumps({"config": {"model": "als", "factors": 4}}))
    plan = PoisonPlan(table, models=("als",), preset=str(preset))
    for _ in range(2):
        begun(plan, out)
    preset.write_text(json.dumps({"config": {"model": "als", "factors": 8}}))
    with pytest.raises(InputError, match="preset"):
        poison(plan, out)


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"attacks": ()}, "attacks"),
        ({"fakes": (0.1, 0.1)}, "fakes"),
        ({"fakes": (0.01, 0.01 + 1e-15)}, "fakes"),
        ({"seeds": (-1,)}, "seed"),
        ({"seeds": (0.5,)}, "seed"),
        ({"fakes": (-1,)}, "fakes"),
        ({"attacks": ("frob",)}, "poisoning"),
        ({"attacks": ("copy",), "knowledge": "none"}, "learns"),
        ({"attacks": (f"{__name__}:OnlyPromotes",), "goal": "demote"}, "promote"),
        ({"defences": ("frob",)}, "defence"),
        ({"models": ("frob",)}, "model"),
        ({"ks": ()}, "cutoff"),
        ({"preset": "auto", "models": ()}, "search"),
        ({"goal": "win"}, "goal"),
    ],
)
def test_plans_that_cannot_be_are_refused(table, wrong, word):
    with pytest.raises(InputError, match=word):
        PoisonPlan(**{"dataset": table, "models": ("als",), **wrong})


class OnlyPromotes(RandomItems):
    goals = ("promote",)


def test_one_account_and_as_many_as_users_are_two_sizes(table, tmp_path, monkeypatch):
    def told(split, config, profiles, targets, **options):
        found = retrained(split, config, [], targets, **options)
        return replace(found, quality=dict.fromkeys(found.quality, 1 / (1 + len(profiles))))

    monkeypatch.setattr(poison_module, "retrained", told)
    plan = PoisonPlan(
        table,
        models=("als",),
        changes=SMALL,
        attacks=("random",),
        fakes=(1, 1.0),
        targets=Targets(2),
        seeds=(5,),
        ks=(3,),
    )
    found = poison(plan, tmp_path / "out")
    assert found.values(Row("als", "none", "random", 1), "ndcg@10").tolist() == [1 / 2]
    assert found.values(Row("als", "none", "random", 1.0), "ndcg@10").tolist() == [
        1 / (1 + found.n_users)
    ]
    # No command asks for the seed 5 alone.
    assert plan.command() is None
    assert "Command" not in (tmp_path / "out" / "report.md").read_text()


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"targets": Targets(10_000)}, "drawn"),
        ({"targets": Targets(labels=("unknown-item",))}, "unknown-item"),
        ({"length": 10_000}, "catalogue"),
        ({"length": 1}, "fit"),
        ({"fakes": (10_000,)}, "at most"),
        ({"profiles": ("none.csv",)}, "no profiles"),
    ],
)
def test_threats_that_do_not_fit_the_data_leave_nothing_behind(
    table, wrong, word, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("none.csv").write_text("user,item\n")
    plan = PoisonPlan(table, models=("als",), **wrong)
    with pytest.raises(InputError, match=word):
        poison(plan, "out")
    assert not Path("out").exists()


def test_data_without_test_pairs_are_refused(plan, tmp_path, monkeypatch):
    split = load(plan.dataset)
    nothing = split.test.take(np.zeros(len(split.test), dtype=bool))
    monkeypatch.setattr(grid, "load", lambda *_, **__: replace(split, test=nothing))
    with pytest.raises(InputError, match="pairs"):
        poison(plan, tmp_path / "out")


def test_names_of_parts_make_file_names():
    assert Part("a:B", 0.005, 2).name == "a.B-0.5%-seed2"


class Drops(Defence):
    """A defence: every other user is dropped."""

    def apply(self, data, config):
        kept = data.take(data.users % 2 == 0)
        return Defended(kept, config, {"kept": np.int64(len(kept))})


@pytest.mark.slow
def test_profiles_from_a_file_and_a_defence_from_the_command_line(table, tmp_path, capsys):
    drops = f"{__name__}:Drops"
    labels = load(table).item_labels[:2]
    profiles = tmp_path / "mine.csv"
    profiles.write_text("".join(["user,item\n", *(f"f{n},{labels[n % 2]}\n" for n in range(4))]))
    words = ["poison", "--dataset", table, "--model", "als", "--set", "factors=4", "--seeds", "1"]
    words += ["--profiles", str(profiles), "--target", str(labels[0]), "--k", "5"]
    words += ["--defence", "none", drops, "--threads", "1", "--out", str(tmp_path / "out")]
    assert run([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    rows = {(row["defence"], row["attack"]): row for row in found["results"]}
    assert set(rows) == {(d, a) for d in ("none", drops) for a in ("clean", "file:mine")}
    assert rows["none", "file:mine"]["spent"] == {"fakes": 4, "length": 1, "pairs": 4}
    assert rows["none", "file:mine"]["fakes"] == "4"
    with open(tmp_path / "out" / "results.csv", newline="") as file:
        assert {row["fakes"] for row in csv.DictReader(file)} == {"0", "4"}
    assert rows[drops, "file:mine"]["defence_report"][0]["kept"] > 0
    # Another content is another plan.
    profiles.write_text(f"user,item\nf,{labels[0]}\n")
    assert run(words) == 1
    assert "holds a poisoning with file:mine" in capsys.readouterr().err


def test_the_command_line(table, tmp_path, capsys):
    words = ["poison", "--dataset", table, "--model", "als", "--set", "factors=4", "--out"]
    words += [str(tmp_path / "out"), "--threads", "1"]
    small = ["--attack", "bandwagon", "--fakes", "2", "--targets", "2", "--seeds", "1"]
    assert run([*words, *small]) == 0
    shown = capsys.readouterr().out
    assert "bandwagon" in shown
    assert "NDCG@10 of genuine users" in shown
    assert max(map(len, shown.splitlines()[:-1])) <= 100
    assert "report: " in shown
    for wrong, said in (
        (["--fakes", "-1"], "fakes must be"),
        (["--fakes", "nan"], "fakes must be"),
        (["--targets", "0"], "the number of targets"),
        (["--targets", "100000"], "targets cannot be drawn"),
        (["--length", "100000"], "longer than the catalogue"),
        (["--target", "unknown-item"], "there is no item 'unknown-item'"),
    ):
        assert run([*words[:-3], str(tmp_path / "other"), *wrong]) == 1
        assert said in capsys.readouterr().err
        assert not (tmp_path / "other").exists()
    assert run([*words, "--profiles", "x.csv", "--fakes", "1"]) == 2
    assert "no effect with --profiles" in capsys.readouterr().err


def test_an_attacker_who_knows_the_defence_has_profiles_for_each(table, tmp_path):
    both = ("none", "detect")
    plan = PoisonPlan(table, models=("als",), changes=SMALL, attacks=("adaptive",), fakes=(4,),
                      targets=Targets(2), defences=both, seeds=(0,), ks=(5,))  # fmt: skip
    found = poison(plan, tmp_path / "out")
    split = load(table)
    for defence, name in zip(both, ("adaptive-4-seed0", "adaptive-4-seed0-detect"), strict=True):
        kept = read_profiles(tmp_path / "out" / "profiles" / f"{name}.csv", split.train)
        made = POISONINGS["adaptive"]().attack(split.train, plan.threat(4, defence), 0)
        assert all(map(np.array_equal, kept, made.profiles))
        assert found.cell(Row("als", defence, "adaptive", 4), 0)["spent"]["fakes"] == 4
    assert "adaptive" in replace(plan, attacks=("auto",)).tried
    assert "adaptive" not in replace(plan, attacks=("auto",), defences=("none",)).tried


@pytest.mark.parametrize(("reached", "said"), [(0.9, "did most"), (0.0, "no attack did more")])
def test_an_attack_did_most_only_if_it_beats_no_attack(table, tmp_path, monkeypatch, reached, said):
    def told(*arguments, **options):
        found = retrained(*arguments, **options)
        rate = reached if len(arguments[2]) else 0.3
        values = {**found.exposure.values, "hit_rate@3": rate}
        return replace(found, exposure=replace(found.exposure, values=values))

    monkeypatch.setattr(poison_module, "retrained", told)
    names = load(table).item_labels.tolist()
    plan = PoisonPlan(table, models=("als",), changes=SMALL, seeds=(0,), ks=(3,),
                      profiles=(published(tmp_path / "dp.json", names),))  # fmt: skip
    found = poison(plan, tmp_path / "out")
    assert said in found.findings()[0]
    assert "3 fakes of a file" in found.findings()[0]
    report = (tmp_path / "out" / "report.md").read_text()
    assert "anew" not in report.partition("## What the numbers mean")[0]
    assert "has the profiles of dp.json" in report


def published(path, items, count=3):
    """A file in the form of published profiles, whose accounts name items twice."""
    held = {f"fake_user_{n}": [*items[: n + 2], items[0]] for n in range(count)}
    path.write_text(json.dumps({"target_items": items[:2], "fake_users": held}))
    return str(path)


@pytest.mark.slow
def test_published_profiles_on_several_victims_with_defences(table, tmp_path, capsys):
    names = load(table).item_labels.tolist()
    files = [published(tmp_path / f"{name}.json", names, n) for name, n in (("dp", 3), ("rev", 4))]
    words = ["poison", "--dataset", table, "--model", "als", "item-knn", "vote", "--set", "cap=0.2"]
    words += ["damping=0.3", "--seeds", "1", "--profiles", *files, "--k", "5", "--threads", "1"]
    words += ["--defence", "none", "detect", "leverage", "--out", str(tmp_path / "out"), "--json"]
    assert run(words) == 0
    found = json.loads(capsys.readouterr().out)
    rows = {(row["model"], row["defence"], row["attack"]): row for row in found["results"]}
    victims = [("als", "none"), ("als", "detect"), ("als", "leverage"), ("item-knn", "none")]
    victims += [("item-knn", "detect"), ("vote", "none"), ("vote", "detect")]
    attacks = ("clean", "file:dp", "file:rev")
    assert list(rows) == [(*each, attack) for each in victims for attack in attacks]
    assert rows["vote", "none", "file:rev"]["spent"]["fakes"] == 4
    assert found["plan"]["targets"]["labels"] == names[:2]
    report = (tmp_path / "out" / "report.txt").read_text()
    assert "Left out, vote with leverage" in report
    tables = [line for line in report.splitlines() if "  " in line]
    assert max(map(len, tables)) <= 100


def test_profiles_of_different_targets_are_refused(table, tmp_path):
    names = load(table).item_labels.tolist()
    files = (published(tmp_path / "a.json", names), published(tmp_path / "b.json", names[5:]))
    with pytest.raises(InputError, match="targets"):
        PoisonPlan(table, models=("als",), profiles=files)
    with pytest.raises(InputError, match="unique"):
        PoisonPlan(table, models=("als",), profiles=(files[0], files[0]))
    with pytest.raises(InputError, match="none of the models"):
        PoisonPlan(table, models=("vote",), defences=("leverage",))


def test_a_winner_is_named_only_beyond_noise():
    few, more = np.array([2.0, 3.0, 4.0]), np.array([4.0, 5.0, 6.0])
    assert not stands_out({"a": few, "b": more}, "b")
    assert stands_out({"a": few, "b": 20 * more}, "b")
    assert not stands_out({"a": few, "b": np.array([200.0, 2.0, 200.0])}, "b")
