"""Parquet with ids and vectors: one table for users and one for items; Spark's ALS models."""

from __future__ import annotations

import io
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from robustcf.adapters.base import Imported, check_labels, matrix, readable, with_constants
from robustcf.data.interactions import Labels
from robustcf.errors import DataError, InputError
from robustcf.factors import Factors
from robustcf.support import files

SPARK = ("userFactors", "itemFactors")


def is_parquet(path: Path) -> bool:
    """A Parquet file, or a folder of parts as Spark and others write it."""
    return path.suffix.lower() == ".parquet" or (path.is_dir() and bool(_parts(path)))


def _parts(folder: Path) -> list[Path]:
    return sorted(p for p in folder.glob("*.parquet") if not p.name.startswith(("_", ".")))


def read_parquet(
    users: Path,
    items: Path,
    *,
    id_key: str | None = None,
    vector_key: str | None = None,
    fixed: Sequence[int] | None = None,
) -> Imported:
    """Factors from two tables of ids and vectors.

    Args:
        users: a Parquet file, or a folder of such files.
        items: the same for items.
        id_key: the column with the ids; None where there is one column besides the vectors.
        vector_key: the column with the vectors; None where there is one column of lists.
        fixed: columns that are biases; None to find constant ones.

    Raises:
        DataError: vectors of several lengths, missing or not finite numbers, ids that repeat or
            are floats.
        InputError: columns that cannot be told.
    """
    tables = [_read(path, id_key, vector_key) for path in (users, items)]
    U, V = (matrix(str(path), t[1]) for path, t in zip((users, items), tables, strict=True))
    if U.shape[1] != V.shape[1]:
        raise InputError(
            f"{users} has vectors of {U.shape[1]} and {items} of {V.shape[1]} numbers: factors "
            "share their columns"
        )
    factors = Factors.of(U, V)
    labels = [
        check_labels(kind, ids, len(part))
        for kind, (ids, _, _), part in zip(("user", "item"), tables, factors, strict=True)
    ]
    held, notes = with_constants(factors, fixed)
    spark = (users.name, items.name) == SPARK

    def write(other: Factors, target: Path) -> None:
        def fill(folder: Path) -> None:
            for path, (_, _, table), part in zip((users, items), tables, other, strict=True):
                _write(table, part.cpu().numpy(), folder / path.name, path.is_dir())
            if spark and (users.parent / "metadata").is_dir():
                shutil.copytree(users.parent / "metadata", folder / "metadata")

        _whole_folder(target, fill)

    name = users.parent.name if spark else users.name
    kind = "spark als" if spark else "parquet"
    return Imported(factors, kind, name, labels[0], labels[1], held, notes, write)


def _read(path: Path, id_key: str | None, vector_key: str | None) -> tuple[Any, Any, Any]:
    """Ids, vectors (rows x columns), and what is needed to write such a table again."""
    import pyarrow.parquet as pq

    with readable(path, "Parquet file"):
        table = pq.read_table([str(p) for p in _parts(path)] if path.is_dir() else str(path))
    lists = [field.name for field in table.schema if _is_list(field.type)]
    others = [field.name for field in table.schema if field.name not in lists]
    vectors = _one(path, table, "vector", vector_key, lists)
    ids = _one(path, table, "id", id_key, others)
    return _ids(path, table[ids]), _vectors(path, table[vectors]), (table, vectors)


def _is_list(kind: Any) -> bool:
    import pyarrow as pa

    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def _one(path: Path, table: Any, what: str, given: str | None, found: list[str]) -> str:
    if given is not None:
        if given not in table.column_names:
            raise InputError(f"{path} has no column {given!r}; there are {table.column_names}")
        return given
    if len(found) != 1:
        raise InputError(
            f"{path}: expected one column of {what}s, found {found or 'none'} among "
            f"{table.column_names}: name it with {what}_key (--{what}-key)"
        )
    return found[0]


def _ids(path: Path, column: Any) -> Labels:
    import pyarrow as pa

    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if column.null_count:
        raise DataError(f"{path}: {column.null_count} rows have no id")
    good = pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if not good and not str(kind).startswith("string"):
        why = ": float ids lose digits, save them as integers" if pa.types.is_floating(kind) else ""
        raise DataError(f"{path}: ids must be integers or text, got {kind}{why}")
    return np.array(column.to_pylist(), dtype=object)


def _vectors(path: Path, column: Any) -> npt.NDArray[Any]:
    import pyarrow as pa
    import pyarrow.compute as pc

    if not _is_list(column.type):
        raise DataError(f"{path}: vectors must be lists of numbers, got {column.type}")
    if not pa.types.is_floating(column.type.value_type):
        raise DataError(f"{path}: vectors must hold floating-point numbers, got {column.type}")
    if column.null_count:
        raise DataError(f"{path}: {column.null_count} rows have no vector")
    if len(column) == 0:
        raise DataError(f"{path}: has no rows")
    lengths = pc.unique(pc.list_value_length(column)).to_pylist()
    if len(lengths) != 1:
        raise DataError(
            f"{path}: vectors must have one length, got {sorted(lengths)[:5]}: repair these rows"
        )
    flat = pc.list_flatten(column)
    if flat.null_count:
        raise DataError(f"{path}: {flat.null_count} numbers are missing in the vectors")
    return np.asarray(flat.to_numpy()).reshape(len(column), lengths[0])


def _write(table_of: Any, part: npt.NDArray[Any], target: Path, as_folder: bool) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table, vectors = table_of
    place = table.column_names.index(vectors)
    field = table.schema.field(place)
    values = pa.array(list(part.astype(field.type.value_type.to_pandas_dtype())), type=field.type)
    buffer = io.BytesIO()
    pq.write_table(table.set_column(place, field, values), buffer)
    if as_folder:
        target.mkdir()
        files.write_bytes(target / "part-00000.snappy.parquet", buffer.getvalue())
        files.write_bytes(target / "_SUCCESS", b"")
    else:
        files.write_bytes(target, buffer.getvalue())


def _whole_folder(target: Path, fill: Any) -> None:
    """A folder that is there whole or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        fill(fresh)
        fresh.chmod(0o755)
        fresh.rename(target)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
