"""The plan of an ingestion: columns, filters and hold-out, the same in memory and out of core."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from robustcf._io.text import counted
from robustcf.data.columns import Columns
from robustcf.data.holdout import HoldOut, Strategy
from robustcf.data.times import Moment
from robustcf.errors import DataError


class Options(TypedDict, total=False):
    """What :func:`robustcf.data.load` and :func:`robustcf.data.prepare` take about own data."""

    user_col: str | int | None
    item_col: str | int | None
    rating_col: str | int | None
    time_col: str | int | None
    min_rating: float | None
    k_core: int | None
    split: Strategy | None
    test_ratio: float | None
    valid_ratio: float | None
    test_from: Moment | None
    valid_from: Moment | None


@dataclass(frozen=True)
class Plan:
    """How rows become a split.

    Args:
        columns: which columns to read.
        min_rating: keep pairs rated at least this; None for all.
        k_core: keep the k-core; None for all.
        hold_out: which pairs go to valid and test.
    """

    columns: Columns
    min_rating: float | None
    k_core: int | None
    hold_out: HoldOut

    @classmethod
    def of(
        cls,
        seed: int,
        *,
        user_col: str | int | None = None,
        item_col: str | int | None = None,
        rating_col: str | int | None = None,
        time_col: str | int | None = None,
        min_rating: float | None = None,
        k_core: int | None = None,
        split: Strategy | None = None,
        **cut: Any,
    ) -> Plan:
        """Return the plan of :class:`Options`.

        Raises:
            DataError: an option is out of range, or two do not go together.
        """
        given = (user_col, item_col, rating_col, time_col)
        columns = Columns(*(None if column is None else str(column) for column in given))
        if k_core is not None and k_core < 1:
            raise DataError(f"k-core needs k of at least 1, got {k_core}")
        return cls(columns, min_rating, k_core, HoldOut(split or "random", seed, **cut))


class RowFilter:
    """Count the rows of a source that are dropped: repeats of a pair, and low ratings.

    Args:
        source: for messages.
        min_rating: keep pairs rated at least this; None for all.
        rated: whether there are ratings.
        wanted: what is missing where there are none, for the message.
    """

    def __init__(
        self,
        source: str,
        min_rating: float | None,
        *,
        rated: bool,
        wanted: str = "a rating column and none was found; name it with rating_col (--rating-col)",
    ) -> None:
        if min_rating is not None and not rated:
            raise DataError(f"{source}: min_rating = {min_rating:g} needs {wanted}")
        self.source, self.min_rating = source, min_rating
        self.repeated = self._low = self._kept = 0
        self._highest = -np.inf

    def enough(self, ratings: npt.NDArray[np.floating[Any]] | None, count: int) -> Any:
        """Return the mask of rows that are rated high enough, or a slice of all."""
        if self.min_rating is None or ratings is None:
            self._kept += count
            return slice(None)
        enough: npt.NDArray[np.bool_] = ratings >= self.min_rating
        kept = int(enough.sum())
        self._kept, self._low = self._kept + kept, self._low + count - kept
        self._highest = float(ratings.max(initial=self._highest))
        return enough

    def notes(self) -> list[str]:
        """Return what was dropped.

        Raises:
            DataError: no row is left.
        """
        if self.min_rating is not None and not self._kept:
            raise DataError(
                f"{self.source}: no rating reaches min_rating = {self.min_rating:g}; the highest "
                f"is {self._highest:g}"
            )
        name = PurePosixPath(self.source.rstrip("/")).name or self.source
        notes = []
        if self.repeated:
            notes.append(f"{name}: {counted(self.repeated, 'repeated pair')} dropped")
        if self._low:
            notes.append(
                f"{name}: {counted(self._low, 'pair')} rated below {self.min_rating:g} dropped"
            )
        return notes
