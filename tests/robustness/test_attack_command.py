"""``robustcf attack``: what it prints, writes and refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from robustcf._io import files, reading
from robustcf.cli.main import run
from robustcf.factors import Factors
from robustcf.recommender import open_recommender
from robustcf.robustness import RobustnessCurve, Threat, measure
from robustcf.robustness.curves import SavedCurve, read_curves
from tests.robustness.helpers import PNG

THREAT = ("budget", "relative", "unit", "side", "knowledge")
KEYS = {
    *("run", "attack", "objective", "kind", *THREAT, "epsilons", "realised", "protocol"),
    *("unevenness", "random", "random_draws", "file", "replaced", "picture", "pictures"),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on users with two tastes, even items and odd items."""
    folder = tmp_path_factory.mktemp("runs")
    chances = np.where(np.arange(90)[:, None] % 2 == np.arange(60) % 2, 0.6, 0.03)
    users, items = np.nonzero(np.random.default_rng(0).random((90, 60)) < chances)
    lines = [f"u{user},i{item}" for user, item in zip(users, items, strict=True)]
    (folder / "mine.csv").write_text("\n".join(["user,item", *lines]))
    options = ["--model", "ultragcn", "--dim", "6", "--epochs", "3", "--set", "block_users=20"]
    options += ["--set", "negative_weight=20", "--threads", "1", "--out", str(folder / "run")]
    assert run(["train", "--dataset", str(folder / "mine.csv"), *options]) == 0
    return folder / "run"


@pytest.fixture
def clean(trained):
    return json.loads((trained / "metrics.json").read_text())["test"]


@pytest.fixture
def undrawn(monkeypatch):
    """Pictures take longer than all the rest."""
    monkeypatch.setattr(
        "robustcf.experiments.results._draw", lambda result, saved: ["a.png", "a.svg"]
    )


@pytest.fixture
def attacked(trained, capsys):
    def ask(*arguments: str, folder: Path = trained) -> dict:
        capsys.readouterr()
        assert run(["attack", str(folder), *arguments, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return ask


@pytest.fixture
def printed(trained, capsys):
    def ask(*arguments: str, folder: Path = trained) -> str:
        capsys.readouterr()
        assert run(["attack", str(folder), *arguments]) == 0
        return capsys.readouterr().out

    return ask


def find(trained, attack: str, **settings) -> SavedCurve:
    """The one saved curve of an attack that has these settings."""
    curves = read_curves(trained / "robustness").values()
    wanted = {"attack": attack, **settings}.items()
    (found,) = (c for c in curves if all(c.settings[key] == value for key, value in wanted))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["bce", "bpr", "softmax"])
def test_the_command_attacks_a_run(trained, attacked, clean, objective):
    sizes = ["--epsilons", "0", "0.3", "0.9"]
    data = attacked("--attack", "fgm", "--objective", objective, *sizes)
    assert data["epsilons"] == [0.0, 0.3, 0.9]
    assert data["ndcg@10"][0] == clean["ndcg@10"]
    assert data["protocol"] == clean["protocol"]
    assert data["ndcg@10"][2] < data["ndcg@10"][0]
    assert {key for key in data if "@" not in key} == KEYS
    assert [data[key] for key in THREAT] == ["row", True, "relative", "both", "data"]
    written = Path(data["file"])
    assert written.parent == trained / "robustness"
    saved = RobustnessCurve.load(written)
    assert written.stem == saved.name
    assert saved.as_lists().items() <= data.items()
    assert written.with_suffix(".png").read_bytes().startswith(PNG)
    assert b"<svg" in written.with_suffix(".svg").read_bytes()
    assert data["pictures"] == [str(written.with_suffix(f".{end}")) for end in ("png", "svg")]
    assert not list((trained / "robustness").glob(".*")), "nothing half-written stays behind"
    again = measure(open_recommender(trained), f"fgm-{objective}", epsilons=[0, 0.3, 0.9])
    assert again.curve.as_lists().items() <= data.items(), "the same as from Python"
    assert again.control.as_lists() == data["random"]


@pytest.mark.slow
def test_the_command_knows_pgd_noise_sides_and_sizes(attacked, printed):
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
@pytest.mark.usefixtures("undrawn")
def test_options_without_effect_are_refused(trained, capsys, kind, words, idle):
    sizes = ["--epsilons", "0", "0.1"] if kind != "quantization" or not words else []
    code = run(["attack", str(trained), "--attack", kind, *sizes, *words, "--json"])
    out, err = capsys.readouterr()
    json.loads(out)
    said = f"{idle} has no effect on {kind}" if idle else ""
    assert (code, said in err) == (2 if idle else 0, True)


@pytest.mark.slow
def test_a_picture_with_another_control_has_another_name(trained, attacked):
    def pictures(*words: str) -> list[str]:
        found = attacked("--attack", "fgm", "--epsilons", "0", "0.25", *words)["pictures"]
        return [Path(path).name for path in found]

    stem = Path(pictures()[0]).stem
    assert pictures() == [f"{stem}.png", f"{stem}.svg"]
    before = (trained / "robustness" / f"{stem}.png").read_bytes()
    assert pictures("--seed", "3") == [f"{stem}-seed3.png", f"{stem}-seed3.svg"]
    assert (trained / "robustness" / f"{stem}.png").read_bytes() == before
    assert "seed" not in pictures("--attack", "random", "--seed", "3")[0], "it is a setting"


@pytest.mark.parametrize(
    ("words", "still"),
    [
        (["--users"], {"items"}),
        (["--items"], {"users"}),
        (["--side", "items", "--items"], {"users"}),
        ([], set()),
    ],
)
@pytest.mark.usefixtures("undrawn")
def test_either_factor_or_both_are_perturbed(attacked, words, still):
    spent = attacked("--attack", "random", "--epsilons", "0.3", *words)["realised"][0]
    assert {name for name, size in spent.items() if size == 0} == still


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_uneven_rows_are_pointed_out(trained, attacked, printed, tmp_path):
    """A median that does not stand for the rows: a note, for sizes in medians only."""
    model = open_recommender(trained)
    users, items = (part.clone() for part in model.factors)
    items[: len(items) // 3] *= 30
    uneven = model.with_factors(Factors(users, items)).save(tmp_path / "uneven")
    words = ["--attack", "random", "--epsilons", "0.1"]
    for folder, options, noted in (
        (uneven, ["--relative"], True),
        (uneven, ["--relative", "--users"], False),
        (uneven, ["--absolute"], False),
        (uneven, ["--relative=own"], False),
        (uneven, ["--relative", "--budget", "frobenius"], False),
        (trained, ["--relative"], False),
    ):
        out = printed(*words, *options, folder=folder)
        assert ("note: row norms are uneven (items: root mean square" in out) == noted
        data = attacked(*words, *options, folder=folder)
        if "--relative" in options and "--budget" not in options:
            assert (data["unevenness"]["items"] > 1.5) == (folder == uneven)
        else:
            assert "unevenness" not in data
    items[5:] = 0
    short = model.with_factors(Factors(users, items)).save(tmp_path / "short")
    assert attacked(*words, "--relative", folder=short)["unevenness"]["items"] is None
    out = printed(*words, "--relative", folder=short)
    assert "row norms are uneven (items: median 0)" in out


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
        (["RUN", "--absolute", "--relative", "own"], 2, "exclude each other"),
        (["RUN", "--users", "--items"], 2, "exclude each other"),
        (["RUN", "--side", "users", "--items"], 2, "exclude"),
        (["RUN", "--relative", "own", "--budget", "frobenius"], 1, "own"),
        (["RUN", "--personal", "--budget", "frobenius"], 2, "--personal"),
        (["RUN", "--steps", "0"], 2, ""),
        (["--relative"], 2, "RUN"),
        (["RUN", "--part", "valid"], 1, "train and valid"),  # the run learnt from both
    ],
)
def test_the_command_refuses_what_it_cannot_do(trained, capsys, tmp_path, words, code, said):
    half = tmp_path / "half"
    shutil.copytree(trained, half)
    (half / "factors.safetensors").unlink()
    places = {"RUN": str(trained), "EMPTY": str(tmp_path), "HALF": str(half)}
    assert run(["attack", *(places.get(word, word) for word in words)]) == code
    assert said in capsys.readouterr().err


@pytest.mark.slow
def test_auto_lists_its_members(trained, attacked, printed):
    words = ["--attack", "auto", "--epsilons", "0", "0.1", "--k", "5", "--steps", "3"]
    data = attacked(*words)
    assert (data["attack"], data["objective"], data["relative"]) == ("auto", None, True)
    assert (data["steps"], data["restarts"]) == (3, 1)
    assert list(data["members"]) == ["cutoff", "fgm-softmax", "fgm-bpr", "fgm-bce"]
    n_users = data["protocol"]["n_users"]
    for member in data["members"].values():
        assert data["ndcg@5"][1] <= member["ndcg@5"][1]
        assert len(member["worst"]) == len(member["alone"]) == 2
        assert member["worst"][0] == n_users
    assert sum(member["worst"][1] for member in data["members"].values()) >= n_users
    assert data["random_draws"] == len(data["members"]), "a control that may choose as often"
    control = find(trained, "random", draws=4, ks=[5])
    assert RobustnessCurve.load(control.path).as_lists() == data["random"]
    assert json.loads(Path(data["file"]).read_text())["members"] == data["members"]
    out = printed(*words)
    assert "ndcg@5 (users it is worst for)" in out
    assert "fgm-softmax" in out


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_the_default_is_auto_by_somebody_who_knows_the_labels(trained, attacked, printed, clean):
    """Two numbers that are never mixed, what labels are worth, and all of it in files."""
    data = attacked("--epsilons", "0", "0.1")
    metrics = {key for key in data if "@" in key}
    more = {"members", "per_user", "random_per_user", "with_data", "steps", "restarts"}
    assert set(data) - metrics == KEYS | more
    keys = ("attack", "kind", "knowledge", "unit", "budget", "random_draws")
    assert [data[key] for key in keys] == ["auto", "joint", "labels", "relative", "row", 4]
    result = measure(open_recommender(trained), epsilons=[0, 0.1])
    assert result.curve.as_lists().items() <= data.items(), "the default from Python, too"
    assert data["per_user"] == result.per_user.as_lists()
    assert data["random_per_user"] == result.per_user_control.as_lists()
    for name in metrics:
        assert data[name][0] == data["with_data"][name][0] == clean[name]
    assert data["ndcg@10"][1] < data["with_data"]["ndcg@10"][1] <= data["random"]["ndcg@10"][1]
    asked = {"epsilons": [0, 0.1], "ks": [10, 20]}
    saved = find(trained, "auto", knowledge="data", **asked)
    companion = RobustnessCurve.load(saved.path)
    assert companion.as_lists().items() <= data["with_data"].items()
    assert find(trained, "random", draws=4, **asked).facts["ndcg@10"] == data["random"]["ndcg@10"]
    told = attacked("--epsilons", "0", "0.1", "--knowledge", "data")
    assert (told["file"], told["replaced"]) == (str(saved.path), False)
    assert "with_data" not in told
    assert told["ndcg@10"] == data["with_data"]["ndcg@10"]
    assert told["random"] == data["random"], "noise knows nothing"
    first, header, *_ = printed("--epsilons", "0", "0.1").splitlines()
    assert first == "joint (one perturbation for all users), the attacker knows the labels"
    for words in ("per user: ndcg@10", "worst of 4 random: ndcg@10", "knows data: ndcg@10"):
        assert words in header


@pytest.mark.parametrize(
    ("words", "unit"),
    [
        (["--relative", "own", "RUN"], "own"),
        (["RUN", "--relative=own"], "own"),
        (["--epsilons", "0", "0.2", "--relative", "own", "RUN"], "own"),
        (["--relative", "RUN"], "relative"),
        (["RUN", "--relative", "--epsilons", "0", "0.2"], "relative"),
        (["--absolute", "RUN"], "absolute"),
    ],
)
@pytest.mark.usefixtures("undrawn")
def test_units_stand_anywhere_in_the_line(trained, capsys, words, unit):
    words = [str(trained) if word == "RUN" else word for word in words]
    sizes = [] if "--epsilons" in words else ["--epsilons", "0", "0.2"]
    capsys.readouterr()
    assert run(["attack", *words, *sizes, "--attack", "fgm", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["unit"], data["relative"]) == (unit, unit != "absolute")
    assert data["epsilons"] == [0.0, 0.2]
    assert ("unevenness" in data) == (unit == "relative")
    model = open_recommender(trained)
    expected = measure(model, "fgm-bce", Threat(unit=unit), [0, 0.2]).curve
    assert data["ndcg@10"] == expected["ndcg@10"].tolist()
    assert model.bce.negative_weight == 20, "the weights of its training"


@pytest.mark.usefixtures("undrawn")
def test_each_user_alone_next_to_it(trained, attacked, printed):
    words = ["--attack", "fgm", "--epsilons", "0", "0.2", "--personal"]
    data = attacked(*words)
    alone = measure(open_recommender(trained), "personal", epsilons=[0, 0.2])
    assert data["personal"] == alone.curve.as_lists()
    assert data["random_personal"] == alone.control.as_lists()
    assert data["personal"]["ndcg@10"][1] < data["random_personal"]["ndcg@10"][1]
    home = trained / "robustness"
    assert RobustnessCurve.load(home / f"{alone.curve.name}.json").kind == "each user alone"
    assert (home / f"{alone.control.name}.json").is_file()
    out = printed(*words)
    assert "each user alone (all items moved against one user at a time), the attacker" in out
    assert "worst of 4 random: ndcg@10" in out


@pytest.mark.parametrize("kind", ["fgm", "auto", "cutoff", "pgd"])
@pytest.mark.usefixtures("undrawn")
def test_every_attack_may_know_the_labels_or_not(attacked, kind):
    words = ["--attack", kind, "--epsilons", "0", "0.3"]
    words += ["--steps", "10"] if kind != "fgm" else []
    labels, data = (attacked(*words, "--knowledge", known) for known in ("labels", "data"))
    assert (labels["knowledge"], data["knowledge"]) == ("labels", "data")
    assert labels["ndcg@10"][0] == data["ndcg@10"][0]
    assert labels["ndcg@10"][1] < data["ndcg@10"][1]
    assert labels["random"] == data["random"], "noise knows nothing"
    usual = "labels" if kind in ("auto", "cutoff") else "data"
    assert attacked(*words)["knowledge"] == usual


def test_quantization_is_a_table_over_kinds(trained, attacked, printed, clean):
    data = attacked("--attack", "quantization")
    assert list(data["kinds"]) == ["float32", "bfloat16", "float16", "int8"]
    assert data["kinds"]["float32"]["ndcg@10"] == clean["ndcg@10"]
    sizes = [data["kinds"][kind]["realised_relative"]["items"] for kind in data["kinds"]]
    assert sizes[0] == 0 < sizes[2] < sizes[1] < sizes[3] < 0.1
    assert Path(data["file"]) == trained / "robustness" / "quantization-k10_20.json"
    assert set(data) == {"run", "attack", "kinds", "protocol", "file"}
    other = attacked("--attack", "quantization", "--k", "5", "3")
    assert Path(other["file"]).name == "quantization-k3_5.json"
    assert "bfloat16" in printed("--attack", "quantization")


@pytest.mark.usefixtures("undrawn")
def test_the_walk_of_an_attack_reads_everything_once(trained, attacked, monkeypatch):
    """Facts, pairs and factors are read once, whatever asks for them; the source data never."""
    read: list[str] = []

    def counted(function):
        def counting(path, *rest, **options):
            read.append(Path(path).name)
            return function(path, *rest, **options)

        return counting

    monkeypatch.setattr(reading, "open_plain", counted(reading.open_plain))
    monkeypatch.setattr(files, "read_tensors", counted(files.read_tensors))
    monkeypatch.setattr(files, "read_arrays", counted(files.read_arrays))
    monkeypatch.setattr("robustcf.data.load", None)
    monkeypatch.setattr("robustcf.robustness.plots.plot_curves", lambda curves, path, **_: path)
    once = ("recommender.json", "interactions.npz", "factors.safetensors")
    for ask in (
        lambda: attacked("--attack", "auto", "--steps", "2", "--epsilons", "0", "0.07"),
        lambda: attacked("--attack", "quantization"),
        lambda: run(["certify", str(trained), "--epsilons", "0", "0.01"]),
    ):
        read.clear()
        ask()
        assert [read.count(name) for name in once] == [1, 1, 1]


@pytest.mark.usefixtures("undrawn")
def test_another_result_of_the_same_settings_is_said_to_be_replaced(attacked, printed):
    words = ["--attack", "random", "--epsilons", "0", "0.11"]
    path = Path(attacked(*words)["file"])
    whole, said = path.read_bytes(), f"replaced an earlier result of the same settings: {path}"
    assert said not in printed(*words)
    for ask in (lambda: attacked(*words)["replaced"], lambda: said in printed(*words)):
        path.write_text("{}")  # another number of threads may leave another result
        assert ask() is True
        assert path.read_bytes() == whole


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_the_control_is_one_file_whoever_made_it(trained, attacked):
    sizes, fgm = ["--epsilons", "0", "0.13"], ["--attack", "fgm"]
    one = attacked(*fgm, *sizes)
    control = find(trained, "random", epsilons=[0, 0.13], seed=0, draws=1).path
    assert RobustnessCurve.load(control).as_lists() == one["random"]
    before = control.read_bytes(), control.with_suffix(".npz").read_bytes()
    noise = ["--attack", "random"]
    for words in (
        [*fgm, "--objective", "softmax"],
        noise,
        [*fgm, "--knowledge", "labels"],
        ["--attack", "cutoff", "--steps", "2"],
    ):
        found = attacked(*words, *sizes)
        assert found["replaced"] is False
        assert found["random"] == one["random"]
        assert (control.read_bytes(), control.with_suffix(".npz").read_bytes()) == before
    control.unlink()
    assert attacked(*noise, *sizes)["file"] == str(control)
    assert control.read_bytes() == before[0], "the other way round"
    assert attacked(*fgm, *sizes, "--seed", "1")["random"] != one["random"]
    assert find(trained, "random", epsilons=[0, 0.13], seed=1).path != control
