"""``train``, ``evaluate`` and ``recommend`` from the command line, JSON included."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import torch
from click.testing import CliRunner

from robustcf._registry import MODELS, REGULARIZERS
from robustcf.cli.evaluate import evaluate
from robustcf.cli.recommend import recommend
from robustcf.cli.reporting import Stopped
from robustcf.cli.train import train
from robustcf.data import load
from robustcf.errors import RobustcfError
from robustcf.experiments import RunDir
from robustcf.recommender import open_recommender

PLAIN = ["--dim", "6", "--epochs", "3", "--set", "block_users=20"]
FAST = ["--model", "ultragcn", *PLAIN, "--set", "negative_weight=20"]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Users u0, u1, ... with two tastes: even items, odd items."""
    rng = np.random.default_rng(0)
    lines = ["user,item"]
    for user in range(90):
        chances = np.where(np.arange(60) % 2 == user % 2, 0.6, 0.03)
        lines += [f"u{user},i{item}" for item in np.flatnonzero(rng.random(60) < chances)]
    path = tmp_path_factory.mktemp("data") / "mine.csv"
    path.write_text("\n".join(lines))
    return path


@pytest.fixture(scope="module")
def run(table: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    out = str(tmp_path_factory.mktemp("runs") / "first")
    command(train, "--dataset", str(table), "--out", out, *FAST)
    return out


def command(function: click.Command, *arguments: str) -> Any:
    """The JSON a command prints; its exceptions come through."""
    result = CliRunner().invoke(
        function, [*arguments, "--json"], catch_exceptions=False, standalone_mode=False
    )
    if result.exception is not None:
        raise result.exception
    return json.loads(result.stdout)


def test_train_reports_what_was_promised(table: Path, tmp_path: Path) -> None:
    result = command(train, "--dataset", str(table), "--out", str(tmp_path / "run"), *FAST)
    assert result["run"] == str(tmp_path / "run")
    for name in ("ndcg@10", "recall@20", "ndcg@20", "mrr@10", "coverage@10"):
        assert 0 <= result["test"][name] <= 1
        assert 0 <= result["valid"][name] <= 1
    assert result["test"]["protocol"]["masked"] == ["train", "valid"]
    assert 1 <= result["epochs"] <= 3
    assert result["train_seconds"] > 0
    assert result["two_to_inf"] > 0


@pytest.mark.parametrize("model", list(MODELS))
@pytest.mark.parametrize("reg", list(REGULARIZERS))
@pytest.mark.slow
def test_every_model_with_every_regularizer(
    table: Path, tmp_path: Path, model: str, reg: str
) -> None:
    out = str(tmp_path / "run")
    options = ["--model", model, "--reg", reg, "--reg-weight", "1e-4"]
    options += ["--estimator", "twinest"] if reg == "two_to_inf" else []
    options += FAST if model == "ultragcn" else PLAIN
    command(train, "--dataset", str(table), "--out", out, *options)
    config = RunDir(out).config.train
    assert (config.model.name, config.reg.name) == (model, reg)
    assert config.reg.settings.weight == 1e-4
    assert not config.epochs_chosen
    if reg == "two_to_inf":
        assert config.reg.settings.estimator == "twinest"


def test_text_names_the_protocol(table: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    result = CliRunner().invoke(train, ["--dataset", str(table), "--out", out, *FAST])
    assert result.exit_code == 0
    assert "full ranking, train and valid masked" in result.stdout
    assert "fit on train and valid" in result.stdout
    assert result.stdout.strip().endswith(f"run: {out}")


def test_default_place_is_new_every_time(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = [command(train, "--dataset", str(table), *FAST)["run"] for _ in range(2)]
    assert runs == [
        "runs/mine-ultragcn-weight_decay-seed0",
        "runs/mine-ultragcn-weight_decay-seed0-2",
    ]


@pytest.mark.slow
def test_preset_is_kept_until_something_changes(tmp_path: Path) -> None:
    out = tmp_path / "run"
    command(train, "--dataset", "demo", "--out", str(out), "--threads", "1", "--seed", "3")
    config = RunDir(out).config
    assert config.preset == "demo.softmax-mf.none"
    assert config.train.epochs_chosen
    assert config.train.seed == 3
    assert config.threads == 1


def test_robust_preset_of_a_set_that_has_none(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["--dataset", str(table), "--preset", "robust", "--refit", "no"]
    result = CliRunner().invoke(train, [*arguments, "--json"], catch_exceptions=False)
    assert "the robust preset is not tuned for mine.csv: default.ultragcn.robust" in result.stderr
    found = json.loads(result.stdout)
    assert found["run"] == "runs/mine-ultragcn-robust-seed0"
    assert (found["preset"], found["reg"]) == ("default.ultragcn.robust", "weight_decay")
    run = RunDir(found["run"])
    U, V = run.recommender().factors
    torch.testing.assert_close(U.T @ U, V.T @ V, rtol=1e-3, atol=1e-3)
    # The run is evaluated as it is; the rankings are those of the factors before the gauge.
    plain = command(train, *arguments, "--gauge", "none", "--out", "plain")
    for name in ("ndcg@10", "recall@20"):
        assert found["test"][name] == pytest.approx(plain["test"][name], abs=1e-3)


def test_kinds_of_presets_that_do_not_exist(table: Path, tmp_path: Path) -> None:
    for arguments, message in (
        (["--preset", "paper"], "no preset mine.csv.ultragcn.weight_decay.paper; .*citeulike-t"),
        (["--preset", "robust", "--reg", "none"], "chooses its regularizer itself"),
        (["--preset", "best"], "preset must be one of auto, tuned, robust, paper, a .json file"),
    ):
        with pytest.raises((RobustcfError, click.UsageError), match=message):
            command(train, "--dataset", str(table), "--out", str(tmp_path / "run"), *arguments)
    assert not (tmp_path / "run").exists()


def test_options_reach_the_configuration(table: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    options = [
        *("--lr", "0.014", "--init", "normal", "--refit", "no", "--reg", "two_to_inf"),
        *("--reg-top", "4", "--reg-side", "items", "--reg-every", "2"),
        *("--adversarial", "softmax", "--adv-eps", "0.2", "--adv-weight", "0.5"),
        *("--set", "schedule=cosine", "--set", "patience=0", "--split-seed", "4"),
    ]
    command(train, "--dataset", str(table), "--out", str(out), *options, *FAST)
    config = RunDir(out).config
    assert config.train.lr == 0.014
    assert config.train.user_lr == pytest.approx(0.06)  # keeps its ratio to lr
    assert config.train.model.settings.init == "normal"
    assert (config.train.refit, config.train.schedule) == ("no", "cosine")
    reg, adversary = config.train.reg.settings, config.train.adversary
    assert (reg.top, reg.side, reg.every) == (4, "items", 2)
    assert adversary.name == "softmax"
    assert (adversary.settings.eps, adversary.settings.weight) == (0.2, 0.5)
    assert config.data["seed"] == 4
    assert RunDir(out).split().fingerprint == load(table, seed=4).fingerprint


def test_pairs_come_with_the_published_step(table: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    options = ["--batching", "pairs", "--set", "batch_size=64", "--set", "negatives=3"]
    command(train, "--dataset", str(table), "--out", str(out), *options, *FAST)
    config = RunDir(out).config.train
    assert (config.batching.kind, config.lr, config.user_lr) == ("pairs", 1e-3, None)
    assert (config.batching.batch_size, config.objective.settings.negatives) == (64, 3)


def test_resume(run: str, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = command(train, "--resume", run)  # complete: the result is simply told again
    assert done == RunDir(run).metrics()

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    out = str(tmp_path / "again")
    monkeypatch.setattr("robustcf.experiments.run.fit_split", interrupted)
    with pytest.raises(Stopped, match=f"interrupted.*--resume {out}"):
        command(train, "--dataset", str(table), "--out", out, *FAST)
    monkeypatch.undo()
    monkeypatch.setenv("ROBUSTCF_CACHE", str(tmp_path / "cache"))
    resumed = command(train, "--resume", out)
    assert resumed["test"] == done["test"]


def test_interrupted_text_says_how_to_go_on(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = sys.modules["robustcf.training.fitting"]
    original, calls = training.evaluate, []

    def interrupting(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return original(*arguments, **options)

    monkeypatch.setattr(training, "evaluate", interrupting)
    out = str(tmp_path / "run")
    again = f"go on with 'robustcf train --resume {out}'"
    with pytest.raises(Stopped, match=again):
        command(train, "--dataset", str(table), "--out", out, *FAST)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give either --dataset or --resume"),
        (["--dataset", "demo", "--resume", "x"], "x is no run directory"),
        (["--dataset", "demo", "--set", "dim"], "needs KEY=VALUE"),
        (["--dataset", "demo", "--set", "dmi=3"], "did you mean 'dim'"),
        (["--dataset", "demo", "--dim", "0"], "dim must be an integer of at least 1"),
        (["--dataset", "demo", "--device", "warp"], "device 'warp' cannot be used here"),
        (["--dataset", "demo", "--threads", "0"], "threads must be an integer of at least 1"),
        (["--dataset", "nothing"], "no data set or file is called 'nothing'"),
        (["--resume", "nowhere"], "is no run directory"),
    ],
)
def test_train_refuses(arguments: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises((RobustcfError, click.UsageError), match=message):
        command(train, *arguments)


def test_evaluate(run: str) -> None:
    stored = RunDir(run).metrics()["test"]
    assert command(evaluate, run)["test"] == stored
    more = command(evaluate, run, "--k", "1", "5")["test"]
    assert {"ndcg@1", "ndcg@5"} <= set(more)
    assert "ndcg@10" not in more
    other = command(evaluate, run, "--mask", "train")["test"]
    assert other["protocol"]["masked"] == ["train"]
    text = CliRunner().invoke(evaluate, [run, "--k", "3", "--k", "10"]).stdout
    assert "pairs of train and valid masked" in text


def test_evaluate_refuses(run: str, table: Path, tmp_path: Path) -> None:
    for arguments, message in (
        ([run, "--part", "valid"], "fit on train and valid"),
        ([run, "7"], "unexpected extra argument"),
        ([run, "--k", "0"], "range"),
        ([str(tmp_path)], "recommender.json"),
    ):
        with pytest.raises((RobustcfError, click.UsageError), match=message):
            command(evaluate, *arguments)


def test_recommend_to_known_users(run: str, table: Path) -> None:
    result = command(recommend, run, "--user", "u3", "u8", "-k", "5")
    split = load(table)
    assert [entry["user"] for entry in result["recommendations"]] == ["u3", "u8"]
    for entry in result["recommendations"]:
        user = split.user_labels.tolist().index(entry["user"])
        own = set(split.item_labels[split.train_full.items_of(user)].tolist())
        assert len(entry["items"]) == 5
        assert not own & set(entry["items"])
        assert entry["scores"] == sorted(entry["scores"], reverse=True)
    repeated = command(recommend, run, "--user", "u3", "--user", "u8", "-k", "5")
    assert repeated == result
    text = CliRunner().invoke(recommend, [run, "--user", "u3", "-k", "2"]).stdout
    assert text.startswith("u3: i")


@pytest.mark.parametrize("model", ["ultragcn", "bpr-mf"])
@pytest.mark.parametrize("reg", ["weight_decay", "none"])
@pytest.mark.parametrize("gauge", ["none", "balanced"])
def test_recommend_folds_a_new_user_in(
    table: Path, tmp_path: Path, model: str, reg: str, gauge: str
) -> None:
    out = str(tmp_path / "run")
    fast = FAST if model == "ultragcn" else PLAIN
    options = ["--model", model, "--reg", reg, *fast, "--epochs", "12", "--gauge", gauge]
    command(train, "--dataset", str(table), "--out", out, *options)
    own = [f"i{n}" for n in range(0, 24, 2)]
    (entry,) = command(recommend, out, "--items", *own, "-k", "10")["recommendations"]
    assert entry["user"] is None
    assert not set(own) & set(entry["items"])
    even = sum(int(item[1:]) % 2 == 0 for item in entry["items"])
    assert even >= 8  # somebody with even items wants even items


def test_recommend_without_labels(tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    command(train, "--dataset", "demo", "--out", out, "--dim", "4", "--epochs", "1")
    (entry,) = command(recommend, out, "--user", "7", "-k", "3")["recommendations"]
    assert all(isinstance(item, int) for item in entry["items"])
    with pytest.raises(RobustcfError, match="unknown user 2000.*1999"):
        command(recommend, out, "--user", "2000")


def test_recommend_refuses(run: str) -> None:
    for arguments, message in (
        ([run], "give either --user or --items"),
        ([run, "--user", "u1", "--items", "i1"], "give either --user or --items"),
        ([run, "--user", "u333"], "unknown user 'u333'.*'u33'"),
        ([run, "--items", "?"], r"unknown item '\?'$"),
        ([run, "--user", "u1", "-k", "0"], "not in the range x>=1"),
    ):
        with pytest.raises((RobustcfError, click.UsageError), match=message):
            command(recommend, *arguments)


def test_a_recommender_without_interactions_serves_new_users(run: str, tmp_path: Path) -> None:
    folder = open_recommender(run).save(tmp_path / "bare", include_interactions=False)
    asked = ["--items", "i2", "i4", "-k", "5"]
    found, whole = (
        command(recommend, each, *asked)["recommendations"][0] for each in (str(folder), run)
    )
    # The graph of the items is not known here: scores are close, lists are the same.
    assert found["items"] == whole["items"]
    assert found["scores"] == pytest.approx(whole["scores"], rel=0.02)
    for refused, *words in ((recommend, "--user", "u1"), (evaluate,)):
        with pytest.raises(RobustcfError, match="interactions"):
            command(refused, str(folder), *words)


def test_a_saved_recommender_is_opened_as_a_run_is(run: str, tmp_path: Path) -> None:
    folder = str(open_recommender(run).save(tmp_path / "saved"))
    assert command(evaluate, folder)["test"] == command(evaluate, run)["test"]
    for words in (["--user", "u3"], ["--items", "i2", "i4"]):
        one, other = (command(recommend, each, *words)["recommendations"] for each in (folder, run))
        assert one == other
