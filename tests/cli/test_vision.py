"""``robustcf vision``: one run from training to its Jacobian, and what goes wrong."""

from __future__ import annotations

import json

import numpy as np
import pytest

from robustcf.cli.main import run

FAST = "--depth 10 --width 1 --epochs 1 --threads 1 --batch-size 32".split()


def call(capsys, *words):
    code = run([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture(scope="module")
def npz(tmp_path_factory):
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("images") / "squares.npz"
    y = np.arange(60) % 3
    x = rng.integers(0, 60, size=(60, 8, 8, 3), dtype=np.uint8)
    for n, label in enumerate(y):
        x[n, :, :, label] += 150
    np.savez(path, x_train=x[:45], y_train=y[:45], x_test=x[45:], y_test=y[45:])
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory, npz):
    folder = tmp_path_factory.mktemp("runs") / "one"
    words = ["vision", "train", "--dataset", npz, *FAST, "--reg", "two_to_inf", "--reg-weight",
             "0.01", "--out", folder]  # fmt: skip
    assert run([str(word) for word in words]) == 0
    return folder


def test_train_writes_a_run_and_one_json_object(capsys, tmp_path, npz):
    out = tmp_path / "run"
    code, stdout, _ = call(
        capsys, "vision", "train", "--dataset", npz, *FAST, "--reg", "spectral",
        "--reg-weight", 1e-4, "--valid-share", 0.2, "--set", "weight_decay=0.001",
        "--set", "reg_images=null",
        "--out", out, "--json",
    )  # fmt: skip
    assert code == 0
    data = json.loads(stdout)
    assert data["reg"] == "spectral"
    assert data["model"] == "WideResNet-10-1"
    assert {"accuracy", "fgsm", "pgd", "stable_rank", "two_to_inf"} <= set(data["test"])
    assert data["valid_accuracy"] is not None
    names = {"config.json", "environment.json", "data.json", "model.safetensors", "history.csv",
             "metrics.json"}  # fmt: skip
    assert {path.name for path in out.iterdir()} == names
    config = json.loads((out / "config.json").read_text())
    assert config["train"]["weight_decay"] == 0.001
    assert config["train"]["reg_images"] is None
    assert config["dataset"] == str(npz)


def test_text_resume_and_default_folder(capsys, tmp_path, monkeypatch, trained, npz):
    code, stdout, _ = call(capsys, "vision", "train", "--resume", trained)
    assert code == 0
    assert "accuracy" in stdout
    assert "the penalty added" in stdout
    assert f"run: {trained}" in stdout
    monkeypatch.chdir(tmp_path)
    for expected in ("squares-none-seed0", "squares-none-seed0-2"):
        code, stdout, _ = call(capsys, "vision", "train", "--dataset", npz, *FAST)
        assert code == 0
        assert (tmp_path / "runs" / expected / "metrics.json").is_file()


def test_evaluate_gives_the_numbers_of_the_run_again(capsys, trained):
    code, stdout, _ = call(capsys, "vision", "evaluate", trained, "--json")
    assert code == 0
    stored = json.loads((trained / "metrics.json").read_text())["test"]
    found = json.loads(stdout)["test"]
    assert found == pytest.approx(stored, rel=1e-5)
    code, stdout, _ = call(capsys, "vision", "evaluate", trained, "--eps", 0, "--json")
    untouched = json.loads(stdout)["test"]
    assert untouched["fgsm"] == untouched["pgd"] == untouched["accuracy"] == stored["accuracy"]
    code, stdout, _ = call(capsys, "vision", "evaluate", trained, "--jacobian-images", 2)
    assert "Jacobian at 2 of them" in stdout


def test_jacobian_compares_estimators(capsys, trained):
    words = ["--trials", 3, "--methods", "twinest", "save", "--budgets", 5, 9]
    code, stdout, _ = call(capsys, "vision", "jacobian", trained, *words, "--json")
    assert code == 0
    data = json.loads(stdout)
    assert data["shape"] == [192, 3]
    assert len(data["points"]) == 4
    assert len(data["singular_values"]) == 3
    assert 1 <= data["stable_rank"] <= 3
    assert data["gflops"]["jvp"] > data["gflops"]["forward"] > 0
    code, stdout, _ = call(capsys, "vision", "jacobian", trained, *words)
    assert "twinest" in stdout
    assert "GFLOPs" in stdout


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (["train"], 2, "give either --dataset or --resume"),
        (["train", "--dataset", "digits", "--resume", "x"], 1, "x is no run directory"),
        (["train", "--dataset", "digits", "--reg", "spectral"], 2, "needs a --reg-weight above 0"),
        (["train", "--dataset", "digits", "--depth", "11"], 1, "depth must be 10"),
        (["train", "--dataset", "digits", "--set", "x"], 2, "--set needs KEY=VALUE"),
        (["train", "--dataset", "digits", "--set", "widht=1"], 1, "did you mean 'width'"),
        (["train", "--dataset", "digits", "--device", "abacus"], 1, "cannot be used here"),
        (["train", "--dataset", "nothing"], 1, "no images are called"),
        (["train", "--dataset", "cifar100", "--no-download"], 1, "downloading is off"),
        (["train", "--resume", "nowhere"], 1, "is no run directory"),
        (["evaluate", "nowhere"], 1, "is no run directory"),
        (["evaluate", "RUN", "--eps", "-1"], 1, "eps must be a finite number"),
        (["jacobian", "RUN", "--image", "15"], 1, "there is no test image 15"),
        (["jacobian", "RUN", "--methods", "guess"], 1, "expected methods out of"),
    ],
)
def test_errors(capsys, trained, words, code, reason):
    words = [str(trained) if word == "RUN" else word for word in words]
    got, stdout, err = call(capsys, "vision", *words, "--json")
    assert got == code
    assert reason in err
    assert err.count("\n") == 1
    assert reason in json.loads(stdout)["error"]


def test_alone_it_lists_the_sets_of_images(capsys, tmp_path):
    code, stdout, _ = call(capsys, "vision", "--data-dir", tmp_path, "--json")
    assert code == 0
    entries = json.loads(stdout)["images"]
    assert [entry["name"] for entry in entries] == ["cifar10", "cifar100", "tinyimagenet"]
    assert entries[1]["classes"] == 100
    assert call(capsys, "vision")[1].startswith("name")
    for words in (("--data-dir", tmp_path), ("--json",)):
        code, _, err = call(capsys, "vision", *words, "evaluate", "x")
        assert code == 2
        assert "behind the subcommand" in err


def test_help_names_every_option(capsys):
    for command in ("train", "evaluate", "jacobian"):
        code, stdout, _ = call(capsys, "vision", command, "--help")
        assert code == 0
        assert "--json" in stdout
