"""Matrix Market files, read so that no file can do harm.

scipy's reader writes outside its arrays for some damaged files (a zero byte in a number, a
symmetric matrix that is not square) and takes sizes at their word. Here the header is checked
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
_NUMBERS_A_VALUE = {
    "real": 1,
    "double": 1,
    "integer": 1,
    "unsigned-integer": 1,
    "complex": 2,
    "pattern": 0,
}
_DTYPES: dict[str, type[np.generic]] = {
    "integer": np.int64,
    "unsigned-integer": np.uint64,
    "complex": np.complex128,
}
_SYMMETRIES = ("general", "symmetric", "skew-symmetric", "hermitian")


class _Header(NamedTuple):
    layout: str  # array or coordinate
    field: str
    symmetry: str
    rows: int
    columns: int
    entries: int  # lines that follow

    @property
    def dtype(self) -> type[np.generic]:
        return _DTYPES.get(self.field, np.float64)


def read_matrix_market(path: Path) -> Any:
    """The matrix of a Matrix Market file: an ndarray, or a scipy matrix of coordinates.

    Raises:
        DataError: it is not regular, or its sizes are more than the limits allow.
        ValueError: it breaks the format; the message says how.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder) / "a.mtx"
        ...     lines = ["%%MatrixMarket matrix array real general", "1 2", "3.5", "4"]
        ...     _ = file.write_text(chr(10).join(lines))
        ...     read_matrix_market(file)
        array([[3.5, 4. ]])
    """
    with open_regular(path) as handle:
        size = size_of(handle)
    with open_content(path, longest_line=limits().line_bytes) as handle:
        header = _header(handle)
        if header.layout == "array":
            needed = np.dtype(header.dtype).itemsize * header.rows * header.columns
            what = f"a {header.rows:,} x {header.columns:,} matrix"
            check_expansion(path, what, needed, size)
            return _dense(header, _values(header, _body(handle, header, 0), 0))
        check_sparse(path, header.rows, header.columns, header.entries, size)
        return _sparse(header, _body(handle, header, 2))


def _header(handle: BinaryIO) -> _Header:
    words = handle.readline().decode("latin-1").lower().split()
    if len(words) != 5 or words[:2] != ["%%matrixmarket", "matrix"]:
        raise ValueError("the first line must be '%%MatrixMarket matrix LAYOUT FIELD SYMMETRY'")
    layout, field, symmetry = words[2:]
    if layout not in ("array", "coordinate") or field not in _NUMBERS_A_VALUE:
        raise ValueError(f"a {layout[:20]} of {field[:20]} values is not known")
    if symmetry not in _SYMMETRIES or (layout, field) == ("array", "pattern"):
        raise ValueError(f"a {symmetry[:20]} {layout} of {field} values is not known")
    line = b"%"
    while line[:1] == b"%" or line.isspace():
        line = handle.readline()
    sizes = line.decode("latin-1").split()
    if len(sizes) != (2 if layout == "array" else 3) or not all(map(_is_size, sizes)):
        raise ValueError(f"the line of sizes reads {line[:60].decode('latin-1')!r}")
    rows, columns, *entries = map(int, sizes)
    if symmetry != "general" and rows != columns:
        raise ValueError(f"a {symmetry} matrix must be square, got {rows} x {columns}")
    count = entries[0] if entries else _stored(symmetry, rows, columns)
    return _Header(layout, field, symmetry, rows, columns, count)


def _is_size(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _LONGEST_NUMBER


def _stored(symmetry: str, rows: int, columns: int) -> int:
    """Values that a dense file holds: all, or those of the lower triangle."""
    if symmetry == "general":
        return rows * columns
    return rows * (rows + (-1 if symmetry == "skew-symmetric" else 1)) // 2


def _body(handle: BinaryIO, header: _Header, indices: int) -> npt.NDArray[Any]:
    """The lines of numbers, a record each: integer indices, then values."""
    value = np.float64 if header.field == "complex" else header.dtype
    kinds = [np.int64] * indices + [value] * _NUMBERS_A_VALUE[header.field]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of files without numbers: counted below
        body: npt.NDArray[Any] = np.loadtxt(
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
    return body


def _values(header: _Header, body: npt.NDArray[Any], indices: int) -> npt.NDArray[Any]:
    if header.field == "pattern":
        return np.ones(len(body))
    values: npt.NDArray[Any] = body[str(indices)]
    if header.field == "complex":
        return values + 1j * body[str(indices + 1)]
    return np.ascontiguousarray(values)


def _mirrored(symmetry: str, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """What stands on the other side of the diagonal."""
    if symmetry == "skew-symmetric":
        return -values
    return np.conj(values) if symmetry == "hermitian" else values


def _dense(header: _Header, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    shape = (header.rows, header.columns)
    if header.symmetry == "general":
        return values.reshape(shape, order="F")
    # Column by column below the diagonal is row by row above it.
    columns, rows = np.triu_indices(header.rows, 1 if header.symmetry == "skew-symmetric" else 0)
    matrix = np.zeros(shape, header.dtype)
    matrix[columns, rows] = _mirrored(header.symmetry, values)
    matrix[rows, columns] = values
    return matrix


def _sparse(header: _Header, body: npt.NDArray[Any]) -> Any:
    import scipy.sparse

    rows, columns = body["0"] - 1, body["1"] - 1
    for name, index, count in (("row", rows, header.rows), ("column", columns, header.columns)):
        wrong = np.flatnonzero((index < 0) | (index >= count))
        if len(wrong):
            got = int(index[wrong[0]]) + 1
            raise ValueError(f"{name} {got} of line {int(wrong[0]) + 1} is not in 1 ... {count}")
    values = _values(header, body, 2)
    if header.symmetry != "general":
        off = rows != columns
        mirrored = _mirrored(header.symmetry, values[off])
        values = np.concatenate((values, mirrored))
        rows, columns = (
            np.concatenate((rows, columns[off])),
            np.concatenate((columns, rows[off])),
        )
    return scipy.sparse.coo_matrix((values, (rows, columns)), (header.rows, header.columns))
