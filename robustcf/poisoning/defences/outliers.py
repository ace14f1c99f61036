"""How far a number is from the others, when some of the others may be fake."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]

#: Fewer users than this have no ordinary user to be compared with: nobody is flagged.
FEWEST_USERS = 20
# Of a normal distribution: its standard deviation in median absolute deviations.
_MAD = 1.4826


def robust_z(values: Numbers) -> Numbers:
    """Distances from the median, in standard deviations as the median absolute deviation sees them.

    Up to half of the values may be anything without moving either far. Where at least half are
    equal, nothing can be said of the spread: all distances are 0.

    Example:
        >>> robust_z(np.array([1.0, 2.0, 3.0, 4.0, 1000.0])).round(2).tolist()
        [-1.35, -0.67, 0.0, 0.67, 672.47]
    """
    if len(values) == 0:
        return np.zeros(0)
    centred = values - np.median(values)
    spread = _MAD * float(np.median(np.abs(centred)))
    return centred / spread if spread > 0 else np.zeros(len(values))
