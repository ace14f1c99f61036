"""``robustcf vision``: one run from training to its Jacobian, and what goes wrong."""

from __future__ import annotations

import json

import numpy as np
import pytest

from robustcf.cli.main import run

FAST = "--depth 10 --width 1 --epochs 1 --threads 1 --batch-size 32".split()


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


def test_train_writes_a_run_and_one_json_object(found, tmp_path, npz):
    out = tmp_path / "run"
    words = ["--reg", "spectral", "--reg-weight", 1e-4, "--valid-share", 0.2, "--out", out]
    settings = ["--set", "weight_decay=0.001", "--set", "reg_images=null"]
    data = found("vision", "train", "--dataset", npz, *FAST, *words, *settings)
    assert (data["reg"], data["model"]) == ("spectral", "WideResNet-10-1")
    assert {"accuracy", "fgsm", "pgd", "stable_rank", "two_to_inf"} <= set(data["test"])
    assert data["valid_accuracy"] is not None
    names = {"config.json", "environment.json", "data.json", "model.safetensors", "history.csv"}
    assert {path.name for path in out.iterdir()} == names | {"metrics.json"}
    config = json.loads((out / "config.json").read_text())
    assert (config["train"]["weight_decay"], config["train"]["reg_images"]) == (0.001, None)
    assert config["dataset"] == str(npz)


def test_text_resume_and_default_folder(call, tmp_path, monkeypatch, trained, npz):
    code, stdout, _ = call("vision", "train", "--resume", trained)
    assert code == 0
    assert all(words in stdout for words in ("accuracy", "the penalty added", f"run: {trained}"))
    monkeypatch.chdir(tmp_path)
    for expected in ("squares-none-seed0", "squares-none-seed0-2"):
        assert call("vision", "train", "--dataset", npz, *FAST)[0] == 0
        assert (tmp_path / "runs" / expected / "metrics.json").is_file()


def test_evaluate_gives_the_numbers_of_the_run_again(call, found, trained):
    stored = json.loads((trained / "metrics.json").read_text())["test"]
    assert found("vision", "evaluate", trained)["test"] == pytest.approx(stored, rel=1e-5)
    untouched = found("vision", "evaluate", trained, "--eps", 0)["test"]
    assert untouched["fgsm"] == untouched["pgd"] == untouched["accuracy"] == stored["accuracy"]
    text = call("vision", "evaluate", trained, "--jacobian-images", 2)[1]
    assert "Jacobian at 2 of them" in text


def test_jacobian_compares_estimators(call, found, trained):
    words = ["--trials", 3, "--methods", "twinest", "save", "--budgets", 5, 9]
    data = found("vision", "jacobian", trained, *words)
    assert data["shape"] == [192, 3]
    assert (len(data["points"]), len(data["singular_values"])) == (4, 3)
    assert 1 <= data["stable_rank"] <= 3
    assert data["gflops"]["jvp"] > data["gflops"]["forward"] > 0
    stdout = call("vision", "jacobian", trained, *words)[1]
    assert "twinest" in stdout
    assert "GFLOPs" in stdout


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (["train"], 2, "give either --dataset or --resume"),
        (["train", "--dataset", "digits", "--resume", "x"], 1, "x is not a run directory"),
        (["train", "--dataset", "digits", "--reg", "spectral"], 2, "needs a --reg-weight above 0"),
        (["train", "--dataset", "digits", "--depth", "11"], 1, "depth must be 10"),
        (["train", "--dataset", "digits", "--set", "x"], 2, "--set needs KEY=VALUE"),
        (["train", "--dataset", "digits", "--set", "widht=1"], 1, "did you mean 'width'"),
        (["train", "--dataset", "digits", "--device", "abacus"], 1, "cannot be used here"),
        (["train", "--dataset", "nothing"], 1, "no images are called"),
        (["train", "--dataset", "cifar100", "--no-download"], 1, "downloading is off"),
        (["train", "--resume", "nowhere"], 1, "is not a run directory"),
        (["evaluate", "nowhere"], 1, "is not a run directory"),
        (["evaluate", "RUN", "--eps", "-1"], 1, "eps must be a finite number"),
        (["jacobian", "RUN", "--image", "15"], 1, "there is no test image 15"),
        (["jacobian", "RUN", "--methods", "guess"], 1, "expected methods out of"),
    ],
)
def test_errors(call, trained, words, code, reason):
    words = [trained if word == "RUN" else word for word in words]
    got, stdout, err = call("vision", *words, "--json")
    assert (got, err.count("\n")) == (code, 1)
    assert reason in err
    assert reason in json.loads(stdout)["error"]


def test_alone_it_lists_the_sets_of_images(call, found, tmp_path):
    entries = found("vision", "--data-dir", tmp_path)["images"]
    assert [entry["name"] for entry in entries] == ["cifar10", "cifar100", "tinyimagenet"]
    assert entries[1]["classes"] == 100
    assert call("vision")[1].startswith("name")
    for words in (("--data-dir", tmp_path), ("--json",)):
        code, _, err = call("vision", *words, "evaluate", "x")
        assert (code, "behind the subcommand" in err) == (2, True)
