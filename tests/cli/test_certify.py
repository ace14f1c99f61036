"""``robustcf certify``, as a user and as a program meet it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from robustcf.attacks import FGM, RandomNoise, Softmax
from robustcf.cli.main import run
from robustcf.experiments import RunDir
from robustcf.recommender import open_recommender
from robustcf.robustness import RobustnessCurve, Threat, certified_radii, measure
from robustcf.robustness.curves import read_curves
from tests.robustness.helpers import PNG

ABSOLUTE = Threat(unit="absolute")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "demo"
    arguments = ["train", "--dataset", "demo", "--dim", "8", "--epochs", "2", "--out", str(folder)]
    assert run([*arguments, "--threads", "1"]) == 0
    return folder


@pytest.mark.slow
def test_the_certificate_of_a_run_next_to_its_attacks(trained, found):
    data = found("certify", trained, "--absolute", "--epsilons", "0", "0.001", "0.02")
    opened = RunDir(trained)
    target = opened.recommender()
    curve = measure(target, "certificate", ABSOLUTE, [0, 0.001, 0.02]).curve
    expected = {
        *("run", "bound", "attack", "objective", "budget", "relative", "side", "epsilons"),
        *("realised", "protocol", "radii", "fgm_softmax", "random", "file", "radii_file"),
        *("picture", "unit", "knowledge", "replaced", "kind"),
    }
    assert {key for key in data if "@" not in key} == expected
    assert (data["unit"], data["knowledge"], data["replaced"]) == ("absolute", "labels", False)
    assert data["kind"] == "certified"
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
    radii = certified_radii(target, ABSOLUTE, (1, 10, 20))
    assert data["radii"] == radii.as_dict()
    assert data["radii"]["top1"]["q25"] <= data["radii"]["top1"]["median"]

    saved = RobustnessCurve.load(data["file"])
    assert saved.attack == "certificate"
    np.testing.assert_array_equal(saved["ndcg@10"], curve["ndcg@10"])
    with np.load(data["radii_file"]) as arrays:
        np.testing.assert_array_equal(arrays["top10"], radii.radii[10])
        np.testing.assert_array_equal(arrays["users"], radii.users)
    folder, stem = trained / "robustness", Path(data["file"]).stem
    assert stem.startswith("certificate-")
    assert (folder / f"{stem}.png").read_bytes().startswith(PNG)
    names = {f"{stem}{ending}" for ending in (".json", ".npz", "-radii.npz", ".png")}
    assert {path.name for path in folder.iterdir()} == names, "nothing half-written stays behind"
    assert not (trained / "certificates").exists(), "one home"


@pytest.mark.slow
def test_sizes_are_relative_unless_told_otherwise(trained, found):
    data = found("certify", trained, "--epsilons", "0", "0.01")
    assert (data["relative"], data["unit"]) == (True, "relative")
    target = open_recommender(trained)
    for name, attack in (("fgm_softmax", "fgm-softmax"), ("random", "random")):
        expected = measure(target, attack, Threat(knowledge="labels"), [0, 0.01]).curve
        assert data[name]["ndcg@10"] == expected["ndcg@10"].tolist()
    assert data["radii"] == certified_radii(target, ks=(1, 10, 20)).as_dict()
    unit = target.factors.items.double().norm(dim=1).median().item()
    assert data["realised"][1]["items"] == pytest.approx(0.01 * unit)


@pytest.mark.slow
@pytest.mark.parametrize("words", [["--relative", "own", "RUN"], ["RUN", "--relative", "own"]])
def test_each_row_may_have_a_unit_of_its_own(trained, call, found, words):
    words = ["certify", *(trained if word == "RUN" else word for word in words)]
    data = found(*words, "--epsilons", "0", "0.01")
    assert (data["relative"], data["unit"]) == (True, "own")
    target, threat = open_recommender(trained), Threat(unit="own", knowledge="labels")
    curve = measure(target, "certificate", threat, [0, 0.01]).curve
    assert data["ndcg@10"] == curve["ndcg@10"].tolist()
    assert data["radii"] == certified_radii(target, threat, (1, 10, 20)).as_dict()
    text = call(*words, "--epsilons", "0", "0.01")[1]
    assert "row budget on users and items, as a share of each row's own length" in text


@pytest.mark.slow
def test_another_certificate_of_the_same_name_is_told(trained, call, found):
    words = ["certify", trained, "--epsilons", "0", "0.003"]
    assert "replaced" not in call(*words)[1]
    data = found(*words)
    assert data["replaced"] is False
    path = Path(data["file"])
    whole = path.read_bytes()
    facts = json.loads(whole)
    facts["ndcg@10"][1] = 0.0
    path.write_text(json.dumps(facts))
    assert found(*words)["replaced"] is True
    assert path.read_bytes() == whole
    path.write_text(json.dumps(facts))
    assert f"replaced an earlier result of the same settings: {path}" in call(*words)[1]


@pytest.mark.slow
def test_sides_cutoffs_bounds_and_units_reach_the_certificate(trained, call):
    words = ["--relative", "--side", "users", "--k", "3", "5", "--bound", "plain"]
    out = call("certify", trained, *words, "--epsilons", "0.01")[1]
    for said in ("certified ndcg@3", "certified recall@5", "radius of the set of the top 5: "):
        assert said in out
    assert "plain bound; row budget on users, in median row norms" in out
    folder = trained / "robustness"
    (name,) = (n for n, each in read_curves(folder).items() if each.settings["side"] == "users")
    saved = RobustnessCurve.load(folder / f"{name}.json")
    assert saved.threat == Threat(side="users", knowledge="labels")
    assert saved.options == {"bound": "plain"}
    assert set(saved.realised[0]) == {"users", "items"}
    assert saved.realised[0]["items"] == 0
    target, threat = open_recommender(trained), Threat(side="users")
    expected = measure(target, "certificate", threat, [0.01], (3, 5), bound="plain").curve
    np.testing.assert_array_equal(saved["mrr@3"], expected["mrr@3"])
    assert "0.002" in call("certify", trained, "--seed", "3")[1], "the sizes when none are given"
    assert len(list(folder.glob("certificate-*-seed*.png"))) == 1, "another control and picture"


@pytest.mark.slow
def test_each_user_alone_on_demand(trained, call, found):
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
def test_what_cannot_be_certified_is_refused(trained, call, tmp_path, words, code, reason):
    places = {"RUN": trained, "EMPTY": tmp_path, "UNFINISHED": tmp_path / "begun"}
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "config.json").write_text((trained / "config.json").read_text())
    got, _, err = call("certify", *(places.get(word, word) for word in words))
    assert got == code
    assert reason in err


@pytest.mark.realdata
@pytest.mark.slow
def test_no_attack_on_movielens_falls_below_for_any_user(real_data, tmp_path):
    from robustcf.data import load
    from robustcf.training import TrainConfig
    from robustcf.training.fitting import fit_split

    split = load("ml-100k", data_dir=str(real_data))
    target = fit_split(split, TrainConfig.of(model="ultragcn", dim=16, epochs=3)).recommender()
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
