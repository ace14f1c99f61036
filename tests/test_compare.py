"""Comparisons: planted answers, naive oracles, and the command on hand-made runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robustcf.cli.main import run
from robustcf.studies.comparison import compare
from robustcf.training.config import RunConfig, TrainConfig
from robustcf.errors import InputError
from robustcf.support.files import write_arrays
from robustcf.metrics.evaluate import Protocol
from robustcf.robustness import RobustnessCurve
from robustcf.runs.saved import common_curves, group_runs, open_run

SIZES = (0.0, 0.1, 0.4)
USERS = 300


def planted(seed: int, fall: tuple[float, ...], noise: int = 0) -> np.ndarray:
    """Epsilons x users: one population of users, who fall by as much as is said."""
    base = np.random.default_rng(seed).random(USERS)
    jitter = np.random.default_rng([seed, noise]).normal(0, 0.02, size=(len(fall), USERS))
    return np.clip(base - np.array(fall)[:, None] + jitter, -2, 2)


def make_run(
    path: Path,
    values: np.ndarray,
    *,
    train: TrainConfig | None = None,
    fingerprint: str = "f" * 64,
    name: str = "fgm-bce-row",
    sizes: tuple[float, ...] = SIZES,
    **facts: Any,
) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(RunConfig("demo", train=train or TrainConfig()).to_json())
    (path / "data.json").write_text(json.dumps({"fingerprint": fingerprint}))
    words = name.split("-")
    curve = {
        "attack": words[0],
        "objective": next((w for w in words if w in ("bce", "bpr", "softmax")), None),
        "budget": "row",
        "relative": "relative" in words,
        "side": "both",
        "epsilons": sizes,
        "users": np.arange(values.shape[1]),
        "protocol": Protocol("demo", "test", ("train",), values.shape[1], 0, 50),
    } | facts
    RobustnessCurve(
        values={"ndcg@10": values.mean(axis=1), "coverage@10": np.zeros(len(values))},
        per_user={"ndcg@10": values},
        realised=tuple({"users": 0.0, "items": 0.0} for _ in sizes),
        **curve,
    ).save(path / "attacks" / f"{name}.json")
    return path


def test_a_planted_answer_is_found():
    groups = {
        "strong": [planted(0, (0, 0, 0), n) for n in (1, 2, 3)],
        "weak": [planted(0, (0, 0.1, 0.3), n) for n in (4, 5)],
        "alike": [planted(0, (0, 0, 0), 6)],
    }
    found = compare(groups, SIZES, resamples=2000)
    verdicts = {(c.first, c.second): c.verdict.tolist() for c in found.contrasts}
    assert verdicts == {
        ("strong", "weak"): [1, 0, 1, 1],
        ("strong", "alike"): [0, 0, 0, 0],
        ("weak", "alike"): [-1, 0, -1, -1],
    }
    assert found.contrasts[0].seeds_apart is not None
    assert found.contrasts[0].seeds_apart.tolist()[2:] == [True, True]
    assert found.contrasts[1].seeds_apart is None
    words = found.words()
    assert "strong is better at epsilon 0.1, 0.4; not distinguishable at 0." in words[0]
    assert "not distinguishable at any epsilon" in words[1]
    assert "alike is better at epsilon 0.1, 0.4" in words[2]
    assert "Area lower: -0." in words[2]
    assert "one seed only" in words[3]
    json.dumps(found.as_dict(), allow_nan=False)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_numbers_are_those_of_a_naive_calculation(seed):
    rng = np.random.default_rng(seed)
    first = [rng.random((3, 80)) for _ in range(2)]
    second = [rng.random((3, 80))]
    found = compare({"a": first, "b": second}, SIZES, resamples=999, seed=seed)
    a, b = found.groups

    def naive_area(curve: np.ndarray) -> float:
        return float((0.1 * (curve[0] + curve[1]) / 2 + 0.3 * (curve[1] + curve[2]) / 2) / 0.4)

    means = [one.mean(axis=1) for one in first]
    np.testing.assert_allclose(a.value[1:], (means[0] + means[1]) / 2)
    np.testing.assert_allclose(a.value[0], (naive_area(means[0]) + naive_area(means[1])) / 2)
    np.testing.assert_allclose(a.by_seed[:, 1:], means)
    np.testing.assert_allclose(found.contrasts[0].difference, a.value - b.value)
    # A naive bootstrap of one column, user by user.
    averaged = (first[0] + first[1]) / 2 - second[0]
    draws = np.random.default_rng(seed).integers(0, 80, size=(4000, 80))
    lower, upper = np.quantile(averaged[2][draws].mean(axis=1), [0.025, 0.975])
    np.testing.assert_allclose(found.contrasts[0].lower[3], lower, atol=0.01)
    np.testing.assert_allclose(found.contrasts[0].upper[3], upper, atol=0.01)
    again = compare({"a": first, "b": second}, SIZES, resamples=999, seed=seed)
    assert again.as_dict() == found.as_dict()
    other = compare({"a": first, "b": second}, SIZES, resamples=999, seed=seed + 1)
    assert other.as_dict() != found.as_dict()


def test_seeds_that_overlap_are_mentioned():
    rng = np.random.default_rng(0)
    base = rng.random(USERS)
    groups = {
        "a": [np.stack([base + 0.1]), np.stack([base + 0.02])],
        "b": [np.stack([base]), np.stack([base + 0.05])],
    }
    found = compare(groups, [0.5], resamples=999)
    assert found.contrasts[0].verdict.tolist() == [1, 1]
    assert "though seeds overlap at 0.5" in found.words()[0]


def test_false_verdicts_are_as_rare_as_promised():
    """Three settings that are the same: any verdict at all is a false one."""
    wrong = 0
    for seed in range(120):
        rng = np.random.default_rng(seed)
        base = rng.random(60)
        groups = {name: [base + rng.normal(0, 0.1, size=(2, 60))] for name in "abc"}
        found = compare(groups, [0, 1], resamples=399, confidence=0.9, seed=seed)
        wrong += any(c.verdict.any() for c in found.contrasts)
    assert wrong / 120 <= 0.1 + 3 * np.sqrt(0.09 / 120)


@pytest.mark.parametrize(
    ("groups", "options", "message"),
    [
        ({"a": [np.zeros((3, 5))]}, {}, "at least two settings"),
        ({"a": [np.zeros((3, 5))], "b": [np.zeros((2, 5))]}, {}, "3 epsilons x users"),
        ({"a": [np.zeros((3, 5))], "b": []}, {}, "got none"),
        ({"a": [np.zeros((3, 5))], "b": [np.zeros((3, 6))]}, {}, "same users"),
        ({"a": [np.zeros((3, 5))], "b": [np.full((3, 5), np.nan)]}, {}, "finite"),
        ({"a": [np.zeros((3, 5))] * 2, "b": [np.zeros((3, 5))]}, {"resamples": 50}, "least 80"),
    ],
)
def test_comparisons_refuse(groups, options, message):
    with pytest.raises(InputError, match=message):
        compare(groups, SIZES, **options)


@pytest.fixture
def runs(tmp_path):
    decay, norm = TrainConfig(), TrainConfig(reg="two_to_inf")
    falls = {"wd": (decay, (0, 0.1, 0.3)), "ti": (norm, (0, 0, 0))}
    return [
        make_run(tmp_path / f"{key}{s}", planted(0, fall, s), train=train.replace(seed=s))
        for key, (train, fall) in falls.items()
        for s in (0, 1)
    ]


def test_the_command_compares(runs, capsys):
    assert run(["compare", *map(str, runs), "--resamples", "1000", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["curve"] == "fgm-bce-row"
    assert [g["label"] for g in data["groups"]] == [
        "ultragcn, weight_decay",
        "ultragcn, two_to_inf",
    ]
    assert data["groups"][0]["runs"] == [str(runs[0]), str(runs[1])]
    contrast = data["contrasts"][0]
    assert [e["better"] for e in contrast["epsilons"]] == [None, *["ultragcn, two_to_inf"] * 2]
    assert all(0 < e["p"] <= e["p_holm"] <= 1 for e in contrast["epsilons"])
    assert contrast["epsilons"][2]["value"] == pytest.approx(-0.3, abs=0.01)
    assert run(["compare", *map(str, runs), "--attack", "fgm-bce"]) == 0
    text = capsys.readouterr().out
    assert "ultragcn, two_to_inf is better at epsilon 0.1, 0.4" in text
    assert "sign-flip" in text
    assert "row budget, absolute" in text


def test_the_strongest_common_curve_is_taken(tmp_path, capsys):
    folders = [tmp_path / "a", tmp_path / "b"]
    trains = [TrainConfig(), TrainConfig(reg="none")]
    values = planted(0, (0, 0, 0))
    expected = ["fgm-bce-row", "fgm-bce-row-relative", "fgm-softmax-row", "pgd-bce-row"]
    expected += ["pgd-softmax-row-relative", "auto-row"]
    for folder, train in zip(folders, trains, strict=True):
        make_run(folder, values, train=train, name="random-row")
    with pytest.raises(InputError, match="common to all are random-row.*--attack auto"):
        common_curves([open_run(f) for f in folders])
    make_run(folders[0], values, train=trains[0], name="auto-row-relative")
    for name in expected:
        for folder, train in zip(folders, trains, strict=True):
            make_run(folder, values, train=train, name=name)
        assert common_curves([open_run(f) for f in folders])[0].name == name
    # Neither an oracle nor valid is what an attacker does to the test rankings.
    for folder, train in zip(folders, trains, strict=True):
        protocol = Protocol("demo", "valid", ("train",), USERS, 0, 50)
        make_run(folder, values, train=train, name="auto-row-relative-valid", protocol=protocol)
        oracle = make_run(folder, values, train=train, name="auto-row-relative-test")
        path = oracle / "attacks" / "auto-row-relative-test.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"oracle": True}))
    assert common_curves([open_run(f) for f in folders])[0].name == "auto-row"
    with pytest.raises(InputError, match="may be fgm-bce-row, fgm-bce-row-relative: name one"):
        common_curves([open_run(f) for f in folders], "fgm-bce")
    assert common_curves([open_run(f) for f in folders], "fgm-bce-row")[1].name == "fgm-bce-row"


def test_a_missing_curve_is_named_with_the_command_that_makes_it(runs, tmp_path, capsys):
    values = planted(0, (0, 0, 0))
    make_run(runs[0], values, name="pgd-softmax-row-relative")
    name = ["--attack", "pgd-softmax-row-relative"]
    assert run(["compare", str(runs[0]), str(runs[2]), *name]) == 1
    message = capsys.readouterr().err
    command = f"robustcf attack {runs[2]} --attack pgd --objective softmax --budget row --relative"
    assert f"{command} --epsilons 0 0.1 0.4" in message
    assert str(runs[0]) not in message


def test_what_cannot_be_compared_is_refused(runs, tmp_path, capsys):
    values, other = planted(0, (0, 0, 0)), TrainConfig(reg="none")

    def refusal(*folders: Path, code: int = 1) -> str:
        assert run(["compare", *map(str, folders)]) == code
        return capsys.readouterr().err

    changed = make_run(tmp_path / "d", values, train=other, fingerprint="0" * 64)
    assert "different data" in refusal(runs[0], changed)
    changed = make_run(tmp_path / "e", values[:2], train=other, sizes=(0.0, 0.1))
    assert "differ in epsilons" in refusal(runs[0], changed)
    changed = make_run(tmp_path / "r", values, train=other, relative=True)
    assert "differ in relative (False, True)" in refusal(runs[0], changed)
    changed = make_run(tmp_path / "b", values, train=other, budget="spectral")
    assert "differ in budget" in refusal(runs[0], changed)
    protocol = Protocol("demo", "test", ("train", "valid"), USERS, 0, 50)
    changed = make_run(tmp_path / "p", values, train=other, protocol=protocol)
    assert "differ in protocol" in refusal(runs[0], changed)
    changed = make_run(tmp_path / "u", values, train=other, users=np.arange(1, USERS + 1))
    assert "different users" in refusal(runs[0], changed)
    assert "at least two runs" in refusal(runs[0])
    assert "same settings and the same seed" in refusal(runs[0], runs[0])
    assert "differ in their seed alone" in refusal(runs[0], runs[1], code=2)
    assert "no run directory" in refusal(runs[0], tmp_path)
    assert run(["compare", *map(str, runs), "--metric", "coverage@10"]) == 1
    assert "coverage is of the whole list" in capsys.readouterr().err
    (runs[0] / "attacks" / "broken.json").write_text("{")
    assert "cannot be read as a run" in refusal(*runs)


def test_files_that_are_no_whole_curves_are_passed_over(runs):
    folder = runs[0] / "attacks"
    (folder / "other.json").write_text("[1]")
    (folder / "notes.json").write_text('{"a": 1}')
    (folder / "half.json").write_text((folder / "fgm-bce-row.json").read_text())
    assert set(open_run(runs[0]).curves) == {"fgm-bce-row"}
    write_arrays(folder / "half.npz", {"users": np.arange(3)})
    assert set(open_run(runs[0]).curves) == {"fgm-bce-row", "half"}


def test_groups_are_told_apart_by_what_differs(tmp_path):
    values = planted(0, (0, 0, 0))
    base = TrainConfig()
    trains = [base, base.replace(seed=1), base.replace(dim=8), base.replace(reg="none")]
    opened = [
        open_run(make_run(tmp_path / str(n), values, train=train)) for n, train in enumerate(trains)
    ]
    assert group_runs(opened) == {
        "ultragcn, weight_decay (dim 64)": [0, 1],
        "ultragcn, weight_decay (dim 8)": [2],
        "ultragcn, none": [3],
    }


def test_comparing_does_not_load_torch(runs):
    code = (
        "import sys; from robustcf.cli.main import run; "
        f"run(['compare', *{[str(r) for r in runs]!r}, '--resamples', '1000']); "
        "print('torch' in sys.modules, 'pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False False"
