"""The columns of a table by role: found by their usual names, by name, or by number."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from robustcf.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

# Compared without case, blanks and punctuation.
USUAL_NAMES: dict[str, tuple[str, ...]] = {
    "user": (
        *("user", "userid", "uid", "useridx", "customer", "customerid", "visitor", "visitorid"),
        *("session", "sessionid", "memberid", "reviewerid"),
    ),
    "item": (
        *("item", "itemid", "iid", "itemidx", "movie", "movieid", "product", "productid"),
        *("asin", "parentasin", "businessid", "track", "trackid", "songid", "artist", "artistid"),
        *("book", "bookid", "isbn", "article", "articleid", "animeid", "gameid", "sku"),
    ),
    "rating": ("rating", "ratings", "bookrating", "score", "stars", "overall"),
    "time": (
        *("timestamp", "time", "ts", "date", "datetime", "unixreviewtime", "unixtime"),
        *("eventtime", "createdat"),
    ),
}
# Columns of a file without a header.
_BY_POSITION = {"user": 0, "item": 1}
_MOVIELENS = {"user": 0, "item": 1, "rating": 2, "time": 3}


@dataclass(frozen=True)
class Columns:
    """Columns to read: names, positions from 0 (without a header line), or None for the usual."""

    user: str | None = None
    item: str | None = None
    rating: str | None = None
    time: str | None = None

    @property
    def by_position(self) -> bool:
        """Whether columns are given by number."""
        given = [c for c in (self.user, self.item, self.rating, self.time) if c is not None]
        return bool(given) and all(name.isdecimal() for name in given)

    def must_have(self, role: str) -> bool:
        """Whether a column is required: the user, the item, and those that the caller named."""
        return role in ("user", "item") or getattr(self, role) is not None

    def left_out(self, role: str, problem: str, advice: str) -> str:
        """Return the note on an unusable column that is left out; raise where it is required."""
        if self.must_have(role):
            raise DataError(f"{problem}; {advice}")
        return f"the {role} column was left out: {problem}"


def kind_of(path: Path) -> str:
    """Return the suffix that decides how a file is read: lower case, without ``.gz``."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def _plain(name: object) -> str:
    """Return a name without case, punctuation and RecBole's type (``user_id:token``)."""
    return re.sub(r"[^a-z0-9]", "", str(name).partition(":")[0].lower())


def refuse_header(path: Path, cells: list[str], columns: Columns) -> None:
    """Raise where a first line that should hold values seems to hold names."""
    usual = {name for names in USUAL_NAMES.values() for name in names}
    given = {columns.user, columns.item} - {None}
    if any(_plain(cell) in usual for cell in cells) or (given <= set(cells) - {""} and given):
        raise DataError(
            f"{path}: columns by number need a file without a header line, and the first line "
            f"looks like one ({listed(cells)}): give the names instead"
        )


def find_columns(path: Path | str, header: list[Any], columns: Columns) -> dict[str, Any]:
    """Return the name (or position) of the column of each role in a header, or None."""
    return {role: _column_name(path, header, role, getattr(columns, role)) for role in USUAL_NAMES}


def _column_name(path: Path | str, header: list[Any], role: str, given: str | None) -> Any:
    if header and isinstance(header[0], int):
        usual = _MOVIELENS if kind_of(Path(path)) == ".dat" and len(header) >= 4 else _BY_POSITION
        position = int(given) if given is not None else usual.get(role)
        if position is not None and position >= len(header):
            there = f"there are {len(header)} columns, counted from 0"
            raise DataError(f"{path}: no column {position} for the {role}; {there}")
        return position
    plain = {_plain(name): name for name in reversed(header)}
    if given is not None:
        exact = given if given in header else plain.get(_plain(given))
        if exact is None:
            raise DataError(
                f"{path}: has no column {given!r} for the {role}; its columns are {listed(header)}"
            )
        return exact
    usual_name = next((plain[name] for name in USUAL_NAMES[role] if name in plain), None)
    if usual_name is None and role in ("user", "item"):
        advice = f"name it with {role}_col"
        if isinstance(path, Path):
            advice += f" (--{role}-col), or give column numbers from 0 if there is no header line"
        raise DataError(
            f"{path}: found no {role} column; its columns are {listed(header)}: {advice}"
        )
    return usual_name


def _short(name: object) -> str:
    return repr(name[:60] + "..." if isinstance(name, str) and len(name) > 60 else name)


def listed(header: list[Any]) -> str:
    """Return the first names of a header, for a message."""
    names = [_short(name) for name in header[:13]]
    return ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")


def bad_cell(
    source: str, column: pd.Series[Any], bad: npt.NDArray[np.bool_], what: str, advice: str
) -> DataError:
    """Return the error for the first bad cell of a column."""
    row = int(np.flatnonzero(bad)[0])
    shown = "an empty cell" if column.isna().iloc[row] else _short(str(column.iloc[row]))
    return DataError(
        f"{source}: column {str(column.name)!r} must hold {what}, got {shown} in data row "
        f"{row + 1}; {advice}"
    )
