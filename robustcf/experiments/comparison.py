"""Which of several recommenders is better, at which size of attack, and where nobody can tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from robustcf._checks import check_integer
from robustcf._io.text import rows_table
from robustcf._randomness import stream
from robustcf.errors import InputError
from robustcf.experiments.saved import common_curves, group_runs, open_run
from robustcf.experiments.statistics import (
    area,
    bootstrap_mean,
    holm,
    sign_flip_test,
)
from robustcf.robustness.curves import SavedCurve

Array = npt.NDArray[np.float64]

METHOD = (
    "intervals: percentile bootstrap over users, paired, each by itself; p: paired sign-flip "
    "permutation test over users, two-sided, Holm-corrected over all tests (pair x area or "
    "epsilon)"
)


@dataclass(frozen=True, eq=False)
class Group:
    """One setting: the mean over its seeds, and each seed. Columns: the area, then each epsilon.

    Args:
        label: what to call it.
        value: mean over users and seeds.
        lower: lower ends of the intervals over users.
        upper: upper ends.
        by_seed: seeds x columns, means over users.
    """

    label: str
    value: Array
    lower: Array
    upper: Array
    by_seed: Array


@dataclass(frozen=True, eq=False)
class Contrast:
    """The difference of two groups, first minus second. Columns as in :class:`Group`.

    Args:
        first: label.
        second: label.
        difference: of the means.
        lower: lower ends of the paired intervals.
        upper: upper ends.
        p: of the sign-flip test.
        p_holm: corrected over all tests of the comparison.
        verdict: 1 where the first is better, -1 where the second is, 0 where nobody can tell.
        seeds_apart: where every seed of one lies above every seed of the other; None where one
            of them has a single seed.
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
        """Plain values, ready for JSON."""
        return {
            "metric": self.metric,
            "epsilons": list(self.epsilons),
            "confidence": self.confidence,
            "resamples": self.resamples,
            "seed": self.seed,
            "method": METHOD,
            "groups": [_group_dict(group) for group in self.groups],
            "contrasts": [_contrast_dict(contrast) for contrast in self.contrasts],
            "words": self.words(),
        }

    def __str__(self) -> str:
        return "\n".join(self.words())

    def __repr__(self) -> str:
        labels = ", ".join(group.label for group in self.groups)
        return f"Comparison({labels}; {self.metric} at {len(self.epsilons)} epsilons)"

    def _repr_html_(self) -> str:
        sizes = [f"{epsilon:g}" for epsilon in self.epsilons]
        rows = [[group.label, *(f"{value:.4f}" for value in group.value)] for group in self.groups]
        words = " ".join(self.words())
        return rows_table([self.metric, "area", *sizes], rows, words)

    def words(self) -> list[str]:
        """One sentence a pair, and one on what the intervals do not cover."""
        sentences = [self._sentence(contrast) for contrast in self.contrasts]
        if any(len(group.by_seed) == 1 for group in self.groups):
            sentences.append(
                "Some settings have one seed only: a difference may be that of the seed."
            )
        return sentences

    def _sentence(self, contrast: Contrast) -> str:
        first, second = contrast.first, contrast.second
        verdicts = contrast.verdict[1:]
        pieces = []
        for verdict, phrase in ((1, f"{first} is better"), (-1, f"{second} is better")):
            where = np.flatnonzero(verdicts == verdict)
            if len(where):
                pieces.append(f"{phrase} at epsilon {self._sizes(where)}")
        unclear = np.flatnonzero(verdicts == 0)
        if len(unclear) == len(verdicts):
            pieces.append("not distinguishable at any epsilon")
        elif len(unclear):
            pieces.append(f"not distinguishable at {self._sizes(unclear)}")
        if contrast.seeds_apart is not None:
            close = np.flatnonzero((verdicts != 0) & ~contrast.seeds_apart[1:])
            if len(close):
                pieces.append(f"though seeds overlap at {self._sizes(close)}")
        area_word = {1: "higher", -1: "lower", 0: "not distinguishable"}[int(contrast.verdict[0])]
        return (
            f"{first} against {second}, {self.metric}: {'; '.join(pieces)}. Area {area_word}: "
            f"{contrast.difference[0]:+.4f} [{contrast.lower[0]:+.4f}, {contrast.upper[0]:+.4f}], "
            f"p {_p(contrast.p_holm[0])}."
        )

    def _sizes(self, where: npt.NDArray[np.int64]) -> str:
        return ", ".join(f"{self.epsilons[n]:g}" for n in where)


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

    Several seeds of a setting are averaged user by user. Verdicts are by the Holm-corrected p:
    the chance of any false verdict in the whole comparison is at most ``1 - confidence``. That is
    a statement about users; the seeds are shown next to it.

    Args:
        groups: label -> one array, epsilons x users, for each seed; the same users everywhere.
        epsilons: ascending.
        metric: its name, for the words.
        seed: seed of resamples and sign flips.
        resamples: number of bootstrap resamples and of sign-flip permutations.
        confidence: confidence level; ``1 - confidence`` is the level of the tests.

    Raises:
        InputError: fewer than two groups, arrays of different shapes, values that are not finite,
            or too few resamples for any test to succeed after the correction.

    Cost: two products of resamples x users x columns, see :mod:`robustcf.experiments.statistics`.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> base = rng.random((2, 300))
        >>> groups = {"a": [base], "b": [base + [[0.0], [-0.2]]]}
        >>> found = compare_curves(groups, [0, 1], resamples=999)
        >>> found.contrasts[0].verdict.tolist()
        [1, 0, 1]
        >>> print(found.words()[0].split(". ")[0])
        a against b, ndcg@10: a is better at epsilon 1; not distinguishable at 0
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
    differences = np.stack([means[a] - means[b] for a, b in pairs], axis=1)
    together = np.concatenate([np.stack(list(means.values()), axis=1), differences], axis=1)
    interval = bootstrap_mean(
        together, stream(seed, "compare", "bootstrap"), resamples=resamples, confidence=confidence
    )
    p = sign_flip_test(differences, stream(seed, "compare", "flips"), resamples=resamples)
    corrected = holm(p)
    by_seed = {label: array.mean(axis=1) for label, array in columns.items()}
    found_groups = tuple(
        Group(label, interval.value[n], interval.lower[n], interval.upper[n], by_seed[label])
        for n, label in enumerate(curves)
    )
    contrasts = []
    for n, (a, b) in enumerate(pairs):
        row = len(curves) + n
        sign = np.sign(interval.value[row]).astype(np.int64)
        contrasts.append(
            Contrast(
                a, b, interval.value[row], interval.lower[row], interval.upper[row], p[n],
                corrected[n], np.where(corrected[n] < 1 - confidence, sign, 0),
                _apart(by_seed[a], by_seed[b]),
            )
        )  # fmt: skip
    return Comparison(
        metric, tuple(float(size) for size in epsilons), found_groups, tuple(contrasts),
        float(confidence), resamples, seed,
    )  # fmt: skip


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
        metric: what to compare by.
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
            "all runs have the same settings and differ in their seed alone: give runs of at "
            "least two settings"
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
            f"{label} must have one array of {n_epsilons} epsilons x users for each seed, all of "
            f"one shape, got {sorted(shapes) or 'none'}"
        )
    return np.stack(arrays)


def _apart(a: Array, b: Array) -> npt.NDArray[np.bool_] | None:
    if len(a) < 2 or len(b) < 2:
        return None
    apart: npt.NDArray[np.bool_] = (a.min(axis=0) > b.max(axis=0)) | (b.min(axis=0) > a.max(axis=0))
    return apart


def _p(value: float) -> str:
    return f"{value:.2g}" if value < 0.995 else "1"


def _group_dict(group: Group) -> dict[str, Any]:
    seeds = group.by_seed
    return {
        "label": group.label,
        "area": _entry(group.value, group.lower, group.upper, 0),
        "values": group.value[1:].tolist(),
        "lower": group.lower[1:].tolist(),
        "upper": group.upper[1:].tolist(),
        "seeds": {
            "count": len(seeds),
            "area": seeds[:, 0].tolist(),
            "lowest": seeds.min(axis=0)[1:].tolist(),
            "highest": seeds.max(axis=0)[1:].tolist(),
        },
    }


def _contrast_dict(contrast: Contrast) -> dict[str, Any]:
    names = {1: contrast.first, -1: contrast.second, 0: None}

    def column(n: int) -> dict[str, Any]:
        entry = _entry(contrast.difference, contrast.lower, contrast.upper, n)
        entry |= {"p": float(contrast.p[n]), "p_holm": float(contrast.p_holm[n])}
        apart = None if contrast.seeds_apart is None else bool(contrast.seeds_apart[n])
        return entry | {"better": names[int(contrast.verdict[n])], "seeds_apart": apart}

    return {
        "first": contrast.first,
        "second": contrast.second,
        "area": column(0),
        "epsilons": [column(n) for n in range(1, len(contrast.p))],
    }


def _entry(value: Array, lower: Array, upper: Array, n: int) -> dict[str, Any]:
    return {"value": float(value[n]), "lower": float(lower[n]), "upper": float(upper[n])}
