"""The plan of an ingestion: columns, filters and hold-out, the same in memory and out of core."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from robustcf._io.text import counted
from robustcf.data.columns import Columns
from robustcf.data.holdout import HoldOut, Strategy, check_core
from robustcf.data.times import Moment
from robustcf.errors import DataError


@dataclass(frozen=True)
class Plan:
    """How rows become a split; the fields are arguments of :func:`robustcf.data.load`.

    Raises:
        DataError: an option is out of range, or two do not go together.
    """

    seed: int = 0
    user_col: str | int | None = None
    item_col: str | int | None = None
    rating_col: str | int | None = None
    time_col: str | int | None = None
    min_rating: float | None = None
    k_core: int | None = None
    split: Strategy | None = None
    test_ratio: float | None = None
    valid_ratio: float | None = None
    test_from: Moment | None = None
    valid_from: Moment | None = None

    def __post_init__(self) -> None:
        check_core(self.k_core)
        self.hold_out  # noqa: B018  # checks its options

    def options(self, *names: str) -> dict[str, Any]:
        """Return some options, by default all but the seed."""
        return {name: value for name, value in vars(self).items() if name in (names or _OPTIONS)}

    @cached_property
    def columns(self) -> Columns:
        """The columns to read."""
        given = (self.user_col, self.item_col, self.rating_col, self.time_col)
        return Columns(*(None if column is None else str(column) for column in given))

    @cached_property
    def hold_out(self) -> HoldOut:
        """The choice of pairs for valid and test."""
        cut = self.options("test_ratio", "valid_ratio", "test_from", "valid_from")
        return HoldOut(self.split or "random", self.seed, **cut)


_OPTIONS = tuple(name for name in Plan.__annotations__ if name != "seed")


class RowFilter:
    """Count the rows of a source that are dropped: repeats of a pair, and low ratings.

    Args:
        source: for messages.
        min_rating: keep pairs rated at least this; None for all.
        rated: whether there are ratings.
        wanted: what to say where there are none.
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
        """Return what was dropped; no row left is a :class:`DataError`."""
        least = f"{self.min_rating:g}" if self.min_rating is not None else ""
        if least and not self._kept:
            raise DataError(
                f"{self.source}: no rating reaches min_rating = {least}; the highest is "
                f"{self._highest:g}"
            )
        counts = (
            (self.repeated, "repeated pair", ""),
            (self._low, "pair", f" rated below {least}"),
        )
        name = Path(self.source).name or self.source
        return [f"{name}: {counted(n, what)}{how} dropped" for n, what, how in counts if n]
