"""Data in memory: tables of pandas, Polars, Arrow and DuckDB, matrices, and Interactions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from robustcf.data.columns import Columns, bad_cell, find_columns, listed
from robustcf.data.interactions import Interactions
from robustcf.data.tables import RawTable, RowFilter, Table, leave_nested_out, no_rows, table_of
from robustcf.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

_TAKEN = "a table (pandas, Polars, PyArrow, DuckDB), a matrix (scipy, numpy) or Interactions"
_WANTED = "whole numbers or text"
_ONE_TYPE = "make them one type, for example with .astype(str)"
# Methods that compute the rows of a lazy table; Spark's collect() returns a list.
_TO_COMPUTE = ("toPandas", "compute", "collect")


def is_matrix(source: object) -> bool:
    """Return whether the source is Interactions, or a matrix of numpy or scipy."""
    from scipy.sparse import issparse

    return isinstance(source, Interactions | np.ndarray) or bool(issparse(source))


def is_table(source: object) -> bool:
    """Return whether the source is a table in memory: pandas, Polars, Arrow, DuckDB."""
    return hasattr(source, "__arrow_c_stream__") or hasattr(source, "__dataframe__")


def check_in_memory(part: str, source: object) -> None:
    """Raise unless a part is a table, a matrix or Interactions."""
    if is_matrix(source) or is_table(source):
        return
    kind = type(source).__name__
    for method in _TO_COMPUTE:
        if callable(getattr(source, method, None)):
            raise DataError(f"expected rows for {part}, got {kind}; call .{method}() first")
    taken = f"a name, a path, {_TAKEN}" if part == "train" else _TAKEN
    raise DataError(f"expected {taken}, got {kind} for {part}; make a pandas.DataFrame of it")


def tables_of(parts: Mapping[str, Any], name: str, columns: Columns) -> list[Table]:
    """Return the rows of tables in memory; labels keep their types."""
    sources = [name if part == "train" else f"{name} ({part})" for part in parts]
    tables = [_table(table, s, columns) for table, s in zip(parts.values(), sources, strict=True)]
    for role in ("users", "items"):
        kinds = {str(getattr(table, role).labels.dtype.kind): table.source for table in tables}
        if len(kinds) > 1:
            raise DataError(
                f"{role[:-1]} ids must be of one type in all tables, got numbers in "
                f"{kinds['i']} and text in {kinds['U']}; {_ONE_TYPE}"
            )
    return tables


def _table(source: Any, name: str, columns: Columns) -> Table:
    import pandas as pd

    raw = (_pandas if isinstance(source, pd.DataFrame) else _arrow)(source, name, columns)
    frame = raw.frame.reset_index(drop=True)
    ids = {raw.found[role]: _ids(name, frame[raw.found[role]]) for role in ("user", "item")}
    size = int(frame.memory_usage(deep=True).sum())
    return table_of(name, raw._replace(frame=frame.assign(**ids), typed=True), columns, size)


def _pandas(frame: pd.DataFrame, name: str, columns: Columns) -> RawTable:
    names = [str(column) for column in frame.columns]
    found = _find(name, names, len(frame), columns)
    wanted = _distinct(found)
    chosen = frame.iloc[:, [names.index(column) for column in wanted]]
    return RawTable(chosen.set_axis(wanted, axis=1), found)


def _arrow(source: Any, name: str, columns: Columns) -> RawTable:
    import pyarrow
    import pyarrow.interchange

    stream = hasattr(source, "__arrow_c_stream__")
    try:
        table = pyarrow.table(source) if stream else pyarrow.interchange.from_dataframe(source)
        found = _find(name, table.column_names, table.num_rows, columns)
        notes = leave_nested_out(name, table.schema, found, columns)
        frame = table.select(_distinct(found)).to_pandas(ignore_metadata=True, date_as_object=False)
    except DataError:
        raise
    except Exception as error:  # of any library that has the interface
        reason = " ".join(str(error).split())[:200]
        got = f"got {type(source).__name__} ({reason})"
        raise DataError(f"{name}: expected a table, {got}; use a pandas DataFrame") from error
    return RawTable(frame, found, notes)


def _distinct(found: Mapping[str, Any]) -> list[str]:
    return [column for column in dict.fromkeys(found.values()) if column is not None]


def _find(name: str, names: list[str], rows: int, columns: Columns) -> dict[str, Any]:
    if rows == 0:
        raise no_rows(name, "table")
    repeated = [column for column, count in Counter(names).items() if count > 1]
    if repeated:
        raise DataError(f"{name}: column names must differ, got {listed(repeated)} more than once")
    return find_columns(name, names, columns)


def _ids(source: str, column: pd.Series[Any]) -> pd.Series[Any]:
    """Return an id column of whole numbers or text; missing ids are refused later."""
    import pandas as pd

    values = column.cat.categories if isinstance(column.dtype, pd.CategoricalDtype) else column
    kind = pd.api.types.infer_dtype(values, skipna=True)
    if kind in ("integer", "string", "bytes", "empty") or column.isna().any():
        return column
    if kind in ("floating", "mixed-integer-float"):
        numbers = column.astype("float64")
        broken = ~((numbers % 1 == 0) & (numbers.abs() < 2**53)).to_numpy()
        if not broken.any():
            return numbers
        raise bad_cell(source, column, broken, _WANTED, "convert the column")
    cells = column.astype(object)
    types = cells.map(type)
    others = (types != types.iloc[0]).to_numpy()
    if not others.any():
        raise bad_cell(source, column, ~others, _WANTED, "convert the column, or name another")
    # Ids that differ by type only are named first.
    first: dict[str, Any] = {}
    got = next(
        (
            f"{twin!r} and {cell!r}, the same as text"
            for cell in cells
            if type(twin := first.setdefault(str(cell), cell)) is not type(cell)
        ),
        " and ".join(
            f"{type(cells.iloc[n]).__name__} in data row {n + 1}"
            for n in (0, int(np.flatnonzero(others)[0]))
        ),
    )
    raise DataError(
        f"{source}: column {str(cells.name)!r} must hold ids of one type, got {got}; {_ONE_TYPE}"
    )


def pairs_of(
    parts: Mapping[str, Any], name: str, min_rating: float | None
) -> tuple[dict[str, Interactions], list[str]]:
    """Return the pairs of matrices or Interactions with the least rating, and notes."""
    notes: list[str] = []
    found = {}
    for part, source in parts.items():
        pairs = source if isinstance(source, Interactions) else Interactions.from_csr(source)
        if min_rating is not None:
            wanted = "ratings, got entries that are all 1; leave min_rating out"
            rows = RowFilter(name, min_rating, rated=pairs.weights is not None, wanted=wanted)
            pairs = pairs.take(rows.enough(pairs.weights, len(pairs)))
            notes += rows.notes()
        found[part] = pairs
    return found, notes
