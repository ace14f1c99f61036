"""Readers of Parquet files, for the child of :mod:`robustcf._io.sandbox`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types

from robustcf._io.sandbox import Answer, Given
from robustcf.errors import DataError, InputError


def check_parquet(given: Sequence[Given], answer: Answer, options: Mapping[str, Any]) -> None:
    """Walk through a Parquet file's metadata, some of which ends the process that looks at it."""
    metadata = pq.ParquetFile(given[0].file).metadata
    for n in range(metadata.num_row_groups):
        group = metadata.row_group(n)
        for column in range(group.num_columns):
            group.column(column)


def read_vectors(given: Sequence[Given], answer: Answer, options: Mapping[str, Any]) -> None:
    """Read ids and vectors of users and of items, from one or more files each.

    Options: ``users``, how many of the files are the users'; ``id_key`` and ``vector_key``.
    """
    for side, part in (("users", given[: options["users"]]), ("items", given[options["users"] :])):
        if part:
            _vectors(side, part, answer, options["id_key"], options["vector_key"])


def _vectors(
    side: str, given: Sequence[Given], answer: Answer, id_key: str | None, vector_key: str | None
) -> None:
    pa.set_cpu_count(1)
    table = pa.concat_tables([pq.ParquetFile(one.file).read(use_threads=False) for one in given])
    lists = [field.name for field in table.schema if _is_list(field.type)]
    others = [field.name for field in table.schema if field.name not in lists]
    vectors = _one(table, "vector", vector_key, lists)
    ids = _one(table, "id", id_key, others)
    column, kind = table[vectors], table[vectors].type
    if not _is_list(kind) or not types.is_floating(kind.value_type):
        raise DataError(f"vectors must be lists of floating-point numbers, got {kind}")
    if not len(column):
        raise DataError("has no rows")
    if column.null_count:
        raise DataError(f"{column.null_count} rows have no vector")
    lengths = pc.unique(pc.list_value_length(column)).to_pylist()
    if len(lengths) != 1:
        raise DataError(f"vectors must have one length, got {sorted(lengths)[:5]}: repair them")
    flat = pc.list_flatten(column)
    if flat.null_count:
        raise DataError(f"{flat.null_count} numbers are missing in the vectors")
    answer.put(side, np.asarray(flat.to_numpy()).reshape(len(column), lengths[0]))
    answer.put(f"{side} ids", _ids(table[ids]))
    answer.facts[side] = {
        "ids": ids,
        "vectors": vectors,
        "id_type": str(table[ids].type),
        "value_type": str(kind.value_type),
        "list": "fixed" if types.is_fixed_size_list(kind) else str(kind).partition("<")[0],
    }


def _is_list(kind: Any) -> bool:
    tests = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    return any(test(kind) for test in tests)


def _one(table: Any, what: str, given: str | None, found: list[str]) -> str:
    if given is not None:
        if given not in table.column_names:
            raise InputError(f"has no column {given!r}; there are {table.column_names[:12]}")
        return given
    if len(found) != 1:
        raise InputError(
            f"expected one column of {what}s, found {found[:12] or 'none'} among "
            f"{table.column_names[:12]}: name it with {what}_key (--{what}-key)"
        )
    return found[0]


def _ids(column: Any) -> Any:
    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    if column.null_count:
        raise DataError(f"{column.null_count} rows have no id")
    if types.is_integer(kind):
        return np.asarray(column.cast(kind).to_numpy())
    if not (types.is_string(kind) or types.is_large_string(kind)):
        why = ": float ids lose digits, save them as integers" if types.is_floating(kind) else ""
        raise DataError(f"ids must be integers or text, got {kind}{why}")
    return np.array(column.cast(pa.large_string()).to_pylist())
