"""Weights of training pairs that cap how much of an item one user can decide."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from robustcf._checks import check_number
from robustcf.errors import InputError


def check_max_share(value: float | None, name: str = "max_share") -> None:
    """Raise unless it is None or a share: more than 0, at most 1.

    Example:
        >>> check_max_share(1.5)
        Traceback (most recent call last):
        robustcf.errors.InputError: max_share must be more than 0 and at most 1, got 1.5
    """
    if value is not None and check_number(name, value, positive=True) > 1:
        raise InputError(f"{name} must be more than 0 and at most 1, got {value}")


def item_weights(
    item_degrees: npt.NDArray[Any], max_share: float | None
) -> npt.NDArray[np.float64] | None:
    """The weight of every pair of an item, so that no user's share of the item exceeds a cap.

    What an item learns is a sum over its pairs. Give it one pair's worth of doubt, so that an item
    with a single pair is not decided by it alone (Laplace's rule); the share of a pair of weight w
    in an item of degree d is then ``w / (1 + d w)``. The largest weight, at most 1, whose share is
    at most s is::

        w = 1                  for d >= 1 / s - 1
        w = s / (1 - s d)      below

    So an item is believed in full once 1 / s - 1 users stand behind it, and nearly not at all while
    a few do: whoever promotes an item that nobody has needs that many accounts for it. All pairs of
    an item weigh the same: without knowing who is fake there is no reason to tell them apart. More
    than 1 / s accounts pass the cap, which is what it does not promise.

    Cost: one pass over the items.

    Example:
        >>> item_weights(np.array([1, 5, 9, 100]), 0.1).round(3).tolist()
        [0.111, 0.2, 1.0, 1.0]
    """
    check_max_share(max_share)
    if max_share is None:
        return None
    degrees = item_degrees.astype(np.float64)
    left = 1.0 - max_share * degrees
    # Where the cap does not bind, left <= max_share (up to rounding): no quotient is needed.
    binds = left > max_share * (1 + 1e-9)
    weights = np.where(binds, max_share / np.where(binds, left, 1.0), 1.0)
    return None if bool((weights == 1.0).all()) else weights
