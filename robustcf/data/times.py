"""Times of interactions: read from a column, compared with a date, and cut in two.

Whole numbers stay as they are; fractions of seconds and ISO dates become microseconds.
:func:`read_times` and :data:`SQL_TIMES` say this once for pandas and once for the engine of
:mod:`robustcf.data.large`.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable
from datetime import date
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from robustcf.data.columns import bad_cell
from robustcf.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

Times = npt.NDArray[np.integer[Any]]
Blocks = Callable[[], Iterable[Times]]
#: What int64 times are: whole numbers as given, or microseconds of fractions or dates.
TimeUnit = Literal["numbers", "fractions", "dates"]
#: A point in time, as a caller may give it.
Moment = str | float | date | np.datetime64

_LATEST = 2**63 - 1
_MICRO = 10**6
# Below these, whole numbers are taken for seconds, milli- or microseconds since 1970: each is a
# time between 1973 and 5138.
_PER_SECOND = ((10**11, 1), (10**14, 10**3), (10**17, 10**6))
_DIGIT = 16  # bits of a time that are looked at in one pass


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
    # ISO only: 01/02/2024 is two days, depending on the reader.
    texts = column.astype(str) if column.dtype == object else column  # numbers here, dates there
    dates = pd.to_datetime(texts, errors="coerce", utc=True, format="ISO8601")
    no_date = dates.isna().to_numpy()
    if no_date.any():
        neither = no_date & no_number
        what = "use numbers, or ISO dates such as 2024-05-01 12:30"
        raise bad_cell(source, column, neither if neither.any() else no_date, "times", what)
    naive = dates.dt.tz_localize(None).to_numpy(dtype="datetime64[us]")
    return np.asarray(naive).astype(np.int64), "dates"


class SqlTime(NamedTuple):
    """One way to read a column ``time``: where ``fits`` holds in every row, ``value`` is int64."""

    kinds: tuple[str, ...]
    fits: str
    value: str
    unit: TimeUnit = "numbers"


_WHOLE, _NUMBER = "TRY_CAST(time AS BIGINT)", "TRY_CAST(time AS DOUBLE)"
_DATE = "TRY_CAST(time AS TIMESTAMPTZ)"
#: In order; the first that fits counts.
SQL_TIMES = (
    SqlTime(("time", "date"), f"{_DATE} IS NOT NULL", f"epoch_us({_DATE})", "dates"),
    SqlTime(("integer", "unsigned"), f"{_WHOLE} IS NOT NULL", _WHOLE),
    SqlTime(("text",), f"CAST({_WHOLE} AS VARCHAR) = time", _WHOLE),
    SqlTime(
        ("text", "float"),
        f"abs({_NUMBER}) < 9223372036854775000 AND {_NUMBER} = trunc({_NUMBER})",
        f"CAST({_NUMBER} AS BIGINT)",
    ),
    SqlTime(
        ("text", "float"),
        f"abs({_NUMBER}) < 9223372036854",
        f"CAST(round_even({_NUMBER} * 1e6, 0) AS BIGINT)",
        "fractions",
    ),
    SqlTime(
        ("text",),
        f"{_DATE} IS NOT NULL AND regexp_matches(time, '^[0-9]{{4}}-')",
        f"epoch_us({_DATE})",
        "dates",
    ),
)


def moment_of(option: str, given: Moment, unit: TimeUnit, latest: int) -> int:
    """Return the first int64 time that is not before a date or a number.

    Text that is a number counts as one. A date without a time zone is in UTC. Whole numbers are
    compared with a date as seconds since 1970 or, by the size of the latest one, as milli-, micro-
    or nanoseconds.

    Example:
        >>> moment_of("test_from", "1998-04-01", "numbers", latest=893_286_638)
        891388800
        >>> moment_of("test_from", 2.5, "fractions", latest=3_000_000)
        2500000
    """
    number = _number(given)
    if number is None:
        micro = _microseconds(option, given)
        rate = _MICRO
        if unit == "numbers":
            rate = next((rate for below, rate in _PER_SECOND if latest < below), 10**9)
        return -(-micro * rate // _MICRO)
    if unit == "dates":
        raise DataError(
            f"{option} must be a date such as 2024-05-01, as the times are, got {given!r}"
        )
    if not math.isfinite(number):
        raise DataError(f"{option} must be an ISO date or a finite number, got {given!r}")
    return round(number * _MICRO) if unit == "fractions" else math.ceil(number)


def shown(time: int, unit: TimeUnit) -> str:
    """Return a time for a message: a date where times are dates, else the number.

    Example:
        >>> shown(1_714_521_600 * 10**6, "dates"), shown(7, "numbers"), shown(2500000, "fractions")
        ('2024-05-01T00:00:00', '7', '2.5')
    """
    if unit == "dates":
        return str(np.datetime64(time, "us").item().isoformat())
    return str(time) if unit == "numbers" else repr(time / _MICRO)


def _number(given: Moment) -> float | None:
    """Return a number as it is (whole ones exactly), or None for a date."""
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
    """Return the time from which on about ``ratio`` of all are, with equal times kept together.

    Of the two possible cuts around the wanted one the nearer is taken, the earlier of two that
    are equally near. Each side keeps at least one time; None where all times are equal.

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
    """Return the time at a position of all in order, how many are earlier, how many not later.

    Found digit by digit, so that nothing is sorted.
    """
    prefix, left, within = 0, position, 0
    for shift in range(64 - _DIGIT, -1, -_DIGIT):
        counts = np.zeros(1 << _DIGIT, dtype=np.int64)
        for times in blocks():
            # Without a sign, in the same order.
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
