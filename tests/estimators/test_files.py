"""Matrices from files: every format as it was saved, every mistake in one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp
import torch
from safetensors.torch import save_file

from robustcf.errors import InputError
from robustcf.estimators import LowRank, read_matrix
from robustcf.estimators.files import _READERS

rng = np.random.default_rng(0)
U, V = rng.normal(size=(6, 2)), rng.normal(size=(5, 2))
A = U @ V.T


@pytest.mark.parametrize("form", [Path, str])
def test_npy(tmp_path: Path, form: type) -> None:
    np.save(tmp_path / "a.npy", A)
    matrix = read_matrix(form(tmp_path / "a.npy"))
    assert isinstance(matrix, np.ndarray)
    assert np.array_equal(matrix, A)


def test_npz_with_one_array(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", scores=A.astype(np.float32))
    matrix = read_matrix(tmp_path / "a.npz")
    assert matrix.dtype == np.float32
    assert np.array_equal(matrix, A.astype(np.float32))


@pytest.mark.parametrize("layout", ["csr", "csc", "coo", "bsr", "dia"])
def test_npz_of_scipy(tmp_path: Path, layout: str) -> None:
    sp.save_npz(tmp_path / "a.npz", sp.coo_matrix(A).asformat(layout))
    matrix = read_matrix(tmp_path / "a.npz")
    assert sp.issparse(matrix)
    assert matrix.format == layout
    assert np.array_equal(matrix.toarray(), A)


def test_npz_with_factors(tmp_path: Path) -> None:
    # Whatever else is saved beside them, U and V are the factors, and they stay factors.
    np.savez(tmp_path / "a.npz", U=U, V=V, epoch=np.array(3))
    matrix = read_matrix(tmp_path / "a.npz")
    assert isinstance(matrix, LowRank)
    assert matrix.numpy
    assert np.array_equal(matrix.U.numpy(), U)
    assert np.array_equal(matrix.V.numpy(), V)


def test_mtx_dense(tmp_path: Path) -> None:
    scipy.io.mmwrite(tmp_path / "a.mtx", A, precision=17)
    matrix = read_matrix(tmp_path / "a.mtx")
    assert isinstance(matrix, np.ndarray)
    assert np.array_equal(matrix, A)


def test_mtx_sparse(tmp_path: Path) -> None:
    scipy.io.mmwrite(tmp_path / "a.mtx", sp.coo_matrix(A), precision=17)
    matrix = read_matrix(tmp_path / "a.mtx")
    assert sp.issparse(matrix)
    assert np.array_equal(matrix.toarray(), A)


def test_safetensors_with_one_tensor(tmp_path: Path) -> None:
    save_file({"scores": torch.from_numpy(A)}, tmp_path / "a.safetensors")
    matrix = read_matrix(tmp_path / "a.safetensors")
    assert torch.equal(matrix, torch.from_numpy(A))


def test_safetensors_with_factors(tmp_path: Path) -> None:
    tensors = {"U": torch.from_numpy(U), "V": torch.from_numpy(V)}
    save_file(tensors, tmp_path / "a.safetensors")
    matrix = read_matrix(tmp_path / "a.safetensors")
    assert isinstance(matrix, LowRank)
    assert not matrix.numpy
    assert torch.equal(matrix.U, tensors["U"])
    assert torch.equal(matrix.V, tensors["V"])


def _message(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_matrix(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", ["table.csv", "matrix", "MATRIX.NPY"])
def test_other_endings(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("1,2\n")
    assert _message(tmp_path / name) == (
        f"expected a file ending in .npy, .npz, .mtx, .safetensors, got {name}: convert it first"
    )


@pytest.mark.parametrize("suffix", sorted(_READERS))
@pytest.mark.parametrize("content", [b"", b"not a\nmatrix", None])
def test_unreadable(tmp_path: Path, suffix: str, content: bytes | None) -> None:
    path = tmp_path / f"broken{suffix}"
    if content is not None:
        path.write_bytes(content)
    assert _message(path).startswith(f"{path} is no readable {suffix} file: ")


def test_a_parser_without_words_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mute(path: Path) -> None:
        raise EOFError

    monkeypatch.setitem(_READERS, ".npy", mute)
    assert _message(tmp_path / "a.npy").endswith("is no readable .npy file: EOFError")


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    objects = np.array([{}])
    np.save(tmp_path / "a.npy", objects, allow_pickle=True)
    np.savez(tmp_path / "a.npz", objects=objects)
    assert "no readable .npy file: Object arrays" in _message(tmp_path / "a.npy")
    assert "no readable .npz file: Object arrays" in _message(tmp_path / "a.npz")


def test_several_arrays_or_none(tmp_path: Path) -> None:
    wanted = "expected one array, or factors named U and V, got"
    np.savez(tmp_path / "many.npz", b=A, a=A)
    np.savez(tmp_path / "half.npz", U=U, W=V)
    np.savez(tmp_path / "none.npz")
    save_file({"a": torch.ones(1, 1), "b": torch.ones(1, 1)}, tmp_path / "many.safetensors")
    save_file({}, tmp_path / "none.safetensors")
    for name, got in {
        "many.npz": "a, b",
        "half.npz": "U, W",
        "none.npz": "none",
        "many.safetensors": "a, b",
        "none.safetensors": "none",
    }.items():
        assert _message(tmp_path / name) == f"{wanted} {got} in {name}: save just one"


def test_factors_that_do_not_fit(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", U=U, V=V[:, :1])
    assert "same r, got shapes (6, 2) and (5, 1)" in _message(tmp_path / "a.npz")
