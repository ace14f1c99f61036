"""Matrices from files: numpy's, scipy's, Matrix Market's and safetensors'."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from robustcf._io.reading import (
    check_sparse,
    open_regular,
    quiet_headers,
    read_array,
    read_arrays_of,
)
from robustcf.errors import InputError
from robustcf.estimators.lowrank import LowRank
from robustcf.estimators.matrix_market import read_matrix_market
from robustcf.estimators.operators import MatrixLike

# Parsers quote what they read, however much it is.
_LONGEST_REASON = 300


def read_matrix(path: str | PathLike[str]) -> MatrixLike:
    """Read the one matrix of a file; nothing is unpickled.

    - ``.npy``: an ndarray.
    - ``.npz``: an ndarray, a scipy sparse matrix, or factors named U and V.
    - ``.mtx``: an ndarray or a scipy sparse matrix.
    - ``.safetensors``: a tensor, or factors named U and V.

    Factors become a `LowRank`, U V^T, which is never multiplied out.

    Raises:
        InputError: another suffix, an unreadable file, several arrays or none, factors that do not
            fit, or contents beyond :mod:`robustcf._io.limits`.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder) / "factors.npz"
        ...     np.savez(file, U=np.ones((5, 2)), V=np.ones((3, 2)))
        ...     read_matrix(file).shape
        (5, 3)
    """
    path = Path(path)
    if path.suffix not in _READERS:
        raise InputError(f"expected a file ending in {', '.join(_READERS)}, got {path.name}")
    try:
        return _READERS[path.suffix](path)
    except InputError:
        raise
    except Exception as problem:  # of any parser: add the file's name
        reason = " ".join(str(problem)[:_LONGEST_REASON].split()) or type(problem).__name__
        raise InputError(f"{path} is not a readable {path.suffix} file: {reason}") from problem


def _read_npz(path: Path) -> MatrixLike:
    arrays = read_arrays_of(path)
    if {"format", "shape"} <= set(arrays):
        import scipy.sparse

        shape = arrays["shape"]
        if shape.shape != (2,) or shape.dtype.kind not in "iu":
            # Scipy would look at each of its numbers, and there may be millions.
            raise InputError(
                f"{path}: the shape of a sparse matrix must be two integers, got {shape.dtype} of "
                f"shape {shape.shape}"
            )
        with quiet_headers():  # read already, and harmless: scipy may read it again
            return _checked(scipy.sparse.load_npz(path), path)
    return _one_of(arrays, path)


def _checked(matrix: Any, path: Path) -> MatrixLike:
    """A sparse matrix within the limits for its file, with valid indices."""
    if matrix.dtype.kind == "f" and matrix.dtype.itemsize < 4:
        raise ValueError(f"its values are {matrix.dtype}, with which scipy cannot compute")
    rows, columns = matrix.shape
    compressed = matrix.format in ("csr", "csc", "bsr")
    if compressed and bool((matrix.indptr[1:] < matrix.indptr[:-1]).any()):
        # Scipy's own check passes over a matrix whose number of entries, the last one, is negative.
        raise ValueError("its index pointer must not fall")
    check_sparse(path, rows, columns, matrix.nnz, path.stat().st_size)
    if compressed:
        # Scipy does not look by itself, and its products go where the indices say.
        matrix.check_format(full_check=True)
    return matrix


def _read_safetensors(path: Path) -> MatrixLike:
    from safetensors.torch import load_file

    open_regular(path).close()
    tensors = load_file(path)
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and tensor.element_size() < 2:
            raise ValueError(f"{name} holds {tensor.dtype}, with which torch cannot compute")
    return _one_of(tensors, path)


_READERS: dict[str, Callable[[Path], MatrixLike]] = {
    ".npy": read_array,
    ".npz": _read_npz,
    ".mtx": read_matrix_market,
    ".safetensors": _read_safetensors,
}


def _one_of(arrays: Mapping[str, MatrixLike], path: Path) -> MatrixLike:
    """The only array, or the product of the factors named U and V."""
    if {"U", "V"} <= set(arrays):
        return LowRank(arrays["U"], arrays["V"])
    if len(arrays) == 1:
        return next(iter(arrays.values()))
    got = ", ".join(sorted(arrays)) or "none"
    raise InputError(f"expected one array, or factors named U and V, got {got} in {path.name}")
