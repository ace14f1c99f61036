"""Grids of poisoning: the right numbers, the same after a stop, never a silent mix."""

from __future__ import annotations

import csv
import json
import multiprocessing
import time
from dataclasses import replace

import numpy as np
import pytest

from robustcf._io.temporary import alone_in
from robustcf._registry import DEFENCES
from robustcf.cli.main import run
from robustcf.data import load
from robustcf.errors import InputError, Interrupted
from robustcf.experiments import grid
from robustcf.experiments import poison as poison_module
from robustcf.experiments.grid import compact_json, in_parallel
from robustcf.experiments.poison import (
    LOST,
    Part,
    PoisonPlan,
    PoisonSummary,
    Row,
    poison,
    read_summary,
)
from robustcf.poisoning import PoisonThreat, RandomItems, Targets, read_profiles, retrained
from robustcf.training import TrainConfig
from tests.experiments.conftest import small_table

FILES = ("results.json", "results.csv", "report.md", "report.txt", "poison.png", "poison.svg")
SMALL = {"dim": 4, "sweeps": 1}


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("data") / "mine.csv"
    path.write_text(small_table())
    return str(path)


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
    with pytest.raises(Interrupted, match="go on with the same command"):
        poison(plan, out)
    monkeypatch.undo()
    # A cell that is spoilt is made again, too.
    next((out / "cells").glob("*.json")).write_text("{}")
    poison(plan, out)
    assert contents(out) == contents(whole.out)


@pytest.mark.slow
def test_jobs_do_not_change_anything(plan, whole, tmp_path):
    poison(plan, tmp_path / "out", jobs=2)
    assert contents(tmp_path / "out") == contents(whole.out)


def test_a_folder_belongs_to_one_plan(plan, whole, table, tmp_path):
    other = PoisonPlan(table, models=("als",), changes=SMALL, knowledge="none", fakes=(1,))
    with pytest.raises(InputError, match="holds a poisoning with seeds"):
        poison(other, whole.out)
    with (
        alone_in(whole.out, "another process", file=".lock"),
        pytest.raises(InputError, match="another poisoning is at work"),
    ):
        poison(plan, whole.out)
    (tmp_path / "poison.json").write_text("[]")
    with pytest.raises(InputError, match="is not the plan of a poisoning"):
        poison(plan, tmp_path)
    with pytest.raises(InputError, match="jobs must be between 1"):
        poison(plan, tmp_path, jobs=0)


@pytest.mark.parametrize("older", [{"ridge": 0.5}, None])
def test_defaults_that_were_others_when_it_was_begun_are_another_plan(
    plan, tmp_path, monkeypatch, older
):
    """Of another version, or of one that did not write settings down: no mixture of the two."""

    def stopping(*_):
        raise RuntimeError("stopped")

    monkeypatch.setattr(PoisonPlan, "complete", stopping)
    with pytest.raises(RuntimeError, match="stopped"):
        poison(plan, tmp_path)
    kept = json.loads((tmp_path / "poison.json").read_text())
    settings = kept.pop("settings of als")
    assert settings["model"]["dim"] == 4
    if older is not None:
        kept["settings of als"] = {**settings, "model": settings["model"] | older}
    (tmp_path / "poison.json").write_text(json.dumps(kept))
    with pytest.raises(InputError, match="holds a poisoning with settings of als"):
        poison(plan, tmp_path)


def test_a_preset_file_that_was_changed_is_another_plan(table, tmp_path, monkeypatch):
    preset, out = tmp_path / "mine.json", tmp_path / "out"
    preset.write_text(json.dumps({"config": {"model": "als", "dim": 4}}))

    def stopping(*_):
        raise RuntimeError("stopped")

    monkeypatch.setattr(PoisonPlan, "complete", stopping)
    plan = PoisonPlan(table, models=("als",), preset=str(preset))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="stopped"):
            poison(plan, out)
    preset.write_text(json.dumps({"config": {"model": "als", "dim": 8}}))
    with pytest.raises(InputError, match="holds a poisoning with preset"):
        poison(plan, out)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"attacks": ()}, "attacks must be a non-empty list"),
        ({"fakes": (0.1, 0.1)}, "fakes must be a non-empty list"),
        ({"fakes": (0.01, 0.01 + 1e-15)}, "fakes must be a non-empty list"),
        ({"seeds": (-1,)}, "every seed must be an integer of at least 0, got -1"),
        ({"seeds": (0.5,)}, "every seed must be an integer"),
        ({"fakes": (-1,)}, "fakes must be a finite number and not negative"),
        ({"attacks": ("frob",)}, "poisoning must be one of"),
        ({"attacks": ("copy",), "knowledge": "none"}, "copy learns from pairs"),
        ({"defences": ("frob",)}, "defence must be one of"),
        ({"models": ("frob",)}, "model must be one of"),
        ({"ks": ()}, "ks must name at least one cutoff"),
        ({"preset": "auto", "models": ()}, "would search each time"),
        ({"goal": "win"}, "goal must be one of"),
    ],
)
def test_plans_that_cannot_be_are_refused(table, wrong, words):
    with pytest.raises(InputError, match=words):
        PoisonPlan(**{"dataset": table, "models": ("als",), **wrong})


def test_one_account_and_as_many_as_users_are_two_sizes(table, tmp_path, monkeypatch):
    def told(split, config, profiles, targets, **options):
        found = retrained(split, config, [], targets, **options)
        return replace(found, quality=dict.fromkeys(found.quality, len(profiles)))

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
    assert found.values(Row("als", "none", "random", 1), "ndcg@10").tolist() == [1]
    assert found.values(Row("als", "none", "random", 1.0), "ndcg@10").tolist() == [found.n_users]
    # No command asks for the seed 5 alone.
    assert plan.command() is None
    assert "Command" not in (tmp_path / "out" / "report.md").read_text()


def test_an_attack_without_the_goal_is_refused(table):
    with pytest.raises(InputError, match="has the goals promote, not 'demote'"):
        PoisonPlan(table, models=("als",), attacks=(f"{__name__}:OnlyPromotes",), goal="demote")


class OnlyPromotes(RandomItems):
    goals = ("promote",)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"targets": Targets(10_000)}, "10,000 targets cannot be drawn"),
        ({"targets": Targets(labels=("nobody",))}, "there is no item 'nobody'"),
        ({"length": 10_000}, "longer than the catalogue"),
        ({"length": 1}, "5 targets do not fit into a profile of 1"),
        ({"fakes": (10_000,)}, "at most as many as"),
    ],
)
def test_threats_that_do_not_fit_the_data_leave_nothing_behind(table, wrong, words, tmp_path):
    plan = PoisonPlan(table, models=("als",), **wrong)
    with pytest.raises(InputError, match=words):
        poison(plan, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_file_without_profiles_is_refused(table, tmp_path):
    (tmp_path / "none.csv").write_text("user,item\n")
    plan = PoisonPlan(table, models=("als",), profiles=str(tmp_path / "none.csv"))
    with pytest.raises(InputError, match=r"none.csv has no profiles: expected one or more"):
        poison(plan, tmp_path / "out")


def test_data_without_test_pairs_are_refused(plan, tmp_path, monkeypatch):
    split = load(plan.dataset)
    nothing = split.test.take(np.zeros(len(split.test), dtype=bool))
    monkeypatch.setattr(grid, "load", lambda *_, **__: replace(split, test=nothing))
    with pytest.raises(InputError, match="has no test pairs"):
        poison(plan, tmp_path / "out")


def test_a_summary_needs_all_cells(plan, tmp_path):
    with pytest.raises(InputError, match=r"cells.als-none-clean-seed0.json is missing"):
        read_summary(plan, tmp_path, load(plan.dataset))


def test_lists_of_numbers_are_on_one_line_and_texts_stay():
    values = {"targets": ["a [ b", "x [1,  2]", 'say "[ 1 ]" \\'], "n": [1, -2.5, 1e-30], "no": []}
    written = compact_json(values).decode()
    assert json.loads(written) == values
    assert '"n": [1, -2.5, 1e-30],\n' in written


def test_only_the_workers_of_a_grid_are_stopped(monkeypatch):
    other = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,))
    other.start()
    signalled = []

    def interrupted(*_):
        raise KeyboardInterrupt

    try:
        # Only for the call: the process below is killed by the same function.
        with monkeypatch.context() as patched:
            patched.setattr(
                "robustcf.experiments.grid.os.kill", lambda pid, _: signalled.append(pid)
            )
            with pytest.raises(KeyboardInterrupt):
                in_parallel(time.sleep, {"one": (0,)}, 1, interrupted)
        assert len(signalled) == 1
        assert other.pid not in signalled
    finally:
        other.kill()
        other.join()


def test_names_of_parts_make_file_names():
    assert Part("a:B", 0.005, 2).name == "a.B-0.5%-seed2"


class Drops:
    """A defence: every other user is dropped."""

    def apply(self, data, config):
        from types import SimpleNamespace

        kept = data.take(data.users % 2 == 0)
        return SimpleNamespace(train=kept, config=config, report={"kept": np.int64(len(kept))})


@pytest.mark.slow
def test_profiles_from_a_file_and_a_defence_from_the_command_line(
    table, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(DEFENCES, "_entries", {"drops": f"{__name__}:Drops"})
    labels = load(table).item_labels[:2]
    profiles = tmp_path / "mine.csv"
    profiles.write_text("".join(["user,item\n", *(f"f{n},{labels[n % 2]}\n" for n in range(4))]))
    words = ["poison", "--dataset", table, "--model", "als", "--set", "dim=4", "--seeds", "1"]
    words += ["--profiles", str(profiles), "--target", str(labels[0]), "--k", "5"]
    words += ["--defence", "none", "drops", "--threads", "1", "--out", str(tmp_path / "out")]
    assert run([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    rows = {(row["defence"], row["attack"]): row for row in found["results"]}
    assert set(rows) == {(d, a) for d in ("none", "drops") for a in ("clean", "file")}
    assert rows["none", "file"]["spent"] == {"fakes": 4, "length": 1, "pairs": 4}
    assert rows["none", "file"]["fakes"] == "4"
    with open(tmp_path / "out" / "results.csv", newline="") as file:
        assert {row["fakes"] for row in csv.DictReader(file)} == {"0", "4"}
    assert rows["drops", "file"]["defence_report"][0]["kept"] > 0
    # Another content is another plan.
    profiles.write_text(f"user,item\nf,{labels[0]}\n")
    assert run(words) == 1
    assert "holds a poisoning with profiles" in capsys.readouterr().err


def test_the_command_line(table, tmp_path, capsys):
    words = ["poison", "--dataset", table, "--model", "als", "--set", "dim=4", "--out"]
    words += [str(tmp_path / "out"), "--threads", "1"]
    small = ["--attack", "bandwagon", "--fakes", "2", "--targets", "2", "--seeds", "1"]
    assert run([*words, *small]) == 0
    shown = capsys.readouterr().out
    assert "bandwagon" in shown
    assert "`bandwagon` did most" in shown
    assert "report: " in shown
    for wrong, said in (
        (["--fakes", "-1"], "fakes must be"),
        (["--fakes", "nan"], "fakes must be"),
        (["--targets", "0"], "the number of targets"),
        (["--targets", "100000"], "targets cannot be drawn"),
        (["--length", "100000"], "longer than the catalogue"),
        (["--target", "nobody"], "there is no item 'nobody'"),
    ):
        assert run([*words[:-3], str(tmp_path / "other"), *wrong]) == 1
        assert said in capsys.readouterr().err
        assert not (tmp_path / "other").exists()
    assert run([*words, "--profiles", "x.csv", "--fakes", "1"]) == 2
    assert "no effect with --profiles" in capsys.readouterr().err
