"""Matrices from files: every format as it was saved, every mistake in one line."""

from __future__ import annotations

import os
from pathlib import Path

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


@pytest.mark.parametrize("layout", ["csr", "csc"])
def test_npz_of_scipy_with_less_than_no_entries(tmp_path: Path, layout: str) -> None:
    matrix = sp.coo_matrix(A).asformat(layout)
    sp.save_npz(tmp_path / "a.npz", matrix)
    with np.load(tmp_path / "a.npz") as parts:
        spoilt = dict(parts)
    spoilt["indptr"][-1] = -3
    np.savez(tmp_path / "a.npz", **spoilt)
    with pytest.raises(InputError, match="pointer"):
        read_matrix(tmp_path / "a.npz")


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
    assert "an array of objects, which is a pickle: refused" in _message(tmp_path / "a.npy")
    assert "an array of objects, which is a pickle: refused" in _message(tmp_path / "a.npz")


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


# --- files that mean harm -------------------------------------------------------------------

BANNER = "%%MatrixMarket matrix coordinate real general\n"


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
        (BANNER + "2 2 1\n1 1 1\0\n", "could not convert"),  # scipy's reader crashes
        (
            BANNER.replace("coordinate", "array").replace("general", "symmetric") + "2 5\n1\n2\n",
            "must be square, got 2 x 5",  # likewise
        ),
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
        (BANNER.replace("real", "quaternion"), "of quaternion values is not known"),
        (BANNER.replace("general", "odd"), "a odd coordinate of real values is not known"),
        (
            BANNER.replace("coordinate real", "array pattern"),
            "array of pattern values is not known",
        ),
    ],
)
def test_mtx_that_breaks_its_format(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "a.mtx").write_text(text)
    message = _message(tmp_path / "a.mtx")
    assert "is no readable .mtx file: " in message
    assert reason in message


@pytest.mark.parametrize(
    "text",
    [
        BANNER + f"{10**12} {10**12} 1\n1 1 1\n",
        BANNER + f"{10**8} {10**8} 1\n1 1 1\n",
        BANNER + f"2 2 {10**11}\n1 1 1\n",
        BANNER.replace("coordinate", "array") + f"{10**8} {10**8}\n1\n",
    ],
)
def test_mtx_of_sizes_that_its_file_cannot_answer_for(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.mtx").write_text(text)
    assert "raise the limit: ROBUSTCF_LIMITS=expansion=" in _message(tmp_path / "a.mtx")


def test_mtx_of_a_size_that_is_allowed_can_be_raised(tmp_path: Path) -> None:
    (tmp_path / "a.mtx").write_text(BANNER + "100000 100000 1\n1 1 1.5\n")
    assert two_to_inf(read_matrix(tmp_path / "a.mtx"), 5).value == 1.5
    with raised_limits(small_bytes=1000):
        assert "raise the limit" in _message(tmp_path / "a.mtx")
        with raised_limits(expansion=1_000_000):
            assert read_matrix(tmp_path / "a.mtx").shape == (100_000, 100_000)


def test_mtx_with_a_header_line_that_does_not_end(tmp_path: Path) -> None:
    (tmp_path / "a.mtx").write_text(BANNER + "%" * (2 << 20))
    assert "a line is longer than" in _message(tmp_path / "a.mtx")


def test_sparse_npz_of_a_size_that_its_file_cannot_answer_for(tmp_path: Path) -> None:
    wide = sp.coo_matrix(([1.0], ([0], [0])), shape=(10**9, 10**9))
    sp.save_npz(tmp_path / "a.npz", wide)
    assert "a 1,000,000,000 x 1,000,000,000 matrix of 1 entries" in _message(tmp_path / "a.npz")


@pytest.mark.parametrize("layout", ["csr", "csc", "bsr"])
@pytest.mark.parametrize(
    ("name", "value"), [("indices", 10**6), ("indices", -1), ("indptr", 50), ("indptr", -3)]
)
def test_sparse_npz_whose_indices_lead_out(
    tmp_path: Path, layout: str, name: str, value: int
) -> None:
    sp.save_npz(tmp_path / "a.npz", sp.coo_matrix(A).asformat(layout))
    with np.load(tmp_path / "a.npz") as archive:
        arrays = dict(archive)
    arrays[name][len(arrays[name]) // 2] = value
    np.savez(tmp_path / "a.npz", **arrays)
    assert "is no readable .npz file: " in _message(tmp_path / "a.npz")


def test_sparse_npz_of_half_precision(tmp_path: Path) -> None:
    sp.save_npz(tmp_path / "a.npz", sp.csr_matrix(A))
    with np.load(tmp_path / "a.npz") as archive:
        arrays = dict(archive)
    np.savez(tmp_path / "a.npz", **arrays | {"data": arrays["data"].astype(np.float16)})
    assert "float16" in _message(tmp_path / "a.npz")


def test_safetensors_of_a_quarter_precision(tmp_path: Path) -> None:
    tensor = torch.ones(2, 2).to(torch.float8_e4m3fn)
    save_file({"a": tensor}, tmp_path / "a.safetensors")
    assert "a holds torch.float8_e4m3fn" in _message(tmp_path / "a.safetensors")


def test_npz_that_grows_without_bound(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", a=np.zeros((1000, 1000)))
    with raised_limits(small_bytes=1 << 20):
        assert "what it holds (a) takes at least 8,000,128 bytes" in _message(tmp_path / "a.npz")
    assert read_matrix(tmp_path / "a.npz").shape == (1000, 1000)


def test_npy_that_is_another_kind_of_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", a=A)
    (tmp_path / "a.npz").rename(tmp_path / "a.npy")
    assert "is no readable .npy file: " in _message(tmp_path / "a.npy")


@pytest.mark.parametrize("suffix", sorted(_READERS))
def test_pipes_and_devices_are_no_files(tmp_path: Path, suffix: str) -> None:
    os.mkfifo(tmp_path / f"a{suffix}")
    assert "expected a regular file, got a pipe" in _message(tmp_path / f"a{suffix}")
    (tmp_path / f"b{suffix}").symlink_to("/dev/zero")
    assert "expected a regular file, got a device" in _message(tmp_path / f"b{suffix}")


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
    with pytest.raises(InputError, match="integers") as refusal:
        read_matrix(tmp_path / "a.npz")
    assert len(str(refusal.value)) < 1000


def test_what_a_parser_quotes_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> None:
        raise ValueError("x" * 10**6)

    monkeypatch.setitem(_READERS, ".npy", fail)
    with pytest.raises(InputError, match="xxx") as refusal:
        read_matrix(tmp_path / "a.npy")
    assert len(str(refusal.value)) < 1000
