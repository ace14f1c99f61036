"""``robustcf certify``, as a user and as a program meet it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from robustcf.attacks import RandomNoise
from robustcf.certificates import certified_curve, certified_radii
from robustcf.cli.main import run
from robustcf.data import checkerboard
from robustcf.studies.plots import plot_curves
from robustcf.robustness import RobustnessCurve, robustness_curve
from robustcf.runs import RunDir
from tests.robustness.test_curves import BOARD, PNG, RIGHT


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "demo"
    arguments = ["train", "--dataset", "demo", "--dim", "8", "--epochs", "2", "--out", str(folder)]
    assert run([*arguments, "--threads", "1"]) == 0
    return folder


def test_the_certificate_of_a_run_beside_its_attacks(trained, capsys):
    capsys.readouterr()
    assert run(["certify", str(trained), "--epsilons", "0", "0.001", "0.02", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    opened = RunDir(trained)
    factors, split = opened.factors(), opened.split()
    curve = certified_curve(factors, split, [0, 0.001, 0.02])
    clean = opened.metrics()["test"]
    for name, values in curve.values.items():
        assert data[name] == values.tolist()
        assert data[name][0] == clean[name]
        for beside in ("fgm_softmax", "random"):
            assert data[beside][name][0] == clean[name]
            assert (np.array(data[beside][name]) >= values).all()
    assert "coverage@10" not in data
    assert (data["attack"], data["bound"], data["budget"]) == ("certificate", "tight", "row")
    assert data["protocol"] == clean["protocol"]
    radii = certified_radii(factors, split, (1, 10, 20))
    assert data["radii"] == radii.as_dict()
    assert data["radii"]["top1"]["q25"] <= data["radii"]["top1"]["median"]

    saved = RobustnessCurve.load(data["file"])
    assert saved.attack == "certificate"
    np.testing.assert_array_equal(saved["ndcg@10"], curve["ndcg@10"])
    with np.load(data["radii_file"]) as arrays:
        np.testing.assert_array_equal(arrays["top10"], radii.radii[10])
        np.testing.assert_array_equal(arrays["users"], radii.users)
    folder = trained / "certificates"
    assert (folder / "tight.png").read_bytes().startswith(PNG)
    names = {"tight.json", "tight.npz", "tight-radii.npz", "tight.png"}
    assert {path.name for path in folder.iterdir()} == names, "nothing half-written stays behind"


def test_sides_cutoffs_bounds_and_units_reach_the_certificate(trained, capsys):
    arguments = ["certify", str(trained), "--relative", "--side", "users", "--k", "3", "5"]
    assert run([*arguments, "--bound", "plain", "--epsilons", "0.01"]) == 0
    out = capsys.readouterr().out
    assert "certified ndcg@3" in out
    assert "certified recall@5" in out
    assert "the set of the top 5 stays below epsilon" in out
    assert "plain bound; row budget on users, in median row norms" in out
    saved = RobustnessCurve.load(trained / "certificates" / "plain-relative-users.json")
    assert (saved.relative, saved.side, set(saved.realised[0])) == (
        True,
        "users",
        {"users", "items"},
    )
    assert saved.realised[0]["items"] == 0
    opened = RunDir(trained)
    expected = certified_curve(
        opened.factors(), opened.split(), [0.01], (3, 5), relative=True, side="users", bound="plain"
    )
    np.testing.assert_array_equal(saved["mrr@3"], expected["mrr@3"])
    assert run(["certify", str(trained), "--seed", "3"]) == 0
    assert "0.002" in capsys.readouterr().out, "the sizes when none are given"


def test_each_user_alone_on_demand(trained, capsys):
    arguments = [
        "certify",
        str(trained),
        "--personal",
        "--side",
        "items",
        "--epsilons",
        "0",
        "0.01",
    ]
    assert run([*arguments, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["personal"]["ndcg@10"][0] == data["ndcg@10"][0]
    np.testing.assert_allclose(data["personal"]["ndcg@10"], data["ndcg@10"], atol=1e-3)
    assert run(arguments) == 0
    assert "personal ndcg@10" in capsys.readouterr().out


def test_what_cannot_be_certified_is_refused(trained, capsys, tmp_path):
    assert run(["certify", str(trained), "--epsilons", "0.5", "0.1"]) == 1
    assert "ascending" in capsys.readouterr().err
    assert run(["certify", str(trained), "--epsilons", "-1"]) == 1
    assert "not negative" in capsys.readouterr().err
    assert run(["certify", str(trained), "--k", "0"]) == 1
    assert "cutoff must be" in capsys.readouterr().err
    assert run(["certify", str(tmp_path)]) == 1
    assert "no run directory" in capsys.readouterr().err
    (tmp_path / "config.json").write_text((trained / "config.json").read_text())
    assert run(["certify", str(tmp_path)]) == 1
    assert "has no factors.safetensors yet" in capsys.readouterr().err
    assert run(["certify", str(trained), "--bound", "loose"]) == 2
    assert run(["certify", str(trained), "--epsilons"]) == 2


def test_a_certificate_is_drawn_dotted(tmp_path):
    attacked = robustness_curve(RIGHT, BOARD, RandomNoise(), [0, 0.2, 0.5])
    certificate = certified_curve(RIGHT, checkerboard(), [0, 0.2, 0.5])
    path = plot_curves({"a": attacked}, tmp_path / "a.svg", certificates={"a": certificate})
    drawn = path.read_text()
    assert "stroke-dasharray" in drawn
    assert "stroke-dasharray" not in plot_curves({"a": attacked}, tmp_path / "b.svg").read_text()


@pytest.mark.realdata
@pytest.mark.slow
def test_no_attack_on_movielens_falls_below_for_any_user(real_data, tmp_path):
    from robustcf.attacks import FGM, Softmax
    from robustcf.training.config import TrainConfig
    from robustcf.data import load
    from robustcf.training import train

    split = load("ml-100k", data_dir=str(real_data))
    factors = train(split, TrainConfig(dim=16, epochs=3)).factors
    sizes = [0.001, 0.01, 0.05]
    certificate = certified_curve(factors, split, sizes)
    assert 0 < certificate["ndcg@10"][1] < certificate["ndcg@10"][0]
    for attack in (FGM(Softmax(split.test)), FGM(Softmax(split.train)), RandomNoise()):
        # Attacked rows are float32, and may have moved by a rounding error more than was asked.
        attacked = robustness_curve(factors, split, attack, [size * (1 - 1e-4) for size in sizes])
        for name, values in certificate.per_user.items():
            assert (attacked.per_user[name] >= values - 1e-12).all()
