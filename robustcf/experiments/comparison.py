"""Which of several settings is better at which attack size: paired statistics over users.

Intervals and tests are about users, not about training seeds, whose spread is shown next to them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from robustcf._checks import check_integer
from robustcf._io.text import latex, markdown, rows_table, wrapped
from robustcf._randomness import stream
from robustcf.errors import InputError
from robustcf.experiments.saved import common_curves, group_runs, open_run
from robustcf.robustness.curves import SavedCurve

Array = npt.NDArray[np.float64]

METHOD = (
    "intervals: percentile bootstrap over users, paired, each by itself; p: paired sign-flip "
    "permutation test over users, two-sided, Holm-corrected over all tests (pair x area or "
    "epsilon)"
)
# Bytes of the weights of a block of resamples: large enough for fast products, small in memory.
_BLOCK_BYTES = 32 << 20
# Sums in another order differ by rounding; flips that only repeat the observed mean must count.
_ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class Group:
    """One setting, averaged over its seeds. Columns of all arrays: the area, then each epsilon.

    ``lower`` and ``upper`` are the ends of intervals over users, ``by_seed`` (seeds x columns) the
    means over users.
    """

    label: str
    value: Array
    lower: Array
    upper: Array
    by_seed: Array

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return {
            "label": self.label,
            "area": _column(self, self.value, 0),
            "values": self.value[1:].tolist(),
            "lower": self.lower[1:].tolist(),
            "upper": self.upper[1:].tolist(),
            "seeds": {
                "count": len(self.by_seed),
                "area": self.by_seed[:, 0].tolist(),
                "lowest": self.by_seed.min(axis=0)[1:].tolist(),
                "highest": self.by_seed.max(axis=0)[1:].tolist(),
            },
        }


@dataclass(frozen=True, eq=False)
class Contrast:
    """The difference of two groups, first minus second. Columns as in :class:`Group`.

    ``p`` is of the sign-flip test, ``p_holm`` corrected over all tests of the comparison.
    ``verdict`` is 1 where the first is better, -1 where the second is, else 0. ``seeds_apart`` says
    where every seed of one lies above every seed of the other; None for a single seed.
    """

    first: str
    second: str
    difference: Array
    lower: Array
    upper: Array
    p: Array
    p_holm: Array
    verdict: npt.NDArray[np.int64]
    seeds_apart: npt.NDArray[np.bool_] | None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        names = {1: self.first, -1: self.second, 0: None}
        columns = [
            _column(self, self.difference, n)
            | {
                "p": float(self.p[n]),
                "p_holm": float(self.p_holm[n]),
                "better": names[int(self.verdict[n])],
                "seeds_apart": None if self.seeds_apart is None else bool(self.seeds_apart[n]),
            }
            for n in range(len(self.p))
        ]
        pair = {"first": self.first, "second": self.second}
        return {**pair, "area": columns[0], "epsilons": columns[1:]}


def _column(of: Group | Contrast, value: Array, n: int) -> dict[str, Any]:
    return {"value": float(value[n]), "lower": float(of.lower[n]), "upper": float(of.upper[n])}


@dataclass(frozen=True, eq=False)
class Comparison:
    """Groups, their pairwise contrasts, and the settings behind them."""

    metric: str
    epsilons: tuple[float, ...]
    groups: tuple[Group, ...]
    contrasts: tuple[Contrast, ...]
    confidence: float
    resamples: int
    seed: int

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        names = ("metric", "epsilons", "confidence", "resamples", "seed")
        return {
            **{name: getattr(self, name) for name in names},
            "epsilons": list(self.epsilons),
            "method": METHOD,
            "groups": [group.as_dict() for group in self.groups],
            "contrasts": [contrast.as_dict() for contrast in self.contrasts],
            "words": self.words(),
        }

    def __str__(self) -> str:
        return "\n".join(map(wrapped, self.words()))

    def __repr__(self) -> str:
        labels = ", ".join(group.label for group in self.groups)
        return f"Comparison({labels}; {self.metric} at {len(self.epsilons)} epsilons)"

    def _repr_html_(self) -> str:
        return rows_table(*self.table(), " ".join(self.words()))

    def best(self) -> list[int | None]:
        """Return by column the group that the test finds better than every other, or None."""
        found: list[int | None] = []
        for n in range(1 + len(self.epsilons)):
            wins = dict.fromkeys((group.label for group in self.groups), 0)
            for contrast in self.contrasts:
                if contrast.verdict[n]:
                    wins[contrast.first if contrast.verdict[n] > 0 else contrast.second] += 1
            leader = max(wins, key=lambda label: wins[label])
            alone = wins[leader] == len(self.groups) - 1
            found.append(list(wins).index(leader) if alone else None)
        return found

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return a header and a row of means over seeds and users per group, in text."""
        header = [self.metric, "area", *(f"{size:g}" for size in self.epsilons)]
        return header, [[g.label, *(f"{v:.4f}" for v in g.value)] for g in self.groups]

    def latex(self) -> str:
        """Return the table in LaTeX (booktabs): bold is what :meth:`best` finds."""
        places = {(row, n + 1) for n, row in enumerate(self.best()) if row is not None}
        return latex(*self.table(), bold=places)

    def write(self, folder: str | Path, axis: str) -> Path:
        """Write ``comparison`` as JSON, CSV, Markdown, LaTeX and a figure (PNG, SVG, PDF)."""
        from robustcf._io.plots import Line, Panel
        from robustcf.experiments.grid import make_folder, write_results

        out = Path(folder)
        make_folder(out)
        rows = (
            {"setting": group.label, "seed": n, "epsilon": size, self.metric: float(value)}
            for group in self.groups
            for n, values in enumerate(group.by_seed)
            for size, value in zip(self.epsilons, values[1:], strict=True)
        )
        lines = [Line(group.label, self.epsilons, group.by_seed[:, 1:]) for group in self.groups]
        report = [markdown(*self.table()), *self.words(), METHOD]
        pictures = {"comparison": ("", [[Panel(lines, axis, self.metric)]])}
        tables = {"comparison": self.latex()}
        write_results(out, "comparison", self.as_dict(), rows, pictures, report, tables)
        return out

    def words(self) -> list[str]:
        """Return one sentence per pair, and one on single seeds."""
        sentences = [self._sentence(contrast) for contrast in self.contrasts]
        if any(len(group.by_seed) == 1 for group in self.groups):
            sentences.append(
                "Some settings have one seed only: a difference may be that of the seed."
            )
        return sentences

    def _sentence(self, contrast: Contrast) -> str:
        verdicts = contrast.verdict[1:]
        pieces = [
            f"{name} is better at epsilon {self._sizes(verdicts == verdict)}"
            for verdict, name in ((1, contrast.first), (-1, contrast.second))
            if (verdicts == verdict).any()
        ]
        if not verdicts.any():
            pieces.append("not distinguishable at any epsilon")
        elif not verdicts.all():
            pieces.append(f"not distinguishable at {self._sizes(verdicts == 0)}")
        if contrast.seeds_apart is not None:
            close = (verdicts != 0) & ~contrast.seeds_apart[1:]
            pieces += [f"though seeds overlap at {self._sizes(close)}"] if close.any() else []
        larger = {1: contrast.first, -1: contrast.second}.get(int(contrast.verdict[0]))
        pieces.append(f"{larger} has the larger area" if larger else "areas not distinguishable")
        p = contrast.p_holm[0]
        return (
            f"{contrast.first} against {contrast.second}, {self.metric}: {'; '.join(pieces)} "
            f"(difference {contrast.difference[0]:+.4f} [{contrast.lower[0]:+.4f}, "
            f"{contrast.upper[0]:+.4f}], p {f'{p:.2g}' if p < 0.995 else '1'})."
        )

    def _sizes(self, where: npt.NDArray[np.bool_]) -> str:
        return ", ".join(f"{self.epsilons[n]:g}" for n in np.flatnonzero(where))


def compare_curves(
    groups: Mapping[str, Sequence[npt.ArrayLike]],
    epsilons: Sequence[float],
    *,
    metric: str = "ndcg@10",
    seed: int = 0,
    resamples: int = 10_000,
    confidence: float = 0.95,
) -> Comparison:
    """Compare settings by their per-user curves, every pair at every epsilon and by area.

    Several seeds of a setting are averaged user by user. Verdicts are by the Holm-corrected p: the
    chance of any false verdict in the whole comparison is at most ``1 - confidence``.

    Args:
        groups: label -> one array, epsilons x users, per seed; the same users everywhere.
        epsilons: ascending.
        metric: its name, for the words.
        seed: seed of resamples and sign flips.
        resamples: number of bootstrap resamples and of sign-flip permutations.
        confidence: confidence level; ``1 - confidence`` is the level of the tests.

    Raises:
        InputError: fewer than two groups, shapes that differ, values that are not finite, or too
            few resamples for any test to succeed after the correction.

    Cost: two products of resamples x users x columns.

    Example:
        >>> base = np.random.default_rng(0).random((2, 300))
        >>> groups = {"a": [base], "b": [base + [[0.0], [-0.2]]]}
        >>> found = compare_curves(groups, [0, 1], resamples=999)
        >>> print(found.words()[0].split(": ")[1].split(" (")[0])
        a is better at epsilon 1; not distinguishable at 0; a has the larger area
    """
    if len(groups) < 2:
        raise InputError(f"a comparison needs at least two settings, got {len(groups)}")
    curves = {label: _stacked(label, seeds, len(epsilons)) for label, seeds in groups.items()}
    if len({array.shape[1:] for array in curves.values()}) > 1:
        raise InputError("all settings must have values of the same users, got different numbers")
    pairs = list(combinations(curves, 2))
    tests = len(pairs) * (len(epsilons) + 1)
    if tests >= (check_integer("resamples", resamples) + 1) * (1 - confidence):
        raise InputError(
            f"{resamples} resamples cannot decide {tests} tests at level {1 - confidence:g}: "
            f"use at least {int(tests / (1 - confidence)) + 1}"
        )
    # seeds x users x columns, the area first.
    columns = {
        label: np.stack([np.column_stack([area(epsilons, one), one.T]) for one in array])
        for label, array in curves.items()
    }
    means = {label: array.mean(axis=0) for label, array in columns.items()}
    by_seed = {label: array.mean(axis=1) for label, array in columns.items()}
    differences = np.stack([means[a] - means[b] for a, b in pairs], axis=1)
    together = np.concatenate([np.stack(list(means.values()), axis=1), differences], axis=1)
    bootstrap, flips = (stream(seed, "compare", what) for what in ("bootstrap", "flips"))
    interval = bootstrap_mean(together, bootstrap, resamples=resamples, confidence=confidence)
    rows = list(zip(*interval, strict=True))
    p = sign_flip_test(differences, flips, resamples=resamples)
    corrected = holm(p)
    contrasts = []
    for n, (a, b) in enumerate(pairs):
        row, one, two = rows[len(curves) + n], by_seed[a], by_seed[b]
        sign = np.sign(row[0]).astype(np.int64)
        verdict = np.where(corrected[n] < 1 - confidence, sign, 0)
        apart = None
        if min(len(one), len(two)) > 1:
            apart = (one.min(axis=0) > two.max(axis=0)) | (two.min(axis=0) > one.max(axis=0))
        contrasts.append(Contrast(a, b, *row, p[n], corrected[n], verdict, apart))
    return Comparison(
        metric,
        tuple(float(size) for size in epsilons),
        tuple(Group(label, *rows[n], by_seed[label]) for n, label in enumerate(curves)),
        tuple(contrasts),
        float(confidence),
        resamples,
        seed,
    )


def compare_runs(
    runs: Sequence[str],
    attack: str | None = None,
    *,
    metric: str = "ndcg@10",
    allow_unfinished: bool = False,
    **options: Any,
) -> tuple[Comparison, SavedCurve, dict[str, Any]]:
    """Compare runs by the curves that are saved in them; seeds of one setting are averaged.

    Args:
        runs: their folders.
        attack: an attack, as ``fgm-bce`` or ``certificate``, or the name of a saved curve; None for
            the strongest attack that all runs have.
        metric: metric to compare by.
        allow_unfinished: whether runs may have been interrupted.
        options: of :func:`compare_curves`.

    Returns:
        The comparison, one of the curves, and the facts, ready for JSON.
    """
    opened = [open_run(run, allow_unfinished=allow_unfinished) for run in runs]
    curves = common_curves(opened, attack)
    groups = group_runs(opened)
    if len(groups) < 2:
        raise InputError(
            "expected runs of at least two settings, got runs that differ in seed only"
        )
    first = curves[0]
    values = {
        label: [curves[n].per_user(metric) for n in places] for label, places in groups.items()
    }
    found = compare_curves(values, first.epsilons, metric=metric, **options)
    shared = ("attack", "kind", "objective", "budget", "relative", "unit", "side", "knowledge")
    facts = {"curve": first.name, **{key: first.facts[key] for key in shared}, **found.as_dict()}
    facts["protocol"] = first.facts["protocol"]
    for group, places in zip(facts["groups"], groups.values(), strict=True):
        group["runs"] = [str(opened[n].path) for n in places]
    return found, first, facts


def _stacked(label: str, seeds: Sequence[npt.ArrayLike], n_epsilons: int) -> Array:
    arrays = [np.asarray(values, dtype=np.float64) for values in seeds]
    shapes = {array.shape for array in arrays}
    if len(shapes) != 1 or any(len(s) != 2 or s[0] != n_epsilons for s in shapes):
        raise InputError(
            f"{label} must have one array of {n_epsilons} epsilons x users per seed, all of one "
            f"shape, got {sorted(shapes) or 'none'}"
        )
    return np.stack(arrays)


# --- statistics -------------------------------------------------------------------------------


class Interval(NamedTuple):
    """Means and the ends of their confidence intervals, one per column."""

    value: Array
    lower: Array
    upper: Array


def area(epsilons: Sequence[float], values: npt.ArrayLike) -> Array:
    """Return the mean height of curves (epsilons x anything) by trapezoids over the range.

    The area of a single epsilon is the value itself.

    Example:
        >>> float(area([0, 1, 3], [1.0, 0.5, 0.0]))
        0.4166666666666667
    """
    sizes, heights = np.asarray(epsilons, dtype=np.float64), _finite(values, "values")
    if sizes.ndim != 1 or len(sizes) == 0 or heights.ndim == 0 or len(heights) != len(sizes):
        raise InputError(
            f"an area needs one row of values per epsilon, got {sizes.shape} epsilons and values "
            f"of shape {heights.shape}"
        )
    if not np.isfinite(sizes).all() or (np.diff(sizes) <= 0).any():
        raise InputError(f"epsilons must be finite and ascending, got {sizes.tolist()}")
    if len(sizes) == 1:
        return np.asarray(heights[0], dtype=np.float64)
    return np.asarray(np.trapezoid(heights, sizes, axis=0) / (sizes[-1] - sizes[0]))


def bootstrap_mean(
    values: npt.ArrayLike,
    generator: np.random.Generator,
    *,
    resamples: int = 10_000,
    confidence: float = 0.95,
) -> Interval:
    """Percentile bootstrap of means of ``values``, users or users x columns.

    All columns get the same users in a resample, so intervals of differences, given as columns,
    are paired (Efron and Tibshirani, doi:10.1201/9780429246593).

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
    ends = (shifted.mean(axis=0) + offset, lower, upper)
    return Interval(*(each.reshape(shape) for each in ends))


def sign_flip_test(
    differences: npt.ArrayLike, generator: np.random.Generator, *, resamples: int = 10_000
) -> Array:
    """Two-sided paired permutation test of a mean difference, by random flips of signs.

    Under the null hypothesis the difference of each user is as likely as its negative. The
    statistic is the absolute mean difference; p is ``(b + 1) / (resamples + 1)``, b the number of
    flips with a statistic at least as large. So p is valid for any number of users, and never 0.
    ``differences`` are of users, or users x columns; a flip is the same in all columns.

    Cost: ``resamples * users`` random bits and one product as in :func:`bootstrap_mean`.

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
    """Holm's step-down correction (1979), which bounds the chance of any false finding.

    The k-th smallest of m p-values is multiplied by m - k + 1; no corrected value is smaller than
    that of a smaller p, nor larger than 1.

    Example:
        >>> holm([0.01, 0.04, 0.03]).tolist()
        [0.03, 0.06, 0.06]
    """
    p = _finite(p_values, "p-values")
    if ((p < 0) | (p > 1)).any():
        raise InputError(f"p-values must be between 0 and 1, got {p.min():g} to {p.max():g}")
    flat = p.ravel()
    order = np.argsort(flat, kind="stable")
    corrected = np.empty_like(flat)
    stepped = np.maximum.accumulate(flat[order] * np.arange(len(flat), 0, -1))
    corrected[order] = np.minimum(stepped, 1.0)
    return corrected.reshape(p.shape)


def _finite(values: npt.ArrayLike, name: str) -> Array:
    array = np.asarray(values, dtype=np.float64)
    bad = int((~np.isfinite(array)).sum())
    if bad:
        raise InputError(f"{name} must be finite, got {bad} NaN or infinite ones")
    return array


def _columns(values: npt.ArrayLike) -> tuple[Array, tuple[int, ...]]:
    """Users x columns, and the shape of one user's values."""
    array = _finite(values, "values")
    if array.ndim == 0 or len(array) < 2:
        raise InputError(f"expected values of at least two users, got {array.shape or 'one value'}")
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
    return 1.0 - 2.0 * bits.astype(np.float64)
