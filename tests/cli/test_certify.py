"""``robustcf certify``: output, files and refusals."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from robustcf.attacks import FGM, RandomNoise, Softmax
from robustcf.experiments import RunDir
from robustcf.recommender import open_recommender
from robustcf.robustness import RobustnessCurve, Threat, certified_radii, measure
from tests.robustness.helpers import PNG

ABSOLUTE = Threat(unit="absolute")


def test_the_certificate_of_a_run_next_to_its_attacks(trained, found, tmp_path):
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    data = found("certify", run, "--absolute", "--epsilons", "0", "0.001", "0.02")
    opened = RunDir(run)
    target = opened.recommender()
    curve = measure(target, "certificate", ABSOLUTE, [0, 0.001, 0.02]).curve
    expected = {
        *("run", "bound", "attack", "objective", "budget", "relative", "side", "epsilons"),
        *("realised", "protocol", "radii", "fgm_softmax", "random", "file", "radii_file"),
        *("picture", "unit", "knowledge", "replaced", "kind"),
    }
    assert {key for key in data if "@" not in key} == expected
    assert (data["unit"], data["knowledge"], data["replaced"]) == ("absolute", "labels", False)
    assert (data["attack"], data["bound"], data["budget"]) == ("certificate", "tight", "row")
    assert data["kind"] == "certified"
    clean = opened.metrics()["test"]
    assert data["protocol"] == clean["protocol"]
    for name, values in curve.values.items():
        assert data[name] == values.tolist()
        assert data[name][0] == clean[name]
        for other in ("fgm_softmax", "random"):
            assert data[other][name][0] == clean[name]
            assert (np.array(data[other][name]) >= values).all()
    assert "coverage@10" not in data
    radii = certified_radii(target, ABSOLUTE, (1, 10, 20))
    assert data["radii"] == radii.as_dict()
    assert data["radii"]["top1"]["q25"] <= data["radii"]["top1"]["median"]
    np.testing.assert_array_equal(RobustnessCurve.load(data["file"])["ndcg@10"], curve["ndcg@10"])
    with np.load(data["radii_file"]) as arrays:
        np.testing.assert_array_equal(arrays["top10"], radii.radii[10])
        np.testing.assert_array_equal(arrays["users"], radii.users)
    folder, stem = run / "robustness", Path(data["file"]).stem
    assert stem.startswith("certificate-")
    assert (folder / f"{stem}.png").read_bytes().startswith(PNG)
    names = {f"{stem}{ending}" for ending in (".json", ".npz", "-radii.npz", ".png")}
    assert {path.name for path in folder.iterdir()} == names, "no partial file is left"
    Path(data["file"]).write_text("{}")
    out = found("certify", run, "--absolute", "--epsilons", "0", "0.001", "0.02")
    assert out["replaced"] is True


@pytest.mark.parametrize(
    ("words", "unit"),
    [
        ([], "own"),
        (["--relative", "RUN"], "relative"),
        (["RUN", "--relative"], "relative"),
    ],
)
def test_units_reach_the_certificate(trained, call, found, words, unit):
    places = [trained if word == "RUN" else word for word in words or ["RUN"]]
    words = ["certify", *places, "--epsilons", "0", "0.01"]
    data = found(*words)
    assert (data["relative"], data["unit"]) == (True, unit)
    target, threat = open_recommender(trained), Threat(unit=unit, knowledge="labels")
    for name, attack in (("fgm_softmax", "fgm-softmax"), ("random", "random")):
        expected = measure(target, attack, threat, [0, 0.01]).curve
        assert data[name]["ndcg@10"] == expected["ndcg@10"].tolist()
    curve = measure(target, "certificate", threat, [0, 0.01]).curve
    assert data["ndcg@10"] == curve["ndcg@10"].tolist()
    assert data["radii"] == certified_radii(target, threat, (1, 10, 20)).as_dict()
    length = target.factors.items.double().norm(dim=1).median().item() if unit != "own" else 1.0
    assert data["realised"][1]["items"] == pytest.approx(0.01 * length)
    assert f"row budget on users and items, {threat.unit_words}" in " ".join(
        call(*words)[1].split()
    )


def test_sides_cutoffs_and_bounds_reach_the_certificate(trained, call, found):
    words = ["--relative", "--side", "users", "--k", "3", "5", "--bound", "plain"]
    words = ["certify", trained, *words, "--epsilons", "0.01"]
    out = call(*words)[1]
    for said in ("certified ndcg@3", "certified recall@5", "radius of the set of the top 5: "):
        assert said in out
    assert "plain bound; row budget on users, in median row norms" in out
    saved = RobustnessCurve.load(found(*words)["file"])
    assert saved.threat == Threat(unit="relative", side="users", knowledge="labels")
    assert saved.options == {"bound": "plain"}
    assert set(saved.realised[0]) == {"users", "items"}
    assert saved.realised[0]["items"] == 0
    target, threat = open_recommender(trained), Threat(unit="relative", side="users")
    expected = measure(target, "certificate", threat, [0.01], (3, 5), bound="plain").curve
    np.testing.assert_array_equal(saved["mrr@3"], expected["mrr@3"])
    assert "0.002" in call("certify", trained, "--seed", "3")[1], "the default sizes"
    pictures = Path(trained, "robustness").glob("certificate-*-seed*.png")
    assert len(list(pictures)) == 1, "another control and picture"


def test_each_user_alone(trained, call, found):
    words = ["certify", trained, "--personal", "--side", "items", "--epsilons", "0", "0.01"]
    data = found(*words)
    assert data["personal"]["ndcg@10"][0] == data["ndcg@10"][0]
    np.testing.assert_allclose(data["personal"]["ndcg@10"], data["ndcg@10"], atol=1e-3)
    assert "personal ndcg@10" in call(*words)[1]


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (["RUN", "--epsilons", "0.5", "0.1"], 1, "ascending"),
        (["RUN", "--epsilons", "-1"], 1, "not negative"),
        (["RUN", "--k", "0"], 2, "range"),
        (["RUN", "--bound", "loose"], 2, "loose"),
        (["RUN", "--epsilons"], 2, "--epsilons"),
        (["EMPTY"], 1, "recommender.json"),
        (["UNFINISHED"], 1, "--resume"),
    ],
)
def test_refusals(trained, call, tmp_path, words, code, reason):
    places = {"RUN": trained, "EMPTY": tmp_path, "UNFINISHED": tmp_path / "begun"}
    (tmp_path / "begun").mkdir()
    shutil.copy(Path(trained, "config.json"), tmp_path / "begun")
    got, _, err = call("certify", *(places.get(word, word) for word in words))
    assert (got, reason in err) == (code, True)


@pytest.mark.realdata
@pytest.mark.slow
def test_no_attack_on_movielens_falls_below_for_any_user(real_data, tmp_path):
    from robustcf.data import load
    from robustcf.training import TrainConfig
    from robustcf.training.fitting import fit_split

    split = load("ml-100k", data_dir=str(real_data))
    target = fit_split(split, TrainConfig.of(model="ultragcn", factors=16, epochs=3)).recommender()
    sizes = [0.001, 0.01, 0.05]
    certificate = measure(target, "certificate", ABSOLUTE, sizes).curve
    assert 0 < certificate["ndcg@10"][1] < certificate["ndcg@10"][0]
    how = {"relative": False}
    attacks = [FGM(Softmax(pairs), **how) for pairs in (split.test, split.train)]
    for attack in (*attacks, RandomNoise(**how)):
        # Attacked rows are float32, and may have moved by a rounding error more than was asked.
        smaller = [size * (1 - 1e-4) for size in sizes]
        attacked = measure(target, attack, epsilons=smaller).curve
        for name, values in certificate.per_user.items():
            assert (attacked.per_user[name] >= values - 1e-12).all()
