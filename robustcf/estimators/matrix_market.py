"""Matrix Market files, read so that no file can do harm.

scipy's reader writes outside its arrays for some damaged files (a zero byte in a number, a
symmetric matrix that is not square) and trusts the sizes of the header. Here they are checked
against the size of the file, and numpy parses the numbers.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from robustcf._io.limits import check_expansion, limits
from robustcf._io.reading import check_sparse, open_content, open_regular, size_of

_LONGEST_NUMBER = 18  # digits of a size
# Field -> numbers per value, and their dtype.
_FIELDS: dict[str, tuple[int, type[np.generic]]] = {
    "real": (1, np.float64),
    "double": (1, np.float64),
    "integer": (1, np.int64),
    "unsigned-integer": (1, np.uint64),
    "complex": (2, np.float64),
    "pattern": (0, np.float64),
}
_SYMMETRIES = ("general", "symmetric", "skew-symmetric", "hermitian")
_Array = npt.NDArray[Any]


class _Header(NamedTuple):
    layout: str  # array or coordinate
    field: str
    symmetry: str
    rows: int
    columns: int
    entries: int  # lines that follow


def read_matrix_market(path: Path) -> Any:
    """Read a Matrix Market file as an ndarray or a scipy COO matrix.

    Raises:
        DataError: the file is not regular, or its sizes exceed the limits.
        ValueError: it breaks the format.
    """
    with open_regular(path) as handle:
        size = size_of(handle)
    with open_content(path, longest_line=limits().line_bytes) as handle:
        header = _header(handle)
        shape = header.rows, header.columns
        if header.layout == "array":
            needed = 8 * max(1, _FIELDS[header.field][0]) * header.rows * header.columns
            check_expansion(path, f"a {shape[0]:,} x {shape[1]:,} matrix", needed, size)
            (), values = _body(handle, header, 0)
            if header.symmetry == "general":
                return values.reshape(shape, order="F")
            # Column by column below the diagonal is row by row above it.
            columns, rows = np.triu_indices(shape[0], int(header.symmetry == "skew-symmetric"))
            matrix = np.zeros(shape, values.dtype)
            rows, columns, values = _whole(header.symmetry, rows, columns, values)
            matrix[rows, columns] = values
            return matrix
        check_sparse(path, *shape, header.entries, size)
        (rows, columns), values = _body(handle, header, 2)
    import scipy.sparse

    for name, index, count in (("row", rows, shape[0]), ("column", columns, shape[1])):
        wrong = np.flatnonzero((index < 0) | (index >= count))
        if len(wrong):
            got = int(index[wrong[0]]) + 1
            raise ValueError(f"{name} {got} of line {int(wrong[0]) + 1} is not in 1 ... {count}")
    rows, columns, values = _whole(header.symmetry, rows, columns, values)
    return scipy.sparse.coo_matrix((values, (rows, columns)), shape)


def _header(handle: BinaryIO) -> _Header:
    words = handle.readline().decode("latin-1").lower().split()
    if len(words) != 5 or words[:2] != ["%%matrixmarket", "matrix"]:
        raise ValueError("the first line must be '%%MatrixMarket matrix LAYOUT FIELD SYMMETRY'")
    layout, field, symmetry = words[2:]
    known = layout in ("array", "coordinate") and field in _FIELDS and symmetry in _SYMMETRIES
    if not known or (layout, field) == ("array", "pattern"):
        raise ValueError(f"unknown format: {symmetry[:20]} {layout[:20]} of {field[:20]} values")
    line = b"%"
    while line[:1] == b"%" or line.isspace():
        line = handle.readline()
    sizes = line.decode("latin-1").split()
    if len(sizes) != (2 if layout == "array" else 3) or not all(map(_is_size, sizes)):
        raise ValueError(f"the line of sizes reads {line[:60].decode('latin-1')!r}")
    rows, columns, *entries = map(int, sizes)
    if symmetry != "general" and rows != columns:
        raise ValueError(f"a {symmetry} matrix must be square, got {rows} x {columns}")
    # A dense file holds all values, or those of the lower triangle.
    diagonal = -1 if symmetry == "skew-symmetric" else 1
    dense = rows * columns if symmetry == "general" else rows * (rows + diagonal) // 2
    return _Header(layout, field, symmetry, rows, columns, entries[0] if entries else dense)


def _is_size(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _LONGEST_NUMBER


def _body(handle: BinaryIO, header: _Header, indices: int) -> tuple[list[_Array], _Array]:
    """Index arrays, from 0, and values of all lines."""
    numbers, kind = _FIELDS[header.field]
    kinds = [np.int64] * indices + [kind] * numbers
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of files without numbers: counted below
        body: _Array = np.loadtxt(
            handle,
            dtype=np.dtype([(str(n), kind) for n, kind in enumerate(kinds)]),
            comments=None,
            encoding="latin-1",
            ndmin=1,
            max_rows=header.entries + 1,  # one more than there should be: too many show
        )
    if body.shape != (header.entries,):
        got = "more" if len(body) > header.entries else f"{len(body):,}"
        raise ValueError(f"expected {header.entries:,} lines of numbers, got {got}")
    values = [np.ascontiguousarray(body[str(indices + n)]) for n in range(numbers)]
    whole = values[0] + 1j * values[1] if numbers == 2 else (*values, np.ones(len(body)))[0]
    return [body[str(n)] - 1 for n in range(indices)], whole


def _whole(
    symmetry: str, rows: _Array, columns: _Array, values: _Array
) -> tuple[_Array, _Array, _Array]:
    """Add the entries on the other side of the diagonal."""
    if symmetry == "general":
        return rows, columns, values
    off = rows != columns
    mirrored = -values[off] if symmetry == "skew-symmetric" else values[off]
    return (
        np.concatenate((rows, columns[off])),
        np.concatenate((columns, rows[off])),
        np.concatenate((values, np.conj(mirrored) if symmetry == "hermitian" else mirrored)),
    )
