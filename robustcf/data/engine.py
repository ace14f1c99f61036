"""Rows of a collection, encoded and sorted out of core by DuckDB: labels in, streams of ids out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from robustcf._io.limits import limits
from robustcf.data.collection import Collection, Roles
from robustcf.data.columns import Columns
from robustcf.data.frames import LONGEST_LABEL
from robustcf.data.times import TimeUnit
from robustcf.errors import DataError, InputError, WriteError

_ROWS_AT_ONCE = 1 << 20
_LABELS_AT_ONCE = 1 << 16
# Of the memory that is given: Python, Arrow and one batch; the rest is the engine's.
_OURS = 1 << 30
LEAST_MEMORY = 1536 << 20
_LARGEST_WEIGHT = float(np.finfo(np.float32).max)
_MISSING = ("", "nan", "NaN")
_PLURAL = {"user": "users", "item": "items"}


@dataclass(frozen=True)
class Rows:
    """Sorted rows of a collection, in a block: first by user, then by item, the kept one first.

    Args:
        keys: user * n_items + item.
        times: int64, or None.
        weights: float64, or None.
    """

    keys: npt.NDArray[np.int64]
    times: npt.NDArray[np.int64] | None
    weights: npt.NDArray[np.float64] | None


class Engine:
    """One collection in an embedded DuckDB, which keeps to a given memory and spills to a folder.

    Args:
        collection: the files.
        roles: their columns.
        columns: what the user said about columns.
        folder: where it may write what does not fit.
        memory: bytes for the whole process.
        threads: of the engine.

    Raises:
        InputError: DuckDB is not installed, or the memory is too little.
        DataError: a column does not hold what it must.

    Cost: two looks at the rows for their labels, one at ratings and times.
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
        """Open the files, look at every column, number the labels."""
        if memory < LEAST_MEMORY:
            raise InputError(
                f"memory must be at least {LEAST_MEMORY / 2**30:.1f} GB, got {memory / 2**30:.1f}"
            )
        try:
            import duckdb
        except ImportError as error:
            raise InputError(
                "preparing large data needs DuckDB: install it with pip install 'robustcf[large]'"
            ) from error
        self.collection, self.roles, self.asked = collection, roles, columns
        self.notes = list(roles.notes)
        self.connection = duckdb.connect(
            config={
                "threads": str(threads),
                "memory_limit": f"{memory - _OURS}B",
                "temp_directory": str(folder),
                # Nothing is fetched and run that the user did not install.
                "autoinstall_known_extensions": "false",
                "autoload_known_extensions": "false",
            }
        )
        self._run("SET TimeZone = 'UTC'; SET enable_progress_bar = false")
        if collection.remote is not None:
            self.connection.register_filesystem(collection.remote)
        with self._errors():
            self._open()

    def close(self) -> None:
        """Give its memory and its files back."""
        self.connection.close()

    def _one(self, query: str) -> tuple[Any, ...]:
        # All rows: a result that is not read to its end keeps the connection busy.
        return tuple(self.connection.execute(query).fetchall()[0])

    def _run(self, command: str) -> None:
        self.connection.execute(command).fetchall()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn what the engine raises into errors that say what to do."""
        import duckdb

        try:
            yield
        except duckdb.OutOfMemoryException as error:
            reason = _short(error)
            if "max_temp_directory_size" in reason or "temp directory" in reason.lower():
                raise WriteError(
                    f"there is not enough disk for what does not fit into memory ({reason}): free "
                    "some space, or choose another --out"
                ) from error
            raise InputError(
                f"{self.collection.source}: does not fit into the memory given ({reason}): give "
                "more with --memory"
            ) from error
        except duckdb.Error as error:
            reason = _short(error)
            if "No space left" in reason:
                raise WriteError(
                    f"there is not enough disk for what does not fit into memory ({reason}): free "
                    "some space, or choose another --out"
                ) from error
            raise DataError(f"{self.collection.source}: cannot be read ({reason})") from error

    # --- what the rows hold ---------------------------------------------------------------------

    def _open(self) -> None:
        given = [(role, name) for role, name in self.roles.names.items() if name is not None]
        cells = ", ".join(f"{self._cell(role, name)} AS {role}" for role, name in given)
        # In the order of the files: of rows that repeat a pair the first may count.
        self._run(f"CREATE VIEW given AS SELECT {cells} FROM {self._table()}")
        self.rows = int(self._one("SELECT count(*) FROM given")[0])
        if self.rows == 0:
            raise DataError(
                f"{self.collection.source}: there are no rows; expected one interaction a row"
            )
        self.counts = {role: self._number_labels(role) for role in ("user", "item")}
        self.time_unit: TimeUnit = "numbers"
        self.values = {role: self._number(role) for role in ("rating", "time")}
        self.highest = None
        if self.values["rating"] is not None:
            self.highest = float(self._one(f"SELECT max({self.values['rating']}) FROM given")[0])

    def _table(self) -> str:
        files = "[" + ", ".join(map(_text, self.collection.files)) + "]"
        hive = "true" if self.collection.hive else "false"
        options = f"hive_partitioning = {hive}, hive_types_autocast = false"
        if self.collection.kind == ".parquet":
            return f"read_parquet({files}, {options})"
        names = ", ".join(f"'c{n}': 'VARCHAR'" for n in range(self.roles.width))
        quote = "" if self.collection.kind == ".inter" else '"'
        return (
            f"read_csv({files}, {options}, auto_detect = false, columns = {{{names}}}, "
            f"header = {str(self.roles.headed).lower()}, delim = {_text(self.roles.separator)}, "
            f"quote = {_text(quote)}, escape = {_text(quote)}, "
            f"nullstr = [{', '.join(map(_text, _MISSING))}], max_line_size = {limits().line_bytes})"
        )

    def _cell(self, role: str, name: str) -> str:
        quoted = '"' + name.replace('"', '""') + '"'
        if self.collection.kind == ".csv":
            return f"nullif(ltrim({quoted}, ' '), '')"
        if self.roles.types[role] == "text" and name in self.collection.hive:
            return f"nullif({quoted}, '')"
        return quoted

    def _number_labels(self, role: str) -> int:
        """Make the table of a role's distinct labels, numbered in order; returns how many."""
        source, kind = self.collection.source, self.roles.types[role]
        missing = self._one(f"SELECT count(*) FROM given WHERE {role} IS NULL")[0]
        if missing:
            raise DataError(
                f"{source}: {missing} rows have no {role} id; fill them in or remove the rows"
            )
        self._run(f"CREATE TABLE found_{role} AS SELECT DISTINCT {role} AS given FROM given")
        label = "given"
        if kind == "text":
            whole = "CAST(TRY_CAST(given AS BIGINT) AS VARCHAR) = given"
            if self._all(f"found_{role}", whole):
                label = "CAST(given AS BIGINT)"
            else:
                self._check_texts(role)
        elif kind == "float":
            whole = "isfinite(given) AND abs(given) < 9007199254740992 AND given = trunc(given)"
            if not self._all(f"found_{role}", whole):
                raise DataError(
                    f"{source}: column {self.roles.names[role]!r} holds numbers that are not "
                    f"whole: no {role} ids; convert it to whole numbers or text"
                )
            label = "CAST(given AS BIGINT)"
        elif kind == "unsigned" and not self._all(f"found_{role}", "given <= 9223372036854775807"):
            label = "CAST(given AS VARCHAR)"
        elif kind in ("unsigned", "integer"):
            label = "CAST(given AS BIGINT)"
        self._run(
            f"CREATE TABLE {_PLURAL[role]} AS SELECT given, {label} AS label, "
            f"CAST(row_number() OVER (ORDER BY {label}) - 1 AS INTEGER) AS id FROM found_{role}"
        )
        self._run(f"DROP TABLE found_{role}")
        return int(self._one(f"SELECT count(*) FROM {_PLURAL[role]}")[0])

    def _batches(self, query: str, rows: int) -> Any:
        return self.connection.sql(query).to_arrow_reader(rows)

    def _all(self, table: str, condition: str) -> bool:
        return bool(self._one(f"SELECT bool_and(coalesce({condition}, false)) FROM {table}")[0])

    def _check_texts(self, role: str) -> None:
        for batch in self._batches(f"SELECT given FROM found_{role}", _LABELS_AT_ONCE):
            for label in batch.column(0).to_pylist():
                if len(label) > LONGEST_LABEL or not label.isprintable():
                    raise DataError(
                        f"{self.collection.source}: the {role} label {label[:40]!r}... is longer "
                        f"than {LONGEST_LABEL} characters or holds control characters such as a "
                        "line break; is a quote left open, or is it another column?"
                    )

    def _number(self, role: str) -> str | None:
        """The expression of a rating or a time as a number; None: there is none, or no such."""
        if self.roles.names[role] is None:
            return None
        expression = self._rating() if role == "rating" else self._time()
        if expression is not None:
            return expression
        # Columns of text have no names here but their places.
        parquet = self.collection.kind == ".parquet"
        column = repr(self.roles.names[role]) if parquet else f"of the {role}"
        wanted = (
            "numbers of a magnitude below 3.4e38"
            if role == "rating"
            else "numbers, or ISO dates such as 2024-05-01 12:30"
        )
        problem = (
            f"{self.collection.source}: the column {column} must hold {wanted} in every row, and "
            "does not"
        )
        if getattr(self.asked, role) is not None:
            raise DataError(f"{problem}; repair it, or leave it out")
        self.notes.append(f"the {role} column was left out: {problem}")
        return None

    def _rating(self) -> str | None:
        if self.roles.types["rating"] in ("time", "date"):
            return None
        number = "TRY_CAST(rating AS DOUBLE)"
        fine = f"isfinite({number}) AND abs({number}) <= {_LARGEST_WEIGHT!r}"
        return number if self._all("given", fine) else None

    def _time(self) -> str | None:
        """As the in-memory reader: whole numbers as they are, fractions and dates in microseconds.

        :func:`robustcf.data.tables.read_table` has the same rule.
        """
        kind = self.roles.types["time"]
        if kind in ("time", "date"):
            date = "CAST(time AS TIMESTAMPTZ)"
            self.time_unit = "dates"
            return f"epoch_us({date})" if self._all("given", "time IS NOT NULL") else None
        whole = "TRY_CAST(time AS BIGINT)"
        if kind in ("integer", "unsigned"):
            return whole if self._all("given", f"{whole} IS NOT NULL") else None
        if kind == "text" and self._all("given", f"CAST({whole} AS VARCHAR) = time"):
            return whole
        number = "TRY_CAST(time AS DOUBLE)"
        if self._all("given", f"isfinite({number}) AND abs({number}) < 9223372036854775000"):
            if self._all("given", f"{number} = trunc({number})"):
                return f"CAST({number} AS BIGINT)"
            self.time_unit = "fractions"
            if self._all("given", f"abs({number}) < 9223372036854"):
                return f"CAST(round_even({number} * 1e6, 0) AS BIGINT)"
            return None
        if kind != "text":
            return None
        date = "TRY_CAST(time AS TIMESTAMPTZ)"
        self.time_unit = "dates"
        # A year in front: 01/02/2024 is two days, depending on who reads it.
        iso = f"{date} IS NOT NULL AND regexp_matches(time, '^[0-9]{{4}}-')"
        return f"epoch_us({date})" if self._all("given", iso) else None

    # --- what comes out -------------------------------------------------------------------------

    def labels(self, role: str) -> Any:
        """A reader of record batches with the labels of ``user`` or ``item``, in order."""
        with self._errors():
            return self._batches(f"SELECT label FROM {_PLURAL[role]} ORDER BY id", _LABELS_AT_ONCE)

    def sorted_rows(self) -> Iterator[Rows]:
        """All rows with ids for labels, by user and item; the one that counts before its repeats.

        That is the latest, or the first of the collection where times are absent or tie.
        """
        rating, time = self.values["rating"], self.values["time"]
        fields = ["user", "item"]
        fields += [f"{time} AS t"] if time else []
        # The order of rows matters where they differ in something that is kept.
        fields += [f"{rating} AS r", "row_number() OVER () AS n"] if rating else []
        chosen = [f"CAST(u.id AS BIGINT) * {self.counts['item']} + i.id AS k"]
        chosen += [name for name, given in (("t", time), ("r", rating)) if given]
        order = ["k", *(["t DESC"] if time else []), *(["n"] if rating else [])]
        query = (
            f"SELECT {', '.join(chosen)} FROM (SELECT {', '.join(fields)} FROM given) g "
            "JOIN users u ON g.user = u.given JOIN items i ON g.item = i.given "
            f"ORDER BY {', '.join(order)}"
        )
        with self._errors():
            if not rating:
                self._run("SET preserve_insertion_order = false")
            for batch in self._batches(query, _ROWS_AT_ONCE):
                numbers = {name: batch.column(name).to_numpy() for name in batch.schema.names}
                yield Rows(numbers["k"], numbers.get("t"), numbers.get("r"))


def _text(value: str) -> str:
    """A text of SQL."""
    return "'" + value.replace("'", "''") + "'"


def _short(error: Exception) -> str:
    text = " ".join(str(error).split()).replace(os.getcwd() + os.sep, "")
    return text[:300]
