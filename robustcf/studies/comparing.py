"""``sweep`` and ``compare``: several recommenders under the same attacks, side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from robustcf.errors import InputError
from robustcf.recommender import Recommender, check_recommender
from robustcf.robustness.measuring import Result, measure
from robustcf.robustness.table import AUTO, CUTOFFS
from robustcf.robustness.threat import Threat
from robustcf.studies.comparison import Comparison, compare_curves
from robustcf.support.html import rows_table
from robustcf.support.progress import bar
from robustcf.support.runtime import threads_used

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

Models = Mapping[str, Recommender | Sequence[Recommender]] | Iterable[Recommender]


@dataclass(frozen=True, eq=False)
class Sweep:
    """Recommenders under attacks: one result for each recommender and attack.

    Args:
        results: label -> attack -> one result for each recommender of that label (seeds).
        metric: what tables and pictures show.
    """

    results: Mapping[str, Mapping[str, Sequence[Result]]]
    metric: str

    def to_frame(self) -> pd.DataFrame:
        """Return one row per recommender, attack and epsilon, with all metrics as columns."""
        import pandas as pd

        rows = [
            {"model": label, "seed": seed, "attack": attack, "epsilon": epsilon}
            | {name: float(values[n]) for name, values in result.curve.values.items()}
            for label, attacks in self.results.items()
            for attack, results in attacks.items()
            for seed, result in enumerate(results)
            for n, epsilon in enumerate(result.curve.epsilons)
        ]
        return pd.DataFrame(rows)

    def plot(self, path: str | Path | None = None) -> Figure | Path:
        """Draw the metric against epsilon, one panel per attack; with a path, write it."""
        from robustcf.support.plots import Line, Panel, draw_panels, plot_panels

        first = next(iter(self.results.values()))
        panels = []
        for attack in first:
            lines = []
            for label, attacks in self.results.items():
                curves = [result.curve for result in attacks[attack]]
                values = np.stack([curve[self.metric] for curve in curves])
                kind: Any = "certificate" if curves[0].kind == "certified" else "attack"
                lines.append(Line(label, curves[0].epsilons, values, kind))
            curve = first[attack][0].curve
            name = f"{self.metric.upper()} on {curve.protocol.dataset} ({curve.protocol.part})"
            panels.append(Panel(lines, curve.threat.axis, name, attack))
        return draw_panels([panels]) if path is None else plot_panels([panels], path)

    def compare(self, attack: str | None = None, **options: Any) -> Comparison:
        """Return which recommender is better at which epsilon, see :func:`compare`."""
        first = next(iter(self.results.values()))
        chosen = next(iter(first)) if attack is None else attack
        if chosen not in first:
            raise InputError(f"attack must be one of {', '.join(first)}, got {attack!r}")
        order = first[chosen][0]
        groups = {
            label: [_aligned(result, order)[self.metric] for result in attacks[chosen]]
            for label, attacks in self.results.items()
        }
        return compare_curves(groups, order.curve.epsilons, metric=self.metric, **options)

    def _rows(self) -> list[list[str]]:
        return [
            [label, attack, *(f"{value:.4f}" for value in _mean(results, self.metric))]
            for label, attacks in self.results.items()
            for attack, results in attacks.items()
        ]

    @property
    def _epsilons(self) -> list[str]:
        first = next(iter(next(iter(self.results.values())).values()))[0]
        return [f"{epsilon:g}" for epsilon in first.curve.epsilons]

    def __str__(self) -> str:
        rows = [["model", self.metric, *self._epsilons], *self._rows()]
        widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        )

    def __repr__(self) -> str:
        attacks = ", ".join(next(iter(self.results.values())))
        return f"Sweep({len(self.results)} recommenders x {attacks}, {self.metric})"

    def _repr_html_(self) -> str:
        return rows_table(["model", "attack", *self._epsilons], self._rows(), self.metric)


def sweep(
    models: Models,
    attacks: Sequence[str] = (AUTO,),
    threat: Threat | None = None,
    epsilons: Sequence[float] | None = None,
    ks: Sequence[int] = CUTOFFS,
    *,
    threads: int | None = None,
    progress: bool | None = None,
    **options: Any,
) -> Sweep:
    """Attack several recommenders in the same way.

    Args:
        models: label -> recommender, or several that differ in their seed; or recommenders, which
            are called by their labels.
        attacks: names, see :func:`robustcf.measure`; ``certificate`` is one of them.
        threat: what the attacker may do and knows.
        epsilons: ascending, from 0 on; None for those of the attack.
        ks: cutoffs of the metrics.
        threads: CPU threads, see :func:`robustcf.train`.
        progress: whether to show a bar; None: in a terminal and in a notebook.
        **options: of the attack: ``steps``, ``seed`` and so on.

    Returns:
        The results; ``print`` shows a table, ``.to_frame()`` has all numbers.

    Raises:
        InputError: no recommenders, labels that repeat, or data that differ.

    Cost: that of :func:`robustcf.measure` for each recommender and attack.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> U, V, pairs = rng.normal(size=(9, 4)), rng.normal(size=(7, 4)), np.eye(9, 7)
        >>> half = Recommender(U[:, :2], V[:, :2], pairs)
        >>> models = {"one": Recommender(U, V, pairs), "half": half}
        >>> sweep(models, ["fgm-softmax"], epsilons=[0, 0.1], ks=[5]).to_frame().shape[0]
        4
    """
    groups = _groups(models)
    _check_same_data([model for group in groups.values() for model in group])
    if not attacks:
        raise InputError("attacks must be a non-empty list, got none")
    results: dict[str, dict[str, list[Result]]] = {label: {} for label in groups}
    total = sum(map(len, groups.values())) * len(attacks)
    with threads_used(threads), bar(total, "sweep", "attack", progress) as steps:
        for label, group in groups.items():
            for attack in attacks:
                results[label][attack] = []
                for model in group:
                    steps.set_postfix_str(f"{label}: {attack}")
                    found = measure(model, attack, threat, epsilons, ks, progress=False, **options)
                    results[label][attack].append(found)
                    steps.update()
    return Sweep(results, f"ndcg@{min(ks)}")


def compare(
    models: Models,
    attack: str = AUTO,
    threat: Threat | None = None,
    epsilons: Sequence[float] | None = None,
    *,
    k: int = 10,
    seed: int = 0,
    resamples: int = 10_000,
    confidence: float = 0.95,
    threads: int | None = None,
    progress: bool | None = None,
    **options: Any,
) -> Comparison:
    """Say which recommender is better at which size of attack, with paired tests over users.

    Users are matched by their labels. Several recommenders of one label (seeds) are averaged, user
    by user.

    Args:
        models: see :func:`sweep`; at least two labels.
        attack: the attack that all of them face.
        threat: what the attacker may do and knows.
        epsilons: ascending, from 0 on.
        k: cutoff of NDCG.
        seed: of resamples and flips.
        resamples: of the bootstrap and of the sign-flip test.
        confidence: of the intervals.
        threads: CPU threads, see :func:`robustcf.train`.
        progress: whether to show a bar.
        **options: of the attack.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> U, V = rng.normal(size=(40, 4)), rng.normal(size=(30, 4))
        >>> pairs = (U @ V.T > 2).astype(int)
        >>> models = {"fits": Recommender(U, V, pairs), "does not": Recommender(-U, V, pairs)}
        >>> found = compare(models, "fgm-softmax", epsilons=[0, 0.01], resamples=999)
        >>> int(found.contrasts[0].verdict[1])
        1
    """
    swept = sweep(
        models, [attack], threat, epsilons, (k,), threads=threads, progress=progress, **options
    )
    return swept.compare(seed=seed, resamples=resamples, confidence=confidence)


def _groups(models: Models) -> dict[str, list[Recommender]]:
    if isinstance(models, Recommender):
        raise InputError("expected several recommenders, got one: use robustcf.measure")
    if isinstance(models, Mapping):
        groups = {
            label: [each] if isinstance(each, Recommender) else list(each)
            for label, each in models.items()
        }
    else:
        listed = list(models)
        for model in listed:
            check_recommender(model)
        groups = {model.label: [model] for model in listed}
        if len(groups) < len(listed):
            raise InputError(
                "recommenders have the same label: give a dict of label -> recommender"
            )
    for group in groups.values():
        for model in group:
            check_recommender(model)
    if not groups or not all(groups.values()):
        raise InputError("expected at least one recommender for each label, got none")
    return groups


def _check_same_data(models: Sequence[Recommender]) -> None:
    first = models[0]
    for model in models[1:]:
        same = (model.part, len(model.relevant)) == (first.part, len(first.relevant))
        if not same or (model.split.name != first.split.name and _labels(model) != _labels(first)):
            raise InputError(
                f"recommenders must be judged by the same pairs, got {first!r} and {model!r}"
            )


def _labels(model: Recommender) -> tuple[Any, Any]:
    found = (model.user_labels, model.item_labels)
    return tuple(None if each is None else tuple(np.sort(each).tolist()) for each in found)  # type: ignore[return-value]


def _aligned(result: Result, order: Result) -> Mapping[str, npt.NDArray[np.float64]]:
    """Return the per-user values of a result in the order of the users of another."""
    own, wanted = (_names(each) for each in (result, order))
    if np.array_equal(own, wanted):
        return result.curve.per_user
    place = {name: n for n, name in enumerate(own.tolist())}
    if sorted(place) != sorted(wanted.tolist()):
        raise InputError("recommenders must be judged by the same users, got different ones")
    rows = [place[name] for name in wanted.tolist()]
    return {name: values[:, rows] for name, values in result.curve.per_user.items()}


def _names(result: Result) -> npt.NDArray[Any]:
    labels, users = result.model.user_labels, result.curve.users
    return users if labels is None else labels[users]


def _mean(results: Sequence[Result], metric: str) -> npt.NDArray[np.float64]:
    found: npt.NDArray[np.float64] = np.mean([result.curve[metric] for result in results], axis=0)
    return found
