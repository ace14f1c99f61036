"""Own data: tables of any label type, in CSV, TSV, Parquet, RecBole's ``.inter`` or ``.dat``."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from robustcf.data.interactions import Interactions, Labels
from robustcf.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

# Suffix (without .gz) -> field separator; None for formats that are not text.
SEPARATORS: dict[str, str | None] = {
    ".csv": ",",
    ".tsv": "\t",
    ".inter": "\t",
    ".dat": "::",
    ".parquet": None,
}

USUAL_NAMES: dict[str, tuple[str, ...]] = {
    "user": (
        *("user", "user_id", "userid", "uid", "user_idx", "customer", "customer_id", "customerid"),
        *("visitor", "visitorid", "visitor_id", "session", "session_id", "member_id"),
        *("reviewerid", "reviewer_id"),
    ),
    "item": (
        *("item", "item_id", "itemid", "iid", "item_idx", "movie", "movie_id", "movieid"),
        *("product", "product_id", "productid", "asin", "business_id", "track", "track_id"),
        *("song_id", "artist", "artist_id", "artistid", "book", "book_id", "article"),
        *("article_id", "anime_id", "game_id", "sku"),
    ),
    "rating": ("rating", "ratings", "score", "stars", "overall"),
    "time": (
        *("timestamp", "time", "ts", "date", "datetime", "unixreviewtime", "unix_time"),
        *("event_time", "created_at"),
    ),
}

_MISSING = ["", "nan", "NaN"]


@dataclass(frozen=True)
class Columns:
    """Which columns to read; None means: look for the usual names.

    A whole number names a column by position (from 0): the file is then taken to have no
    header line.
    """

    user: str | None = None
    item: str | None = None
    rating: str | None = None
    time: str | None = None

    @property
    def by_position(self) -> bool:
        """Whether columns are named by number."""
        given = [
            name for name in (self.user, self.item, self.rating, self.time) if name is not None
        ]
        return bool(given) and all(name.isdecimal() for name in given)


@dataclass(frozen=True)
class Table:
    """Rows of one file, in its order, with labels not yet turned into ids."""

    source: str
    users: npt.NDArray[Any]
    items: npt.NDArray[Any]
    ratings: npt.NDArray[np.float64] | None
    times: npt.NDArray[np.int64] | None


def kind_of(path: Path) -> str:
    """The suffix that decides how a file is read, without a final ``.gz``; lower case."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] == ".gz":
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def read_table(path: Path, columns: Columns) -> Table:
    """Read the user, item, rating and time columns of a file.

    Labels are read as text and become integers only where that loses nothing: ``007`` and ``7``
    stay two labels.

    Raises:
        DataError: unreadable or empty file, a column that is not there, a row without an id.
    """
    kind = kind_of(path)
    if kind not in SEPARATORS:
        raise DataError(
            f"{path}: cannot tell how to read it; expected a name that ends in .txt (adjacency), "
            f"{', '.join(SEPARATORS)}, each with .gz or without"
        )
    with _readable(path, kind):
        header = _header(path, kind, columns)
        found = {
            role: _column_name(path, header, role, getattr(columns, role)) for role in USUAL_NAMES
        }
        frame = _rows(path, kind, header, found)
    return _table(str(path), frame, found)


def read_ratings(data: bytes, source: str) -> Table:
    r"""Parse MovieLens-100K's ``u.data``: user, item, rating, timestamp, separated by tabs.

    Example:
        >>> table = read_ratings(b"196\t242\t3\t881250949\n", "u.data")
        >>> table.users.tolist(), table.items.tolist(), table.ratings.tolist()
        ([196], [242], [3.0])
    """
    import pandas as pd

    with _readable(source, "ratings"):
        frame = pd.read_csv(io.BytesIO(data), sep="\t", header=None, names=list(USUAL_NAMES))
    return _table(source, frame, {role: role for role in USUAL_NAMES})


def _table(source: str, frame: pd.DataFrame, found: Mapping[str, Any]) -> Table:
    if frame.empty:
        raise DataError(f"{source}: the file has no rows; expected one interaction a row")
    rating, time = found["rating"], found["time"]
    return Table(
        source,
        _labels(source, frame[found["user"]], "user"),
        _labels(source, frame[found["item"]], "item"),
        None if rating is None else _numbers(source, frame[rating]),
        None if time is None else _times(source, frame[time]),
    )


def to_interactions(
    tables: Sequence[Table], min_rating: float | None = None
) -> tuple[list[Interactions], list[str]]:
    """Number the labels of all tables together, drop repeats, apply the rating threshold.

    Ids follow the order of the labels (numbers by value, text by code point), so they do not
    depend on the order of rows. Of repeated pairs the latest row counts, and its rating is the
    one held against ``min_rating``.

    Returns:
        One :class:`Interactions` a table, sharing ids and labels, and notes on what was dropped.
    """
    notes: list[str] = []
    kept = []
    for table in tables:
        if min_rating is not None and table.ratings is None:
            raise DataError(
                f"{table.source}: min_rating = {min_rating:g} needs a rating column and none was "
                "found; name it with rating_col (--rating-col)"
            )
        kept.append(_rows_to_keep(table, min_rating, notes))
    user_labels, users = _number([t.users[k] for t, k in zip(tables, kept, strict=True)])
    item_labels, items = _number([t.items[k] for t, k in zip(tables, kept, strict=True)])
    sets = [
        Interactions(
            users[n],
            items[n],
            len(user_labels),
            len(item_labels),
            user_labels=user_labels,
            item_labels=item_labels,
            timestamps=None if table.times is None else table.times[rows],
            weights=None if table.ratings is None else table.ratings[rows],
        )
        for n, (table, rows) in enumerate(zip(tables, kept, strict=True))
    ]
    return sets, notes


def _rows_to_keep(table: Table, min_rating: float | None, notes: list[str]) -> npt.NDArray[np.intp]:
    import pandas as pd

    users = pd.factorize(table.users)[0].astype(np.int64)
    items, distinct_items = pd.factorize(table.items)
    pairs = users * max(len(distinct_items), 1) + items
    rows = np.arange(len(pairs))
    # ~t is -t - 1: the latest row of a pair first, the first row where times tie or are absent.
    order = np.lexsort((rows, pairs) if table.times is None else (rows, ~table.times, pairs))
    first = np.ones(len(order), dtype=bool)
    first[1:] = pairs[order[1:]] != pairs[order[:-1]]
    kept = np.sort(order[first])
    name = Path(table.source).name
    if len(kept) < len(pairs):
        notes.append(f"{name}: {len(pairs) - len(kept):,} repeated pairs dropped")
    if min_rating is not None and table.ratings is not None:
        enough = table.ratings[kept] >= min_rating
        if not enough.any():
            raise DataError(
                f"{table.source}: no rating reaches min_rating = {min_rating:g}; the highest is "
                f"{table.ratings.max():g}"
            )
        notes.append(f"{name}: {(~enough).sum():,} pairs rated below {min_rating:g} dropped")
        kept = kept[enough]
    return kept


def _number(groups: list[npt.NDArray[Any]]) -> tuple[Labels, list[npt.NDArray[np.intp]]]:
    """Labels in order, and each group's labels as positions in that order."""
    import pandas as pd

    kinds = {group.dtype.kind for group in groups}
    if len(kinds) > 1:  # integers in one file, text in another: text is what both can be
        groups = [group.astype(str) for group in groups]
    codes, distinct = pd.factorize(np.concatenate(groups))
    order = np.argsort(distinct, kind="stable")
    position = np.empty(len(order), dtype=np.intp)
    position[order] = np.arange(len(order))
    bounds = np.cumsum([len(group) for group in groups])[:-1]
    labels = distinct[order]
    if labels.dtype.kind == "O":
        labels = labels.astype(str)
    return labels, np.split(position[codes], bounds)


@contextmanager
def _readable(source: Path | str, kind: str) -> Iterator[None]:
    """Turn the many ways in which a reader can fail into one."""
    import pandas as pd

    try:
        yield
    except DataError:
        raise
    except pd.errors.EmptyDataError:
        raise DataError(
            f"{source}: the file is empty; expected a header line and one interaction a row"
        ) from None
    except (ValueError, OSError, EOFError, zlib.error) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{source}: not a readable {kind} file ({reason})") from error


def _header(path: Path, kind: str, columns: Columns) -> list[Any]:
    """The file's column names; 0, 1, 2, ... where there is no header line."""
    import pandas as pd

    separator = SEPARATORS[kind]
    if separator is None:
        import pyarrow.parquet

        return list(pyarrow.parquet.read_schema(path).names)
    first = pd.read_csv(
        path, sep=separator, engine="python", header=None, nrows=1, dtype=str, keep_default_na=False
    )
    # Lines of .dat files (MovieLens) never are headers.
    if columns.by_position or kind == ".dat":
        return list(range(first.shape[1]))
    return [str(name) for name in first.iloc[0]]


def _rows(path: Path, kind: str, header: list[Any], found: Mapping[str, Any]) -> pd.DataFrame:
    import pandas as pd

    wanted = [name for name in found.values() if name is not None]
    separator = SEPARATORS[kind]
    if separator is None:
        return pd.read_parquet(path, columns=wanted)
    return pd.read_csv(
        path,
        sep=separator,
        engine="python" if len(separator) > 1 else "c",
        header=None if header and isinstance(header[0], int) else 0,
        usecols=wanted,
        # Ids as text, so that no label is changed by being taken for a number.
        dtype={found["user"]: str, found["item"]: str},
        keep_default_na=False,
        na_values=_MISSING,
    )


def _column_name(path: Path, header: list[Any], role: str, given: str | None) -> Any:
    """The file's own name (or position) of the column that plays a role, or None."""
    if header and isinstance(header[0], int):
        position = int(given) if given is not None else {"user": 0, "item": 1}.get(role)
        if position is not None and position >= len(header):
            raise DataError(
                f"{path}: column {position} was asked for as the {role}, but the file has "
                f"{len(header)} columns (counted from 0)"
            )
        return position
    # RecBole writes types into the header ("user_id:token"): the name is what stands before.
    plain = {str(name).partition(":")[0].strip().lower(): name for name in reversed(header)}
    if given is not None:
        exact = given if given in header else plain.get(given.lower())
        if exact is None:
            raise DataError(
                f"{path}: has no column {given!r} for the {role}; its columns are {_listed(header)}"
            )
        return exact
    for name in USUAL_NAMES[role]:
        if name in plain:
            return plain[name]
    if role in ("user", "item"):
        raise DataError(
            f"{path}: found no {role} column; its columns are {_listed(header)}: name it with "
            f"{role}_col (--{role}-col), or give column numbers from 0 if there is no header line"
        )
    return None


def _listed(header: list[Any]) -> str:
    names = [repr(name) for name in header]
    return ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")


def _labels(source: str, column: pd.Series[Any], role: str) -> npt.NDArray[Any]:
    """A label column as int64 where that loses nothing, else as text (object array of str)."""
    import pandas as pd

    if column.isna().any():
        row = int(np.flatnonzero(column.isna().to_numpy())[0])
        raise DataError(
            f"{source}: {int(column.isna().sum())} rows have no {role} id, the first is data row "
            f"{row + 1}; fill them in or remove the rows"
        )
    if pd.api.types.is_integer_dtype(column.dtype):
        return column.to_numpy(dtype=np.int64)
    if pd.api.types.is_float_dtype(column.dtype) and (column % 1 == 0).all():
        return column.to_numpy(dtype=np.int64)
    codes, distinct = pd.factorize(column.astype(str))
    names = np.asarray(distinct, dtype=object)
    try:
        numbers = np.array([int(name) for name in names], dtype=np.int64)
    except (ValueError, OverflowError):
        return names[codes]
    if all(str(number) == name for number, name in zip(numbers, names, strict=True)):
        return numbers[codes]
    return names[codes]


def _numbers(source: str, column: pd.Series[Any]) -> npt.NDArray[np.float64]:
    import pandas as pd

    values = pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64)
    if not np.isfinite(values).all():
        row = int(np.flatnonzero(~np.isfinite(values))[0])
        raise DataError(
            f"{source}: column {column.name!r} must hold numbers, got {column.iloc[row]!r} in data "
            f"row {row + 1}"
        )
    return values


def _times(source: str, column: pd.Series[Any]) -> npt.NDArray[np.int64]:
    """Numbers as they are (rounded down), dates as seconds since 1970."""
    import pandas as pd

    if not pd.api.types.is_datetime64_any_dtype(column.dtype):
        numbers = pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64)
        if np.isfinite(numbers).all():
            return np.floor(numbers).astype(np.int64)  # type: ignore[no-any-return]
    dates = pd.to_datetime(column, errors="coerce", utc=True, format="mixed")
    if dates.isna().any():
        row = int(np.flatnonzero(dates.isna().to_numpy())[0])
        raise DataError(
            f"{source}: column {column.name!r} must hold times, got {column.iloc[row]!r} in data "
            f"row {row + 1}; use seconds, or dates such as 2024-05-01 12:30"
        )
    seconds = dates.dt.tz_localize(None).to_numpy(dtype="datetime64[s]")
    return np.asarray(seconds).astype(np.int64)
