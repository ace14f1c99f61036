"""Parquet with ids and vectors: one table for users and one for items; Spark's ALS models."""

from __future__ import annotations

import io
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt

from robustcf._io import files
from robustcf._io.sandbox import read_apart
from robustcf.adapters.imported import Imported, matrix, with_constants
from robustcf.errors import InputError
from robustcf.factors import Factors

SPARK = ("userFactors", "itemFactors")


def is_parquet(path: Path) -> bool:
    """Return whether it is a Parquet file, or a folder of parts as Spark and others write it."""
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
    """Return factors from two tables of ids and vectors, files or folders."""
    parts = [_parts(path) if path.is_dir() else [path] for path in (users, items)]
    options = {"users": len(parts[0]), "id_key": id_key, "vector_key": vector_key}
    found = read_apart("robustcf._io.parquet:read_vectors", [*parts[0], *parts[1]], options)
    U, V = (
        matrix(str(path), found.array(side)) for path, side in ((users, "users"), (items, "items"))
    )
    if U.shape[1] != V.shape[1]:
        lengths = f"{U.shape[1]} in {users} and {V.shape[1]} in {items}"
        raise InputError(f"expected vectors of one length, got {lengths}")
    factors = Factors.of(U, V)
    ids = {side: found.array(f"{side} ids") for side in ("users", "items")}
    held, notes = with_constants(factors, fixed)
    spark = (users.name, items.name) == SPARK

    def write(other: Factors, target: Path) -> None:
        def fill(folder: Path) -> None:
            for path, side, part in zip((users, items), ids, other, strict=True):
                content = _table(found.facts[side], ids[side], part.cpu().numpy())
                place = folder / path.name
                if path.is_dir():
                    place.mkdir()
                    files.write_bytes(place / "_SUCCESS", b"")
                    place = place / "part-00000.snappy.parquet"
                files.write_bytes(place, content)
            if spark and (users.parent / "metadata").is_dir():
                shutil.copytree(users.parent / "metadata", folder / "metadata")

        files.create_folder(target, fill)

    kind, source = ("spark als", users.parent.name) if spark else ("parquet", users.name)
    return Imported(factors, kind, source, ids["users"], ids["items"], held, notes, write)


def _table(how: Mapping[str, Any], ids: npt.NDArray[Any], part: npt.NDArray[Any]) -> bytes:
    """Return ids and vectors under the names and in the types of the source, without the rest."""
    import pyarrow as pa  # slow to import
    import pyarrow.parquet as pq

    numbers = {"double": pa.float64(), "halffloat": pa.float16()}
    number = numbers.get(how["value_type"], pa.float32())
    vectors = {"fixed": (number, part.shape[1])}.get(how["list"], (number,))
    vector = pa.large_list(number) if how["list"] == "large_list" else pa.list_(*vectors)
    values = pa.array(list(part.astype(number.to_pandas_dtype())), type=vector)
    name = how["id_type"]
    kind = pa.type_for_alias(name) if name.startswith(("int", "uint")) else pa.string()
    table = pa.table({how["ids"]: pa.array(ids.tolist(), type=kind), how["vectors"]: values})
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    return buffer.getvalue()
