"""``sweep`` and ``compare``: several recommenders in memory under the same attacks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from robustcf._checks import check_list
from robustcf._io.progress import bar
from robustcf._io.text import aligned, rows_table
from robustcf._runtime import threads_used
from robustcf.data.interactions import Interactions, Labels
from robustcf.errors import InputError
from robustcf.experiments.comparison import Comparison, compare_curves
from robustcf.recommender import Recommender, check_recommender
from robustcf.robustness.measuring import Result, measure
from robustcf.robustness.table import AUTO, CUTOFFS
from robustcf.robustness.threat import Threat

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

Models = Mapping[str, Recommender | Sequence[Recommender]] | Iterable[Recommender]


@dataclass(frozen=True, eq=False)
class Sweep:
    """Recommenders under attacks: label -> attack -> one result per recommender (seed)."""

    results: Mapping[str, Mapping[str, Sequence[Result]]]
    metric: str

    def to_frame(self) -> pd.DataFrame:
        """Return one row per recommender, attack and epsilon, with all metrics as columns."""
        import pandas as pd

        rows = [
            {"model": label, "seed": seed, "attack": attack, "epsilon": epsilon}
            | {"side": result.threat.side}
            | {name: float(values[n]) for name, values in result.curve.values.items()}
            for label, attacks in self.results.items()
            for attack, results in attacks.items()
            for seed, result in enumerate(results)
            for n, epsilon in enumerate(result.curve.epsilons)
        ]
        return pd.DataFrame(rows)

    def plot(self, path: str | Path | None = None) -> Figure | Path:
        """Draw the metric against epsilon, one panel per attack; with a path, write it."""
        from robustcf._io.plots import Line, Panel, plot_panels

        first = next(iter(self.results.values()))
        panels = []
        for attack in first:
            lines = []
            for label, attacks in self.results.items():
                curves = [result.curve for result in attacks[attack]]
                values = np.stack([curve[self.metric] for curve in curves])
                kind: Any = "certificate" if curves[0].kind == "certified" else "attack"
                lines.append(Line(self._labels[label], curves[0].epsilons, values, kind))
            curve = first[attack][0].curve
            name = f"{self.metric.upper()} on {curve.protocol.dataset} ({curve.protocol.part})"
            panels.append(Panel(lines, curve.threat.axis, name, attack))
        return plot_panels([panels], path)

    def compare(self, attack: str | None = None, **options: Any) -> Comparison:
        """Return which recommender is better at which epsilon, see :func:`compare`."""
        first = next(iter(self.results.values()))
        chosen = next(iter(first)) if attack is None else attack
        if chosen not in first:
            raise InputError(f"attack must be one of {', '.join(first)}, got {attack!r}")
        order = first[chosen][0]
        groups = {
            self._labels[label]: [
                _per_user(result, order, self.metric) for result in attacks[chosen]
            ]
            for label, attacks in self.results.items()
        }
        return compare_curves(groups, order.curve.epsilons, metric=self.metric, **options)

    @cached_property
    def _labels(self) -> dict[str, str]:
        """Label -> label in tables, with the attacked arrays where these are not the same for all.

        A threat to all that is stored is one to U and V, or to V alone where users are computed.
        """
        sides = {
            label: dict.fromkeys(r.threat.side_words for found in attacks.values() for r in found)
            for label, attacks in self.results.items()
        }
        if len({tuple(words) for words in sides.values()}) == 1:
            return {label: label for label in sides}
        return {label: f"{label} ({', '.join(words)} attacked)" for label, words in sides.items()}

    def _blocks(self) -> list[tuple[list[str], list[list[str]]]]:
        """Epsilons and rows of each table; attacks at the same epsilons share one."""
        blocks: dict[tuple[float, ...], list[list[str]]] = {}
        for label, attacks in self.results.items():
            for attack, results in attacks.items():
                mean = np.mean([result.curve[self.metric] for result in results], axis=0)
                rows = blocks.setdefault(results[0].curve.epsilons, [])
                rows.append([self._labels[label], attack, *(f"{value:.4f}" for value in mean)])
        return [([f"{size:g}" for size in sizes], rows) for sizes, rows in blocks.items()]

    def __str__(self) -> str:
        return "\n\n".join(
            aligned(["model", self.metric, *epsilons], rows, left=range(len(epsilons) + 2))
            for epsilons, rows in self._blocks()
        )

    def __repr__(self) -> str:
        attacks = ", ".join(next(iter(self.results.values())))
        return f"Sweep({len(self.results)} recommenders x {attacks}, {self.metric})"

    def _repr_html_(self) -> str:
        return "".join(
            rows_table(["model", "attack", *epsilons], rows, self.metric)
            for epsilons, rows in self._blocks()
        )


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
        models: label -> recommender, or several that differ in their seed; or recommenders with
            labels of their own.
        attacks: names, see :func:`robustcf.measure`; ``certificate`` is one of them.
        threat: budget and knowledge of the attacker.
        epsilons: ascending; None for those of the attack.
        ks: cutoffs of the metrics.
        threads: CPU threads, see :func:`robustcf.train`.
        progress: whether to show a bar; None: in a terminal and in a notebook.
        **options: of the attack: ``steps``, ``seed`` and so on.

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
    first, *others = (model for group in groups.values() for model in group)
    for model in others:
        if not _judged_alike(first, model):
            raise InputError(
                "recommenders must be judged by the same pairs, with the same pairs left out of "
                f"the candidates, got {first!r} and {model!r}"
            )
    names = check_list("attacks", attacks)
    if not names:
        raise InputError("attacks must be a non-empty list, got none")
    results: dict[str, dict[str, list[Result]]] = {label: {} for label in groups}
    total = sum(map(len, groups.values())) * len(names)
    with threads_used(threads), bar(total, "sweep", "attack", progress) as steps:
        for label, group in groups.items():
            for attack in names:
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
    by user. The metric is NDCG at ``k``; ``seed``, ``resamples`` and ``confidence`` are those of
    :func:`robustcf.experiments.comparison.compare_curves`, other arguments those of :func:`sweep`.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> U, V = rng.normal(size=(40, 4)), rng.normal(size=(30, 4))
        >>> pairs = (U @ V.T > 2).astype(int)
        >>> models = {"fits": Recommender(U, V, pairs), "does not": Recommender(-U, V, pairs)}
        >>> found = compare(models, "fgm-softmax", epsilons=[0, 0.01], resamples=999)
        >>> int(found.contrasts[0].verdict[1])
        1
    """
    # No random control: a comparison does not show it.
    how = {"control": False, "threads": threads, "progress": progress, **options}
    swept = sweep(models, [attack], threat, epsilons, (k,), **how)
    return swept.compare(seed=seed, resamples=resamples, confidence=confidence)


def _groups(models: Models) -> dict[str, list[Recommender]]:
    if isinstance(models, Recommender):
        raise InputError("expected several recommenders, got one: use robustcf.measure")
    if isinstance(models, Mapping):
        groups = {
            label: _listed([each] if isinstance(each, Recommender) else each)
            for label, each in models.items()
        }
    else:
        listed = _listed(models)
        groups = {model.label: [model] for model in listed}
        if len(groups) < len(listed):
            raise InputError("labels must differ: give a dict of label -> recommender")
    if not groups or not all(groups.values()):
        raise InputError("expected at least one recommender for each label, got none")
    return groups


def _listed(models: Any) -> list[Recommender]:
    if isinstance(models, str) or not isinstance(models, Iterable):
        raise InputError(
            f"expected Recommenders, in a list or a dict of label -> Recommender, got {models!r}"
        )
    listed = list(models)
    for model in listed:
        check_recommender(model)
    return listed


def _judged_alike(one: Recommender, other: Recommender) -> bool:
    """Return whether two are evaluated on the same pairs, which are matched by their labels."""
    if one.part != other.part:
        return False
    if one.split is other.split and one.mask == other.mask:
        return True
    rows = _places(one.user_labels, other.user_labels, one.n_users, other.n_users)
    columns = _places(one.item_labels, other.item_labels, one.n_items, other.n_items)

    def alike(own: Interactions | None, theirs: Interactions | None) -> bool:
        if own is None or theirs is None or len(own) != len(theirs):
            return own is theirs
        users, items = rows[theirs.users], columns[theirs.items]
        if (users < 0).any() or (items < 0).any():
            return False
        found = np.sort(users * one.n_items + items)
        return np.array_equal(found, np.sort(own.users.astype(np.int64) * one.n_items + own.items))

    return alike(one.relevant, other.relevant) and alike(one.seen, other.seen)


def _places(
    own: Labels | None, theirs: Labels | None, n_own: int, n_theirs: int
) -> npt.NDArray[np.int64]:
    """For each row of another model the row with the same label, or -1."""
    place = {name: n for n, name in enumerate(range(n_own) if own is None else own.tolist())}
    others = range(n_theirs) if theirs is None else theirs.tolist()
    return np.array([place.get(name, -1) for name in others], dtype=np.int64)


def _per_user(result: Result, order: Result, metric: str) -> npt.NDArray[np.float64]:
    """Epsilons x users of a result, in the order of the users of another."""
    values = result.curve.per_user[metric]
    own, wanted = _names(result), _names(order)
    if own == wanted:
        return values
    place = {name: n for n, name in enumerate(own)}
    if sorted(place) != sorted(wanted):
        raise InputError("recommenders must be judged by the same users, got different ones")
    return values[:, [place[name] for name in wanted]]


def _names(result: Result) -> list[Any]:
    labels, users = result.model.user_labels, result.curve.users
    return list((users if labels is None else labels[users]).tolist())
