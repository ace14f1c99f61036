"""``robustcf attack``: what it prints, writes, names and refuses."""

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


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["bce", "bpr", "softmax"])
def test_the_command_attacks_a_run(trained, capsys, objective):
    capsys.readouterr()
    arguments = ["attack", str(trained), "--attack", "fgm", "--objective", objective]
    arguments += ["--epsilons", "0", "0.3", "0.9"]
    assert run([*arguments, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["epsilons"] == [0.0, 0.3, 0.9]
    clean = json.loads((trained / "metrics.json").read_text())["test"]
    assert data["ndcg@10"][0] == clean["ndcg@10"]
    assert data["protocol"] == clean["protocol"]
    assert data["ndcg@10"][2] < data["ndcg@10"][0]
    expected = {
        *("run", "attack", "objective", "budget", "relative", "unit", "side", "knowledge"),
        *("kind", "epsilons", "realised", "protocol", "unevenness", "random"),
        *("random_draws", "file", "replaced", "picture", "pictures"),
    }
    assert {key for key in data if "@" not in key} == expected
    assert (data["relative"], data["unit"], data["knowledge"]) == (True, "relative", "data")
    written = Path(data["file"])
    assert written.parent == trained / "robustness"
    assert written.stem == RobustnessCurve.load(written).name
    assert written.name.startswith(f"fgm-{objective}-")
    assert RobustnessCurve.load(written).as_lists().items() <= data.items()
    assert written.with_suffix(".png").read_bytes().startswith(PNG)
    assert b"<svg" in written.with_suffix(".svg").read_bytes()
    assert data["pictures"] == [str(written.with_suffix(f".{end}")) for end in ("png", "svg")]
    assert not list((trained / "robustness").glob(".*")), "nothing half-written stays behind"
    assert not (trained / "attacks").exists(), "one home"
    again = measure(open_recommender(trained), f"fgm-{objective}", epsilons=[0, 0.3, 0.9])
    assert again.curve.as_lists().items() <= data.items(), "the same as from Python"
    assert again.control.as_lists() == data["random"]


@pytest.mark.slow
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
    assert run(["attack", str(trained), "--attack", "random", "--seed", "3", "--absolute"]) == 0
    out = capsys.readouterr().out
    assert "1.6" in out
    assert "random (seed 3); row budget on both, absolute" in out
    assert run(["attack", str(trained), "--attack", "random"]) == 0
    out = capsys.readouterr().out
    first, _, *rows = out.splitlines()
    assert first == (
        "joint (one perturbation for all users), the attacker knows nothing but the embeddings"
    )
    assert [line.split()[0] for line in rows[:5]] == "0 0.02 0.05 0.1 0.2".split()
    assert "random (seed 0); row budget on both, in median row norms" in out


def test_users_and_items_exclude_each_other(trained, capsys):
    assert run(["attack", str(trained), "--users", "--items", "--epsilons", "0.1"]) == 2
    assert "--users and --items exclude each other: leave both out to" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "words", "idle"),
    [
        ("fgm", ["--steps", "3"], "--steps has no effect on fgm"),
        ("fgm", ["--steps", "8", "--restarts", "2"],
         "--steps and --restarts has no effect on fgm"),
        ("fgm", ["--objective", "bpr", "--seed", "3", "--knowledge", "labels"], ""),
        ("pgd", ["--steps", "1", "--objective", "bpr"], ""),
        ("auto", ["--objective", "bpr", "--steps", "2"], "--objective has no effect on auto"),
        ("cutoff", ["--steps", "2", "--restarts", "2", "--knowledge", "data"], ""),
        ("random", ["--objective", "bpr"], "--objective has no effect on random"),
        ("random", ["--knowledge", "data"], "--knowledge has no effect on random"),
        ("quantization", ["--absolute"], "--absolute has no effect on quantization"),
        ("quantization", ["--relative", "--side", "users", "--k", "5"],
         "--relative and --side has no effect on quantization"),
        ("quantization", ["--relative", "own", "--personal"],
         "--relative and --personal has no effect on quantization"),
        ("quantization", [], "--epsilons has no effect on quantization"),
    ],
)  # fmt: skip
def test_options_without_effect_are_refused(trained, capsys, monkeypatch, kind, words, idle):
    monkeypatch.setattr(
        "robustcf.experiments.results._draw", lambda result, saved: ["a.png", "a.svg"]
    )
    sizes = ["--epsilons", "0", "0.1"] if kind != "quantization" or not words else []
    code = run(["attack", str(trained), "--attack", kind, *sizes, *words, "--json"])
    out, err = capsys.readouterr()
    json.loads(out)
    assert (code, idle in err) == (2 if idle else 0, True)


@pytest.mark.parametrize(
    ("kind", "command"),
    [("certificate", "robustcf certify RUN"), ("personal", "robustcf certify RUN --personal")],
)
def test_what_certify_does_is_pointed_to(trained, capsys, kind, command):
    assert run(["attack", str(trained), "--attack", kind]) == 2
    assert f"for '{kind}' use {command}." in capsys.readouterr().err


@pytest.mark.slow
def test_a_picture_with_another_control_has_another_name(trained, capsys):
    def pictures(*words: str) -> list[str]:
        capsys.readouterr()
        sizes = ["--epsilons", "0", "0.25"]
        assert run(["attack", str(trained), "--attack", "fgm", *sizes, *words, "--json"]) == 0
        return [Path(path).name for path in json.loads(capsys.readouterr().out)["pictures"]]

    stem = Path(pictures()[0]).stem
    assert pictures() == [f"{stem}.png", f"{stem}.svg"]
    before = (trained / "robustness" / f"{stem}.png").read_bytes()
    assert pictures("--seed", "3") == [f"{stem}-seed3.png", f"{stem}-seed3.svg"]
    assert (trained / "robustness" / f"{stem}.png").read_bytes() == before
    assert (trained / "robustness" / f"{stem}-seed3.png").read_bytes().startswith(PNG)
    # Where the name tells the seed already, it does so once.
    (png, _) = pictures("--attack", "random", "--seed", "3")
    assert "seed" not in png


@pytest.mark.parametrize(
    ("words", "still"),
    [
        (["--users"], "items"),
        (["--items"], "users"),
        (["--side", "items", "--items"], "users"),
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


@pytest.mark.slow
def test_uneven_rows_are_pointed_out(trained, capsys, tmp_path):
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
    items[5:] = 0
    short = model.with_factors(Factors(users, items)).save(tmp_path / "short")
    assert run(["attack", str(short), *words, "--relative", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unevenness"]["items"] is None
    assert run(["attack", str(short), *words, "--relative"]) == 0
    assert "row norms are uneven (items: median 0)" in capsys.readouterr().out


def test_the_command_refuses_what_it_cannot_do(trained, capsys, tmp_path):
    assert run(["attack", str(trained), "--epsilons", "0.5", "0.1"]) == 1
    assert "ascending" in capsys.readouterr().err
    assert run(["attack", str(trained), "--epsilons", "-1"]) == 1
    assert "not negative" in capsys.readouterr().err
    assert run(["attack", str(tmp_path)]) == 1
    assert "not a saved recommender" in capsys.readouterr().err
    assert run(["attack", str(trained), "--epsilons", "many"]) == 2
    assert run(["attack", str(trained), "--epsilons"]) == 2, "no sizes are not the default sizes"
    assert run(["attack", str(trained), "--epsilons", "--relative"]) == 2
    assert run(["attack", str(trained), "--attack", "certificate"]) == 2
    assert run(["attack", str(trained), "--objective", "mse"]) == 2
    assert run(["attack", str(trained), "--knowledge", "none"]) == 2
    capsys.readouterr()
    for words in (["--relative", "--absolute"], ["--absolute", "--relative", "own"]):
        assert run(["attack", str(trained), *words]) == 2
        assert "--relative and --absolute exclude each other" in capsys.readouterr().err
    assert run(["attack", str(trained), "--relative", "own", "--budget", "frobenius"]) == 1
    assert "the unit 'own' is the length of each row" in capsys.readouterr().err
    assert run(["attack", str(trained), "--personal", "--budget", "frobenius"]) == 2
    assert "--personal is about rows" in capsys.readouterr().err
    assert run(["attack", str(trained), "--steps", "0"]) == 2
    assert run(["attack", "--relative"]) == 2
    assert "Missing argument 'RUN'" in capsys.readouterr().err


def find(trained, attack: str, **settings) -> SavedCurve:
    """The one saved curve of an attack that has these settings."""
    curves = read_curves(trained / "robustness").values()
    wanted = {"attack": attack, **settings}.items()
    (found,) = (c for c in curves if all(c.settings[key] == value for key, value in wanted))
    return found


def attacked(trained, capsys, *arguments: str) -> dict:
    capsys.readouterr()
    assert run(["attack", str(trained), *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_auto_lists_its_members(trained, capsys):
    words = ["--attack", "auto", "--epsilons", "0", "0.1", "--k", "5", "--steps", "3"]
    data = attacked(trained, capsys, *words)
    assert (data["attack"], data["objective"], data["relative"]) == ("auto", None, True)
    assert (data["steps"], data["restarts"]) == (3, 1)
    assert list(data["members"]) == ["cutoff", "fgm-softmax", "fgm-bpr", "fgm-bce"]
    for member in data["members"].values():
        assert data["ndcg@5"][1] <= member["ndcg@5"][1]
        assert len(member["worst"]) == len(member["alone"]) == 2
    assert data["random_draws"] == len(data["members"]), "a control that may choose as often"
    control = find(trained, "random", draws=4, ks=[5])
    assert RobustnessCurve.load(control.path).as_lists() == data["random"]
    n_users = data["protocol"]["n_users"]
    assert all(member["worst"][0] == n_users for member in data["members"].values())
    assert sum(member["worst"][1] for member in data["members"].values()) >= n_users
    assert json.loads(Path(data["file"]).read_text())["members"] == data["members"]
    assert Path(data["picture"]).read_bytes().startswith(PNG)
    assert run(["attack", str(trained), *words]) == 0
    out = capsys.readouterr().out
    assert "ndcg@5 (users it is worst for)" in out
    assert "fgm-softmax" in out


@pytest.mark.slow
def test_the_default_is_auto_by_somebody_who_knows_the_labels(trained, capsys):
    """Two numbers that are never mixed, what labels are worth, and all of it in files."""
    data = attacked(trained, capsys, "--epsilons", "0", "0.1")
    expected = {
        *("run", "attack", "objective", "kind", "budget", "relative", "unit", "side", "knowledge"),
        *("epsilons", "realised", "protocol", "unevenness", "members", "per_user", "random"),
        *("random_per_user", "random_draws", "with_data", "file", "replaced", "picture"),
        *("pictures", "steps", "restarts"),
    }
    metrics = {key for key in data if "@" in key}
    assert set(data) - metrics == expected
    keys = ("attack", "kind", "knowledge", "unit", "budget", "random_draws")
    assert [data[key] for key in keys] == ["auto", "joint", "labels", "relative", "row", 4]
    result = measure(open_recommender(trained), epsilons=[0, 0.1])
    assert result.curve.as_lists().items() <= data.items(), "the default from Python, too"
    assert data["per_user"] == result.per_user.as_lists()
    assert data["random_per_user"] == result.per_user_control.as_lists()
    clean = json.loads((trained / "metrics.json").read_text())["test"]
    for name in metrics:
        assert data[name][0] == data["with_data"][name][0] == clean[name]
        assert data["per_user"][name][1] <= data[name][1] + 1e-12
        assert data["with_data"]["per_user"][name][1] <= data["with_data"][name][1] + 1e-12
    assert data["ndcg@10"][1] < data["with_data"]["ndcg@10"][1] <= data["random"]["ndcg@10"][1]
    assert Path(data["file"]).parent == trained / "robustness"
    asked = {"epsilons": [0, 0.1], "ks": [10, 20]}
    saved = find(trained, "auto", knowledge="data", **asked)
    companion = RobustnessCurve.load(saved.path)
    assert companion.as_lists().items() <= data["with_data"].items()
    assert find(trained, "random", draws=4, **asked).facts["ndcg@10"] == data["random"]["ndcg@10"]
    told = attacked(trained, capsys, "--epsilons", "0", "0.1", "--knowledge", "data")
    assert (told["file"], told["replaced"]) == (str(saved.path), False)
    assert "with_data" not in told
    assert told["ndcg@10"] == data["with_data"]["ndcg@10"]
    assert told["random"] == data["random"], "noise knows nothing"
    assert run(["attack", str(trained), "--epsilons", "0", "0.1"]) == 0
    first, header, *_ = capsys.readouterr().out.splitlines()
    assert first == "joint (one perturbation for all users), the attacker knows the labels"
    for words in ("per user: ndcg@10", "worst of 4 random: ndcg@10", "knows data: ndcg@10"):
        assert words in header


@pytest.mark.parametrize(
    ("words", "unit"),
    [
        (["--relative", "own", "RUN"], "own"),
        (["--relative=own", "RUN"], "own"),
        (["RUN", "--relative", "own"], "own"),
        (["--relative", "RUN"], "relative"),
        (["RUN", "--relative"], "relative"),
        (["--epsilons", "0", "0.2", "--relative", "own", "RUN"], "own"),
        (["RUN", "--relative", "--epsilons", "0", "0.2"], "relative"),
        (["--absolute", "RUN"], "absolute"),
        (["RUN"], "relative"),
    ],
)
def test_units_stand_anywhere_in_the_line(trained, capsys, monkeypatch, words, unit):
    monkeypatch.setattr(
        "robustcf.experiments.results._draw", lambda result, saved: ["a.png", "a.svg"]
    )
    words = [str(trained) if word == "RUN" else word for word in words]
    sizes = [] if "--epsilons" in words else ["--epsilons", "0", "0.2"]
    capsys.readouterr()
    assert run(["attack", *words, *sizes, "--attack", "random", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["unit"], data["relative"]) == (unit, unit != "absolute")
    assert data["epsilons"] == [0.0, 0.2]
    if unit == "own":
        assert data["realised"][1]["items"] == pytest.approx(0.2, rel=1e-4)


def test_each_user_alone_next_to_it(trained, capsys, monkeypatch):
    monkeypatch.setattr(
        "robustcf.experiments.results._draw", lambda result, saved: ["a.png", "a.svg"]
    )
    words = ["--attack", "fgm", "--epsilons", "0", "0.2", "--personal"]
    data = attacked(trained, capsys, *words)
    model = open_recommender(trained)
    alone = measure(model, "personal", epsilons=[0, 0.2])
    assert data["personal"] == alone.curve.as_lists()
    assert data["random_personal"] == alone.control.as_lists()
    assert data["ndcg@10"] == measure(model, "fgm", epsilons=[0, 0.2]).curve["ndcg@10"].tolist()
    assert data["personal"]["ndcg@10"][1] < data["random_personal"]["ndcg@10"][1]
    home = trained / "robustness"
    assert RobustnessCurve.load(home / f"{alone.curve.name}.json").kind == "each user alone"
    assert (home / f"{alone.control.name}.json").is_file()
    assert run(["attack", str(trained), *words]) == 0
    out = capsys.readouterr().out
    assert "each user alone (all items moved against one user at a time), the attacker" in out
    assert "worst of 4 random: ndcg@10" in out


@pytest.mark.slow
def test_an_older_name_of_knowledge_is_understood(trained, capsys):
    arguments = ["--attack", "fgm", "--objective", "softmax", "--epsilons", "0", "0.3"]
    data = attacked(trained, capsys, *arguments, "--positives", "test")
    plain = attacked(trained, capsys, *arguments)
    assert (data["knowledge"], plain["knowledge"]) == ("labels", "data")
    assert attacked(trained, capsys, *arguments, "--knowledge", "labels") == data
    assert attacked(trained, capsys, *arguments, "--positives", "train") == plain
    assert not {"oracle", "positives"} & {*data, *json.loads(Path(data["file"]).read_text())}
    assert data["ndcg@10"][0] == plain["ndcg@10"][0]
    assert data["ndcg@10"][1] < plain["ndcg@10"][1], "it knows what counts"


@pytest.mark.parametrize("kind", ["fgm", "auto", "cutoff", "pgd"])
def test_every_attack_may_know_the_labels_or_not(trained, capsys, monkeypatch, kind):
    monkeypatch.setattr(
        "robustcf.experiments.results._draw", lambda result, saved: ["a.png", "a.svg"]
    )
    words = ["--attack", kind, "--epsilons", "0", "0.3"]
    words += ["--steps", "10"] if kind != "fgm" else []
    labels, data = (
        attacked(trained, capsys, *words, "--knowledge", known) for known in ("labels", "data")
    )
    assert (labels["knowledge"], data["knowledge"]) == ("labels", "data")
    assert labels["ndcg@10"][0] == data["ndcg@10"][0]
    assert labels["ndcg@10"][1] < data["ndcg@10"][1]
    assert labels["random"] == data["random"], "noise knows nothing"
    usual = attacked(trained, capsys, *words)
    assert usual["knowledge"] == ("labels" if kind in ("auto", "cutoff") else "data")


def test_quantization_is_a_table_over_kinds(trained, capsys):
    data = attacked(trained, capsys, "--attack", "quantization")
    assert list(data["kinds"]) == ["float32", "bfloat16", "float16", "int8"]
    clean = json.loads((trained / "metrics.json").read_text())["test"]
    assert data["kinds"]["float32"]["ndcg@10"] == clean["ndcg@10"]
    sizes = [data["kinds"][kind]["realised_relative"]["items"] for kind in data["kinds"]]
    assert sizes[0] == 0 < sizes[2] < sizes[1] < sizes[3] < 0.1
    assert Path(data["file"]) == trained / "robustness" / "quantization-k10_20.json"
    expected = {"run", "attack", "kinds", "protocol", "file"}
    assert set(data) == expected
    other = attacked(trained, capsys, "--attack", "quantization", "--k", "5", "3")
    assert Path(other["file"]).name == "quantization-k3_5.json"
    assert run(["attack", str(trained), "--attack", "quantization"]) == 0
    assert "bfloat16" in capsys.readouterr().out


def test_valid_is_for_runs_that_did_not_learn_from_it(trained, capsys):
    """Its valid part was carved out of train, and the run learnt from both."""
    assert run(["attack", str(trained), "--part", "valid"]) == 1
    assert "train and valid" in capsys.readouterr().err


def test_a_run_without_factors_is_refused(trained, capsys, tmp_path):
    shutil.copytree(trained, tmp_path / "half")
    (tmp_path / "half" / "factors.safetensors").unlink()
    assert run(["attack", str(tmp_path / "half")]) == 1
    assert "factors.safetensors" in capsys.readouterr().err


def test_the_walk_of_an_attack_reads_everything_once(trained, capsys, monkeypatch):
    """Facts, pairs and factors are read once, whatever asks for them; the source data never."""
    texts: list[str] = []
    opened, tensors, loads = reading.open_plain, files.read_tensors, []
    arrays = files.read_arrays

    def counted_text(path, **options):
        texts.append(path.name)
        return opened(path, **options)

    def counted_arrays(path):
        loads.append(Path(path).name)
        return arrays(path)

    def counted_tensors(path):
        loads.append(Path(path).name)
        return tensors(path)

    monkeypatch.setattr(reading, "open_plain", counted_text)
    monkeypatch.setattr(files, "read_tensors", counted_tensors)
    monkeypatch.setattr(files, "read_arrays", counted_arrays)
    monkeypatch.setattr("robustcf.data.load", None)
    once = ["interactions.npz", "factors.safetensors"]
    for words in (["auto", "--steps", "2", "--epsilons", "0", "0.07"], ["quantization"]):
        texts.clear(), loads.clear()
        attacked(trained, capsys, "--attack", *words)
        assert texts.count("recommender.json") == 1
        assert loads == once
    texts.clear(), loads.clear()
    assert run(["certify", str(trained), "--epsilons", "0", "0.01"]) == 0
    assert (texts.count("recommender.json"), loads) == (1, once)


@pytest.mark.slow
def test_a_result_that_was_there_is_left_or_said_to_be_replaced(trained, capsys):
    words = ["--attack", "fgm", "--objective", "bpr", "--epsilons", "0", "0.11"]
    first = attacked(trained, capsys, *words)
    assert first["replaced"] is False
    path = Path(first["file"])
    before = path.stat().st_mtime_ns, path.read_bytes()
    again = attacked(trained, capsys, *words)
    assert again["replaced"] is False
    assert (path.stat().st_mtime_ns, path.read_bytes()) == before, "untouched"
    facts = json.loads(path.read_text())
    facts["ndcg@10"][1] += 0.01  # what another number of threads might have left
    path.write_text(json.dumps(facts))
    changed = attacked(trained, capsys, *words)
    assert changed["replaced"] is True
    assert path.read_bytes() == before[1]
    assert run(["attack", str(trained), *words]) == 0
    assert "replaced" not in capsys.readouterr().out
    path.write_text(json.dumps(facts))
    assert run(["attack", str(trained), *words]) == 0
    said = f"replaced an earlier result of the same settings: {path}"
    assert said in capsys.readouterr().out


@pytest.mark.slow
def test_the_control_is_one_file_whoever_made_it(trained, capsys):
    sizes = ["--epsilons", "0", "0.13"]
    fgm = ["--attack", "fgm"]
    one = attacked(trained, capsys, *fgm, *sizes)
    control = find(trained, "random", epsilons=[0, 0.13], seed=0, draws=1).path
    assert RobustnessCurve.load(control).as_lists() == one["random"]
    before = control.read_bytes(), control.with_suffix(".npz").read_bytes()
    for words in (
        [*fgm, "--objective", "softmax"],
        ["--attack", "random"],
        [*fgm, "--knowledge", "labels"],
        ["--attack", "cutoff", "--steps", "2"],
    ):
        found = attacked(trained, capsys, *words, *sizes)
        assert found["replaced"] is False
        assert found["random"] == one["random"]
        assert (control.read_bytes(), control.with_suffix(".npz").read_bytes()) == before
    noise = attacked(trained, capsys, "--attack", "random", *sizes)
    assert noise["file"] == str(control)
    control.unlink()
    attacked(trained, capsys, "--attack", "random", *sizes)
    assert control.read_bytes() == before[0], "the other way round"
    other = attacked(trained, capsys, *fgm, *sizes, "--seed", "1")
    assert other["random"] != one["random"]
    assert find(trained, "random", epsilons=[0, 0.13], seed=1).path != control


def test_absolute_sizes_are_for_the_asking(trained, capsys):
    data = attacked(trained, capsys, "--attack", "fgm", "--absolute", "--epsilons", "0", "0.3")
    assert (data["relative"], data["unit"]) == (False, "absolute")
    assert data["realised"][1]["users"] == pytest.approx(0.3, rel=1e-4)
    assert "unevenness" not in data
    model = open_recommender(trained)
    expected = measure(model, "fgm-bce", Threat(unit="absolute"), [0, 0.3]).curve
    assert data["ndcg@10"] == expected["ndcg@10"].tolist()
    assert model.bce.negative_weight == 20, "the weights of its training"
