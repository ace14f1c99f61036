"""Statistics of curves: areas, the paired bootstrap over users, sign flips, Holm's correction.

Everything here is about means over users. The users are what is drawn again: an interval says how
far a mean would move with other users of the same kind. It says nothing of other training seeds;
their spread has to be shown next to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from robustcf._checks import check_integer
from robustcf.errors import InputError

Array = npt.NDArray[np.float64]

# Weights of a block of resamples, in bytes: large enough for fast products, small in memory.
_BLOCK_BYTES = 32 << 20
# Sums in another order differ by rounding; flips that only repeat the observed mean must count.
_ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class Interval:
    """Means and the ends of their confidence intervals, one for each column.

    Args:
        value: the means.
        lower: lower ends.
        upper: upper ends.
        confidence: of each interval by itself.
    """

    value: Array
    lower: Array
    upper: Array
    confidence: float


def area(epsilons: Sequence[float], values: npt.ArrayLike) -> Array:
    """Mean height of curves over the range of epsilon: trapezoids, divided by the range.

    Args:
        epsilons: ascending.
        values: epsilons x anything (users, say); every column is a curve of its own.

    Returns:
        One area for each column. The range of a single epsilon has no width; the area is then
        the limit, the value itself.

    Raises:
        InputError: sizes do not fit, epsilons are not ascending, or something is not finite.

    Example:
        >>> float(area([0, 1, 3], [1.0, 0.5, 0.0]))
        0.4166666666666667
    """
    sizes, heights = np.asarray(epsilons, dtype=np.float64), _finite(values, "values")
    if sizes.ndim != 1 or len(sizes) == 0 or heights.ndim == 0 or len(heights) != len(sizes):
        raise InputError(
            f"an area needs one row of values for each epsilon, got {sizes.shape} epsilons and "
            f"values of shape {heights.shape}"
        )
    if not np.isfinite(sizes).all() or (np.diff(sizes) <= 0).any():
        raise InputError(f"epsilons must be finite and ascending, got {sizes.tolist()}")
    if len(sizes) == 1:
        return np.asarray(heights[0], dtype=np.float64)
    found: Array = np.trapezoid(heights, sizes, axis=0) / (sizes[-1] - sizes[0])
    return np.asarray(found)


def bootstrap_mean(
    values: npt.ArrayLike,
    generator: np.random.Generator,
    *,
    resamples: int = 10_000,
    confidence: float = 0.95,
) -> Interval:
    """Percentile bootstrap of means over users.

    Users are drawn with replacement, as many as there are, and all columns get the same users:
    intervals of differences, given as columns, are paired.

    Args:
        values: users, or users x columns.
        generator: of the resamples.
        resamples: how many.
        confidence: the share of resamples inside an interval.

    Returns:
        The means with their intervals, of the shape of one user's values. Where all users have
        the same value the interval has no width.

    Raises:
        InputError: fewer than two users, values that are not finite, or bad settings.

    Cost: ``resamples * users`` random integers and one product of resamples x users x columns,
    in blocks of 32 MB.

    Example:
        >>> values = np.random.default_rng(2).random(500)
        >>> found = bootstrap_mean(values, np.random.default_rng(1), resamples=999)
        >>> bool(found.lower < 0.5 < found.upper)
        True
    """
    columns, shape = _columns(values)
    if not 0 < confidence < 1:
        raise InputError(f"confidence must be between 0 and 1, got {confidence!r}")
    # A constant off the values is a constant off the means; equal values stay exactly equal.
    offset = columns[0]
    shifted = columns - offset
    users = len(columns)
    means = np.empty((check_integer("resamples", resamples), columns.shape[1]))
    for rows in _blocks(resamples, users):
        means[rows] = _draw_counts(generator, rows.stop - rows.start, users) @ shifted / users
    tail = (1 - confidence) / 2
    lower, upper = np.quantile(means, [tail, 1 - tail], axis=0) + offset
    value = shifted.mean(axis=0) + offset
    return Interval(
        value.reshape(shape), lower.reshape(shape), upper.reshape(shape), float(confidence)
    )


def sign_flip_test(
    differences: npt.ArrayLike, generator: np.random.Generator, *, resamples: int = 10_000
) -> Array:
    """Two-sided paired permutation test of a mean difference, by random flips of signs.

    Under the null hypothesis a user's two values may change places: the difference is as likely
    as its negative, independently for each user. The statistic is the absolute mean difference;
    p is ``(b + 1) / (resamples + 1)``, b the number of flips with a statistic at least as large.
    So p is valid for any number of users, and never 0.

    Args:
        differences: users, or users x columns; a flip is the same in all columns.
        generator: of the signs.
        resamples: how many flips.

    Returns:
        p-values of the shape of one user's differences; 1 where all differences are 0.

    Raises:
        InputError: fewer than two users, differences that are not finite, or bad settings.

    Cost: ``resamples * users`` random bits and one product of resamples x users x columns, in
    blocks of 32 MB.

    Example:
        >>> values = np.random.default_rng(0).normal(0.5, 1, size=200)
        >>> float(sign_flip_test(values, np.random.default_rng(1), resamples=999))
        0.001
    """
    columns, shape = _columns(differences)
    users = len(columns)
    observed = np.abs(columns.sum(axis=0))
    threshold = observed - _ROUNDING * np.abs(columns).sum(axis=0)
    at_least = np.zeros(columns.shape[1], dtype=np.int64)
    for rows in _blocks(check_integer("resamples", resamples), users):
        signs = _draw_signs(generator, rows.stop - rows.start, users)
        at_least += (np.abs(signs @ columns) >= threshold).sum(axis=0)
    found: Array = (at_least + 1) / (resamples + 1)
    return found.reshape(shape)


def holm(p_values: npt.ArrayLike) -> Array:
    """Holm's step-down correction: controls the chance of any false finding, in any dependence.

    The k-th smallest of m p-values is multiplied by m - k + 1; no corrected value is smaller than
    that of a smaller p, nor larger than 1.

    Args:
        p_values: of all tests made, of any shape.

    Returns:
        Corrected p-values of that shape.

    Raises:
        InputError: something is not between 0 and 1.

    Example:
        >>> holm([0.01, 0.04, 0.03]).tolist()
        [0.03, 0.06, 0.06]
    """
    p = _finite(p_values, "p-values")
    if ((p < 0) | (p > 1)).any():
        raise InputError(f"p-values must be between 0 and 1, got {p.min():g} to {p.max():g}")
    flat = p.ravel()
    order = np.argsort(flat, kind="stable")
    stepped = np.maximum.accumulate(flat[order] * np.arange(len(flat), 0, -1))
    corrected = np.empty_like(flat)
    corrected[order] = np.minimum(stepped, 1.0)
    return corrected.reshape(p.shape)


def _finite(values: npt.ArrayLike, name: str) -> Array:
    array = np.asarray(values, dtype=np.float64)
    if not np.isfinite(array).all():
        raise InputError(
            f"{name} must be finite, got {int((~np.isfinite(array)).sum())} NaN or infinite ones"
        )
    return array


def _columns(values: npt.ArrayLike) -> tuple[Array, tuple[int, ...]]:
    """Users x columns, and the shape of one user's values."""
    array = _finite(values, "values")
    if array.ndim == 0 or len(array) < 2:
        raise InputError(
            f"at least two users are needed to say how means vary, got {array.shape or 'one value'}"
        )
    return array.reshape(len(array), -1), array.shape[1:]


def _blocks(resamples: int, users: int) -> Iterator[slice]:
    size = max(1, _BLOCK_BYTES // (8 * users))
    for start in range(0, resamples, size):
        yield slice(start, min(start + size, resamples))


def _draw_counts(generator: np.random.Generator, rows: int, users: int) -> Array:
    """How often each user is drawn in each resample: rows x users, each row sums to users."""
    drawn = generator.integers(0, users, size=(rows, users))
    drawn += np.arange(rows)[:, None] * users
    counts = np.bincount(drawn.ravel(), minlength=rows * users)
    return counts.reshape(rows, users).astype(np.float64)


def _draw_signs(generator: np.random.Generator, rows: int, users: int) -> Array:
    """Independent signs, each +1 or -1 with probability one half: rows x users."""
    width = -(-users // 8)
    octets = np.frombuffer(generator.bytes(rows * width), dtype=np.uint8)
    bits = np.unpackbits(octets.reshape(rows, width), axis=1, count=users)
    signs: Array = 1.0 - 2.0 * bits.astype(np.float64)
    return signs
