"""``robustcf train``: presets, settings, resuming, and what is refused."""

from __future__ import annotations

import pytest

from robustcf._registry import MODELS, REGULARIZERS
from robustcf.data import load
from robustcf.experiments import RunDir
from tests.cli.conftest import FAST, PLAIN


@pytest.fixture
def train(found, table):
    return lambda out, *words: found("train", "--dataset", table, "--out", out, *words)


def test_train_reports_what_was_promised(train, call, table, tmp_path):
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
def test_every_model_with_every_regularizer(train, tmp_path, model, reg):
    words = ["--model", model, "--reg", reg]
    words += ["--reg-weight", "1e-4"] if reg != "none" else []
    words += ["--estimator", "twinest"] if reg == "two_to_inf" else []
    train(
        tmp_path / "run",
        *words,
        *(PLAIN if hasattr(MODELS[model].Config(), "factors") else PLAIN[:-2]),
    )
    config = RunDir(tmp_path / "run").config.train
    assert (config.model.name, config.reg.name) == (model, reg)
    assert reg == "none" or config.reg.settings.weight == 1e-4
    assert not config.epochs_chosen
    assert reg != "two_to_inf" or config.reg.settings.estimator == "twinest"


def test_default_place_is_new_every_time(found, table, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs = [found("train", "--dataset", table, *FAST)["run"] for _ in range(2)]
    assert runs == [f"runs/mine-ultragcn-weight_decay-seed0{end}" for end in ("", "-2")]


@pytest.mark.slow
def test_preset_is_kept_until_something_changes(found, tmp_path):
    words = ["--out", tmp_path / "run", "--threads", "1", "--seed", "3"]
    found("train", "--dataset", "demo", *words)
    config = RunDir(tmp_path / "run").config
    assert (config.preset, config.threads) == ("demo.softmax-mf.none", 1)
    assert (config.train.epochs_chosen, config.train.seed) == (True, 3)


def test_the_robust_preset_of_own_data_is_searched_for(call, table, tmp_path):
    words = ["--preset", "robust", "--refit", "no", "--minutes", "0.01"]
    code, _, said = call("train", "--dataset", table, "--out", tmp_path / "robust", *words)
    assert (code, "chosen" in said) == (0, True)
    result = RunDir(tmp_path / "robust").metrics()
    assert (result["preset"], result["test"]["ndcg@10"] > 0) == ("robust", True)
    code, _, said = call(
        "train", "--dataset", table, "--out", tmp_path / "b", *words, "--trials", 2
    )
    assert (code, "trials" in said) == (2, True)


def test_options_reach_the_configuration(train, table, tmp_path):
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


def test_pairs_come_with_the_published_step(train, tmp_path):
    options = ["--batching", "pairs", "--set", "batch_size=64", "--set", "negatives=3"]
    train(tmp_path / "run", *options, "--model", "ultragcn", "--factors", "3", "--epochs", "1")
    config = RunDir(tmp_path / "run").config.train
    assert (config.batching.kind, config.lr, config.user_lr) == ("pairs", 1e-3, None)
    assert (config.batching.batch_size, config.objective.settings.negatives) == (64, 3)


def test_resume(call, found, trained, table, tmp_path, monkeypatch):
    def interrupted(*_, **__):
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
        (["--dataset", "demo", "--resume", "x"], 1, "x is not a run directory"),
        (["--resume", "nowhere"], 1, "is not a run directory"),
        (["--dataset", "demo", "--set", "factors"], 2, "KEY=VALUE"),
        (["--dataset", "demo", "--set", "dim=3"], 1, "did you mean 'factors'"),
        (["--dataset", "demo", "--factors", "0"], 1, "factors must be"),
        (["--dataset", "demo", "--dim", "8"], 2, "--factors"),
        (["--dataset", "demo", "--device", "warp"], 1, "'warp'"),
        (["--dataset", "demo", "--threads", "0"], 1, "threads must be"),
        (["--dataset", "nothing"], 1, "'nothing'"),
        (["--dataset", "mine.csv", "--preset", "paper"], 1, "no preset"),
        (["--dataset", "mine.csv", "--preset", "robust", "--reg", "none"], 1, "regularizer itself"),
        (["--dataset", "mine.csv", "--preset", "best"], 1, "preset must be one of"),
    ],
)
def test_train_refuses(call, tmp_path, monkeypatch, words, code, reason):
    monkeypatch.chdir(tmp_path)
    got, _, err = call("train", *words)
    assert (got, err.count("\n")) == (code, 1)
    assert reason in err
    assert not list(tmp_path.iterdir())
