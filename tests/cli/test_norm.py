"""``robustcf norm``: every file type, JSON, and one-line errors."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp
import torch
from safetensors.torch import save_file

from robustcf.estimators import METHODS

rng = np.random.default_rng(0)
U, V = rng.normal(size=(30, 4)), rng.normal(size=(20, 4))
A = U @ V.T
ROWS, COLUMNS = np.linalg.norm(A, axis=1), np.linalg.norm(A, axis=0)
KEYS = {"value", "row", "lower", "upper", "products", "certified", "method", "enough"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One matrix in every kind of file."""
    home = tmp_path_factory.mktemp("matrices")
    np.save(home / "dense.npy", A)
    np.savez(home / "dense.npz", scores=A)
    sp.save_npz(home / "sparse.npz", sp.csr_matrix(A))
    np.savez(home / "factors.npz", U=U, V=V)
    scipy.io.mmwrite(home / "matrix.mtx", A)
    scipy.io.mmwrite(home / "sparse.mtx", sp.coo_matrix(A))
    save_file({"scores": torch.from_numpy(A)}, home / "dense.safetensors")
    save_file({"U": torch.from_numpy(U), "V": torch.from_numpy(V)}, home / "factors.safetensors")
    return home


def test_every_file_type(found, folder):
    for path in folder.iterdir():
        data = found("norm", path)
        assert set(data) == KEYS
        assert (data["row"], data["certified"], data["method"]) == (ROWS.argmax(), True, "exact")
        assert data["value"] == pytest.approx(ROWS.max())
        column = found("norm", path, "--norm", "one_to_two")
        assert column["value"] == pytest.approx(COLUMNS.max())
        assert column["row"] == COLUMNS.argmax()


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method(found, folder, method):
    words = [folder / "dense.npy", "--method", method, "--budget", 18, "--seed", 3]
    data = found("norm", *words, "--delta", 0.1)
    assert data["method"] == method
    assert data["products"] <= 18
    assert data["lower"] <= ROWS.max() * (1 + 1e-9)
    assert data == found("norm", *words, "--delta", 0.1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], ["||A||_2->inf =", "row", "exact;", "1 product"]),
        (["--norm", "one_to_two"], ["||A||_1->2 =", "column"]),
        (["--method", "twinest", "--budget", "11", "--seed", "0"], ["between", "0.95"]),
        (["--method", "adaptive_power", "--seed", "0"], ["not the norm of that row", "inf"]),
        (["--method", "save", "--budget", "30"], ["exact with probability 0.95"]),
    ],
)
def test_text(call, folder, words, said):
    code, out, _ = call("norm", folder / "factors.npz", *words)
    assert code == 0
    assert all(word in out for word in said)


def test_empty_matrix(call, found, tmp_path):
    np.save(tmp_path / "empty.npy", np.zeros((0, 3)))
    assert found("norm", tmp_path / "empty.npy")["row"] is None
    assert "an empty matrix" in call("norm", tmp_path / "empty.npy")[1]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["missing.npy"], 2),
        (["dense.npy", "--method", "magic"], 2),
        (["dense.npy", "--norm", "x"], 2),
        (["table.csv"], 1),
    ],
)
def test_errors(call, folder, tmp_path, words, code):
    (tmp_path / "table.csv").write_text("1,2\n")
    home = tmp_path if words[0] == "table.csv" else folder
    got, out, err = call("norm", home / words[0], *words[1:])
    assert (got, out, err.count("\n")) == (code, "", 1)
