"""Run files that are damaged, foreign or hostile: a clear error that names file and key."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from robustcf._io.files import read_tensors, write_tensors
from robustcf._io.temporary import alone_in
from robustcf.cli.main import run as command
from robustcf.data import Split
from robustcf.errors import InputError
from robustcf.experiments import RunDir
from robustcf.experiments.records import results_folder
from robustcf.experiments.run import RunConfig
from robustcf.experiments.saved import open_run
from robustcf.recommender import open_recommender
from robustcf.training import loop
from tests.experiments.conftest import TRAIN
from tests.recommender.tampering import change_json, sign


@pytest.fixture(scope="module")
def begun(split: Split, table: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was interrupted in its third epoch."""
    path = tmp_path_factory.mktemp("runs") / "run"
    run = RunDir.create(path, RunConfig(table, train=TRAIN), split)
    one_epoch = loop._Steps.one_epoch

    def stopped(self: Any, epoch: int) -> Any:
        if epoch == 2:
            raise KeyboardInterrupt
        return one_epoch(self, epoch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop._Steps, "one_epoch", stopped)
        assert not run.execute(split, every=0.0)
    return run.path


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def use(path: Path) -> None:
    """Everything that opening a run for use reads."""
    opened = RunDir(path)
    opened.recommender()
    opened.metrics()
    opened.check(opened.split())


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("config.json", {"threads": "x"}, "threads .*'x'"),
        ("config.json", {"threads": 10**9}, "threads"),
        ("config.json", {"device": [1]}, "device"),
        ("config.json", {"dataset": 5}, "dataset"),
        ("config.json", {"data": 5}, "data "),
        ("config.json", {"data": {"seed": -1}}, "data.seed"),
        ("config.json", {"data": {"policy": {}}}, "data.policy"),
        ("config.json", {"train": []}, "train"),
        ("config.json", {"search": {"minutes": 0}}, "search.minutes"),
        ("data.json", {"fingerprint": 7}, "fingerprint"),
        ("data.json", {"sources": {"a": 1}}, "sources.a"),
        ("metrics.json", {"learnt_from": 5}, "learnt_from"),
        ("metrics.json", {"interrupted": 0}, "interrupted"),
        ("metrics.json", {"model": None}, "model"),
        ("metrics.json", {"test": [1]}, "test"),
        ("metrics.json", {"test": {}}, "test.ndcg@10"),
        ("metrics.json", {"epochs": 10**40}, "epochs"),
        ("recommender.json", {"kind": 5}, "kind"),
        ("recommender.json", {"interrupted": 1}, "interrupted"),
        ("recommender.json", {"training": []}, "training"),
    ],
)  # fmt: skip
def test_values_of_another_kind(run, name, values, message):
    change_json(run / name, **values)
    with pytest.raises(InputError, match=f"{name}: {message}"):
        use(run)


SMALL = ["config.json", "data.json", "metrics.json", "recommender.json"]


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"null", b"[]", b"5", b"\xff\xfe", b"[" * 100_000, b'{"a": ' * 3_000,
        b'{"dataset": NaN}', b'{"dataset": 1e999}', b'{"a": 1, "a": 2}', b'{"a": ' + b"1" * 5_000,
    ],
    ids=lambda content: repr(content[:12]),
)  # fmt: skip
def test_files_that_are_no_json(run, name, content):
    (run / name).write_bytes(content)
    with pytest.raises(InputError, match=f"{name}"):
        use(run)
    if name == "recommender.json":
        with pytest.raises(InputError, match=f"{name}"):
            open_run(run)


@pytest.mark.parametrize("name", SMALL)
def test_a_file_that_never_ends_is_not_read_whole(run, name):
    with (run / name).open("wb") as file:
        file.truncate(1 << 33)  # takes no place on the disk
    with pytest.raises(InputError, match=rf"{name} .*16,777,216"):
        use(run)


NAMES = [*SMALL, "factors.safetensors", "interactions.npz"]


@pytest.mark.parametrize("name", NAMES)
def test_links_and_pipes_in_a_run_are_not_followed(run, name, tmp_path):
    secret = tmp_path / "secret"
    shutil.move(run / name, secret)
    (run / name).symlink_to(secret)
    with pytest.raises(InputError, match=f"{name} is a link"):
        use(run)
    (run / name).unlink()
    os.mkfifo(run / name)
    with pytest.raises(InputError, match=f"{name}"):
        use(run)


def test_results_are_not_written_through_a_link(run, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (run / "robustness").symlink_to(tmp_path / "elsewhere")
    for use_it in (results_folder, open_run):
        with pytest.raises(InputError, match="link"):
            use_it(run)
    assert command(["attack", str(run), "--attack", "fgm", "--epsilons", "0.1"]) == 1
    assert not list((tmp_path / "elsewhere").iterdir())


# --- factors --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change_it", "message"),
    [
        (lambda t: {"users": t["users"]}, "users and items"),
        (lambda t: {}, "none"),
        (lambda t: {**t, "users": t["users"][:5]}, "interactions.npz"),
        (lambda t: {**t, "items": t["items"][:5]}, "interactions.npz"),
        (lambda t: {k: v.to(torch.float8_e4m3fn) for k, v in t.items()}, "16, 32 or 64 bits"),
        (lambda t: {k: v[:, :0] for k, v in t.items()}, "no columns"),
        (lambda t: {**t, "users": t["users"][:, :2]}, "number of columns"),
        (lambda t: {**t, "users": t["users"][:, 0]}, "matrix"),
        (lambda t: {k: v.bool() for k, v in t.items()}, "matrix"),
        (lambda t: {k: v / 0 for k, v in t.items()}, "finite"),
    ],
)
def test_factors_that_are_none(run, change_it, message):
    tensors, facts = read_tensors(run / "factors.safetensors")
    changed = {name: part.contiguous() for name, part in change_it(tensors).items()}
    write_tensors(run / "factors.safetensors", changed, facts)
    with pytest.raises(InputError, match="factors.safetensors was changed"):
        open_recommender(run)
    sign(run)
    with pytest.raises(InputError, match=message) as caught:
        open_recommender(run)
    assert str(run) in str(caught.value)


# --- checkpoints ----------------------------------------------------------------------------

STATE = {"history": [], "since_best": 0, "worse": 0, "best": None}
ROW = {"stage": "train", "epoch": 1, "loss": 1.0, "seconds": 0.1}


@pytest.mark.parametrize(
    ("without", "replace", "state", "message"),
    [
        (["users"], {}, None, "users"),
        (["adam.items.steps"], {}, None, "adam.items.steps"),
        ([], {"users": torch.zeros(1, 3)}, None, "users"),
        ([], {"items": torch.zeros(60, 3).double()}, None, "float32"),
        ([], {"adam.users.steps": torch.full((90,), -5)}, None, "negative"),
        (["best.users"], {}, None, "best.users"),
        ([], {}, "", "state"),
        ([], {}, "{", "state"),
        ([], {}, "[]", "object"),
        ([], {}, "{}", "history"),
        ([], {}, json.dumps({**STATE, "history": 5}), "history"),
        ([], {}, json.dumps({**STATE, "history": [{}]}), "stage"),
        ([], {}, json.dumps({**STATE, "history": [{**ROW, "x": 1}]}), "x must"),
        ([], {}, json.dumps({**STATE, "since_best": "x"}), "since_best"),
        ([], {}, json.dumps({**STATE, "best": [1]}), "best"),
    ],
)  # fmt: skip
def test_checkpoints_that_cannot_be_gone_on_from(
    begun, split, tmp_path, without, replace, state, message
):
    path = Path(shutil.copytree(begun, tmp_path / "run"))
    file = path / "checkpoint.train.safetensors"
    tensors, facts = read_tensors(file)
    tensors = {name: t for name, t in {**tensors, **replace}.items() if name not in without}
    write_tensors(file, tensors, facts if state is None else {"state": state})
    with pytest.raises(InputError, match=message) as caught:
        RunDir(path).execute(split)
    assert "checkpoint.train.safetensors" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("reg.leaders", torch.tensor([90]), "reg.leaders must hold numbers of rows below 90"),
        ("reg.leaders", torch.tensor([-1]), "reg.leaders must not be negative"),
        ("reg.leaders", torch.zeros(1, 1, dtype=torch.int64), "reg.leaders must be torch.int64"),
        ("reg.calls", torch.zeros(1, dtype=torch.int64), "reg.calls must be torch.int64 of shape"),
    ],
)
def test_what_a_regularizer_keeps_is_checked_too(split, table, tmp_path, name, value, message):
    train = TRAIN.replace(reg="two_to_inf", reg_weight=1e-4, reg_refresh=3, epochs=1)
    run = RunDir.create(tmp_path / "run", RunConfig(table, train=train), split)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunDir, "write", lambda *_: None)
        run.execute(split, every=0.0)
    file = run.path / "checkpoint.train.safetensors"
    tensors, facts = read_tensors(file)
    write_tensors(file, {**tensors, name: value}, facts)
    with pytest.raises(InputError, match=message):
        run.execute(split)


# --- after a kill ---------------------------------------------------------------------------


def test_states_that_a_kill_behind_the_result_left_are_removed(run, begun):
    left = run / "checkpoint.train.safetensors"
    shutil.copy(begun / left.name, left)
    before = {path.name: path.read_bytes() for path in run.iterdir() if path != left}
    with alone_in(run, "another process"):
        assert RunDir(run).settle(), "it is finished, also while another process holds the lock"
        assert left.exists(), "the process that holds the lock removes it itself"
    assert command(["evaluate", str(run)]) == 0
    assert left.exists(), "opening a run only reads"
    assert command(["train", "--resume", str(run)]) == 0
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


def test_an_unfinished_run_keeps_its_state(begun):
    assert not RunDir(begun).settle()
    assert (begun / "checkpoint.train.safetensors").exists()


@pytest.mark.parametrize("which", ["finished", "begun"])
def test_what_was_left_next_to_a_run_is_removed(which, request, tmp_path):
    path = Path(shutil.copytree(request.getfixturevalue(which), tmp_path / "run"))
    (tmp_path / "link").symlink_to(path)
    for name in ("run", "another"):
        (tmp_path / f".{name}.0123456789abcdef.robustcf-tmp").mkdir()
    assert command(["train", "--resume", str(tmp_path / "link")]) == 0
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [".another.0123456789abcdef.robustcf-tmp", "link", "run"]
