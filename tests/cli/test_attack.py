"""``robustcf attack``: output, files and refusals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from robustcf._io import files, reading
from robustcf.cli.main import run
from robustcf.recommender import open_recommender
from robustcf.robustness import RobustnessCurve, Threat, measure
from robustcf.robustness.curves import SavedCurve, read_curves
from tests.robustness.helpers import PNG

THREAT = ("budget", "relative", "unit", "side", "knowledge")
KEYS = {
    *("run", "attack", "objective", "kind", *THREAT, "epsilons", "realised", "protocol"),
    *("random", "random_draws", "file", "replaced", "picture", "pictures"),
}


@pytest.fixture(scope="module")
def folder(trained, tmp_path_factory):
    """A run whose results are those of this module alone."""
    return Path(shutil.copytree(trained, tmp_path_factory.mktemp("attacked") / "run"))


@pytest.fixture
def clean(folder):
    return json.loads((folder / "metrics.json").read_text())["test"]


@pytest.fixture
def _undrawn(monkeypatch):
    """Pictures take longer than all the rest."""
    draw = "robustcf.experiments.results._draw"
    monkeypatch.setattr(draw, lambda result, saved: ["a.png", "a.svg"])


undrawn = pytest.mark.usefixtures("_undrawn")


@pytest.fixture
def attacked(folder, found):
    return lambda *words: found("attack", folder, *words)


@pytest.fixture
def printed(folder, call):
    return lambda *words: call("attack", folder, *words)[1]


def find(folder: Path, attack: str, **settings) -> SavedCurve:
    """The one saved curve of an attack that has these settings."""
    curves = read_curves(folder / "robustness").values()
    wanted = {"attack": attack, **settings}.items()
    (found,) = (c for c in curves if all(c.settings[key] == value for key, value in wanted))
    return found


def test_the_command_attacks_a_run(folder, attacked, clean):
    sizes = ["--epsilons", "0", "0.3", "0.9"]
    data = attacked("--attack", "fgm", "--objective", "softmax", *sizes)
    assert data["epsilons"] == [0.0, 0.3, 0.9]
    assert data["ndcg@10"][0] == clean["ndcg@10"]
    assert data["protocol"] == clean["protocol"]
    assert data["ndcg@10"][2] < data["ndcg@10"][0]
    assert {key for key in data if "@" not in key} == KEYS
    assert [data[key] for key in THREAT] == ["row", True, "own", "both", "data"]
    written = Path(data["file"])
    assert written.parent == folder / "robustness"
    saved = RobustnessCurve.load(written)
    assert written.stem == saved.name
    assert saved.as_lists().items() <= data.items()
    assert written.with_suffix(".png").read_bytes().startswith(PNG)
    assert b"<svg" in written.with_suffix(".svg").read_bytes()
    assert data["pictures"] == [str(written.with_suffix(f".{end}")) for end in ("png", "svg")]
    assert not list((folder / "robustness").glob(".*")), "no partial file is left"
    again = measure(open_recommender(folder), "fgm-softmax", epsilons=[0, 0.3, 0.9])
    assert again.curve.as_lists().items() <= data.items(), "the same as from Python"
    assert again.control.as_lists() == data["random"]


@undrawn
def test_pgd_noise_sides_and_sizes(attacked, printed):
    words = ["--attack", "pgd", "--steps", "2", "--objective", "softmax", "--budget", "frobenius"]
    data = attacked(*words, "--relative", "--side", "items", "--epsilons", "0.1")
    assert (data["attack"], data["budget"], data["side"]) == ("pgd", "frobenius", "items")
    assert data["realised"][0]["users"] == 0.0
    out = printed("--attack", "random", "--seed", "3", "--absolute")
    assert "1.6" in out
    assert "random (seed 3); row budget on both, absolute" in out
    first, _, *rows = printed("--attack", "random").splitlines()
    assert first.endswith("the attacker knows nothing but the embeddings")
    assert [line.split()[0] for line in rows[:5]] == "0 0.02 0.05 0.1 0.2".split()


@pytest.mark.parametrize(
    ("kind", "words", "idle"),
    [
        ("fgm", ["--steps", "8", "--restarts", "2"], "--steps and --restarts"),
        ("fgm", ["--objective", "bpr", "--seed", "3", "--knowledge", "labels"], ""),
        ("pgd", ["--steps", "1", "--objective", "bpr"], ""),
        ("auto", ["--objective", "bpr", "--steps", "2"], "--objective"),
        ("cutoff", ["--steps", "2", "--restarts", "2", "--knowledge", "data"], ""),
        ("random", ["--objective", "bpr"], "--objective"),
        ("random", ["--knowledge", "data"], "--knowledge"),
        ("quantization", ["--relative", "--side", "users", "--k", "5"], "--relative and --side"),
        ("quantization", ["--absolute", "--personal"], "--absolute and --personal"),
        ("quantization", [], "--epsilons"),
    ],
)
@undrawn
def test_options_without_effect_are_refused(folder, call, kind, words, idle):
    sizes = ["--epsilons", "0", "0.1"] if kind != "quantization" or not words else []
    code, out, err = call("attack", folder, "--attack", kind, *sizes, *words, "--json")
    json.loads(out)
    said = f"{idle} has no effect on {kind}" if idle else ""
    assert (code, said in err) == (2 if idle else 0, True)


@pytest.mark.parametrize(
    ("words", "still"),
    [
        (["--users"], {"items"}),
        (["--items"], {"users"}),
        (["--side", "items", "--items"], {"users"}),
        ([], set()),
    ],
)
@undrawn
def test_either_factor_or_both_are_perturbed(attacked, words, still):
    spent = attacked("--attack", "random", "--epsilons", "0.3", *words)["realised"][0]
    assert {name for name, size in spent.items() if size == 0} == still


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["RUN", "--epsilons", "0.5", "0.1"], 1, "ascending"),
        (["RUN", "--epsilons", "-1"], 1, "not negative"),
        (["EMPTY"], 1, "not a saved recommender"),
        (["HALF"], 1, "factors.safetensors"),
        (["RUN", "--epsilons", "many"], 2, ""),
        (["RUN", "--epsilons"], 2, ""),  # no sizes are not the default sizes
        (["RUN", "--epsilons", "--relative"], 2, ""),
        (["RUN", "--attack", "certificate"], 2, "use robustcf certify RUN."),
        (["RUN", "--attack", "personal"], 2, "use robustcf certify RUN --personal."),
        (["RUN", "--objective", "mse"], 2, ""),
        (["RUN", "--knowledge", "none"], 2, ""),
        (["RUN", "--relative", "--absolute"], 2, "exclude each other"),
        (["RUN", "--users", "--items"], 2, "exclude each other"),
        (["RUN", "--side", "users", "--items"], 2, "exclude"),
        (["RUN", "--personal", "--budget", "frobenius"], 2, "--personal"),
        (["RUN", "--steps", "0"], 2, ""),
        (["--relative"], 2, "RUN"),
        (["RUN", "--part", "valid"], 1, "train and valid"),  # fit on both
    ],
)
def test_refusals(folder, call, tmp_path, words, code, said):
    half = tmp_path / "half"
    shutil.copytree(folder, half)
    (half / "factors.safetensors").unlink()
    places = {"RUN": folder, "EMPTY": tmp_path, "HALF": half}
    got, _, err = call("attack", *(places.get(word, word) for word in words))
    assert (got, said in err) == (code, True)


@undrawn
def test_the_default_is_auto_with_knowledge_of_the_labels(folder, attacked, printed, clean):
    """Joint and per-user results, members, control and companion, as JSON, files and text."""
    words = ["--epsilons", "0", "0.1", "--steps", "10"]
    data = attacked(*words)
    metrics = {key for key in data if "@" in key}
    more = {"with_data", "steps", "restarts"}
    assert set(data) - metrics == KEYS | more
    keys = ("attack", "kind", "knowledge", "unit", "budget", "random_draws", "steps")
    assert [data[key] for key in keys] == ["auto", "joint", "labels", "own", "row", 1, 10]
    result = measure(open_recommender(folder), epsilons=[0, 0.1], steps=10)
    assert json.loads(json.dumps(result.as_dict())).items() <= data.items(), "as from Python"
    for name in metrics:
        assert data[name][0] == data["with_data"][name][0] == clean[name]
    assert data["ndcg@10"][1] < data["with_data"]["ndcg@10"][1] <= data["random"]["ndcg@10"][1]
    asked = {"epsilons": [0, 0.1], "ks": [10, 20]}
    saved = find(folder, "auto", knowledge="data", unit="own", side="both", steps=10, **asked)
    companion = RobustnessCurve.load(saved.path)
    assert companion.as_lists().items() <= data["with_data"].items()
    noise = find(folder, "random", draws=1, unit="own", side="both", seed=0, **asked)
    assert noise.facts["ndcg@10"] == data["random"]["ndcg@10"]
    told = attacked(*words, "--knowledge", "data")
    assert (told["file"], told["replaced"]) == (str(saved.path), False)
    assert "with_data" not in told
    assert told["ndcg@10"] == data["with_data"]["ndcg@10"]
    assert told["random"] == data["random"], "noise has no knowledge"
    first, header, *_ = printed(*words).splitlines()
    assert first == "joint (one perturbation for all users), the attacker knows the labels"
    for name in ("random: ndcg@10", "knows data: ndcg@10"):
        assert name in header


@pytest.mark.parametrize(
    ("words", "unit"),
    [
        (["--epsilons", "0", "0.2", "--attack", "fgm", "RUN"], "own"),
        (["--relative", "RUN"], "relative"),
        (["RUN", "--relative", "--epsilons", "0", "0.2"], "relative"),
        (["--absolute", "RUN"], "absolute"),
    ],
)
@undrawn
def test_units_stand_anywhere_in_the_line(folder, found, words, unit):
    words = [str(folder) if word == "RUN" else word for word in words]
    sizes = [] if "--epsilons" in words else ["--epsilons", "0", "0.2"]
    data = found("attack", *words, *sizes, "--attack", "fgm")
    assert (data["unit"], data["relative"]) == (unit, unit != "absolute")
    assert data["epsilons"] == [0.0, 0.2]
    assert ("unevenness" in data) == (unit == "relative")
    model = open_recommender(folder)
    expected = measure(model, "fgm-bce", Threat(unit=unit), [0, 0.2]).curve
    assert data["ndcg@10"] == expected["ndcg@10"].tolist()
    assert model.bce.negative_weight == 20, "the weights of its training"


@undrawn
def test_each_user_alone(folder, attacked, printed):
    words = ["--attack", "fgm", "--epsilons", "0", "0.2", "--personal"]
    data = attacked(*words)
    alone = measure(open_recommender(folder), "personal", epsilons=[0, 0.2])
    assert data["personal"] == alone.curve.as_lists()
    assert data["random_personal"] == alone.control.as_lists()
    assert data["personal"]["ndcg@10"][1] < data["random_personal"]["ndcg@10"][1]
    home = folder / "robustness"
    assert RobustnessCurve.load(home / f"{alone.curve.name}.json").kind == "each user alone"
    assert (home / f"{alone.control.name}.json").is_file()
    out = printed(*words)
    assert "each user alone (all items moved against one user at a time), the attacker" in out
    assert "worst of 4 random: ndcg@10" in out


def test_quantization_is_a_table_over_kinds(folder, attacked, printed, clean):
    data = attacked("--attack", "quantization")
    assert list(data["kinds"]) == ["float32", "bfloat16", "float16", "int8"]
    assert data["kinds"]["float32"]["ndcg@10"] == clean["ndcg@10"]
    sizes = [data["kinds"][kind]["realised_relative"]["items"] for kind in data["kinds"]]
    assert sizes[0] == 0 < sizes[2] < sizes[1] < sizes[3] < 0.1
    assert Path(data["file"]) == folder / "robustness" / "quantization-k10_20.json"
    assert set(data) == {"run", "attack", "kinds", "protocol", "file"}
    other = attacked("--attack", "quantization", "--k", "5", "3")
    assert Path(other["file"]).name == "quantization-k3_5.json"
    assert "bfloat16" in printed("--attack", "quantization")


@undrawn
def test_an_attack_reads_everything_once(folder, attacked, monkeypatch):
    """Facts, pairs and factors are read once, and the source data never."""
    read: list[str] = []

    def counted(function):
        def counting(path, *rest, **options):
            read.append(Path(path).name)
            return function(path, *rest, **options)

        return counting

    monkeypatch.setattr(reading, "open_plain", counted(reading.open_plain))
    for name in ("read_tensors", "read_arrays"):
        monkeypatch.setattr(files, name, counted(getattr(files, name)))
    monkeypatch.setattr("robustcf.data.load", None)
    monkeypatch.setattr("robustcf.robustness.plots.plot_curves", lambda curves, path, **_: path)
    once = ("recommender.json", "interactions.npz", "factors.safetensors")
    for ask in (
        lambda: attacked("--attack", "auto", "--steps", "2", "--epsilons", "0", "0.07"),
        lambda: attacked("--attack", "quantization"),
        lambda: run(["certify", str(folder), "--epsilons", "0", "0.01"]),
    ):
        read.clear()
        ask()
        assert [read.count(name) for name in once] == [1, 1, 1]


@undrawn
def test_a_replaced_result_is_announced(attacked, printed):
    words = ["--attack", "random", "--epsilons", "0", "0.11"]
    path = Path(attacked(*words)["file"])
    whole, said = path.read_bytes(), f"replaced an earlier result of the same settings: {path}"
    assert said not in printed(*words)
    for ask in (
        lambda: attacked(*words)["replaced"],
        lambda: said in " ".join(printed(*words).split()),
    ):
        path.write_text("{}")  # another number of threads may give another result
        assert ask() is True
        assert path.read_bytes() == whole


@undrawn
def test_a_sample_of_users_is_another_protocol_and_its_labels_another_threat(
    attacked, call, folder
):
    words = ["--attack", "cutoff", "--steps", "2", "--epsilons", "0", "0.1"]
    model = open_recommender(folder).with_eval_users(5)
    for knowledge in ("labels", "sample"):
        data = attacked(*words, "--eval-users", "5", "--knowledge", knowledge)
        assert (data["knowledge"], data["protocol"]["n_users"]) == (knowledge, 5)
        threat = Threat(knowledge=knowledge)
        expected = measure(model, "cutoff", threat, [0, 0.1], steps=2).curve
        assert data["ndcg@10"] == expected["ndcg@10"].tolist()
    code, _, err = call("attack", folder, *words, "--knowledge", "sample")
    assert (code, "sample of evaluated users" in err) == (1, True)
