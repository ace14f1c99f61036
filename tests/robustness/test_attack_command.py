"""``robustcf attack``: what it prints, writes, names and refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from robustcf.attack_settings import Settings
from robustcf.cli.main import run
from robustcf.support.files import read_tensors, write_tensors
from robustcf.robustness import RobustnessCurve

CONTROL = "random-worst-of-8"
PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on users with two tastes, even items and odd items."""
    folder = tmp_path_factory.mktemp("runs")
    chances = np.where(np.arange(90)[:, None] % 2 == np.arange(60) % 2, 0.6, 0.03)
    users, items = np.nonzero(np.random.default_rng(0).random((90, 60)) < chances)
    lines = [f"u{user},i{item}" for user, item in zip(users, items, strict=True)]
    (folder / "mine.csv").write_text("\n".join(["user,item", *lines]))
    options = ["--dim", "6", "--epochs", "3", "--set", "block_users=20"]
    options += ["--set", "negative_weight=20", "--threads", "1", "--out", str(folder / "run")]
    assert run(["train", "--dataset", str(folder / "mine.csv"), *options]) == 0
    return folder / "run"


@pytest.mark.parametrize("objective", ["bce", "bpr", "softmax"])
def test_the_command_attacks_a_run(trained, capsys, objective):
    capsys.readouterr()
    arguments = ["attack", str(trained), "--objective", objective, "--epsilons", "0", "0.3", "0.9"]
    assert run([*arguments, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["epsilons"] == [0.0, 0.3, 0.9]
    clean = json.loads((trained / "metrics.json").read_text())["test"]
    assert data["ndcg@10"][0] == clean["ndcg@10"]
    assert data["protocol"] == clean["protocol"]
    assert data["ndcg@10"][2] < data["ndcg@10"][0]
    written = Path(data["file"])
    assert written.parent == trained / "attacks"
    assert written.name.startswith(f"fgm-{objective}-row-eps")
    assert RobustnessCurve.load(written).as_lists().items() <= data.items()
    assert written.with_suffix(".png").read_bytes().startswith(PNG)
    assert b"<svg" in written.with_suffix(".svg").read_bytes()
    assert data["pictures"] == [str(written.with_suffix(f".{end}")) for end in ("png", "svg")]
    assert not list((trained / "attacks").glob("*.tmp"))


def test_the_command_knows_pgd_noise_sides_and_sizes(trained, capsys):
    arguments = [
        "attack",
        str(trained),
        "--attack",
        "pgd",
        "--steps",
        "2",
        "--objective",
        "softmax",
    ]
    arguments += ["--budget", "frobenius", "--relative", "--side", "items", "--epsilons", "0.1"]
    assert run([*arguments, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["attack"], data["budget"], data["side"]) == ("pgd", "frobenius", "items")
    assert data["realised"][0]["users"] == 0.0
    assert run(["attack", str(trained), "--attack", "random", "--seed", "3"]) == 0
    out = capsys.readouterr().out
    assert "1.6" in out
    assert "random (seed 3), row budget on both, absolute" in out


@pytest.mark.parametrize(
    ("words", "still"),
    [
        (["--users"], "items"),
        (["--items"], "users"),
        (["--side", "items", "--items"], "users"),
        (["--users", "--items"], None),
        ([], None),
    ],
)
def test_either_factor_or_both_are_perturbed(trained, capsys, words, still):
    capsys.readouterr()
    arguments = ["attack", str(trained), "--attack", "random", "--epsilons", "0.3", *words]
    assert run([*arguments, "--json"]) == 0
    spent = json.loads(capsys.readouterr().out)["realised"][0]
    assert {name for name, size in spent.items() if size == 0} == ({still} if still else set())


def test_sides_that_contradict_each_other_are_refused(trained, capsys):
    assert run(["attack", str(trained), "--side", "users", "--items"]) == 2
    assert "--side users and --users/--items contradict each other" in capsys.readouterr().err


def test_uneven_rows_are_pointed_out(trained, capsys, tmp_path):
    """A median that does not stand for the rows: a note, for sizes in medians only."""
    uneven = tmp_path / "uneven"
    shutil.copytree(trained, uneven)
    tensors, notes = read_tensors(uneven / "factors.safetensors")
    tensors["items"][: len(tensors["items"]) // 3] *= 30
    write_tensors(uneven / "factors.safetensors", tensors, notes)
    words = ["--attack", "random", "--epsilons", "0.1"]
    for folder, options, noted in (
        (uneven, ["--relative"], True),
        (uneven, ["--relative", "--users"], False),
        (uneven, ["--absolute"], False),
        (uneven, ["--relative", "--budget", "frobenius"], False),
        (trained, ["--relative"], False),
    ):
        capsys.readouterr()
        assert run(["attack", str(folder), *words, *options]) == 0
        out = capsys.readouterr().out
        assert ("note: row norms are uneven (items: root mean square" in out) == noted
        assert run(["attack", str(folder), *words, *options, "--json"]) == 0
        data = json.loads(capsys.readouterr().out)
        if "--relative" in options and "--budget" not in options:
            assert (data["unevenness"]["items"] > 1.5) == (folder == uneven)
        else:
            assert "unevenness" not in data
    tensors["items"][5:] = 0
    write_tensors(uneven / "factors.safetensors", tensors, notes)
    assert run(["attack", str(uneven), *words, "--relative", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unevenness"]["items"] is None
    assert run(["attack", str(uneven), *words, "--relative"]) == 0
    assert "row norms are uneven (items: median 0)" in capsys.readouterr().out


def test_the_command_refuses_what_it_cannot_do(trained, capsys, tmp_path):
    assert run(["attack", str(trained), "--epsilons", "0.5", "0.1"]) == 1
    assert "ascending" in capsys.readouterr().err
    assert run(["attack", str(trained), "--epsilons", "-1"]) == 1
    assert "not negative" in capsys.readouterr().err
    assert run(["attack", str(tmp_path)]) == 1
    assert "no run directory" in capsys.readouterr().err
    assert run(["attack", str(trained), "--epsilons", "many"]) == 2
    assert run(["attack", str(trained), "--epsilons"]) == 2, "no sizes are not the default sizes"
    assert run(["attack", str(trained), "--epsilons", "--relative"]) == 2


def attacked(trained, capsys, *arguments: str) -> dict:
    capsys.readouterr()
    assert run(["attack", str(trained), *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_auto_lists_its_members(trained, capsys):
    data = attacked(trained, capsys, "--attack", "auto", "--epsilons", "0", "0.1", "--k", "5")
    assert (data["attack"], data["objective"], data["relative"]) == ("auto", None, True)
    names = [f"{attack}-{on}" for on in ("bce", "bpr", "softmax") for attack in ("fgm", "pgd")]
    assert set(data["members"]) == {*names, "fgm-bpr-fitted", "fgm-softmax-fitted"}
    for member in data["members"].values():
        assert data["ndcg@5"][1] <= member["ndcg@5"][1]
        assert len(member["worst"]) == len(member["alone"]) == 2
    assert data["random_draws"] == len(data["members"]), "a control that may choose as often"
    control = Path(data["file"]).with_name(Path(data["file"]).name.replace("auto", CONTROL))
    assert RobustnessCurve.load(control).as_lists() == data["random"]
    n_users = data["protocol"]["n_users"]
    assert all(member["worst"][0] == n_users for member in data["members"].values())
    assert sum(member["worst"][1] for member in data["members"].values()) >= n_users
    assert json.loads(Path(data["file"]).read_text())["members"] == data["members"]
    assert Path(data["picture"]).read_bytes().startswith(PNG)
    assert run(["attack", str(trained), "--attack", "auto", "--epsilons", "0.1"]) == 0
    out = capsys.readouterr().out
    assert "ndcg@10 (users it is worst for)" in out
    assert "pgd-softmax" in out


def test_the_oracle_says_that_it_is_one(trained, capsys):
    arguments = ["--objective", "softmax", "--epsilons", "0", "0.3"]
    data = attacked(trained, capsys, *arguments, "--positives", "test")
    plain = attacked(trained, capsys, *arguments)
    assert (data["oracle"], data["positives"], data["objective"]) == (
        True,
        "test",
        "oracle-softmax",
    )
    assert (plain["oracle"], plain["positives"], plain["objective"]) == (False, "train", "softmax")
    assert data["file"] != plain["file"]
    assert json.loads(Path(data["file"]).read_text())["oracle"] is True
    assert data["ndcg@10"][0] == plain["ndcg@10"][0]
    assert data["ndcg@10"][1] < plain["ndcg@10"][1], "it knows what counts"
    assert run(["attack", str(trained), *arguments, "--positives", "test"]) == 0
    assert "an ORACLE" in capsys.readouterr().out
    for wrong, message in (
        (["--objective", "bce"], "--positives test is for fgm and pgd with --objective softmax"),
        (["--attack", "auto"], "--positives test is for fgm and pgd"),
        (["--objective", "softmax", "--part", "valid"], "needs --part test"),
    ):
        assert run(["attack", str(trained), *wrong, "--positives", "test"]) == 1
        assert message in capsys.readouterr().err


def test_quantization_is_a_table_over_kinds(trained, capsys):
    data = attacked(trained, capsys, "--attack", "quantization")
    assert list(data["kinds"]) == ["float32", "bfloat16", "float16", "int8"]
    clean = json.loads((trained / "metrics.json").read_text())["test"]
    assert data["kinds"]["float32"]["ndcg@10"] == clean["ndcg@10"]
    sizes = [data["kinds"][kind]["realised_relative"]["items"] for kind in data["kinds"]]
    assert sizes[0] == 0 < sizes[2] < sizes[1] < sizes[3] < 0.1
    assert Path(data["file"]).name == "quantization.json"
    assert run(["attack", str(trained), "--attack", "quantization"]) == 0
    assert "bfloat16" in capsys.readouterr().out


def test_valid_is_for_runs_that_did_not_learn_from_it(trained, capsys):
    """Its valid part was carved out of train, and the run learnt from both."""
    assert run(["attack", str(trained), "--part", "valid"]) == 1
    assert "learnt from valid" in capsys.readouterr().err


def test_a_run_without_factors_is_refused(trained, capsys, tmp_path):
    shutil.copytree(trained, tmp_path / "half")
    (tmp_path / "half" / "factors.safetensors").unlink()
    assert run(["attack", str(tmp_path / "half")]) == 1
    assert "has no factors.safetensors yet: finish it with" in capsys.readouterr().err


def settings(**changes) -> Settings:
    options = dict(
        kind="pgd", objective="softmax", positives="train", budget="row", relative=None,
        side="both", part="test", steps=8, restarts=1, seed=0, epsilons=(), ks=(),
    )  # fmt: skip
    return Settings.of(**(options | changes))


def test_names_tell_whatever_changes_the_result():
    changes = [
        {"kind": "fgm"}, {"kind": "auto"}, {"kind": "random"}, {"kind": "quantization"},
        {"objective": "bce"}, {"positives": "test"}, {"budget": "spectral"}, {"relative": True},
        {"side": "users"}, {"side": "items"}, {"part": "valid"}, {"steps": 9}, {"restarts": 2},
        {"restarts": 2, "seed": 1}, {"epsilons": (0.1,)}, {"epsilons": (0.1, 0.2)},
        {"epsilons": (0.1,), "relative": True}, {"ks": (5,)}, {"ks": (5, 10)}, {},
        {"kind": "random", "seed": 1}, {"kind": "auto", "relative": False},
        {"kind": "quantization", "ks": (5,)},
    ]  # fmt: skip
    names = [settings(**change).name() for change in changes]
    assert len(set(names)) == len(names)
    assert settings().name() == "pgd-softmax-row"
    control = settings(kind="fgm", seed=7).name("random")
    assert settings(kind="random", seed=7).name() == control == "random-seed7-row"
    assert settings(kind="auto").name("random", draws=8) == "random-worst-of-8-row-relative"
    assert settings(kind="fgm", seed=7).name() == settings(kind="fgm").name(), "no noise in it"
    assert settings(ks=(20, 10, 10)).name() == settings().name()
