"""Times of interactions: read from a column, compared with a date, and cut in two.

Whole numbers stay as they are; fractions of seconds and ISO dates become microseconds.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable
from datetime import date
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from robustcf.data.columns import bad_cell
from robustcf.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

Times = npt.NDArray[np.integer[Any]]
Blocks = Callable[[], Iterable[Times]]
#: The meaning of int64 times: whole numbers as given, or microseconds of fractions or dates.
TimeUnit = Literal["numbers", "fractions", "dates"]
#: A point in time as an argument.
Moment = str | float | date | np.datetime64

_LATEST = 2**63 - 1
_MICRO = 10**6
# Whole numbers below these are seconds, milli- or microseconds since 1970 (until the year 5138).
_PER_SECOND = ((10**11, 1), (10**14, 10**3), (10**17, 10**6))
_DIGIT = 16  # bits of a time per pass


def read_times(source: str, column: pd.Series[Any]) -> tuple[Times, TimeUnit]:
    """Return the times of a column, and their unit."""
    import pandas as pd

    no_number = np.ones(len(column), dtype=bool)
    if not pd.api.types.is_datetime64_any_dtype(column.dtype):
        found = pd.to_numeric(column, errors="coerce")
        whole = pd.api.types.is_integer_dtype(found.dtype) and not found.isna().any()
        if whole and not (found > _LATEST).any():
            return found.to_numpy(dtype=np.int64), "numbers"
        values = found.to_numpy(dtype=np.float64, na_value=np.nan)
        if np.isfinite(values).all():
            all_whole = bool((values % 1 == 0).all())
            with np.errstate(over="ignore"):
                micro = values if all_whole else np.round(values * _MICRO)
            too_large = ~(np.abs(micro) < 2.0**63)
            if too_large.any():
                raise bad_cell(source, column, too_large, "times", "use smaller numbers")
            return np.asarray(micro).astype(np.int64), "numbers" if all_whole else "fractions"
        no_number = ~np.isfinite(values)
        if pd.api.types.is_numeric_dtype(column.dtype):
            raise bad_cell(source, column, no_number, "times", "give each row a time")
    # ISO only, since 01/02/2024 is ambiguous.
    texts = column.astype(str) if column.dtype == object else column  # may mix numbers and dates
    dates = pd.to_datetime(texts, errors="coerce", utc=True, format="ISO8601")
    no_date = dates.isna().to_numpy()
    if no_date.any():
        neither = no_date & no_number
        what = "use numbers, or ISO dates such as 2024-05-01 12:30"
        raise bad_cell(source, column, neither if neither.any() else no_date, "times", what)
    naive = dates.dt.tz_localize(None).to_numpy(dtype="datetime64[us]")
    return np.asarray(naive).astype(np.int64), "dates"


_WHOLE, _NUMBER = "TRY_CAST(time AS BIGINT)", "TRY_CAST(time AS DOUBLE)"
_DATE = "TRY_CAST(time AS TIMESTAMPTZ)"
_ALL_WHOLE = f"abs({_NUMBER}) < 9223372036854775000 AND {_NUMBER} = trunc({_NUMBER})"
_MICROSECONDS = f"CAST(round_even({_NUMBER} * 1e6, 0) AS BIGINT)"
_ISO = f"{_DATE} IS NOT NULL AND regexp_matches(time, '^[0-9]{{4}}-')"
#: :func:`read_times` in SQL, for :mod:`robustcf.data.large`: the types of a column ``time``, the
#: condition for all rows, the value as int64, and its unit. The first entry that fits is used.
SQL_TIMES: tuple[tuple[str, str, str, TimeUnit], ...] = (
    ("time date", f"{_DATE} IS NOT NULL", f"epoch_us({_DATE})", "dates"),
    ("integer unsigned", f"{_WHOLE} IS NOT NULL", _WHOLE, "numbers"),
    ("text", f"CAST({_WHOLE} AS VARCHAR) = time", _WHOLE, "numbers"),
    ("text float", _ALL_WHOLE, f"CAST({_NUMBER} AS BIGINT)", "numbers"),
    ("text float", f"abs({_NUMBER}) < 9223372036854", _MICROSECONDS, "fractions"),
    ("text", _ISO, f"epoch_us({_DATE})", "dates"),
)


def moment_of(option: str, given: Moment, unit: TimeUnit, latest: int) -> int:
    """Return the first int64 time that is not before a date or a number.

    Text may be a number. A date without a time zone is in UTC; it is compared with whole numbers
    as seconds since 1970 or, by the size of the latest, as milli-, micro- or nanoseconds.

    Example:
        >>> moment_of("test_from", "1998-04-01", "numbers", latest=893_286_638)
        891388800
    """
    number = _number(given)
    if number is None:
        micro = _microseconds(option, given)
        rate = _MICRO
        if unit == "numbers":
            rate = next((rate for below, rate in _PER_SECOND if latest < below), 10**9)
        return -(-micro * rate // _MICRO)
    if unit == "dates":
        raise DataError(f"{option} must be a date such as 2024-05-01, got {given!r}")
    if not math.isfinite(number):
        raise DataError(f"{option} must be an ISO date or a finite number, got {given!r}")
    return round(number * _MICRO) if unit == "fractions" else math.ceil(number)


def shown(time: int, unit: TimeUnit) -> str:
    """Return a time for a message: a date where times are dates, else the number."""
    if unit == "dates":
        return str(np.datetime64(time, "us").item().isoformat())
    return str(time) if unit == "numbers" else repr(time / _MICRO)


def _number(given: Moment) -> float | None:
    """Return a number (whole ones exactly), or None for a date."""
    if isinstance(given, bool | np.bool_):
        return None
    if isinstance(given, numbers.Real):
        return int(given) if isinstance(given, numbers.Integral) else float(given)
    if isinstance(given, str):
        for read in (int, float):
            try:
                return read(given)
            except ValueError:
                continue
    return None


def _microseconds(option: str, given: Moment) -> int:
    import pandas as pd

    found = None
    if isinstance(given, str | date | np.datetime64):
        found = pd.to_datetime(str(given), errors="coerce", utc=True, format="ISO8601")
    if found is None or pd.isna(found):
        raise DataError(
            f"{option} must be an ISO date such as 2024-05-01 or a number, got {given!r}"
        )
    return int(found.tz_localize(None).to_datetime64().astype("datetime64[us]").astype(np.int64))


def cut_at_ratio(blocks: Blocks, ratio: float) -> int | None:
    """Return the time from which on about ``ratio`` of all times are; equal times stay together.

    The nearer of the two possible cuts, or the earlier; None where all times are equal.
    Cost: four or eight passes over the times (calls of ``blocks``), in the memory of one block.

    Example:
        >>> times = np.array([1, 2, 3, 3, 3, 9])
        >>> cut_at_ratio(lambda: [times], 0.5), cut_at_ratio(lambda: [times], 0.2)
        (3, 9)
    """
    count = sum(map(len, blocks()))
    if count < 2:
        return None
    wanted = count - min(max(math.floor(ratio * count + 0.5), 1), count - 1)  # before the cut
    time, earlier, not_later = _rank(blocks, wanted)
    possible = [before for before in (earlier, not_later) if 0 < before < count]
    if not possible:
        return None
    before = min(possible, key=lambda before: abs(before - wanted))
    return time if before == earlier else _rank(blocks, before)[0]


def _rank(blocks: Blocks, position: int) -> tuple[int, int, int]:
    """Return the time at a position in sorted order, and how many are earlier, and not later.

    A radix selection: nothing is sorted.
    """
    prefix, left, within = 0, position, 0
    for shift in range(64 - _DIGIT, -1, -_DIGIT):
        counts = np.zeros(1 << _DIGIT, dtype=np.int64)
        for times in blocks():
            # Unsigned, in the same order.
            keys = times.astype(np.int64).view(np.uint64) ^ np.uint64(1 << 63)
            if shift + _DIGIT < 64:
                keys = keys[keys >> np.uint64(shift + _DIGIT) == np.uint64(prefix)]
            digits = (keys >> np.uint64(shift)) & np.uint64((1 << _DIGIT) - 1)
            counts += np.bincount(digits.astype(np.int64), minlength=1 << _DIGIT)
        ends = np.cumsum(counts)
        digit = int(np.searchsorted(ends, left, side="right"))
        left -= int(ends[digit] - counts[digit])
        prefix, within = (prefix << _DIGIT) | digit, int(counts[digit])
    before = position - left
    return prefix - (1 << 63), before, before + within
