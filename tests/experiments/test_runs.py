"""Run directories: written whole or not at all, killed and resumed, opened again."""

from __future__ import annotations

import csv
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from robustcf._io import files
from robustcf.cli.main import run as command
from robustcf.data import Split, load
from robustcf.errors import DataError, InputError, UnfinishedError
from robustcf.experiments import RunDir
from robustcf.experiments.results import published
from robustcf.experiments.run import RunConfig
from robustcf.experiments.saved import open_run
from robustcf.metrics import evaluate
from robustcf.models.voting import VoteConfig
from robustcf.recommender import open_recommender
from robustcf.training.config import TrainConfig
from tests.experiments.conftest import TRAIN as SHORT
from tests.experiments.conftest import small_table

TRAIN = SHORT.replace(
    factors=6, epochs=6, eval_every=1, patience=2, refit=TrainConfig.of(model="ultragcn").refit
)


@pytest.fixture(scope="module")
def done(split: Split, table: str, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A finished run."""
    run = RunDir.create(
        tmp_path_factory.mktemp("runs") / "done", RunConfig(table, train=TRAIN), split
    )
    run.execute(split)
    return run


def test_configuration_is_there_before_training(split, table, tmp_path):
    config = RunConfig(table, train=TRAIN, threads=1)
    run = RunDir.create(tmp_path / "new" / "run", config, split)
    assert sorted(path.name for path in run.path.iterdir()) == [
        "config.json",
        "data.json",
        "environment.json",
    ]
    environment = json.loads((run.path / "environment.json").read_text())
    assert environment["packages"]["torch"] == torch.__version__
    assert environment["seed"] == 0
    data = json.loads((run.path / "data.json").read_text())
    assert data["fingerprint"] == split.fingerprint
    assert data["pairs"]["train"] == len(split.train)
    assert RunDir(run.path).config == config
    assert not run.complete
    assert [path.name for path in run.path.parent.iterdir()] == ["run"]  # no leftovers next to it


def test_results(done, split, table):
    names = {path.name for path in done.path.iterdir()}
    assert names == {
        *("config.json", "data.json", "environment.json", "factors.safetensors"),
        *("history.csv", "interactions.npz", "metrics.json", "per_user.parquet"),
        "recommender.json",
    }
    result = done.metrics()
    assert done.complete
    assert result["test"]["protocol"]["masked"] == ["train", "valid"]
    assert result["learnt_from"] == "train and valid"
    report = evaluate(done.recommender().factors, split)
    assert result["test"]["ndcg@10"] == report["ndcg@10"]
    frame = pd.read_parquet(done.path / "per_user.parquet")
    assert frame["ndcg@10"].mean() == pytest.approx(result["test"]["ndcg@10"])
    assert frame["user"].tolist() == report.users.tolist()
    assert frame["label"].tolist() == split.user_labels[report.users].tolist()
    with (done.path / "history.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["epoch"]) for row in rows if row["stage"] == "refit"][-1] == result["epochs"]
    # The safetensors library itself reads the file.
    tensors = load_file(done.path / "factors.safetensors")
    assert tensors["users"].shape == (90, 6)


def test_opens_again(done, split, table):
    opened = RunDir(done.path)
    assert opened.split().fingerprint == split.fingerprint
    model = opened.recommender()
    assert torch.equal(model.factors.users, open_recommender(done.path).factors.users)
    assert model.split.fingerprint == split.fingerprint
    assert model.evaluate()["ndcg@10"] == done.metrics()["test"]["ndcg@10"]
    with pytest.raises(InputError, match="fit on"):
        model.judged_by("valid")
    assert (model.fit_on, model.part) == ("train and valid", "test")
    assert (model.label, model.bce.negative_weight) == ("ultragcn, weight_decay", 20.0)
    assert model.training["epochs"] == done.metrics()["epochs"]


def test_serves_without_the_source_data(split, tmp_path, monkeypatch):
    table = tmp_path / "mine.csv"
    table.write_text(small_table())
    config = RunConfig(str(table), train=TRAIN.replace(epochs=1))
    run = RunDir.create(tmp_path / "run", config, split)
    assert run.execute(split)
    before = run.recommender().evaluate().values
    table.unlink()
    (tmp_path / "run").rename(tmp_path / "moved")
    monkeypatch.setattr("robustcf.experiments.run.load", None)
    model = open_recommender(tmp_path / "moved")
    assert model.evaluate().values == before
    seen = set(split.item_labels[split.train_full.items_of(0)])
    found = model.recommend(split.user_labels[0], k=60)
    assert set(found["item"]) == set(split.item_labels) - seen


def test_folders_without_a_recommender_are_refused(done, tmp_path):
    old = Path(shutil.copytree(done.path, tmp_path / "old"))
    (old / "recommender.json").unlink()
    for opening in (open_recommender, lambda path: RunDir(path).recommender(), open_run):
        with pytest.raises(InputError, match="no result"):
            opening(old)
    for words in (["evaluate"], ["attack"], ["recommend", "--items", "i1"]):
        assert command([words[0], str(old), *words[1:]]) == 1


# --- kill and resume ------------------------------------------------------------------------


class Killed(BaseException):
    """Stands for SIGKILL where a subprocess would be slow: nothing may clean up after it."""


@pytest.fixture(
    scope="module",
    params=[
        {"reg": "weight_decay"},
        {"reg": "two_to_inf", "estimator": "twinest", "reg_budget": 5},
        {"adversarial": "bpr"},
        {"adversarial": "softmax", "batching": "pairs", "batch_size": 200, "negatives": 3},
    ],
    ids=lambda changes: "-".join(map(str, changes.values())),
)
def undisturbed(request, split, table, tmp_path_factory) -> RunDir:
    train = TRAIN.replace(epochs=4, reg_weight=1e-6, **request.param)
    path = tmp_path_factory.mktemp("undisturbed") / "whole"
    whole = RunDir.create(path, RunConfig(table, train=train), split)
    whole.execute(split, every=0.0)
    return whole


@pytest.mark.slow
@pytest.mark.parametrize("when", [1, 4, 5, 8])
def test_resumed_run_ends_as_an_undisturbed_one(split, undisturbed, tmp_path, monkeypatch, when):
    """Die at the when-th checkpoint, half-way through writing it: first and last of each stage."""
    whole, config = undisturbed, undisturbed.config
    broken = RunDir.create(tmp_path / "broken", config, split)
    write, calls = files.write_parts, []

    def dying(path: Path, parts: Sequence[bytes]) -> None:
        content = b"".join(parts)
        calls.append(path)
        if len(calls) == when:
            # What a kill leaves: half a temporary file, and the old checkpoint untouched.
            (path.parent / f".{path.name}.half").write_bytes(content[: len(content) // 2])
            raise Killed
        write(path, parts)

    monkeypatch.setattr(files, "write_parts", dying)
    with pytest.raises(Killed):
        broken.execute(split, every=0.0)
    monkeypatch.setattr(files, "write_parts", write)
    assert not broken.complete
    again = RunDir(broken.path)
    again.execute(split, every=0.0)
    assert same(whole, again)


def same(left: RunDir, right: RunDir) -> bool:
    a, b = left.metrics(), right.metrics()
    for result in (a, b):
        result.pop("run")
        result.pop("train_seconds")
    frames = [
        pd.read_csv(run.path / "history.csv").drop(columns="seconds") for run in (left, right)
    ]
    return (
        a == b
        and all(map(torch.equal, left.recommender().factors, right.recommender().factors))
        and frames[0].equals(frames[1])
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_sigkill_at_a_random_moment(split, table, tmp_path, seed):
    train = TRAIN.replace(epochs=60, patience=0, seed=seed)
    config = RunConfig(table, train=train)
    whole = RunDir.create(tmp_path / "whole", config, split)
    whole.execute(split)
    killed = RunDir.create(tmp_path / "killed", config, split)
    code = (
        "import sys; from robustcf.experiments import RunDir;"
        "run = RunDir(sys.argv[1]); split = run.split(); print('go', flush=True);"
        "run.execute(split, every=0.0)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(killed.path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(float(np.random.default_rng(seed).uniform(0.0, 0.6)))
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    for path in killed.path.glob("*.json"):
        json.loads(path.read_text())  # every file that exists is complete
    killed.execute(split)
    assert same(whole, killed)


def test_interrupted_run_is_usable_and_resumable(split, table, tmp_path, monkeypatch):
    config = RunConfig(table, train=TRAIN.replace(refit="no", patience=0))
    whole = RunDir.create(tmp_path / "whole", config, split)
    whole.execute(split, every=0.0)
    run = RunDir.create(tmp_path / "run", config, split)
    original, calls = evaluate, []

    def interrupting(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(*arguments, **options)

    monkeypatch.setattr(sys.modules["robustcf.training.fitting"], "evaluate", interrupting)
    finished = run.execute(split, every=0.0)
    monkeypatch.undo()
    assert not finished
    assert not run.complete
    for refused in (run.metrics, run.recommender, lambda: open_recommender(run.path)):
        with pytest.raises(UnfinishedError, match="2 epochs"):
            refused()
    insisted = RunDir(run.path, allow_unfinished=True)
    assert insisted.metrics()["interrupted"]
    model = insisted.recommender()
    assert model.evaluate()["ndcg@10"] == insisted.metrics()["test"]["ndcg@10"]
    run.execute(split)
    assert run.complete
    assert same(whole, run)


# --- refusals -------------------------------------------------------------------------------


def test_refuses_what_is_no_run(tmp_path):
    with pytest.raises(InputError, match="directory"):
        RunDir(tmp_path)
    (tmp_path / "config.json").write_text('{"dataset": "demo", "sede": 1}')
    with pytest.raises(InputError, match="config.json.*sede"):
        RunDir(tmp_path)
    for text, message in (("{", "JSON"), ("[]", "object"), ("{}", "dataset")):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(InputError, match=message):
            RunDir(tmp_path)


def test_refuses_a_directory_with_something_in_it(split, table, tmp_path):
    (tmp_path / "thing").write_text("")
    for path in (tmp_path, tmp_path / "thing"):
        with pytest.raises(InputError, match="exists already"):
            RunDir.create(path, RunConfig(table), split)
    (tmp_path / "empty").mkdir()
    RunDir.create(tmp_path / "empty", RunConfig(table), split)


def test_failed_creation_leaves_nothing(split, table, tmp_path, monkeypatch):
    def full(path: Path, content: bytes) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(files, "write_bytes", full)
    with pytest.raises(OSError, match="no space"):
        RunDir.create(tmp_path / "run", RunConfig(table), split)
    assert not list(tmp_path.iterdir())


def test_unfinished_run_says_so(split, table, tmp_path):
    run = RunDir.create(tmp_path / "run", RunConfig(table, train=TRAIN), split)
    for refused in (run.recommender, run.metrics):
        with pytest.raises(UnfinishedError, match="no result"):
            refused()


def test_refuses_other_data(done, table):
    other = load(table, seed=5)
    for call in (done.check, done.execute):
        with pytest.raises(DataError, match="made"):
            call(other)


def test_split_without_test_pairs(tmp_path, split, table):
    none = split.test.take(np.zeros(len(split.test), dtype=bool))
    without = Split("mine", split.train, split.valid, none)
    config = RunConfig(table, train=TRAIN.replace(epochs=1))
    run = RunDir.create(tmp_path / "run", config, without)
    run.execute(without)
    assert run.metrics()["test"] is None
    assert not (run.path / "per_user.parquet").exists()


def test_a_vote_has_a_configuration_and_is_counted_on_the_cpu(split):
    config = RunConfig("demo", train=VoteConfig(groups=3, key="ä"))
    assert RunConfig.from_json(config.to_json()) == config
    with pytest.raises(InputError, match="cpu"):
        RunDir.check_trainable(RunConfig("demo", train=VoteConfig(), device="cuda:0"), split)


@pytest.mark.parametrize(
    ("users", "share", "k", "names"),
    [(943, 0.25, 10, 1), (943, 0.25, 20, 0), (943, 0.1, 10, 0), (944, 0.25, 10, 0)],
)
def test_the_published_curve_is_drawn_for_its_own_data_alone(users, share, k, names):
    rng = np.random.default_rng(0)
    keys = rng.choice(users * 1682, 100_000, replace=False)
    held = rng.random(len(keys)) < share
    parts = [np.zeros(users * 1682) for _ in range(2)]
    parts[0][keys[~held]] = parts[1][keys[held]] = 1
    found = published(Split.from_csr(*(part.reshape(users, 1682) for part in parts)), k)
    assert len(found) == names
    assert all(name.startswith("PORE") and values[1] == 0.141 for name, values in found.items())
