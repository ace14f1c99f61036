"""Sweeps: the right numbers, the same after a kill, never a silent mix, and true first lines."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from robustcf import load, train
from robustcf.attacks import FGM, RandomNoise, Softmax
from robustcf.cli.main import run
from robustcf.errors import InputError
from robustcf.experiments import RunDir, grid
from robustcf.experiments import sweep as sweep_module
from robustcf.experiments.saved import open_run
from robustcf.experiments.sweep import SweepPlan, SweepSummary, sweep
from robustcf.recommender import open_recommender
from robustcf.robustness import RobustnessCurve, Threat, measure
from robustcf.training.config import TrainConfig
from robustcf.training.presets import preset
from tests.experiments.test_saved import full, make_run, planted

CHANGES = {"factors": 6, "epochs": 3, "block_users": 20, "negative_weight": 20.0}
SIZES = (0.0, 0.1, 0.4)
FILES = ("curves.json", "curves.csv", "report.md")


@pytest.fixture(scope="module")
def plan(table) -> SweepPlan:
    return SweepPlan(
        table,
        regs=("weight_decay", "none"),
        seeds=(0, 1),
        attacks=("fgm-bce", "fgm-softmax"),
        epsilons=SIZES,
        changes=CHANGES,
    )


@pytest.fixture(scope="module")
def whole(plan, tmp_path_factory) -> SweepSummary:
    """A sweep that was not interrupted."""
    return sweep(plan, tmp_path_factory.mktemp("sweeps") / "whole")


@pytest.fixture
def no_pictures(monkeypatch) -> None:
    """Drawing takes longer than all the rest; that it repeats itself is tested once."""
    monkeypatch.setattr(grid, "plot_panels", lambda panels, path, **options: path)


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in FILES}


def test_the_numbers_are_those_of_the_runs(whole, plan):
    data = json.loads((whole.out / "curves.json").read_text())
    assert data["epsilons"] == list(SIZES)
    assert set(data["curves"]) == {"fgm-bce", "fgm-softmax", "random", "certificate"}
    for reg in plan.regs:
        for seed in plan.seeds:
            trained = RunDir(whole.out / "runs" / f"{reg}-seed{seed}")
            assert trained.complete
            assert (trained.config.train.reg.name, trained.config.train.seed) == (reg, seed)
            target = open_recommender(trained.path)
            assert target.fit_on == "train and valid"
            assert target.split.fingerprint == trained.split().fingerprint
            softmax = FGM(Softmax(target.split.train_full), relative=True)
            for name, attack in (("fgm-softmax", softmax), ("random", RandomNoise(relative=True))):
                expected = measure(target, attack, epsilons=SIZES).curve
                for metric in ("ndcg@10", "mrr@10", "coverage@10", "recall@20"):
                    found = data["curves"][name][reg][metric][seed]
                    np.testing.assert_allclose(found, expected[metric], atol=1e-7)
            certified = data["curves"]["certificate"][reg]["ndcg@10"][seed]
            attacked = data["curves"]["fgm-softmax"][reg]["ndcg@10"][seed]
            assert certified[0] == attacked[0]
            assert all(low <= high for low, high in zip(certified, attacked, strict=True))
    for name in ("fgm-bce", "fgm-softmax"):
        assert (whole.out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert b"<svg" in (whole.out / f"{name}.svg").read_bytes()
    words = data["comparisons"]["fgm-bce"]["words"]
    assert words[0].startswith("weight_decay against none, ndcg@10:")


def test_the_table_of_all_values_agrees_with_the_json(whole, plan):
    data = json.loads((whole.out / "curves.json").read_text())["curves"]
    with open(whole.out / "curves.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    metrics = sum(len(by_setting["none"]) for by_setting in data.values())
    assert len(rows) == 2 * 2 * 3 * metrics
    for row in rows:
        by_seed = data[row["attack"]][row["setting"]][row["metric"]]
        expected = by_seed[int(row["seed"])][SIZES.index(float(row["epsilon"]))]
        assert float(row["value"]) == expected


def test_the_report_has_its_parts(whole, plan):
    text = (whole.out / "report.md").read_text()
    order = ["# ultragcn on mine", "## What the result says", "## Curves", "### `fgm-bce`"]
    order += ["### `random`", "### `certificate`", "## Differences", "sign-flip"]
    order += ["## How it was made", plan.axis, "Command: `robustcf sweep", "torch"]
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    mean = whole.values("fgm-bce", "none").mean(axis=0)
    assert f"| {mean[1]:.4f} (" in text
    assert plan.dataset not in text, "no machine's paths"


def test_the_runs_of_a_sweep_can_be_compared(whole, capsys):
    folders = sorted(str(path) for path in (whole.out / "runs").iterdir())
    for attack in ("fgm-softmax", "certificate"):
        words = ["compare", *folders, "--attack", attack, "--resamples", "1000", "--json"]
        assert run(words) == 0
        groups = json.loads(capsys.readouterr().out)["groups"]
        for group, setting in zip(groups, ("none", "weight_decay"), strict=True):
            assert group["seeds"]["count"] == 2
            mean = whole.values(attack, setting).mean(axis=0)
            np.testing.assert_allclose(group["values"], mean, atol=1e-6)


def saved(folder: Path) -> dict[str, bytes]:
    """Every curve in a run's home, by name; no pictures, no radii."""
    return {
        path.name: path.read_bytes()
        for path in (folder / "robustness").iterdir()
        if path.suffix in (".json", ".npz") and not path.stem.endswith("-radii")
    }


@pytest.fixture
def bare(whole, tmp_path, monkeypatch):
    """Runs of the sweep as they were before the attacks."""
    monkeypatch.setattr(
        "robustcf.experiments.results._draw", lambda result, saved: ["a.png", "a.svg"]
    )
    monkeypatch.setattr("robustcf.robustness.plots.plot_curves", lambda curves, path, **_: path)

    def copy(name: str) -> Path:
        shutil.copytree(whole.out / "runs" / name, tmp_path / name)
        shutil.rmtree(tmp_path / name / "robustness")
        return tmp_path / name

    return copy


def test_attack_sweep_and_certify_write_the_same_bytes(whole, bare, capsys):
    """Every command writes the same file for the same curve."""
    folder = bare("none-seed0")
    sizes = ["--epsilons", *map(str, SIZES)]
    for words in (
        ["attack", "--attack", "fgm", "--objective", "bce"],
        ["attack", "--attack", "fgm", "--objective", "softmax"],
        ["certify"],
    ):
        assert run([words[0], str(folder), *words[1:], *sizes, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["replaced"] is False
    by_sweep = saved(whole.out / "runs" / "none-seed0")
    names = {name.rpartition("-")[0] for name in by_sweep}
    assert names == {"fgm-bce", "fgm-softmax", "random", "certificate"}
    assert len(by_sweep) == 8
    assert saved(folder) == by_sweep


@pytest.mark.usefixtures("no_pictures")
def test_a_sweep_takes_what_the_commands_have_made(whole, plan, tmp_path, capsys, monkeypatch):
    """And makes the rest: nothing is computed twice, nothing is mixed up."""
    shutil.copytree(whole.out / "runs", tmp_path / "runs")
    for path in (tmp_path / "runs").glob("*/robustness/certificate*"):
        path.unlink()
    made, measured = [], sweep_module.measure

    def counting(target, name, *rest):
        made.append(name)
        return measured(target, name, *rest)

    monkeypatch.setattr(sweep_module, "measure", counting)
    sweep(plan, tmp_path / "again", runs=tmp_path / "runs")
    assert made == ["certificate"] * 4
    assert contents(tmp_path / "again") == contents(whole.out)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["attack", "--attack", "pgd", "--objective", "bpr", "--steps", "3", "--restarts", "2",
         "--seed", "5", "--epsilons", "0", "0.30000000000000004", "--k", "3", "7"],
        ["attack", "--attack", "fgm", "--objective", "softmax", "--knowledge", "labels",
         "--budget", "frobenius", "--absolute", "--users", "--epsilons", "0.5"],
        ["attack", "--attack", "random", "--seed", "9", "--epsilons", "0", "0.1"],
        ["attack", "--attack", "auto", "--side", "items", "--epsilons", "0", "0.1", "--k", "5",
         "--steps", "2"],
        ["attack", "--attack", "auto", "--knowledge", "data", "--epsilons", "0", "0.1",
         "--steps", "2"],
        ["attack", "--attack", "cutoff", "--relative", "--epsilons", "0", "0.1", "--steps",
         "2", "--restarts", "2", "--seed", "3"],
        ["certify", "--relative", "--epsilons", "0", "0.01"],
        ["certify", "--bound", "plain", "--absolute", "--side", "users", "--k", "4",
         "--epsilons", "0", "0.01"],
    ],
    ids=["pgd", "fgm", "random", "auto", "auto-data", "cutoff-relative", "certify-relative",
         "certify"],
)  # fmt: skip
def test_the_command_that_is_named_makes_the_very_curve(bare, capsys, words):
    """For all settings, the comparison succeeds after running the command in the message."""
    one, two = bare("none-seed0"), bare("weight_decay-seed0")
    assert run([words[0], str(one), *words[1:], "--json"]) == 0
    stem = Path(json.loads(capsys.readouterr().out)["file"]).stem
    assert run(["compare", str(one), str(two), "--attack", stem]) == 1
    command = capsys.readouterr().err.split("make it with: ")[1].split()
    assert command[2] == str(two)
    assert run([*command[1:], "--json"]) == 0
    assert Path(json.loads(capsys.readouterr().out)["file"]).stem == stem
    metric = next(iter(open_run(one).curves[stem].facts["metrics"]))
    compared = ["compare", str(one), str(two), "--attack", stem, "--metric", metric]
    assert run([*compared, "--resamples", "999"]) == 0


@pytest.mark.usefixtures("no_pictures")
def test_a_finished_sweep_computes_nothing_again(whole, plan, monkeypatch):
    before = contents(whole.out)
    monkeypatch.setattr(sweep_module, "measure", None)
    monkeypatch.setattr(RunDir, "execute", None)
    sweep(plan, whole.out)
    assert contents(whole.out) == before


@pytest.mark.slow
@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize("stop", [0, 7, 19])
def test_stopped_anywhere_and_started_again_it_ends_the_same(
    whole, plan, tmp_path, monkeypatch, stop
):
    steps = []

    def stopping(method):
        def wrapped(*arguments, **options):
            steps.append(method)
            if len(steps) > stop:
                raise OSError("power cut")
            return method(*arguments, **options)

        return wrapped

    with monkeypatch.context() as patch:
        for kind, name in ((RobustnessCurve, "save"), (RunDir, "execute")):
            patch.setattr(kind, name, stopping(getattr(kind, name)))
        with pytest.raises(OSError, match="power cut"):
            sweep(plan, tmp_path / "again")
    assert not (tmp_path / "again" / "report.md").exists()
    sweep(plan, tmp_path / "again")
    assert contents(tmp_path / "again") == contents(whole.out)


@pytest.mark.slow
def test_killed_for_real_it_ends_the_same(whole, plan, table, tmp_path):
    out = tmp_path / "killed"
    words = ["--dataset", table, "--regs", "weight_decay", "none", "--seeds", "2", "--threads", "1"]
    words += ["--epsilons", *map(str, SIZES), "--attacks", *plan.attacks, "--out", str(out)]
    for key, value in CHANGES.items():
        words += ["--set", f"{key}={value}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "robustcf", "sweep", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while process.poll() is None and not list(out.glob("runs/*/metrics.json")):
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert run(["sweep", *words]) == 0
    ours, theirs = (json.loads((f / "curves.json").read_text()) for f in (out, whole.out))
    # The command line names the seed of the split; everything computed is the same.
    for data in (ours, theirs):
        data["plan"].pop("data")
    assert ours == theirs


@pytest.mark.slow
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two cores")
def test_runs_at_a_time_change_nothing(whole, plan, tmp_path):
    sweep(plan, tmp_path / "two", jobs=2)
    assert contents(tmp_path / "two") == contents(whole.out)


@pytest.mark.parametrize(
    "change",
    [
        {"epsilons": (0.0, 0.1)},
        {"seeds": (0, 1, 2)},
        {"regs": ("weight_decay",)},
        {"attacks": ("fgm-bce",)},
        {"unit": "absolute"},
        {"changes": {**CHANGES, "factors": 5}},
        {"threads": 2},
    ],
)
def test_a_folder_keeps_its_plan(whole, plan, change):
    before = contents(whole.out)
    with pytest.raises(InputError, match=f"holds a sweep with {next(iter(change))}"):
        sweep(replace(plan, **change), whole.out)
    assert contents(whole.out) == before


def test_a_folder_keeps_its_data_and_its_runs(whole, plan, table, tmp_path):
    other = tmp_path / "mine.csv"
    other.write_text(Path(table).read_text() + "\nu0,i59")
    with pytest.raises(InputError, match="dataset"):
        sweep(replace(plan, dataset=str(other)), whole.out)
    kept = Path(table).read_text()
    try:
        Path(table).write_text(kept + "\nu0,i59")
        with pytest.raises(InputError, match="fingerprint"):
            sweep(plan, whole.out)
    finally:
        Path(table).write_text(kept)
    changed = replace(plan, changes={**CHANGES, "factors": 5})
    with pytest.raises(InputError, match="settings"):
        sweep(changed, tmp_path / "new", runs=whole.out / "runs")


@pytest.mark.usefixtures("no_pictures")
def test_several_models_are_settings_of_one_sweep(plan, tmp_path):
    small = {"factors": 4, "epochs": 1}
    both = replace(plan, models=("ultragcn", "bpr-mf"), regs=("none",), seeds=(0,), changes=small)
    found = sweep(both, tmp_path)
    assert list(found.settings) == ["ultragcn-none", "bpr-mf-none"]
    for setting, model in zip(found.settings, both.models, strict=True):
        alone = replace(both, models=(model,))
        trained = RunDir(tmp_path / "runs" / f"{setting}-seed0")
        assert trained.config.train.resolved() == alone.train_config("none", 0)[0]
        expected = measure(trained.recommender(), "fgm-bce", epsilons=SIZES).curve["ndcg@10"]
        np.testing.assert_allclose(found.values("fgm-bce", setting)[0], expected, atol=1e-7)
    (contrast,) = found.comparisons["fgm-bce"].contrasts
    assert (contrast.first, contrast.second) == ("ultragcn-none", "bpr-mf-none")
    assert "--model ultragcn bpr-mf" in (tmp_path / "report.md").read_text()


@pytest.mark.usefixtures("no_pictures")
def test_sweeps_of_other_attacks_may_share_runs(whole, plan, tmp_path):
    other = replace(plan, attacks=("pgd-softmax",), unit="absolute")
    found = sweep(other, tmp_path / "other", runs=whole.out / "runs")
    assert list(found.curves) == ["pgd-softmax", "random-pgd", "certificate"]
    clean = found.values("pgd-softmax", "none")[:, 0]
    np.testing.assert_array_equal(clean, whole.values("fgm-bce", "none")[:, 0])
    assert not (tmp_path / "other" / "runs").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("no_pictures")
def test_auto_is_the_worst_of_all_and_certificates_need_rows(whole, plan, tmp_path):
    attacks = ("auto", "fgm-softmax", "pgd-bpr")
    other = replace(plan, attacks=attacks, budget="frobenius", unit="relative")
    found = sweep(other, tmp_path / "other", runs=whole.out / "runs")
    assert list(found.curves) == [*attacks, "random", "random-pgd"]
    mean = [found.area(name, "none") for name in ("random-pgd", "random")]
    assert mean == sorted(mean), "the worst of more is worse"
    for reg in plan.regs:
        for attack in attacks[1:]:
            assert (found.values("auto", reg) <= found.values(attack, reg) + 1e-7).all()
    assert found.words("auto").startswith("joint (one perturbation for all users), the attacker")
    assert found.words("auto").endswith("knows the labels")
    assert found.words("pgd-bpr").endswith("knows the training pairs")
    assert found.words("random").endswith("knows nothing but the embeddings")
    report = (tmp_path / "other" / "report.md").read_text()
    for name in found.curves:
        assert f"- `{name}` is {found.words(name)}." in report
    said = found.findings()
    first = next(n for n, sentence in enumerate(said) if sentence.startswith("Area under"))
    assert "against `auto`, the headline attack" in said[first]


def truncated(folder: Path) -> Path:
    (curve,) = folder.glob("fgm-bce-*.npz")
    curve.write_bytes(curve.read_bytes()[:100])
    return curve


def swapped(folder: Path) -> Path:
    """A certificate under the name of an attack."""
    (curve,) = folder.glob("fgm-bce-*.json")
    shutil.copy(next(folder.glob("certificate-*.json")), curve)
    return curve


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize("spoil", [truncated, swapped])
def test_a_curve_that_is_not_whole_is_made_again(whole, plan, tmp_path, spoil):
    shutil.copytree(whole.out / "runs", tmp_path / "runs")
    curve = spoil(tmp_path / "runs" / "none-seed0" / "robustness")
    sweep(plan, tmp_path)
    assert contents(tmp_path) == contents(whole.out)
    sound = whole.out / curve.relative_to(tmp_path)
    assert len(curve.read_bytes()) == len(sound.read_bytes())


@pytest.mark.parametrize("text", ["{", "[1]", "{}", '{"threads": "many"}'])
def test_a_plan_that_cannot_be_read_is_refused(plan, tmp_path, text):
    (tmp_path / "sweep.json").write_text(text)
    with pytest.raises(InputError, match="sweep"):
        sweep(plan, tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("no_pictures")
def test_interrupted_in_training_it_stops_and_goes_on(whole, plan, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(RunDir, "execute", lambda self, split: False)
        with pytest.raises(KeyboardInterrupt):
            sweep(plan, tmp_path / "again")
    sweep(plan, tmp_path / "again")
    assert contents(tmp_path / "again") == contents(whole.out)


@pytest.mark.parametrize("jobs", [0, 10_000, True, 1.5])
def test_jobs_are_as_many_as_the_cores_allow(plan, tmp_path, jobs):
    with pytest.raises(InputError, match="jobs"):
        sweep(plan, tmp_path / "new", jobs=jobs)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"regs": ()}, "regs"),
        ({"regs": ("none", "none")}, "regs"),
        ({"regs": ("dropout",)}, "dropout"),
        ({"seeds": (1, 1)}, "seeds"),
        ({"attacks": ("fgm-mse",)}, "objective"),
        ({"attacks": ("fgsm",)}, "attack"),
        ({"attacks": ("random",)}, "random"),
        ({"attacks": ("random-auto",)}, "random-auto"),
        ({"attacks": ("certificate",)}, "certificate"),
        ({"budget": "l1"}, "norm"),
        ({"models": ("svd",)}, "model"),
        ({"epsilons": (0.2, 0.1)}, "ascending"),
        ({"changes": {"dim": 3}}, "factors"),
        ({"preset": "best"}, "preset"),
        ({"preset": "paper"}, "preset"),
    ],
)
def test_plans_refuse(plan, change, word):
    with pytest.raises(InputError, match=word):
        replace(plan, **change)


def planted_summary(tmp_path: Path, falls: dict[str, dict[str, tuple[float, ...]]]) -> SweepSummary:
    """A summary of hand-made curves: attack -> setting -> how far users fall at each size."""
    regs = tuple(next(iter(falls.values())))
    attacks = tuple(name for name in falls if name != "random")
    plan = SweepPlan("demo", regs=regs, seeds=(0, 1), attacks=attacks, epsilons=SIZES)
    curves = {}
    for attack, by_setting in falls.items():
        name = full(f"{attack}-row-relative")
        curves[attack] = {reg: [] for reg in by_setting}
        for reg, fall in by_setting.items():
            for seed in plan.seeds:
                values, short = planted(0, fall, seed), f"{attack}-row-relative"
                made = make_run(tmp_path / f"{reg}{seed}", values, name=short)
                curves[attack][reg].append(open_run(made).curves[name])
    settings = {reg: TrainConfig.of(model="ultragcn").flat() for reg in regs}
    return SweepSummary(plan, tmp_path, curves, settings, {})


def test_settings_come_from_presets():
    plan = SweepPlan("ml-1m", regs=("two_to_inf", "apr", "robust"), seeds=(3,))
    two_to_inf, name = plan.train_config("two_to_inf", 3)
    assert (two_to_inf, name) == (
        preset("ml-1m", reg="two_to_inf").config.replace(seed=3),
        "ml-1m.ultragcn.two_to_inf",
    )
    apr, name = plan.train_config("apr", 3)
    chosen = (apr.adversary.name, apr.reg.name, apr.epochs_chosen)
    assert chosen == ("bpr", "weight_decay", False)
    robust, name = plan.train_config("robust", 3)
    assert robust == preset("ml-1m", "ultragcn", kind="robust").config.replace(seed=3)
    paper = SweepPlan("citeulike", preset="paper").train_config("max_norm", 0)
    assert paper[1] == "citeulike-t.ultragcn.max_norm.paper"


def falls(decay, norm, attack="fgm-bce"):
    return {attack: {"weight_decay": decay, "two_to_inf": norm}}


def test_an_effect_of_one_attack_is_called_so_first(tmp_path):
    planted_falls = {
        **falls((0, 0.1, 0.3), (0, 0, 0)),
        **falls((0, 0.1, 0.2), (0, 0.2, 0.3), "fgm-softmax"),
        **falls((0, 0, 0.05), (0, 0.05, 0.1), "random"),
    }
    said = planted_summary(tmp_path, planted_falls).findings()
    assert said[0].startswith(
        "**The order depends on the attack.** two_to_inf is ahead of weight_decay under `fgm-bce` "
        "and behind under `fgm-softmax`"
    )
    assert "the cross-entropy gradient, it is not robustness in general" in said[0]
    assert said[1].startswith("`fgm-bce` does less harm than random noise")
    assert "two_to_inf" in said[1]
    assert "weight_decay" not in said[1]


def test_an_effect_that_holds_is_not_talked_down_and_an_uneven_unit_is_named(tmp_path):
    planted_falls = {
        **falls((0, 0.1, 0.3), (0, 0.05, 0.1)),
        **falls((0, 0.2, 0.4), (0, 0.1, 0.2), "fgm-softmax"),
        **falls((0, 0, 0.05), (0, 0, 0.05), "random"),
    }
    summary = planted_summary(tmp_path, planted_falls)
    said = summary.findings()
    assert not any("depends on the attack" in sentence for sentence in said)
    assert not any("noise" in sentence for sentence in said)
    assert said[0].startswith("Area under ndcg@10 against `fgm-bce`, mean over seeds: two_to_inf")
    for reg, ratio in (("weight_decay", 1.1), ("two_to_inf", 3.4)):
        for curve in summary.curves["fgm-bce"][reg]:
            curve.facts.update(unit="relative", unevenness={"users": 1.0, "items": ratio})
    vars(summary.plan)["unit"] = "relative"
    (uneven,) = [sentence for sentence in summary.findings() if "uneven" in sentence]
    words = "two_to_inf: row norms are uneven (items: root mean square 3.4 medians)"
    assert uneven.startswith(words)


@pytest.mark.slow
def test_the_command_sweeps_and_reports(table, tmp_path, capsys):
    words = ["sweep", "--dataset", table, "--regs", "none", "--seeds", "1", "--absolute"]
    words += "--attacks fgm-softmax --set factors=4 --set epochs=1 --threads 1".split()
    out = str(tmp_path / "out")
    assert run([*words, "--out", out, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["epsilons"] == [0, 0.1, 0.2, 0.4, 0.8, 1.6]
    assert data["comparisons"] == {}
    assert Path(data["report"]).is_file()
    # Without --threads a sweep is resumed with those it was begun with.
    assert run([*words[:-2], "--out", out]) == 0
    told = capsys.readouterr().out
    assert "fgm-softmax  none" in told
    assert [line.split(":")[0] for line in told.splitlines()[:3]] == list(data["curves"])
    assert run([*words, "--out", out, "--epsilons", "0", "1"]) == 1
    assert "another --out" in capsys.readouterr().err
    assert run([*words, "--out", out, "--seeds", "0"]) == 2
    assert run([*words, "--out", out, "--relative", "--absolute"]) == 2


@pytest.mark.slow
def test_the_command_sweeps_by_the_headline_attack_and_own_lengths(table, tmp_path, capsys):
    words = ["sweep", "--dataset", table, "--regs", "none", "--seeds", "1"]
    words += ["--epsilons", "0", "0.1", "--set", "factors=4", "--set", "epochs=1", "--threads", "1"]
    assert run([*words, "--out", str(tmp_path), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["plan"]["unit"], data["plan"]["attacks"]) == ("own", ["auto"])
    assert list(data["curves"]) == ["auto", "random", "certificate"]
    target = open_recommender(tmp_path / "runs" / "none-seed0")
    result = measure(target, "auto", Threat(unit="own"), [0, 0.1])
    for name, curve in (("auto", result.curve), ("random", result.control)):
        found = data["curves"][name]["none"]["ndcg@10"][0]
        np.testing.assert_allclose(found, curve["ndcg@10"], atol=1e-7)
    assert "--relative" not in (tmp_path / "report.md").read_text()


# --- models of others ---------------------------------------------------------------------------


def write_sources(table, folder: Path) -> tuple[str, str]:
    """A saved recommender, and files of factors of two seeds; both fit the data."""
    split = load(table)
    saved = train(split, "als", seed=0)
    saved.save(folder / "mine")
    for seed in (0, 1):
        U, V = train(split, "als", seed=seed, factors=4).factors
        np.savez(folder / f"other-{seed}.npz", user_factors=U.numpy(), item_factors=V.numpy())
    return str(folder / "mine"), str(folder / "other-{seed}.npz")


@pytest.mark.usefixtures("no_pictures")
def test_saved_models_and_files_of_factors_are_measured_next_to_trained_ones(table, tmp_path):
    models = ("bpr-mf", *write_sources(table, tmp_path))
    plan = SweepPlan(
        table, models=models, regs=("none",), seeds=(0, 1), attacks=("fgm-softmax",),
        epsilons=SIZES, changes={"epochs": 2, "factors": 6},
    )  # fmt: skip
    assert list(plan.settings) == ["bpr-mf-none", "mine", "other"]
    names = {f"{name}-seed{seed}" for name in ("bpr-mf-none", "other") for seed in (0, 1)}
    assert {cell.name for cell in plan.cells()} == names | {"mine-seed0"}
    found = sweep(plan, tmp_path / "out")
    assert len(found.values("fgm-softmax", "mine")) == 1
    assert len(found.values("fgm-softmax", "other")) == 2
    clean = open_recommender(tmp_path / "mine").evaluate()["ndcg@10"]
    assert found.values("fgm-softmax", "mine")[0, 0] == pytest.approx(clean)
    table_of = (tmp_path / "out" / "table-fgm-softmax.tex").read_text()
    assert table_of.count(r"\\") == 1 + 3
    assert r"\toprule" in table_of
    again = contents(tmp_path / "out")
    sweep(plan, tmp_path / "out")
    assert contents(tmp_path / "out") == again


def test_models_of_others_that_cannot_be_compared(table, tmp_path):
    mine, _ = write_sources(table, tmp_path)
    shutil.copytree(mine, tmp_path / "deeper" / "mine")
    with pytest.raises(InputError, match="rename"):
        SweepPlan(table, models=(mine, str(tmp_path / "deeper" / "mine")))
    with pytest.raises(InputError, match="must be one of"):
        SweepPlan(table, models=(str(tmp_path / "missing.npz"),))
    plan = SweepPlan("demo", models=(mine,), attacks=("fgm-softmax",), epsilons=(0.0,), seeds=(0,))
    with pytest.raises(InputError, match="other data"):
        sweep(plan, tmp_path / "out")
