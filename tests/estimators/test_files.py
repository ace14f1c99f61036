"""Matrices from files: every format as it was saved, one line for every mistake."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp
import torch
from safetensors.torch import save_file

from robustcf._io.limits import raised_limits
from robustcf.errors import InputError
from robustcf.estimators import LowRank, read_matrix, two_to_inf
from robustcf.estimators.files import _READERS

rng = np.random.default_rng(0)
U, V = rng.normal(size=(6, 2)), rng.normal(size=(5, 2))
A = U @ V.T
TENSORS = {"U": torch.from_numpy(U), "V": torch.from_numpy(V)}
ONE = torch.ones(1, 1)


@pytest.mark.parametrize(
    ("name", "save", "kind"),
    [
        ("a.npy", lambda path: np.save(path, A), np.ndarray),
        ("a.npz", lambda path: np.savez(path, scores=A), np.ndarray),
        ("a.mtx", lambda path: scipy.io.mmwrite(path, A, precision=17), np.ndarray),
        ("a.mtx", lambda path: scipy.io.mmwrite(path, sp.coo_matrix(A), precision=17), sp.spmatrix),
        ("a.safetensors", lambda path: save_file({"a": torch.from_numpy(A)}, path), torch.Tensor),
        *(
            ("a.npz", lambda path, f=form: sp.save_npz(path, sp.coo_matrix(A).asformat(f)), form)
            for form in ("csr", "csc", "coo", "bsr", "dia")
        ),
    ],
)
@pytest.mark.parametrize("form", [Path, str])
def test_matrices_come_back_as_they_were_saved(
    tmp_path: Path, name: str, save: Callable[[Path], None], kind: Any, form: type
) -> None:
    save(tmp_path / name)
    matrix = read_matrix(form(tmp_path / name))
    if sp.issparse(matrix):
        assert matrix.format == (kind if isinstance(kind, str) else "coo")
        matrix = matrix.toarray()
    else:
        assert isinstance(matrix, kind)
    assert matrix.dtype in (np.float64, torch.float64)
    assert np.array_equal(matrix, A)


def test_dtypes_stay_and_factors_stay_factors(tmp_path: Path) -> None:
    np.savez(tmp_path / "b.npz", A.astype(np.float32))
    assert read_matrix(tmp_path / "b.npz").dtype == np.float32
    np.savez(tmp_path / "a.npz", U=U, V=V, epoch=np.array(3))  # other arrays do not matter
    save_file(TENSORS, tmp_path / "a.safetensors")
    for suffix, numpy in ((".npz", True), (".safetensors", False)):
        matrix = read_matrix(tmp_path / f"a{suffix}")
        assert isinstance(matrix, LowRank)
        assert matrix.numpy is numpy
        assert torch.equal(matrix.U, TENSORS["U"])
        assert torch.equal(matrix.V, TENSORS["V"])


def refused(path: Path, *words: str) -> None:
    """One short line that has all the words."""
    with pytest.raises(InputError) as caught:
        read_matrix(path)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 1000
    assert all(word in message for word in words), message


def zipped() -> bytes:
    content = io.BytesIO()
    np.savez(content, a=A)
    return content.getvalue()


@pytest.mark.parametrize("name", ["table.csv", "matrix", "MATRIX.NPY"])
def test_other_endings(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("1,2\n")
    refused(tmp_path / name, "ending in .npy, .npz, .mtx, .safetensors", name)


@pytest.mark.parametrize("suffix", sorted(_READERS))
def test_files_that_cannot_be_read(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"broken{suffix}"
    refused(path, str(path), f"not a readable {suffix} file: ")
    for content in (b"", b"not a\nmatrix"):
        path.write_bytes(content)
        refused(path, str(path), f"not a readable {suffix} file: ")
    os.mkfifo(tmp_path / f"a{suffix}")
    refused(tmp_path / f"a{suffix}", "expected a regular file, got a pipe")
    (tmp_path / f"b{suffix}").symlink_to("/dev/zero")
    refused(tmp_path / f"b{suffix}", "expected a regular file, got a device")


@pytest.mark.parametrize(
    ("error", "word"), [(EOFError(), ": EOFError"), (ValueError("x" * 10**6), "xxx")]
)
def test_errors_of_parsers_are_named_and_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, word: str
) -> None:
    def fail(path: Path) -> None:
        raise error

    monkeypatch.setitem(_READERS, ".npy", fail)
    refused(tmp_path / "a.npy", "not a readable .npy file", word)


@pytest.mark.parametrize(
    ("name", "save", "word"),
    [
        ("a.npy", lambda path: path.write_bytes(zipped()), "not a readable .npy file: "),
        ("a.npy", lambda path: np.save(path, np.array([{}]), allow_pickle=True), "a pickle"),
        ("a.npz", lambda path: np.savez(path, objects=np.array([{}])), "a pickle"),
        ("a.npz", lambda path: np.savez(path, b=A, a=A), "got a, b in a.npz"),
        ("a.npz", lambda path: np.savez(path, U=U, W=V), "got U, W in a.npz"),
        ("a.npz", lambda path: np.savez(path), "got none in a.npz"),
        ("a.safetensors", lambda path: save_file({"a": ONE, "b": ONE.clone()}, path), "got a, b"),
        ("a.safetensors", lambda path: save_file({}, path), "got none"),
        ("a.safetensors", lambda p: save_file({"a": ONE.to(torch.float8_e4m3fn)}, p), "float8"),
        ("a.npz", lambda path: np.savez(path, U=U, V=V[:, :1]), "shapes (6, 2) and (5, 1)"),
    ],
)
def test_unusable_contents(
    tmp_path: Path, name: str, save: Callable[[Path], None], word: str
) -> None:
    save(tmp_path / name)
    refused(tmp_path / name, word)


# --- Matrix Market ----------------------------------------------------------------------------

BANNER = "%%MatrixMarket matrix coordinate real general\n"
ARRAY = BANNER.replace("coordinate", "array")


@pytest.mark.parametrize("symmetry", ["general", "symmetric", "skew-symmetric", "hermitian"])
@pytest.mark.parametrize("kind", [np.float64, np.int64, np.uint64, np.complex128])
@pytest.mark.parametrize("dense", [True, False])
def test_mtx_is_read_as_scipy_reads_it(
    tmp_path: Path, symmetry: str, kind: type, dense: bool
) -> None:
    kind = np.int64 if kind is np.uint64 and symmetry == "skew-symmetric" else kind
    square = rng.integers(1, 9, size=(6, 6)).astype(kind)
    if kind is np.complex128:
        square = square + 1j * rng.normal(size=(6, 6))
    if not dense:
        square = square * (rng.random((6, 6)) < 0.5)
    other = {"symmetric": square.T, "skew-symmetric": -square.T, "hermitian": square.conj().T}
    matrix = square[:, :5] if symmetry == "general" else square + other[symmetry]
    matrix = matrix.astype(kind)
    path = tmp_path / "a.mtx"
    scipy.io.mmwrite(path, matrix if dense else sp.coo_matrix(matrix), symmetry=symmetry)
    expected, found = scipy.io.mmread(path), read_matrix(path)
    assert found.dtype == expected.dtype
    if not dense:
        assert found.format == expected.format == "coo"
        expected, found = expected.toarray(), found.toarray()
    assert np.array_equal(found, expected)


def test_mtx_of_a_pattern_with_comments_and_blank_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.mtx"
    banner = BANNER.replace("real", "Pattern")
    path.write_text(banner + "% about it\n\n%more\n2 3 2\n\n1 1\n  2   3\n\n")
    assert read_matrix(path).toarray().tolist() == [[1, 0, 0], [0, 0, 1]]
    path.write_text(BANNER + "2 3 0\n")
    assert read_matrix(path).toarray().tolist() == [[0, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (BANNER + "2 2 1\n1 1 1\0\n", "could not convert"),  # scipy's reader crashes, also here:
        (ARRAY.replace("general", "symmetric") + "2 5\n1\n2\n", "must be square, got 2 x 5"),
        (BANNER + "2 2 1\n3 1 1\n", "row 3 of line 1 is not in 1 ... 2"),
        (BANNER + "2 2 1\n1 0 1\n", "column 0 of line 1 is not in 1 ... 2"),
        (BANNER + "2 2 1\n1 1 1\n1 2 1\n", "expected 1 lines of numbers, got more"),
        (BANNER + "2 2 3\n1 1 1\n", "expected 3 lines of numbers, got 1"),
        (BANNER + "2 2 3\n", "expected 3 lines of numbers, got 0"),
        (BANNER + "2 2 1\n1 1 1 1\n", "requires 3 columns but 4 were found"),
        (BANNER + "2 2\n", "the line of sizes reads '2 2"),
        (BANNER + "2 -2 1\n", "the line of sizes reads"),
        (BANNER + "2 " + "9" * 30 + " 1\n", "the line of sizes reads"),
        (BANNER, "the line of sizes reads ''"),
        ("1 2 3\n", "the first line must be"),
        (BANNER.replace("matrix coord", "vector coord"), "the first line must be"),
        (BANNER.replace("coordinate", "list"), "list of real"),
        (BANNER.replace("real", "quaternion"), "of quaternion"),
        (BANNER.replace("general", "odd"), "odd coordinate of real"),
        (ARRAY.replace("real", "pattern"), "array of pattern"),
        (BANNER + f"{10**12} {10**12} 1\n1 1 1\n", "ROBUSTCF_LIMITS=expansion="),
        (BANNER + f"{10**8} {10**8} 1\n1 1 1\n", "ROBUSTCF_LIMITS=expansion="),
        (BANNER + f"2 2 {10**11}\n1 1 1\n", "ROBUSTCF_LIMITS=expansion="),
        (ARRAY + f"{10**8} {10**8}\n1\n", "ROBUSTCF_LIMITS=expansion="),
        (BANNER + "%" * (2 << 20), "a line is longer than"),
    ],
)
def test_mtx_that_breaks_its_format_or_the_limits(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "a.mtx").write_text(text)
    refused(tmp_path / "a.mtx", reason)


def test_limits_of_sizes_can_be_raised(tmp_path: Path) -> None:
    (tmp_path / "a.mtx").write_text(BANNER + "100000 100000 1\n1 1 1.5\n")
    assert two_to_inf(read_matrix(tmp_path / "a.mtx"), 5).value == 1.5
    with raised_limits(small_bytes=1000):
        refused(tmp_path / "a.mtx", "raise the limit")
        with raised_limits(expansion=1_000_000):
            assert read_matrix(tmp_path / "a.mtx").shape == (100_000, 100_000)
    np.savez_compressed(tmp_path / "a.npz", a=np.zeros((1000, 1000)))
    assert read_matrix(tmp_path / "a.npz").shape == (1000, 1000)
    with raised_limits(small_bytes=1 << 20):
        refused(tmp_path / "a.npz", "what it holds (a) takes at least 8,000,128 bytes")


# --- sparse matrices of scipy -----------------------------------------------------------------


@pytest.mark.parametrize("layout", ["csr", "csc", "bsr"])
@pytest.mark.parametrize(
    ("name", "place", "value", "word"),
    [
        ("indices", 0.5, 10**6, "not a readable .npz file: "),
        ("indices", 0.5, -1, "not a readable .npz file: "),
        ("indptr", 0.5, 50, "not a readable .npz file: "),
        ("indptr", 0.5, -3, "pointer"),
        ("indptr", 1, -3, "pointer"),
        ("data", 0, np.float16, "float16"),
    ],
)
def test_sparse_npz_with_broken_parts(
    tmp_path: Path, layout: str, name: str, place: float, value: Any, word: str
) -> None:
    sp.save_npz(tmp_path / "a.npz", sp.coo_matrix(A).asformat(layout))
    with np.load(tmp_path / "a.npz") as archive:
        arrays = dict(archive)
    if name == "data":
        arrays[name] = arrays[name].astype(value)
    else:
        arrays[name][int(place * (len(arrays[name]) - 0.5))] = value
    np.savez(tmp_path / "a.npz", **arrays)
    refused(tmp_path / "a.npz", word)


def test_sparse_npz_beyond_the_limits(tmp_path: Path) -> None:
    sp.save_npz(tmp_path / "a.npz", sp.coo_matrix(([1.0], ([0], [0])), shape=(10**9, 10**9)))
    refused(tmp_path / "a.npz", "a 1,000,000,000 x 1,000,000,000 matrix of 1 entries")


@pytest.mark.parametrize(
    "shape",
    [np.zeros(3_000_000, np.int8), np.array(6), np.array([6.0, 5.0]), np.array([[6, 5]])],
    ids=["millions", "one", "floats", "matrix"],
)
def test_the_shape_of_a_sparse_matrix_is_two_integers(
    tmp_path: Path, shape: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scipy would look at each number of it, and quote them all."""
    monkeypatch.setattr(sp, "load_npz", lambda path: pytest.fail("scipy was asked"))
    arrays = {"format": b"dia", "data": A, "offsets": np.arange(6)}
    np.savez_compressed(tmp_path / "a.npz", shape=shape, **arrays)
    refused(tmp_path / "a.npz", "two integers")
