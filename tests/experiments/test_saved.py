"""Saved curves of hand-made runs: found, grouped, and compared by the command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robustcf._io.files import write_arrays
from robustcf.cli.main import run
from robustcf.data import Split
from robustcf.errors import InputError
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
    base = 0.4 + 0.5 * np.random.default_rng(seed).random(USERS)
    jitter = np.random.default_rng([seed, noise]).normal(0, 0.02, size=(len(fall), USERS))
    return np.clip(base - np.array(fall)[:, None] + jitter, 0, 1)


def make_curve(
    name: str, values: np.ndarray, sizes: tuple[float, ...] = SIZES, **facts: Any
) -> RobustnessCurve:
    """A curve whose settings are the words of a name: fgm-bce-row-absolute-labels."""
    words = name.split("-")
    settings = {
        "attack": words[0],
        "objective": next((w for w in words if w in ("bce", "bpr", "softmax")), None),
        "threat": Threat(
            unit=next((w for w in words if w in ("relative", "own")), "absolute"),
            knowledge="labels" if "labels" in words else "data",
        ),
        "epsilons": sizes,
        "users": np.arange(values.shape[1]),
        "protocol": Protocol("demo", "test", ("train",), values.shape[1], 0, 50),
        "kind": "certified" if words[0] == "certificate" else "joint",
        "options": {"bound": "plain"} if "plain" in words else {},
    } | facts
    return RobustnessCurve(
        values={"ndcg@10": values.mean(axis=1), "coverage@10": np.zeros(len(values))},
        per_user={"ndcg@10": values},
        realised=tuple({"users": 0.0, "items": 0.0} for _ in sizes),
        **settings,
    )


def make_run(
    path: Path,
    values: np.ndarray,
    *,
    train: TrainConfig | None = None,
    users: int = 2,
    name: str = "fgm-bce-row-absolute",
    **facts: Any,
) -> Path:
    """A saved recommender with a curve.

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
    make_curve(name, values, **facts).store(path / "robustness", {})
    return path


def full(name: str, sizes: tuple[float, ...] = SIZES, **facts: Any) -> str:
    """The name of a hand-made curve."""
    return make_curve(name, np.zeros((len(sizes), USERS)), sizes, **facts).name


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
        *("curve", "attack", "kind", "objective", "budget", "relative", "unit", "side"),
        *("knowledge", "metric", "epsilons", "confidence", "resamples", "seed", "method", "groups"),
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
    assert "ultragcn, two_to_inf is better at epsilon 0.1, 0.4" in " ".join(text.split())
    assert "sign-flip" in text
    assert data["kind"] == "joint"
    first, second = text.splitlines()[:2]
    assert first == "joint (one perturbation for all users), the attacker knows the training pairs"
    assert second == f"{full('fgm-bce-row-absolute')}; epsilon: row budget, absolute"


def test_the_strongest_common_curve_is_taken(tmp_path):
    folders = {
        tmp_path / "a": TrainConfig.of(model="ultragcn"),
        tmp_path / "b": TrainConfig.of(model="ultragcn", reg="none"),
    }
    values = planted(0, (0, 0, 0))

    def add(name: str, values: np.ndarray = values, **facts: Any) -> None:
        for folder, train in folders.items():
            make_run(folder, values, train=train, name=name, **facts)

    def taken(attack: str | None = None) -> str:
        return common_curves([open_run(folder) for folder in folders], attack)[0].name

    add("random-row-absolute")
    add("certificate-row-absolute")
    with pytest.raises(InputError, match="certificate"):
        taken()
    make_run(
        tmp_path / "a", values, train=TrainConfig.of(model="ultragcn"), name="auto-row-relative"
    )
    for name in (
        *("fgm-bce-row-absolute", "fgm-bce-row-relative", "fgm-softmax-row-absolute"),
        *("pgd-bce-row-absolute", "pgd-softmax-row-relative", "auto-row-absolute"),
    ):
        add(name)
        assert taken() == full(name)
    # Valid is not what an attacker does to the test rankings; who knows the labels is stronger.
    add("auto-row-relative", protocol=Protocol("demo", "valid", ("train",), USERS, 0, 50))
    for name in ("fgm-bce-row-relative-labels", "pgd-softmax-row-relative-labels"):
        add(name)
        assert taken() == full("auto-row-absolute"), "a weaker attack"
    for name in ("cutoff-row-relative-labels", "auto-row-absolute-labels"):
        add(name)
        assert taken() == full(name)
    make_run(
        tmp_path / "a",
        values,
        train=TrainConfig.of(model="ultragcn"),
        name="auto-row-relative-labels",
    )
    assert taken() == full("auto-row-absolute-labels")
    with pytest.raises(InputError, match="name") as caught:
        taken("fgm-bce")
    for name in ("fgm-bce-row-absolute", "fgm-bce-row-relative", "fgm-bce-row-relative-labels"):
        assert f"{full(name)} (joint, row budget, {name.split('-')[3]}" in str(caught.value)
        assert taken(full(name)) == full(name)
    # Finer sizes come before coarser ones of the same attack.
    finer = (*SIZES, 0.8)
    add("auto-row-absolute-labels", np.vstack([values, values[-1:]]), sizes=finer)
    assert taken() == full("auto-row-absolute-labels", finer)


def refusal(runs: list[Path], attack: str | None = None) -> str:
    with pytest.raises(InputError) as caught:
        common_curves([open_run(run) for run in runs], attack)
    return str(caught.value)


def commands(runs: list[Path], attack: str | None = None) -> list[str]:
    return refusal(runs, attack).split("make it with: ")[1].split("; ")


def test_a_missing_curve_is_named_with_the_command_that_makes_it(runs):
    values = planted(0, (0, 0, 0))
    two = [runs[0], runs[2]]
    for name, command in (
        ("pgd-softmax-row-own", "attack {} --attack pgd --objective softmax --budget row"),
        ("fgm-bpr-row-relative-labels",
         "attack {} --attack fgm --objective bpr --budget row --knowledge labels --relative"),
        ("certificate-row-absolute", "certify {} --absolute"),
        ("certificate-plain-row-own", "certify {} --bound plain"),
    ):  # fmt: skip
        make_run(runs[0], values, name=name)
        for asked in (full(name), "-".join(name.split("-row")[0].split("-")[:2])):
            if asked != "certificate-plain":
                (found,) = commands(two, asked)
                line = f"robustcf {command.format(runs[2])} --epsilons 0 0.1 0.4 --k 10"
                assert found == line or asked == "certificate"
    options = {"steps": 3, "restarts": 2, "seed": 5}
    make_run(runs[0], values, name="cutoff-row-absolute-labels", options=options)
    (found,) = commands(two, "cutoff")
    assert "--steps 3 --restarts 2 --seed 5" in found
    for name in ("fgm-sofmax", "foo", "auto", "certificate-bce"):
        assert f"no run has a saved curve of {name}; saved are" in refusal(two, name)
        assert "give --attack one of these names" in refusal(two, name)


@pytest.mark.parametrize("asked", [None, "fgm"])
def test_curves_of_different_sizes_are_told_with_one_command(tmp_path, asked):
    """The one curve that has to be made again, at the sizes of the other."""
    finer, name = (0.0, 0.01), "fgm-softmax-row-own"
    command = (
        "robustcf attack {} --attack fgm --objective softmax --budget row --epsilons {} --k 10"
    )
    a = make_run(tmp_path / "a", planted(0, (0, 0)), name=name, sizes=finer)
    b, c = (
        make_run(
            tmp_path / n,
            planted(0, (0, 0, 0)),
            train=TrainConfig.of(model="ultragcn", epochs=epochs),
            name=name,
        )
        for n, epochs in (("b", 3), ("c", 4))
    )
    said = refusal([a, b], asked)
    assert "differs in epsilons ([0.0, 0.1, 0.4], [0.0, 0.01])" in said
    assert said.split("make it with: ")[1] == command.format(a, "0 0.1 0.4")
    assert commands([a, b, c], asked) == [command.format(a, "0 0.1 0.4")]
    # What most runs have is what the others shall have.
    train = TrainConfig.of(model="ultragcn", epochs=5)
    d = make_run(tmp_path / "d", planted(0, (0, 0)), train=train, name=name, sizes=finer)
    assert commands([a, b, d], asked) == [command.format(b, "0 0.01")]


def test_each_user_alone_is_compared_and_told_apart(runs, capsys):
    values = planted(0, (0, 0, 0))
    how = {"kind": "each user alone", "threat": Threat(unit="relative", knowledge="labels")}
    make_run(runs[0], values, name="personal-row-relative", **how)
    words = ["compare", str(runs[0]), str(runs[2]), "--attack", "personal", "--resamples", "999"]
    assert run(words) == 1
    command = f"robustcf attack {runs[2]} --personal --relative --epsilons 0 0.1 0.4 --k 10"
    assert capsys.readouterr().err.strip().endswith(command)
    other = TrainConfig.of(model="ultragcn", reg="two_to_inf", seed=0)
    make_run(runs[2], values, name="personal-row-relative", train=other, **how)
    assert run(words) == 0
    first, second = capsys.readouterr().out.splitlines()[:2]
    assert first.startswith("each user alone")
    name = full("personal-row-relative", **how)
    assert second == f"{name}; epsilon: row budget, in units of the factors"


def test_certificates_alone_in_common_are_suggested_and_compared(tmp_path, capsys):
    trains = (TrainConfig.of(model="ultragcn"), TrainConfig.of(model="ultragcn", reg="none"))
    name, values = "certificate-row-absolute", planted(0, (0, 0, 0))
    a, b = (
        str(make_run(tmp_path / folder, values, train=train, name=name))
        for folder, train in zip("ab", trains, strict=True)
    )
    assert run(["compare", a, b]) == 1
    assert f"--attack {full(name)} compares by one that all runs have" in capsys.readouterr().err
    assert run(["compare", a, b, "--attack", "certificate", "--resamples", "999"]) == 0
    first, second = capsys.readouterr().out.splitlines()[:2]
    assert first == "certified (no attack of the size leaves any user less)"
    assert second == f"{full(name)}; epsilon: row budget, absolute"


def test_what_cannot_be_compared_is_refused(runs, tmp_path, capsys):
    values, other = planted(0, (0, 0, 0)), TrainConfig.of(model="ultragcn", reg="none")

    def changed(number: int, values: np.ndarray = values, **facts: Any) -> Path:
        return make_run(tmp_path / str(number), values, train=other, **facts)

    absolute = {"unit": "absolute", "knowledge": "data"}
    for number, (difference, facts) in enumerate(
        (
            ("unit (absolute, own)", {"threat": Threat(knowledge="data")}),
            ("kind (joint, per user)", {"kind": "per user"}),
            ("budget (row, spectral)", {"threat": Threat("spectral", **absolute)}),
            ("side (both, users)", {"threat": Threat(side="users", **absolute)}),
            ("knowledge (data, labels)", {"threat": Threat(unit="absolute", knowledge="labels")}),
            ("protocol", {"protocol": Protocol("demo", "test", ("train", "valid"), USERS, 0, 50)}),
        )
    ):
        both = [runs[0], changed(number, **facts)]
        assert any(f"differs in {said}" in refusal(both, "fgm-bce")
                   for said in (difference, _turned(difference)))  # fmt: skip
    assert "different data" in refusal([runs[0], changed(10, users=3)])
    path = changed(11)
    (arrays,) = (path / "robustness").glob("*.npz")
    others = np.arange(1, USERS + 1)
    write_arrays(arrays, {"users": others, "ndcg@10": values.astype(np.float32)})
    assert "different users" in refusal([runs[0], path])
    assert "at least two runs" in refusal(runs[:1])
    for words, said, code in (
        ([runs[0], runs[0]], "same settings and the same seed", 1),
        ([runs[0], runs[1]], "differ in seed only", 1),
        ([runs[0], tmp_path], "not a saved recommender", 1),
        ([*runs, "--metric", "coverage@10"], "coverage is of the whole list", 1),
    ):
        assert run(["compare", *map(str, words)]) == code
        assert said in capsys.readouterr().err
    (runs[0] / "robustness" / "broken.json").write_text("{")
    assert run(["compare", *map(str, runs)]) == 1
    assert "broken.json" in capsys.readouterr().err


def _turned(difference: str) -> str:
    """The same difference, seen from the other run."""
    key, _, values = difference.partition(" (")
    return f"{key} ({', '.join(values.rstrip(')').split(', ')[::-1])})" if values else key


def test_groups_are_told_apart_by_what_differs(tmp_path):
    flat = {
        0: {},
        1: {"seed": 1},
        2: {"factors": 8},
        3: {"reg": "none"},
        4: {"model": "bpr-mf"},
        5: {"model": "bpr-mf", "objective": "softmax"},
        6: {"model": "bpr-mf", "adversarial": "bpr"},
        7: {"model": "bpr-mf", "adversarial": "bpr", "adv_eps": 0.3},
        8: {"model": "lightgcn", "layers": 2},
    }
    trains = [TrainConfig.of(**{"model": "ultragcn", **each}) for each in flat.values()]
    values = planted(0, (0, 0, 0))
    opened = [
        open_run(make_run(tmp_path / str(n), values, train=train)) for n, train in enumerate(trains)
    ]
    assert group_runs(opened) == {
        "ultragcn, weight_decay (factors 64)": [0, 1],
        "ultragcn, weight_decay (factors 8)": [2],
        "ultragcn, none": [3],
        "bpr-mf, weight_decay (objective bpr, sampled_items 64)": [4],
        "bpr-mf, weight_decay (objective softmax)": [5],
        "bpr-mf, weight_decay, adversarial bpr (adv_eps 0.1)": [6],
        "bpr-mf, weight_decay, adversarial bpr (adv_eps 0.3)": [7],
        "lightgcn, weight_decay": [8],
    }


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
