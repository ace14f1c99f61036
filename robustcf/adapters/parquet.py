"""Parquet with ids and vectors: one table for users and one for items; Spark's ALS models."""

from __future__ import annotations

import io
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt

from robustcf._io import files
from robustcf._io.sandbox import read_apart
from robustcf.adapters.arrays import FOREIGN
from robustcf.adapters.base import Imported, check_labels, matrix, with_constants
from robustcf.errors import InputError
from robustcf.factors import Factors

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
    parts = [_parts(path) if path.is_dir() else [path] for path in (users, items)]
    options = {"users": len(parts[0]), "id_key": id_key, "vector_key": vector_key}
    found = read_apart(f"{FOREIGN}:read_vectors", [*parts[0], *parts[1]], options)
    U, V = (
        matrix(str(path), found.array(side)) for path, side in ((users, "users"), (items, "items"))
    )
    if U.shape[1] != V.shape[1]:
        raise InputError(
            f"{users} has vectors of {U.shape[1]} and {items} of {V.shape[1]} numbers: factors "
            "share their columns"
        )
    factors = Factors.of(U, V)
    ids = {side: found.array(f"{side} ids") for side in ("users", "items")}
    labels = [
        check_labels(side[:-1], ids[side], len(part))
        for side, part in zip(ids, factors, strict=True)
    ]
    held, notes = with_constants(factors, fixed)
    spark = (users.name, items.name) == SPARK

    def write(other: Factors, target: Path) -> None:
        def fill(folder: Path) -> None:
            for path, side, part in zip((users, items), ids, other, strict=True):
                rows = part.cpu().numpy()
                _write(found.facts[side], ids[side], rows, folder / path.name, path.is_dir())
            if spark and (users.parent / "metadata").is_dir():
                shutil.copytree(users.parent / "metadata", folder / "metadata")

        _whole_folder(target, fill)

    name = users.parent.name if spark else users.name
    kind = "spark als" if spark else "parquet"
    return Imported(factors, kind, name, labels[0], labels[1], held, notes, write)


def _write(
    how: Mapping[str, Any],
    ids: npt.NDArray[Any],
    part: npt.NDArray[Any],
    target: Path,
    as_folder: bool,
) -> None:
    """Write ids and vectors under the names and in the types of the source; other columns go."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = pa.float64() if how["value_type"] == "double" else pa.float32()
    if how["value_type"] == "halffloat":
        number = pa.float16()
    vector = {
        "fixed": lambda: pa.list_(number, part.shape[1]),
        "large_list": lambda: pa.large_list(number),
    }.get(how["list"], lambda: pa.list_(number))()
    values = pa.array(list(part.astype(number.to_pandas_dtype())), type=vector)
    name = how["id_type"]
    kind = pa.type_for_alias(name) if name.startswith(("int", "uint")) else pa.string()
    table = pa.table({how["ids"]: pa.array(ids.tolist(), type=kind), how["vectors"]: values})
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
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
