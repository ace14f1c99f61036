"""Rows of a collection, encoded and sorted out of core by DuckDB."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from robustcf._io.limits import limits
from robustcf._io.text import counted
from robustcf.data.columns import Columns
from robustcf.data.formats import MISSING
from robustcf.data.large.sources import Collection, Roles
from robustcf.data.tables import check_label
from robustcf.data.times import SQL_TIMES, TimeUnit
from robustcf.errors import DataError, InputError, WriteError

_ROWS_AT_ONCE = 1 << 20
_LABELS_AT_ONCE = 1 << 16
_OURS = 1 << 30  # memory for Python, Arrow and one batch; DuckDB takes the rest
_LEAST_MEMORY = 1536 << 20
_LARGEST_WEIGHT = float(np.finfo(np.float32).max)
_WANTED = {
    "rating": "numbers of a magnitude below 3.4e38",
    "time": "numbers, or ISO dates such as 2024-05-01 12:30",
}


class Engine:
    """One collection in an embedded DuckDB; ``memory`` is that of the whole process, in bytes.

    Cost: two scans of the rows for labels, one for ratings and times.
    """

    def __init__(
        self,
        collection: Collection,
        roles: Roles,
        columns: Columns,
        folder: Path,
        *,
        memory: int,
        threads: int = 1,
    ) -> None:
        if memory < _LEAST_MEMORY:
            raise InputError(
                f"memory must be at least {_LEAST_MEMORY / 2**30:.1f} GB, got {memory / 2**30:.1f}"
            )
        try:
            import duckdb
        except ImportError as error:
            raise InputError(
                "preparing large data needs DuckDB: install it with pip install 'robustcf[large]'"
            ) from error
        self._collection, self._roles, self._asked = collection, roles, columns
        self.notes = list(roles.notes)
        self.time_unit: TimeUnit = "numbers"
        self._connection = duckdb.connect(
            config={
                "threads": str(threads),
                "memory_limit": f"{memory - _OURS}B",
                "temp_directory": str(folder),
                # DuckDB must not download code.
                "autoinstall_known_extensions": "false",
                "autoload_known_extensions": "false",
            }
        )
        self._run("SET TimeZone = 'UTC'; SET enable_progress_bar = false")
        if collection.remote is not None:
            self._connection.register_filesystem(collection.remote)
        with self._errors():
            self._open()

    def close(self) -> None:
        """Release memory and files."""
        self._connection.close()

    def _run(self, command: str) -> Any:
        # All rows: a result that is not read to its end keeps the connection busy.
        return self._connection.execute(command).fetchall()

    def _one(self, query: str) -> Any:
        return self._run(f"SELECT {query}")[0][0]

    def _all(self, table: str, condition: str) -> bool:
        return bool(self._one(f"bool_and(coalesce({condition}, false)) FROM {table}"))

    def _batches(self, query: str, rows: int) -> Any:
        return self._connection.sql(query).to_arrow_reader(rows)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn errors of DuckDB into ours."""
        import duckdb

        try:
            yield
        except duckdb.Error as error:
            reason = " ".join(str(error).split()).replace(os.getcwd() + os.sep, "")[:300]
            source, memory = self._collection.source, isinstance(error, duckdb.OutOfMemoryException)
            words = ("max_temp_directory_size", "temp directory") if memory else ("no space left",)
            kind: type[Exception] = DataError
            problem = f"{source}: cannot be read ({reason})"
            if any(word in reason.lower() for word in words):
                kind, problem = WriteError, f"not enough disk to sort the rows ({reason})"
                problem += "; free some space, or choose another --out"
            elif memory:
                kind, problem = InputError, f"{source}: needs more memory ({reason})"
                problem += "; give more with --memory"
            raise kind(problem) from error

    def _open(self) -> None:
        given = [(role, name) for role, name in self._roles.names.items() if name is not None]
        cells = ", ".join(f"{self._cell(role, name)} AS {role}" for role, name in given)
        for role in ("user", "item"):
            cells += f", {_quoted(self._roles.names[role])} AS {role}_as_written"
        # In the order of the files: of rows that repeat a pair, the first may be kept.
        self._run(f"CREATE VIEW given AS SELECT {cells} FROM {self._table()}")
        self.rows = int(self._one("count(*) FROM given"))
        if self.rows == 0:
            raise DataError(f"{self._collection.source}: expected one interaction per row, no rows")
        self.counts = {role: self._number_labels(role) for role in ("user", "item")}
        self.values = {role: self._number(role) for role in ("rating", "time")}

    def _table(self) -> str:
        files = f"[{', '.join(map(_text, self._collection.files))}]"
        hive = "true" if self._collection.hive else "false"
        options = f"hive_partitioning = {hive}, hive_types_autocast = false"
        if self._collection.kind == ".parquet":
            return f"read_parquet({files}, {options})"
        names = ", ".join(f"'c{n}': 'VARCHAR'" for n in range(self._roles.width))
        quote = _text('"' if self._collection.format.quoted else "")
        return (
            f"read_csv({files}, {options}, auto_detect = false, columns = {{{names}}}, "
            f"header = {str(self._roles.headed).lower()}, delim = {_text(self._roles.separator)}, "
            f"quote = {quote}, escape = {quote}, nullstr = [{', '.join(map(_text, MISSING))}], "
            f"max_line_size = {limits().line_bytes})"
        )

    def _cell(self, role: str, name: str) -> str:
        quoted = _quoted(name)
        if self._collection.format.blanks:
            return f"nullif(ltrim({quoted}, ' '), '')"
        hive_key = name in self._collection.hive and self._roles.types[role] == "text"
        return f"nullif({quoted}, '')" if hive_key else quoted

    def _number_labels(self, role: str) -> int:
        """Number the distinct labels of a role by the rules of tables.py; returns how many."""
        source, kind = self._collection.source, self._roles.types[role]
        written = f"{role}_as_written"
        blanks = self._collection.format.blanks
        begins = f"starts_with({written}, ' ')" if blanks else "false"
        counts = f"count(*) FILTER ({role} IS NULL), count(*) FILTER ({begins})"
        ((missing, cut),) = self._run(f"SELECT {counts} FROM given")
        if missing:
            raise DataError(
                f"{source}: {missing} rows have no {role} id; fill them in or remove the rows"
            )
        if cut:
            merged = self._one(
                f"count(*) - count(DISTINCT {role}) FROM "
                f"(SELECT DISTINCT {written}, {role} FROM given)"
            )
            if merged:
                self.notes.append(
                    f"{self._collection.name}: leading blanks of {counted(cut, role + ' cell')} "
                    f"dropped; {counted(merged, 'label')} became equal to others; write Parquet to "
                    "keep them"
                )
        distinct, table = f"found_{role}", f"{role}s"
        self._run(f"CREATE TABLE {distinct} AS SELECT DISTINCT {role} AS given FROM given")
        whole = {
            "text": "CAST(TRY_CAST(given AS BIGINT) AS VARCHAR) = given",
            "float": "abs(given) < 9007199254740992 AND given = trunc(given)",
            "unsigned": "given <= 9223372036854775807",
        }.get(kind, "true")
        label = "CAST(given AS BIGINT)"
        if not self._all(distinct, whole):
            if kind == "float":
                raise DataError(
                    f"{source}: {role} ids must be whole numbers or text, got numbers that are not "
                    f"whole in column {self._roles.names[role]!r}; convert it"
                )
            label = "CAST(given AS VARCHAR)"
            for batch in self._batches(f"SELECT {label} FROM {distinct}", _LABELS_AT_ONCE):
                for text in batch.column(0).to_pylist():
                    check_label(source, role, text)
        self._run(
            f"CREATE TABLE {table} AS SELECT given, {label} AS label, "
            f"CAST(row_number() OVER (ORDER BY {label}) - 1 AS INTEGER) AS id FROM {distinct}"
        )
        self._run(f"DROP TABLE {distinct}")
        return int(self._one(f"count(*) FROM {table}"))

    def _number(self, role: str) -> str | None:
        """Return the SQL of a rating or a time as a number, or None."""
        name = self._roles.names[role]
        if name is None:
            return None
        expression = self._rating() if role == "rating" else self._time()
        if expression is not None:
            return expression
        # Columns of text tables are called by their position here.
        column = repr(name) if self._collection.kind == ".parquet" else f"of the {role}"
        source = self._collection.source
        problem = f"{source}: not every row of the column {column} holds {_WANTED[role]}"
        self.notes.append(self._asked.left_out(role, problem, "repair it, or leave it out"))
        return None

    def _rating(self) -> str | None:
        if self._roles.types["rating"] in ("time", "date"):
            return None
        number = "TRY_CAST(rating AS DOUBLE)"
        return number if self._all("given", f"abs({number}) <= {_LARGEST_WEIGHT!r}") else None

    def _time(self) -> str | None:
        for kinds, condition, value, unit in SQL_TIMES:
            if self._roles.types["time"] in kinds.split() and self._all("given", condition):
                self.time_unit = unit
                return value
        return None

    def labels(self, role: str) -> Any:
        """Return a reader of record batches with the labels of ``user`` or ``item``, in order."""
        with self._errors():
            return self._batches(f"SELECT label FROM {role}s ORDER BY id", _LABELS_AT_ONCE)

    def sorted_rows(self) -> Iterator[dict[str, npt.NDArray[Any]]]:
        """Yield blocks of rows: ``key`` (user * n_items + item), ``time`` and ``weight``.

        Rows are sorted by key; of repeats the latest, or else the first, comes first.
        """
        fields, order = {"key": f"u.id::BIGINT * {self.counts['item']} + i.id"}, ["key"]
        given = ["user", "item"]
        if self.values["time"]:
            fields["time"] = "t"
            given.append(f"{self.values['time']} AS t")
            order.append("t DESC")
        if self.values["rating"]:
            # The order of repeats matters if they differ in a column that is kept.
            fields["weight"] = "r"
            given += [f"{self.values['rating']} AS r", "row_number() OVER () AS n"]
            order.append("n")
        query = (
            f"SELECT {', '.join(f'{value} AS {name}' for name, value in fields.items())} "
            f"FROM (SELECT {', '.join(given)} FROM given) g "
            "JOIN users u ON g.user = u.given JOIN items i ON g.item = i.given "
            f"ORDER BY {', '.join(order)}"
        )
        with self._errors():
            if not self.values["rating"]:
                self._run("SET preserve_insertion_order = false")
            for batch in self._batches(query, _ROWS_AT_ONCE):
                yield {name: batch.column(name).to_numpy() for name in fields}


def _quoted(name: str | None) -> str:
    """Quote a name of a column for SQL."""
    return '"' + str(name).replace('"', '""') + '"'


def _text(value: str) -> str:
    """Quote a text for SQL."""
    return "'" + value.replace("'", "''") + "'"
