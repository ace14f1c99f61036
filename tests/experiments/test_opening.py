"""Opening a run reads: it makes nothing, fetches nothing, and follows no path of a stranger."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from robustcf._io import fetching
from robustcf.cli.main import run as command
from robustcf.data import checkerboard, load
from robustcf.errors import DownloadError, InputError
from robustcf.experiments import RunDir
from robustcf.experiments.run import RunConfig
from robustcf.recommender.saved import write_into
from robustcf.training.config import TrainConfig
from robustcf.training.fitting import check_trainable
from robustcf.training.presets import presets
from tests.experiments.conftest import TRAIN, small_table
from tests.recommender.tampering import change_json


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "data" / "mine.csv"
    path.parent.mkdir()
    path.write_text(small_table())
    return path


@pytest.fixture
def run(finished: Path, own: Path, tmp_path: Path) -> RunDir:
    shutil.copytree(finished, tmp_path / "run")
    change_json(tmp_path / "run" / "config.json", dataset=str(own))
    return RunDir(tmp_path / "run")


@pytest.fixture
def bare(run: RunDir) -> RunDir:
    """A run whose interactions are not with it, as those of data larger than memory."""
    write_into(run.path, run.recommender(), include_interactions=False)
    return run


def tree(*folders: Path) -> dict[str, tuple[int, bytes]]:
    """Every file below some folders, hidden ones too, with time and content."""
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for folder in folders
        for path in sorted(folder.rglob("*"))
    }


READING: list[Callable[[str], list[str]]] = [
    lambda run: ["evaluate", run],
    lambda run: ["recommend", run, "--user", "u1"],
    lambda run: ["recommend", run, "--items", "i1"],
    lambda run: ["train", "--resume", run],
    lambda run: ["compare", run, run],
]


@pytest.mark.parametrize("words", READING, ids=lambda words: words("RUN")[0])
def test_commands_that_only_read_write_nothing(run, words, tmp_path, monkeypatch):
    empty = tmp_path / "cache"
    empty.mkdir()
    monkeypatch.setenv("ROBUSTCF_CACHE", str(empty))
    monkeypatch.chdir(empty)
    before = tree(tmp_path)
    command(words(str(run.path)))
    assert tree(tmp_path) == before


def test_the_file_of_the_run_is_found_again(run, own):
    assert run.split().fingerprint == load(own).fingerprint
    moved = own.with_name("moved.csv")
    own.rename(moved)
    with pytest.raises(InputError, match="mine.csv.*--dataset"):
        run.split()
    with pytest.raises(InputError, match="other data"):
        run.split(dataset="demo")
    own.symlink_to(moved)  # the user's own link, to the very file
    assert run.split().fingerprint


def test_files_for_valid_and_test_are_found_again_too(tmp_path):
    lines = small_table().splitlines()
    paths = {part: tmp_path / f"{part}.csv" for part in ("train", "valid", "test")}
    for place, path in enumerate(paths.values()):
        path.write_text("\n".join([lines[0], *lines[1 + place :: 3]]))
    data = {"valid_file": str(paths["valid"]), "test_file": str(paths["test"])}
    split = load(paths["train"], **data)
    run = RunDir.create(tmp_path / "run", RunConfig(str(paths["train"]), data, train=TRAIN), split)
    assert run.split().fingerprint == split.fingerprint
    moved = tmp_path / "elsewhere.csv"
    paths["test"].rename(moved)
    with pytest.raises(InputError, match="test.csv.*--test-file"):
        run.split()
    (tmp_path / "fewer.csv").write_text("\n".join(moved.read_text().splitlines()[:-1]))
    with pytest.raises(InputError, match="other data"):
        run.split(test_file=str(tmp_path / "fewer.csv"))


def test_a_run_without_interactions_finds_its_data(bare, own, capsys):
    path = str(bare.path)
    assert not bare.recommender().has_interactions
    assert command(["evaluate", path, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["test"]
    assert found["ndcg@10"] == bare.metrics()["test"]["ndcg@10"]
    assert command(["recommend", path, "--user", "u1", "-k", "3"]) == 0
    moved = own.with_name("moved.csv")
    own.rename(moved)
    capsys.readouterr()
    assert command(["evaluate", path]) == 1
    assert "--dataset" in capsys.readouterr().err
    assert command(["evaluate", path, "--dataset", str(moved)]) == 0
    moved.write_text(small_table() + "\nu1,another\n")
    capsys.readouterr()
    assert command(["evaluate", path, "--dataset", str(moved)]) == 1
    assert "other data" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["evaluate"], ["train", "--resume"]], ids=lambda words: words[0])
def test_a_path_in_a_run_is_not_followed_to_another_file(bare, tmp_path, words, capsys):
    """No content of the file is printed, even if a stranger wrote its path into the run."""
    secret = tmp_path / "secret.csv"
    secret.write_text("user,item\nTOPSECRET,pass\x00word\n" * 50)
    change_json(bare.path / "config.json", dataset=str(secret))
    if words[0] == "train":
        (bare.path / "metrics.json").unlink()
    for sizes in ({"train": secret.stat().st_size}, {}):
        change_json(bare.path / "data.json", sources={"secret.csv": "0" * 64}, sizes=sizes)
        before = tree(tmp_path)
        assert command([*words, str(bare.path)]) == 1
        out, err = capsys.readouterr()
        assert "another than the run read" in err
        assert "--dataset PATH" in err
        assert "TOPSECRET" not in out + err
        assert "word" not in out + err
        assert tree(tmp_path) == before


@pytest.mark.parametrize(
    "path",
    [
        *("/dev/zero", "/etc/passwd", "/proc/self/mem", "PIPE", "/", "\x00", "~unknown-user/x"),
        "x" * 999,
    ],
    ids=range(8),
)
def test_other_things_are_not_read(run, tmp_path, path):
    os.mkfifo(tmp_path / "pipe")
    path = str(tmp_path / "pipe") if path == "PIPE" else path
    change_json(run.path / "data.json", sources={Path(path).name: "0" * 64})
    change_json(run.path / "config.json", dataset=path)
    with pytest.raises(InputError, match="not read"):
        RunDir(run.path).split()
    change_json(run.path / "config.json", dataset="demo", data={"valid_file": path})
    with pytest.raises(InputError):
        RunDir(run.path).split()


def test_a_run_without_checksum_of_its_data_asks_for_them(run, own):
    change_json(run.path / "data.json", sources={})
    with pytest.raises(InputError, match="no checksum.*--dataset"):
        run.split()
    assert run.split(dataset=str(own))


def test_a_known_set_is_looked_for_where_the_user_keeps_data(bare, tmp_path, monkeypatch):
    fetched: list[object] = []
    monkeypatch.setattr(fetching, "fetch", lambda *a, **k: fetched.append(a))
    strange = tmp_path / "strange"
    data = {"data_dir": str(strange), "download": True, "seed": 0}
    change_json(bare.path / "config.json", dataset="ml-1m", data=data)
    monkeypatch.chdir(tmp_path)
    before = tree(tmp_path)
    with pytest.raises(DownloadError, match="--download.*strange"):
        RunDir(bare.path).split()
    for words in (["evaluate", str(bare.path)], ["attack", str(bare.path)]):
        assert command(words) == 1
    assert (fetched, strange.exists()) == ([], False)
    assert tree(tmp_path) == before
    mine = tmp_path / "mine"
    with pytest.raises(DownloadError, match=f"is not in {mine}"):
        RunDir(bare.path).split(str(mine))
    with pytest.raises(InputError, match="--data-dir"):
        RunDir(bare.path).split(dataset="x.csv")
    assert not mine.exists()
    assert not fetched


def test_it_downloads_when_asked(run, monkeypatch):
    def fetch(*_: object, **__: object) -> None:
        raise DownloadError("asked for")

    monkeypatch.setattr(fetching, "fetch", fetch)
    change_json(run.path / "config.json", dataset="ml-1m", data={"seed": 0})
    with pytest.raises(DownloadError, match="asked for"):
        RunDir(run.path).split(download=True)


def test_code_that_a_run_names_is_not_imported_unless_told(run, tmp_path, capsys, monkeypatch):
    (tmp_path / "evil.py").write_text("open('ran', 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    path = str(run.path)
    config = json.loads((run.path / "config.json").read_text())
    facts = json.loads((run.path / "recommender.json").read_text())
    for part in ("model", "objective", "reg", "adversary"):
        train = {**config["train"], part: {"name": "evil:Thing"}}
        change_json(run.path / "config.json", train=train)
        training = {**facts["training"], "config": train}
        fold_in = {**facts["scorer"]["fold_in"], "objective": "evil:Thing"}
        scorer = {**facts["scorer"], "fold_in": fold_in}
        change_json(run.path / "recommender.json", training=training, scorer=scorer)
        for words in (["evaluate", path], ["recommend", path, "--user", "u1"]):
            assert command(words) == 0
        (run.path / "metrics.json").rename(tmp_path / "kept")
        assert command(["train", "--resume", path]) == 1
        (tmp_path / "kept").rename(run.path / "metrics.json")
        assert command(["recommend", path, "--items", "i1"]) == 1
        err = capsys.readouterr().err.splitlines()
        assert sum("evil:Thing" in line and "--allow-code" in line for line in err) == 2
        assert not (tmp_path / "ran").exists()
    assert command(["recommend", path, "--items", "i1", "--allow-code"]) == 1
    assert (tmp_path / "ran").exists()


# --- overwriting a failed run ---------------------------------------------------------------


def test_a_run_that_ended_before_its_first_checkpoint_is_written_over(
    own, tmp_path, capsys, monkeypatch
):
    words = ["train", "--dataset", str(own), "--out", str(tmp_path / "run"), "--model", "ultragcn"]
    words += ["--epochs", "1", "--factors", "3"]

    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr("robustcf.experiments.run.fit_split", broken)
        assert command(words) == 1
    assert RunDir(tmp_path / "run").config.train.seed == 0
    capsys.readouterr()
    assert command([*words, "--seed", "7"]) == 0
    assert "ended before its first checkpoint" in capsys.readouterr().err
    assert RunDir(tmp_path / "run").config.train.seed == 7
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]
    assert command([*words, "--seed", "8"]) == 1
    assert "exists already" in capsys.readouterr().err


def test_only_what_is_surely_such_a_run_is_written_over(own, split, tmp_path):
    config = RunConfig(str(own), train=TRAIN)
    split = load(own)

    def again(name: str) -> None:
        with pytest.raises(InputError, match="exists already|at work"):
            RunDir.create(tmp_path / name, config, split)

    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"of": "another program"}')
    again("other")
    begun = RunDir.create(tmp_path / "begun", config, split)
    for extra in ("checkpoint.train.safetensors", "notes.txt", "search.json"):
        (begun.path / extra).write_text("x")
        again("begun")
        (begun.path / extra).unlink()
    with begun.at_work():  # a process trains in it, and has no checkpoint yet
        again("begun")
    assert RunDir.create(tmp_path / "begun", config, split).replaced


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--reg", "two_to_inf", "--estimator", "guess"], "estimator must be one of"),
        (["--reg", "two_to_inf", "--reg-top", "5", "--estimator", "twinest"], "estimator='exact'"),
        (["--factors", "2000000000"], "factors=2000000000 needs about .* GB of memory"),
        (["--factors", "1" + "0" * 30], "factors must be an integer of at least 1 and at most"),
        (["--batching", "pairs", "--set", "negatives=2000000000"], "negatives .* needs ab"),
        (["--set", "negatives=1" + "0" * 30], "negatives must be an integer"),
        (["--set", "beta1=2"], "beta1 must be in"),
        (["--device", "meta"], "device 'meta' cannot be used here"),
        (["--device", "hpu"], "device 'hpu' cannot be used here"),
        (["--device", "cuda:99"], "device 'cuda:99' cannot be used here"),
        (["--threads", "100000"], "threads must be an integer of at least 1 and at most 1024"),
        (["--seed", "-1"], "-1 is not in the range"),
        (["--seed", "1" + "0" * 30], "is not in the range"),
        (["--split-seed", "-1"], "-1 is not in the range"),
        (["--set", "epochs=1e999"], "epochs must be an integer"),
        (["--set", "lr=" + "[" * 5000], "lr must be a finite number"),
        (["--model", "softmax-mf", "--set", "positive_temperature=0.1", "--adversarial", "margin"],
         "the bilateral softmax has no margin"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)  # fmt: skip
def test_what_can_be_known_before_training_is_said_before_the_folder_is_made(
    own, tmp_path, capsys, options, message
):
    words = ["train", "--dataset", str(own), "--out", str(tmp_path / "run"), "--model", "ultragcn"]
    assert command([*words, *options]) in (1, 2)
    err = capsys.readouterr().err
    assert "internal error" not in err
    assert re.search(message, err), err
    assert not (tmp_path / "run").exists()


def test_an_empty_name_and_a_link_for_out(own, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    base = ["train", "--dataset", str(own), *"--model ultragcn --epochs 0 --factors 2".split()]
    for empty in ("", "  "):
        assert command([*base, "--out", empty]) == 2
        assert "empty" in capsys.readouterr().err
    for other in (["sweep", "--dataset", str(own)], ["tune", "--dataset", str(own)],
                  ["vision", "train", "--dataset", "digits"]):  # fmt: skip
        assert command([*other, "--out", ""]) == 2
    (tmp_path / "place").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "place")
    assert command([*base, "--out", "link"]) == 0
    assert (tmp_path / "link").is_symlink()
    assert RunDir(tmp_path / "place").complete
    (tmp_path / "dangling").symlink_to(tmp_path / "new")
    assert command([*base, "--out", "dangling"]) == 0
    assert RunDir(tmp_path / "new").complete
    with pytest.raises(InputError, match="name"):
        RunDir.create("", RunConfig(str(own), train=TRAIN), load(own))


def test_all_presets_can_be_trained_as_far_as_is_known():
    for name, preset in presets().items():
        if name.startswith(("default", "demo")):
            check_trainable(checkerboard(), preset.config)


def test_as_many_items_may_be_drawn_as_the_data_have():
    for drawn in (31, 1500):  # more than the toy set has, on which settings are tried
        config = TrainConfig.of(model="softmax-mf", sampled_items=drawn, factors=2, epochs=1)
        check_trainable(load("demo"), config)
    with pytest.raises(InputError, match="1501"):
        check_trainable(load("demo"), TrainConfig.of(model="softmax-mf", sampled_items=1501))
