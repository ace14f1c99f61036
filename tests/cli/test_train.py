"""``robustcf train``: presets, settings, resuming, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from robustcf._registry import MODELS, REGULARIZERS
from robustcf.data import load
from robustcf.experiments import RunDir
from tests.cli.conftest import FAST, PLAIN


@pytest.fixture
def train(found: Any, table: Path) -> Any:
    return lambda out, *words: found("train", "--dataset", table, "--out", out, *words)


def test_train_reports_what_was_promised(train: Any, call: Any, table: Path, tmp_path: Path):
    out = tmp_path / "run"
    result = train(out, *FAST)
    assert result["run"] == str(out)
    for name in ("ndcg@10", "recall@20", "ndcg@20", "mrr@10", "coverage@10"):
        assert 0 <= result["test"][name] <= 1
        assert 0 <= result["valid"][name] <= 1
    assert result["test"]["protocol"]["masked"] == ["train", "valid"]
    assert 1 <= result["epochs"] <= 3
    assert min(result["train_seconds"], result["two_to_inf"]) > 0
    assert call("train", "--resume", out, "--json")[1]  # complete: the result is told again
    code, text, _ = call("train", "--resume", out)
    assert code == 0
    assert "full ranking, train and valid masked" in text
    assert "fit on train and valid" in text
    assert text.strip().endswith(f"run: {out}")


@pytest.mark.parametrize("model", list(MODELS))
@pytest.mark.parametrize("reg", list(REGULARIZERS))
@pytest.mark.slow
def test_every_model_with_every_regularizer(train: Any, tmp_path: Path, model: str, reg: str):
    words = ["--model", model, "--reg", reg]
    words += ["--reg-weight", "1e-4"] if reg != "none" else []
    words += ["--estimator", "twinest"] if reg == "two_to_inf" else []
    train(tmp_path / "run", *words, *(PLAIN[:-2] if model == "popularity" else PLAIN))
    config = RunDir(tmp_path / "run").config.train
    assert (config.model.name, config.reg.name) == (model, reg)
    assert reg == "none" or config.reg.settings.weight == 1e-4
    assert not config.epochs_chosen
    assert reg != "two_to_inf" or config.reg.settings.estimator == "twinest"


def test_default_place_is_new_every_time(
    found: Any, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = [found("train", "--dataset", table, *FAST)["run"] for _ in range(2)]
    assert runs == [f"runs/mine-ultragcn-weight_decay-seed0{end}" for end in ("", "-2")]


@pytest.mark.slow
def test_preset_is_kept_until_something_changes(found: Any, tmp_path: Path) -> None:
    words = ["--out", tmp_path / "run", "--threads", "1", "--seed", "3"]
    found("train", "--dataset", "demo", *words)
    config = RunDir(tmp_path / "run").config
    assert (config.preset, config.threads) == ("demo.softmax-mf.none", 1)
    assert (config.train.epochs_chosen, config.train.seed) == (True, 3)


def test_robust_preset_of_a_set_that_has_none(
    call: Any, train: Any, table: Path, tmp_path: Path
) -> None:
    words = ["--preset", "robust", "--refit", "no"]
    said = call("train", "--dataset", table, "--out", tmp_path / "robust", *words)[2]
    assert "the robust preset is not tuned for mine.csv: default.ultragcn.robust" in said
    run = RunDir(tmp_path / "robust")
    result = run.metrics()
    assert (result["preset"], result["reg"]) == ("default.ultragcn.robust", "weight_decay")
    U, V = run.recommender().factors
    torch.testing.assert_close(U.T @ U, V.T @ V, rtol=1e-3, atol=1e-3)
    # The run is evaluated as it is; the rankings are those of the factors before the gauge.
    plain = train(tmp_path / "plain", *words, "--gauge", "none")
    for name in ("ndcg@10", "recall@20"):
        assert result["test"][name] == pytest.approx(plain["test"][name], abs=1e-3)


def test_options_reach_the_configuration(train: Any, table: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    options = [
        *("--lr", "0.014", "--init", "normal", "--refit", "no", "--reg", "two_to_inf"),
        *("--reg-top", "4", "--reg-side", "items", "--reg-every", "2"),
        *("--adversarial", "softmax", "--adv-eps", "0.2", "--adv-weight", "0.5"),
        *("--set", "schedule=cosine", "--set", "patience=0", "--split-seed", "4"),
    ]
    train(out, *options, *FAST)
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


def test_pairs_come_with_the_published_step(train: Any, tmp_path: Path) -> None:
    options = ["--batching", "pairs", "--set", "batch_size=64", "--set", "negatives=3"]
    train(tmp_path / "run", *options, *FAST)
    config = RunDir(tmp_path / "run").config.train
    assert (config.batching.kind, config.lr, config.user_lr) == ("pairs", 1e-3, None)
    assert (config.batching.batch_size, config.objective.settings.negatives) == (64, 3)


def test_resume(
    call: Any, found: Any, trained: str, table: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "again"
    with monkeypatch.context() as patch:
        patch.setattr("robustcf.experiments.run.fit_split", interrupted)
        code, _, err = call("train", "--dataset", table, "--out", out, *FAST)
    assert (code, f"--resume {out}" in err) == (130, True)
    assert found("train", "--resume", out)["test"] == RunDir(trained).metrics()["test"]


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        ([], 2, "give either --dataset or --resume"),
        (["--dataset", "demo", "--resume", "x"], 1, "x is no run directory"),
        (["--resume", "nowhere"], 1, "is no run directory"),
        (["--dataset", "demo", "--set", "dim"], 2, "KEY=VALUE"),
        (["--dataset", "demo", "--set", "dmi=3"], 1, "did you mean 'dim'"),
        (["--dataset", "demo", "--dim", "0"], 1, "dim must be"),
        (["--dataset", "demo", "--device", "warp"], 1, "'warp'"),
        (["--dataset", "demo", "--threads", "0"], 1, "threads must be"),
        (["--dataset", "nothing"], 1, "'nothing'"),
        (["--dataset", "mine.csv", "--preset", "paper"], 1, "no preset"),
        (["--dataset", "mine.csv", "--preset", "robust", "--reg", "none"], 1, "regularizer itself"),
        (["--dataset", "mine.csv", "--preset", "best"], 1, "preset must be one of"),
    ],
)
def test_train_refuses(
    call: Any, tmp_path: Path, monkeypatch: Any, words: list[str], code: int, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    got, _, err = call("train", *words)
    assert (got, err.count("\n")) == (code, 1)
    assert reason in err
    assert not list(tmp_path.iterdir())
