"""``robustcf norm``: every file type, JSON, and one-line errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp
import torch
from click.testing import CliRunner
from safetensors.torch import save_file

from robustcf.cli.norm import norm
from robustcf.errors import InputError
from robustcf.estimators import METHODS as KNOWN

rng = np.random.default_rng(0)
U, V = rng.normal(size=(30, 4)), rng.normal(size=(20, 4))
A = U @ V.T
ROWS, COLUMNS = np.linalg.norm(A, axis=1), np.linalg.norm(A, axis=0)
KEYS = {"value", "row", "lower", "upper", "products", "certified", "method"}


def _write(folder: Path) -> dict[str, Path]:
    paths = {name: folder / name for name in (
        "dense.npy", "dense.npz", "sparse.npz", "factors.npz", "matrix.mtx", "sparse.mtx",
        "dense.safetensors", "factors.safetensors",
    )}  # fmt: skip
    np.save(paths["dense.npy"], A)
    np.savez(paths["dense.npz"], scores=A)
    sp.save_npz(paths["sparse.npz"], sp.csr_matrix(A))
    np.savez(paths["factors.npz"], U=U, V=V)
    scipy.io.mmwrite(paths["matrix.mtx"], A)
    scipy.io.mmwrite(paths["sparse.mtx"], sp.coo_matrix(A))
    save_file({"scores": torch.from_numpy(A)}, paths["dense.safetensors"])
    save_file({"U": torch.from_numpy(U), "V": torch.from_numpy(V)}, paths["factors.safetensors"])
    return paths


def _json(*arguments: object) -> dict[str, Any]:
    result = CliRunner().invoke(norm, [*map(str, arguments), "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    data: dict[str, Any] = json.loads(result.stdout)
    return data


def test_every_file_type(tmp_path: Path) -> None:
    for path in _write(tmp_path).values():
        data = _json(path)
        assert set(data) == KEYS
        assert data["value"] == pytest.approx(ROWS.max())
        assert data["row"] == ROWS.argmax()
        assert data["certified"] is True
        assert data["method"] == "exact"
        column = _json(path, "--norm", "one_to_two")
        assert column["value"] == pytest.approx(COLUMNS.max())
        assert column["row"] == COLUMNS.argmax()


@pytest.mark.parametrize("method", sorted(KNOWN))
def test_every_method(method: str, tmp_path: Path) -> None:
    path = _write(tmp_path)["dense.npy"]
    data = _json(path, "--method", method, "--budget", 18, "--seed", 3, "--delta", 0.1)
    assert data["method"] == method
    assert data["products"] <= 18
    assert data["lower"] <= ROWS.max() * (1 + 1e-9)
    assert data == _json(path, "--method", method, "--budget", 18, "--seed", 3, "--delta", 0.1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), ["||A||_2->inf =", "row", "exact;", "1 product"]),
        (("--norm", "one_to_two"), ["||A||_1->2 =", "column"]),
        (("--method", "twinest", "--budget", "11", "--seed", "0"), ["between", "0.95"]),
        (("--method", "adaptive_power", "--seed", "0"), ["not the norm of that row", "inf"]),
        (("--method", "save", "--budget", "30"), ["exact with probability 0.95"]),
    ],
)
def test_text(arguments: tuple[str, ...], words: list[str], tmp_path: Path) -> None:
    path = _write(tmp_path)["factors.npz"]
    result = CliRunner().invoke(norm, [str(path), *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    for word in words:
        assert word in result.stdout


def test_empty_matrix(tmp_path: Path) -> None:
    np.save(tmp_path / "empty.npy", np.zeros((0, 3)))
    assert _json(tmp_path / "empty.npy")["row"] is None
    result = CliRunner().invoke(norm, [str(tmp_path / "empty.npy")])
    assert "an empty matrix" in result.stdout


def test_unreadable_files_are_one_line_errors(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("1,2\n")
    with pytest.raises(InputError, match="expected a file ending in") as caught:
        CliRunner().invoke(norm, [str(tmp_path / "table.csv")], catch_exceptions=False)
    assert "\n" not in str(caught.value)


def test_usage_errors(tmp_path: Path) -> None:
    path = _write(tmp_path)["dense.npy"]
    for arguments in (
        ["missing.npy"],
        [str(path), "--method", "magic"],
        [str(path), "--norm", "x"],
    ):
        assert CliRunner().invoke(norm, arguments).exit_code == 2
