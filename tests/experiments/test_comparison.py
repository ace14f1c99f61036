"""Comparisons: planted answers, naive oracles, and the command on hand-made runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robustcf._io.files import write_arrays
from robustcf._io.text import grid_name
from robustcf.cli.main import run
from robustcf.data import Split
from robustcf.errors import InputError
from robustcf.experiments.comparison import compare_curves
from robustcf.experiments.saved import common_curves, group_runs, open_run
from robustcf.factors import Factors
from robustcf.metrics.evaluate import Protocol
from robustcf.recommender import FactorScorer, Recommender
from robustcf.recommender.saved import write_into
from robustcf.robustness import RobustnessCurve, Threat
from robustcf.training.config import TrainConfig

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
    users: int = 2,
    name: str = "fgm-bce-row-absolute",
    sizes: tuple[float, ...] = SIZES,
    stem: str | None = None,
    judged: np.ndarray | None = None,
    **facts: Any,
) -> Path:
    """A saved recommender with a curve; its name gets sizes and cutoffs unless told otherwise.

    The recommender is a stand-in: comparisons read its settings and the fingerprint of its data.
    """
    path.mkdir(parents=True, exist_ok=True)
    square = np.eye(users)
    model = Recommender.of(
        FactorScorer(Factors.of(square, square)),
        Split.from_csr(square),
        training={
            "config": (train or TrainConfig.of(model="ultragcn")).resolved().as_dict(),
            "epochs": 1,
        },
    )
    write_into(path, model)
    words = name.split("-")
    curve = {
        "attack": words[0],
        "objective": next((w for w in words if w in ("bce", "bpr", "softmax")), None),
        "threat": Threat(
            unit="relative" if "relative" in words else "absolute",
            knowledge="labels" if "labels" in words else "data",
        ),
        "epsilons": sizes,
        "users": np.arange(values.shape[1]) if judged is None else judged,
        "protocol": Protocol("demo", "test", ("train",), values.shape[1], 0, 50),
        "kind": "certified" if words[0] == "certificate" else "joint",
    } | facts
    RobustnessCurve(
        values={"ndcg@10": values.mean(axis=1), "coverage@10": np.zeros(len(values))},
        per_user={"ndcg@10": values},
        realised=tuple({"users": 0.0, "items": 0.0} for _ in sizes),
        **curve,
    ).save(path / "robustness" / f"{stem or full(name, sizes)}.json")
    return path


def full(name: str, sizes: tuple[float, ...] = SIZES) -> str:
    """The whole name of a hand-made curve."""
    return f"{name}-{grid_name(sizes, (10,))}"


def test_a_planted_answer_is_found():
    groups = {
        "strong": [planted(0, (0, 0, 0), n) for n in (1, 2, 3)],
        "weak": [planted(0, (0, 0.1, 0.3), n) for n in (4, 5)],
        "alike": [planted(0, (0, 0, 0), 6)],
    }
    found = compare_curves(groups, SIZES, resamples=2000)
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
    found = compare_curves({"a": first, "b": second}, SIZES, resamples=999, seed=seed)
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
    again = compare_curves({"a": first, "b": second}, SIZES, resamples=999, seed=seed)
    assert again.as_dict() == found.as_dict()
    other = compare_curves({"a": first, "b": second}, SIZES, resamples=999, seed=seed + 1)
    assert other.as_dict() != found.as_dict()


def test_seeds_that_overlap_are_mentioned():
    rng = np.random.default_rng(0)
    base = rng.random(USERS)
    groups = {
        "a": [np.stack([base + 0.1]), np.stack([base + 0.02])],
        "b": [np.stack([base]), np.stack([base + 0.05])],
    }
    found = compare_curves(groups, [0.5], resamples=999)
    assert found.contrasts[0].verdict.tolist() == [1, 1]
    assert "though seeds overlap at 0.5" in found.words()[0]


def test_false_verdicts_are_as_rare_as_promised():
    """Three settings that are the same: any verdict at all is a false one."""
    wrong = 0
    for seed in range(120):
        rng = np.random.default_rng(seed)
        base = rng.random(60)
        groups = {name: [base + rng.normal(0, 0.1, size=(2, 60))] for name in "abc"}
        found = compare_curves(groups, [0, 1], resamples=399, confidence=0.9, seed=seed)
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
        compare_curves(groups, SIZES, **options)


@pytest.fixture
def runs(tmp_path):
    decay, norm = (
        TrainConfig.of(model="ultragcn"),
        TrainConfig.of(model="ultragcn", reg="two_to_inf"),
    )
    falls = {"wd": (decay, (0, 0.1, 0.3)), "ti": (norm, (0, 0, 0))}
    return [
        make_run(tmp_path / f"{key}{s}", planted(0, fall, s), train=train.replace(seed=s))
        for key, (train, fall) in falls.items()
        for s in (0, 1)
    ]


def test_the_command_compares(runs, capsys):
    assert run(["compare", *map(str, runs), "--resamples", "1000", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["curve"] == full("fgm-bce-row-absolute")
    expected = {
        *(
            "curve",
            "attack",
            "kind",
            "objective",
            "budget",
            "relative",
            "unit",
            "side",
            "knowledge",
        ),
        *("metric", "epsilons", "confidence", "resamples", "seed", "method", "groups"),
        *("contrasts", "words", "protocol"),
    }
    assert set(data) == expected
    assert (data["relative"], data["unit"], data["knowledge"]) == (False, "absolute", "data")
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
    assert data["kind"] == "joint"
    first, second = text.splitlines()[:2]
    assert first == "joint (one perturbation for all users), the attacker knows the training pairs"
    assert second == f"{full('fgm-bce-row-absolute')}; epsilon: row budget, absolute"


def test_the_strongest_common_curve_is_taken(tmp_path, capsys):
    folders = [tmp_path / "a", tmp_path / "b"]
    trains = [TrainConfig.of(model="ultragcn"), TrainConfig.of(model="ultragcn", reg="none")]
    values = planted(0, (0, 0, 0))
    expected = ["fgm-bce-row-absolute", "fgm-bce-row-relative", "fgm-softmax-row-absolute"]
    expected += ["pgd-bce-row-absolute", "pgd-softmax-row-relative", "auto-row-absolute"]
    for folder, train in zip(folders, trains, strict=True):
        make_run(folder, values, train=train, name="random-row-absolute")
        make_run(folder, values, train=train, name="certificate-row-absolute")
    with pytest.raises(InputError, match="common to all are .*random-row.*--attack auto"):
        common_curves([open_run(f) for f in folders])
    make_run(folders[0], values, train=trains[0], name="auto-row-relative")
    for name in expected:
        for folder, train in zip(folders, trains, strict=True):
            make_run(folder, values, train=train, name=name)
        assert common_curves([open_run(f) for f in folders])[0].name == full(name)
    # Valid is not what an attacker does to the test rankings; who knows the labels is stronger.
    for folder, train in zip(folders, trains, strict=True):
        protocol = Protocol("demo", "valid", ("train",), USERS, 0, 50)
        make_run(folder, values, train=train, name="auto-row-relative-valid", protocol=protocol)
    opened = [open_run(f) for f in folders]
    assert common_curves(opened)[0].name == full("auto-row-absolute")
    for name in ("fgm-bce-row-relative-labels", "pgd-softmax-row-relative-labels"):
        for folder, train in zip(folders, trains, strict=True):
            make_run(folder, values, train=train, name=name)
        opened = [open_run(f) for f in folders]
        assert common_curves(opened)[0].name == full("auto-row-absolute"), "a weaker attack"
    for name in ("cutoff-row-relative-labels", "auto-row-absolute-labels"):
        for folder, train in zip(folders, trains, strict=True):
            make_run(folder, values, train=train, name=name)
        opened = [open_run(f) for f in folders]
        assert common_curves(opened)[0].name == full(name)
    make_run(folders[0], values, train=trains[0], name="auto-row-relative-labels")
    opened = [open_run(f) for f in folders]
    assert common_curves(opened)[0].name == full("auto-row-absolute-labels")
    both = [full("fgm-bce-row-absolute"), full("fgm-bce-row-relative")]
    with pytest.raises(
        InputError, match=f"may be {both[0]}, {both[1]}, fgm-bce-row-relative-labels"
    ):
        common_curves(opened, "fgm-bce")
    for name in ("fgm-bce-row-absolute", both[0]):
        assert common_curves(opened, name)[1].name == both[0]
    # Finer sizes come before coarser ones of the same attack.
    for folder, train in zip(folders, trains, strict=True):
        finer = np.vstack([values, values[-1:]])
        make_run(folder, finer, train=train, name="auto-row-absolute-labels", sizes=(*SIZES, 0.8))
    opened = [open_run(f) for f in folders]
    assert common_curves(opened)[0].name == full("auto-row-absolute-labels", (*SIZES, 0.8))
    with pytest.raises(InputError, match="--attack auto may be .*: name one of them"):
        common_curves(opened, "auto")


def test_a_missing_curve_is_named_with_the_command_that_makes_it(runs, tmp_path, capsys):
    values = planted(0, (0, 0, 0))
    make_run(runs[0], values, name="pgd-softmax-row-relative")
    name = ["--attack", full("pgd-softmax-row-relative")]
    assert run(["compare", str(runs[0]), str(runs[2]), *name]) == 1
    message = capsys.readouterr().err
    command = f"robustcf attack {runs[2]} --attack pgd --objective softmax --budget row"
    assert f"{command} --epsilons 0 0.1 0.4 --k 10" in message
    assert str(runs[0]) not in message
    make_run(runs[0], values, name="certificate-row-absolute")
    assert run(["compare", str(runs[0]), str(runs[2]), "--attack", "certificate"]) == 1
    assert f"make it with: robustcf certify {runs[2]}" in capsys.readouterr().err
    assert run(["compare", str(runs[0]), str(runs[2]), "--attack", "pgd-bpr"]) == 1
    message = capsys.readouterr().err
    for folder in (runs[0], runs[2]):
        assert f"robustcf attack {folder} --attack pgd --objective bpr" in message


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("certificate-row-relative", "robustcf certify {} --epsilons 0 0.01 --k 10"),
        ("certificate-plain-row-absolute",
         "robustcf certify {} --bound plain --absolute --epsilons 0 0.01 --k 10"),
        ("fgm-softmax-row-relative",
         "robustcf attack {} --attack fgm --objective softmax --budget row --epsilons 0 0.01 "
         "--k 10"),
    ],
)  # fmt: skip
def test_curves_of_different_sizes_are_told_with_one_command(tmp_path, name, command):
    """The one curve that has to be made again, at the sizes of the other."""
    asked = name.startswith("certificate")  # else the strongest attack
    values, finer, trains = (
        planted(0, (0, 0)),
        (0.0, 0.01),
        (TrainConfig.of(model="ultragcn"), TrainConfig.of(model="ultragcn", epochs=3)),
    )
    a = make_run(tmp_path / "a", values, train=trains[0], name=name, sizes=finer)
    b = make_run(tmp_path / "b", planted(0, (0, 0, 0)), train=trains[1], name=name)
    with pytest.raises(InputError) as caught:
        common_curves([open_run(a), open_run(b)], name.split("-")[0] if asked else None)
    said = str(caught.value)
    assert f"all runs have {name}, but at different sizes or cutoffs" in said
    assert f"{a}: sizes 0 0.01 at 10; {b}: sizes 0 0.1 0.4 at 10" in said
    assert said.split("make it with: ")[1] == command.format(b)
    # What most runs have is what the others shall have.
    c = make_run(
        tmp_path / "c",
        planted(0, (0, 0, 0)),
        train=TrainConfig.of(model="ultragcn", epochs=4),
        name=name,
    )
    with pytest.raises(InputError) as caught:
        common_curves([open_run(path) for path in (a, b, c)], name if asked else None)
    said = str(caught.value).split("make it with: ")[1]
    assert said == command.format(a).replace("0 0.01", "0 0.1 0.4")


def test_each_user_alone_is_compared_and_told_apart(runs, capsys):
    values = planted(0, (0, 0, 0))
    how = {"kind": "each user alone", "threat": Threat(unit="own", knowledge="labels")}
    make_run(runs[0], values, name="personal-row-own", **how)
    words = ["compare", str(runs[0]), str(runs[2]), "--attack", "personal", "--resamples", "999"]
    assert run(words) == 1
    command = f"robustcf attack {runs[2]} --personal --relative own --epsilons 0 0.1 0.4 --k 10"
    assert capsys.readouterr().err.strip().endswith(command)
    other = TrainConfig.of(model="ultragcn", reg="two_to_inf", seed=0)
    make_run(runs[2], values, name="personal-row-own", train=other, **how)
    assert run(words) == 0
    first, second = capsys.readouterr().out.splitlines()[:2]
    assert first == "each user alone, the attacker knows the labels"
    assert second == f"{full('personal-row-own')}; epsilon: row budget, in lengths of each row"


def test_an_attack_that_no_run_has_is_told_with_those_that_are_there(runs):
    opened = [open_run(path) for path in runs[1:]]
    saved = full("fgm-bce-row-absolute")
    for name in ("fgm-sofmax", "foo", "quantization", "fgm-bce-row-absolut", "certificate-bce"):
        with pytest.raises(
            InputError, match=f"no run has a saved curve '{name}'; saved are {saved}:"
        ):
            common_curves(opened, name)
    for name, options in (
        ("certificate-plain", "certify {} --bound plain"),
        ("certificate-row-absolute-items", "certify {} --absolute --side items"),
        ("pgd-bpr-steps3-frobenius-relative-labels-e0_0.1-k5_10",
         "attack {} --attack pgd --objective bpr --steps 3 --budget frobenius --knowledge labels "
         "--epsilons 0 0.1 --k 5 10"),
    ):  # fmt: skip
        with pytest.raises(InputError) as caught:
            common_curves(opened, name)
        commands = str(caught.value).split("make it with: ")[1].split("; ")
        assert commands == [f"robustcf {options.format(path)}" for path in runs[1:]]


def test_certificates_alone_in_common_are_suggested_and_compared(tmp_path, capsys):
    trains = (TrainConfig.of(model="ultragcn"), TrainConfig.of(model="ultragcn", reg="none"))
    name, values = "certificate-row-absolute", planted(0, (0, 0, 0))
    threat = Threat(unit="absolute", knowledge="labels")
    a, b = (
        str(make_run(tmp_path / folder, values, train=train, name=name, threat=threat))
        for folder, train in zip("ab", trains, strict=True)
    )
    assert run(["compare", a, b]) == 1
    said = capsys.readouterr().err
    assert "--attack certificate compares by that" in said
    assert run(["compare", a, b, "--attack", "certificate", "--resamples", "999"]) == 0
    first, second = capsys.readouterr().out.splitlines()[:2]
    assert first == "certified (no attack of the size leaves any user less)"
    assert second == f"{full(name)}; epsilon: row budget, absolute"


def test_what_cannot_be_compared_is_refused(runs, tmp_path, capsys):
    values, other = planted(0, (0, 0, 0)), TrainConfig.of(model="ultragcn", reg="none")
    stem = full("fgm-bce-row-absolute")

    def refusal(*folders: Path) -> str:
        assert run(["compare", *map(str, folders)]) == 1
        return capsys.readouterr().err

    def changed(name: str, values: np.ndarray = values, **facts: Any) -> Path:
        """A file of the same name that says something else."""
        return make_run(tmp_path / name, values, train=other, stem=stem, **facts)

    assert "different data" in refusal(runs[0], changed("d", users=3))
    assert "differ in epsilons" in refusal(runs[0], changed("e", values[:2], sizes=(0.0, 0.1)))
    relative = changed("r", threat=Threat(knowledge="data"))
    assert "differ in unit (absolute, relative)" in refusal(runs[0], relative)
    own = changed("o", threat=Threat(unit="own", knowledge="data"))
    assert "differ in unit (absolute, own)" in refusal(runs[0], own)
    per_user = changed("w", kind="per user")
    assert "differ in kind (joint, per user)" in refusal(runs[0], per_user)
    spectral = changed("b", threat=Threat("spectral", "absolute", knowledge="data"))
    assert "differ in budget" in refusal(runs[0], spectral)
    one_side = changed("s", threat=Threat("row", "absolute", "users", "data"))
    assert "differ in side (both, users)" in refusal(runs[0], one_side)
    protocol = Protocol("demo", "test", ("train", "valid"), USERS, 0, 50)
    assert "differ in protocol" in refusal(runs[0], changed("p", protocol=protocol))
    assert "different users" in refusal(runs[0], changed("u", judged=np.arange(1, USERS + 1)))
    oracle = changed("k", threat=Threat("row", "absolute", knowledge="labels"))
    assert run(["compare", str(runs[0]), str(oracle), "--attack", stem]) == 1
    assert "differ in knowledge (data, labels)" in capsys.readouterr().err
    assert "at least two runs" in refusal(runs[0])
    assert "same settings and the same seed" in refusal(runs[0], runs[0])
    assert "differ in their seed alone" in refusal(runs[0], runs[1])
    assert "not a saved recommender" in refusal(runs[0], tmp_path)
    assert run(["compare", *map(str, runs), "--metric", "coverage@10"]) == 1
    assert "coverage is of the whole list" in capsys.readouterr().err
    (runs[0] / "robustness" / "broken.json").write_text("{")
    assert "broken.json is no readable JSON file" in refusal(*runs)


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("attack", ["auto", "pgd"])
def test_ensembles_of_older_formats_are_per_user_and_never_mixed(tmp_path, capsys, attack, number):
    """They were taken user by user, and have no word of it in their files."""
    trains = (
        TrainConfig.of(model="ultragcn"),
        TrainConfig.of(model="ultragcn", reg="none"),
        TrainConfig.of(model="ultragcn", reg="two_to_inf"),
    )
    on, values = ("-softmax" if attack == "pgd" else ""), planted(0, (0, 0, 0))
    name = f"{attack}{on}-row-relative"
    new, old, other = (
        make_run(tmp_path / folder, values, train=train, name=name)
        for folder, train in zip(("new", "old", "other"), trains, strict=True)
    )
    for folder in (old, other):
        (path,) = (folder / "robustness").glob("*.json")
        facts = json.loads(path.read_text())
        del facts["kind"]
        facts["format"] = f"robustcf curve {number}"
        if number == 1:
            del facts["unit"], facts["knowledge"]
            home = folder / "attacks"
            home.mkdir()
            (folder / "robustness" / f"{path.stem}.npz").rename(home / f"{attack}{on}-row.npz")
            path.unlink()
            path = home / f"{attack}{on}-row.json"
        path.write_text(json.dumps(facts))
    assert run(["compare", str(new), str(old)]) == 1
    assert "differ in kind (joint, per user)" in capsys.readouterr().err
    assert run(["compare", str(other), str(old), "--resamples", "999"]) == 0
    header = capsys.readouterr().out.splitlines()[0]
    assert header.startswith("per user (each user's worst of several perturbations), the attacker")
    assert run(["compare", str(other), str(old), "--resamples", "999", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "per user"
    for folder, train in zip((new, old), trains, strict=False):
        make_run(folder, values, train=train, name="fgm-bce-row-relative")
    words = ["compare", str(new), str(old), "--resamples", "999", "--json", "--attack", "fgm"]
    assert run(words) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "joint"


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("auto", "--attack auto"),
        ("cutoff-steps3", "--attack cutoff --steps 3"),
        ("auto-row-relative-labels-e0_0.1-k10",
         "--attack auto --budget row --epsilons 0 0.1 --k 10"),
        ("auto-row-relative-e0_0.1-k10",
         "--attack auto --knowledge data --budget row --epsilons 0 0.1 --k 10"),
        ("auto-row-own-users-labels-e0_0.1-k10",
         "--attack auto --budget row --relative own --side users --epsilons 0 0.1 --k 10"),
    ],
)  # fmt: skip
def test_names_of_the_headline_attack_lead_to_its_command(runs, name, options):
    with pytest.raises(InputError) as caught:
        common_curves([open_run(path) for path in runs[1:]], name)
    commands = str(caught.value).split("make it with: ")[1].split("; ")
    assert commands == [f"robustcf attack {path} {options}" for path in runs[1:]]


def test_files_that_are_no_whole_curves_are_passed_over(runs):
    folder = runs[0] / "robustness"
    name = full("fgm-bce-row-absolute")
    (folder / "other.json").write_text("[1]")
    (folder / "notes.json").write_text('{"a": 1}')
    (folder / "quantization-k10.json").write_text('{"format": "robustcf quantization 1"}')
    (folder / "half.json").write_text((folder / f"{name}.json").read_text())
    assert set(open_run(runs[0]).curves) == {name}
    write_arrays(folder / "half.npz", {"users": np.arange(3)})
    assert set(open_run(runs[0]).curves) == {name, "half"}


def test_groups_are_told_apart_by_what_differs(tmp_path):
    values = planted(0, (0, 0, 0))
    base = TrainConfig.of(model="ultragcn")
    trains = [base, base.replace(seed=1), base.replace(dim=8), base.replace(reg="none")]
    opened = [
        open_run(make_run(tmp_path / str(n), values, train=train)) for n, train in enumerate(trains)
    ]
    assert group_runs(opened) == {
        "ultragcn, weight_decay (dim 64)": [0, 1],
        "ultragcn, weight_decay (dim 8)": [2],
        "ultragcn, none": [3],
    }


def test_groups_of_other_objectives_and_adversaries(tmp_path):
    values = planted(0, (0, 0, 0))
    flat = [
        {"model": "bpr-mf"},
        {"model": "bpr-mf", "objective": "softmax"},
        {"model": "bpr-mf", "adversarial": "bpr"},
        {"model": "bpr-mf", "adversarial": "bpr", "adv_eps": 0.3},
        {"model": "lightgcn", "layers": 2},
    ]
    opened = [
        open_run(make_run(tmp_path / str(n), values, train=TrainConfig.of(**each)))
        for n, each in enumerate(flat)
    ]
    assert list(group_runs(opened)) == [
        "bpr-mf, weight_decay (objective bpr, sampled_items 64)",
        "bpr-mf, weight_decay (objective softmax)",
        "bpr-mf, weight_decay, adversarial bpr (adv_eps 0.1)",
        "bpr-mf, weight_decay, adversarial bpr (adv_eps 0.3)",
        "lightgcn, weight_decay",
    ]


@pytest.mark.parametrize(
    "flat",
    [
        {},
        {"model": "bpr-mf", "reg": "two_to_inf", "reg_top": 4, "adversarial": "margin"},
        {"model": "lightgcn", "objective": "softmax", "batching": "pairs", "batch_size": 7},
    ],
)
def test_settings_are_read_flat_without_importing_anything(tmp_path, flat):
    """What a comparison reads from the file is what the configuration says of itself."""
    config = TrainConfig.of(**flat)
    read = open_run(make_run(tmp_path / "run", planted(0, (0, 0, 0)), train=config)).settings
    told = config.flat()
    assert {key: told[key] for key in read if key in told} == {
        key: value for key, value in read.items() if key in told
    }
    assert set(read) <= set(told) | {key.replace("batching.", "") for key in told}


def test_comparing_does_not_load_torch(runs):
    code = (
        "import sys; from robustcf.cli.main import run; "
        f"run(['compare', *{[str(r) for r in runs]!r}, '--resamples', '1000']); "
        "print('torch' in sys.modules, 'pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False False"
