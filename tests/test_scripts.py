"""Scripts that users are sent to: they run, and what they write is what they say."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from robustcf import Recommender, certify
from robustcf.data import load
from robustcf.training import TrainConfig
from robustcf.training.fitting import fit_split
from robustcf.training.presets import preset, presets

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "scripts"
NAMES = sorted(path.stem for path in SCRIPTS.glob("[!_]*.py"))


def script(name, *words):
    command = [sys.executable, str(SCRIPTS / f"{name}.py"), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def imported(monkeypatch):
    """The names of a script, without running it."""
    monkeypatch.syspath_prepend(SCRIPTS)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")  # bench_training sets it
    return lambda name: runpy.run_path(str(SCRIPTS / f"{name}.py"), run_name=name)


@pytest.mark.parametrize("name", NAMES)
def test_every_script_says_what_it_takes(name, imported, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--help"])
    with pytest.raises(SystemExit) as ended:
        imported(name)["main"]()
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: {name}.py")


@pytest.mark.long
@pytest.mark.realdata
def test_the_demo_on_a_set_in_a_folder(real_data, tmp_path):
    """The runs it makes are opened with that folder too."""
    words = ("--dataset", "ml-100k", "--data-dir", real_data, "--attacks", "fgm-bce")
    script("demo", *words, "--out", tmp_path)
    assert (tmp_path / "robustness.json").is_file()


@pytest.mark.slow
def test_the_demo_trains_attacks_and_draws(tmp_path):
    out = script("demo", "--out", tmp_path)
    assert f"Look at {tmp_path / 'robustness.png'}" in out
    assert (tmp_path / "robustness.png").read_bytes().startswith(b"\x89PNG")
    found = json.loads((tmp_path / "robustness.json").read_text())
    bce, softmax = (found[name]["ndcg@10"] for name in ("fgm-bce", "auto"))
    for curves in (bce, softmax):
        assert set(curves) == {
            "softmax MF",
            "UltraGCN, weight decay",
            "UltraGCN, two_to_inf",
            "robust preset",
            "robust preset, fold-in",
        }
        clean = json.loads((tmp_path / "ultragcn-weight-decay" / "metrics.json").read_text())[
            "test"
        ]
        assert curves["UltraGCN, weight decay"]["attack"][0] == pytest.approx(
            clean["ndcg@10"], abs=1e-6
        )
    # The picture shows the effect, and what it is worth.
    assert (
        bce["UltraGCN, two_to_inf"]["attack"][-1] > 2 * bce["UltraGCN, weight decay"]["attack"][-1]
    )
    assert softmax["UltraGCN, two_to_inf"]["attack"][-1] < softmax["robust preset"]["attack"][-1]
    assert all("certificate" not in curves for curves in bce.values())
    for curves in softmax.values():
        pairs = zip(curves["certificate"], curves["attack"], strict=True)
        assert all(proved <= left for proved, left in pairs)


@pytest.mark.long
def test_attacks_are_timed(tmp_path):
    words = ("--sizes", 2, "--auto-sizes", 2, "--threads", 1, "--out", tmp_path / "times.json")
    script("bench_attacks", "--dataset", "demo", *words)
    seconds = json.loads((tmp_path / "times.json").read_text())["demo"]
    units = ("absolute", "relative", "own")
    sweeps = [f"fgm {objective} {unit}" for objective in ("bce", "softmax") for unit in units]
    assert list(seconds) == [*sweeps, "auto own"]


@pytest.mark.slow
def test_a_step_is_timed_with_all_items_and_with_some():
    for sampled in (0, 64):
        size = json.dumps([1200, 200, 9000, 8, sampled])
        found = json.loads(script("bench_scaling", "--one", size, "--steps", 1, "--threads", 1))
        assert found["epoch"] == pytest.approx(3 * found["step"])  # 3 blocks of 400 users
        assert found["step"] > 0


@pytest.mark.long
def test_versions_are_compared():
    assert "give --other DIR" in script("bench_versions")
    table = script("bench_versions", "--other", ROOT, "--repeats", 1, "--epochs", 1)
    same = {line[:26].strip(): line.split()[-1] for line in table.splitlines()[5:]}
    assert same.pop("start") == "-"
    assert len(same) == 5
    assert set(same.values()) == {"yes"}


@pytest.mark.slow
def test_the_cost_of_rows_is_timed_and_judged():
    words = ("--rows", 8, "--weights", 1e-3, "--epochs", 1, "--threads", 1)
    out = script("compare_regularizer_rows", "--dataset", "demo", *words)
    assert "no penalty: " in out
    assert "rows  8, weight 1e-03: valid NDCG@10 0.1" in out


@pytest.mark.long
def test_the_figure_of_the_paper(tmp_path):
    words = ("--datasets", "demo", "--seeds", 1, "--no-auto")
    script("reproduce_recsys", *words, "--work", tmp_path / "runs", "--out", tmp_path)
    found = json.loads((tmp_path / "demo.tuned.json").read_text())
    for part in ("absolute", "relative"):
        assert list(found[part]["curves"]) == ["fgm-bce", "fgm-softmax", "random", "certificate"]
        assert set(found[part]["settings"]) == {"weight_decay", "two_to_inf", "max_norm"}
    # Draws what has a name of the paper's sets.
    (tmp_path / "demo.tuned.json").rename(tmp_path / "ml-1m.tuned.json")
    script("reproduce_recsys", "--figures-only", "--out", tmp_path)
    assert (tmp_path / "fgm-bce-absolute-ndcg.tuned.png").stat().st_size > 1000


@pytest.mark.slow
def test_a_defence_is_judged_on_valid(tmp_path):
    name, out = "smooth start, no training, balanced, rank 24", tmp_path / "found.json"
    words = ("--only", name, "--dry", "--threads", 1, "--out", out)
    script("tune_robust", "--dataset", "demo", *words)
    (row,) = json.loads(out.read_text())["candidates"]
    recorded = json.loads((ROOT / "results" / "robust_search_demo.json").read_text())
    then = next(before for before in recorded["candidates"] if before["candidate"] == name)
    assert row["settings"] == then["settings"]
    split = load("demo")
    config = TrainConfig.of(**{"model": "ultragcn", **row["settings"]})
    model = Recommender(*fit_split(split, config).factors, split, part="valid")
    found = certify(model, [0, 0.01, 0.02, 0.05], ks=[10]).curve["ndcg@10"]
    assert row["certified"] == pytest.approx(found, abs=1e-3)
    assert row["clean"] == row["joint"][0] == pytest.approx(found[0], abs=1e-3)
    assert row["joint"] == sorted(row["joint"], reverse=True)
    # A file of another unit is not continued.
    out.write_text(json.dumps(recorded))
    with pytest.raises(AssertionError, match="another search"):
        script("tune_robust", "--dataset", "demo", *words)


@pytest.mark.slow
def test_the_headline_attack_is_looked_at_from_outside(imported):
    """At a small effort: the attack that shares no code does harm, and the headline more."""
    module = imported("attack_strength")
    config = preset("demo", "ultragcn").config.replace(epochs=2)
    models = (fit_split(load("demo"), config.replace(seed=n)).recommender() for n in (0, 1))
    found = module["judged"](*models, [0.05], 2)
    assert found["headline"][0] <= min(found[name][0] for name in ("cutoff", "fgm-softmax"))
    assert found["headline"][0] < found["transfer"][0] < found["clean"]
    assert found["independent"][0] < 0.9 * found["clean"]
    assert found["headline"][0] < found["independent"][0]
    assert found["missed"][0] <= 0.02


def test_searches_write_presets_where_they_are_read(imported, tmp_path):
    """Recorded settings, written again by the scripts, are the files that are there."""
    robust, tuned = imported("tune_robust"), imported("tune_presets")
    home = robust["FOLDER"]
    assert home == tuned["FOLDER"]
    assert {path.stem for path in home.glob("*.json")} == set(presets())

    robust["write_preset"].__globals__["FOLDER"] = tmp_path
    found = json.loads((ROOT / "results" / "robust_search_demo.json").read_text())
    best = next(row for row in found["candidates"] if row["candidate"] == found["chosen"])
    options = robust["argparse"].Namespace(
        out=tmp_path / "robust_search_demo.json",
        dataset="demo",
        epsilons=list(robust["EPSILONS"]),
        users=None,
        kept=robust["KEPT"],
    )
    robust["write_preset"](load("demo"), best, options)
    name = preset("demo", kind="robust").name
    assert json.loads((tmp_path / f"{name}.json").read_text()) == json.loads(
        (home / f"{name}.json").read_text()
    )


@pytest.mark.slow
def test_a_search_goes_on_from_the_preset():
    out = script("tune_presets", "--dataset", "demo", "--trials", 2, "--dry", "--threads", 1)
    first, second = (json.loads(line.rstrip(" *")) for line in out.splitlines())
    base = preset("demo", "ultragcn")
    settings = base.config.flat()
    assert {key: first[key] for key in first if not key.startswith("valid")} == {
        key: settings[key] for key in first if not key.startswith("valid")
    }
    assert first["valid ndcg@10"] == pytest.approx(base.found["valid"]["ndcg@10"], 0.01)
    assert second.keys() == first.keys()
    assert second != first


# Without the grid of ALS, which takes a minute.
QUICK = ("--baselines", "popularity", "item-kNN", "EASE", "--threads", 1)


@pytest.mark.slow
def test_defaults_are_judged_next_to_baselines(tmp_path):
    words = ("--sets", "demo", "--seeds", 0, "--minutes", 0.1, *QUICK)
    out = script("bench_defaults", *words, "--out", tmp_path / "found.json")
    found = json.loads((tmp_path / "found.json").read_text())["demo"]
    assert {"default", "EASE", "item-kNN", "popularity"} <= set(found)
    assert f"EASE {found['EASE']:.4f}" in out
    assert found["default"] > 2 * found["popularity"]
    assert found["EASE"] > 2 * found["popularity"]


@pytest.mark.slow
def test_presets_are_judged_next_to_baselines(tmp_path):
    out = tmp_path / "found.json"
    script("bench_defaults", "--presets", "demo", *QUICK, "--out", out)
    found = json.loads(out.read_text())["demo"]
    own = fit_split(load("demo"), preset("demo").config).evaluate((20,))
    assert found["settings"]["default"] == [preset("demo").name]
    assert found["default"] == pytest.approx(own["ndcg@20"], abs=1e-3)
    assert found["EASE"] > 2 * found["popularity"]
