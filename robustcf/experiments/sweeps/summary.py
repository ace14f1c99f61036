"""The curves of a sweep, seed by seed, out of the files that its runs hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from robustcf._io.files import csv_bytes, write_bytes
from robustcf._io.plots import Kind, Line, Panel, plot_panels
from robustcf._runtime import environment
from robustcf.data import Split
from robustcf.experiments.comparison import Comparison, compare_curves
from robustcf.experiments.grids import compact_json
from robustcf.experiments.saved import open_run
from robustcf.experiments.statistics import area
from robustcf.experiments.sweeps.plan import SweepPlan, control_of
from robustcf.robustness import AttackSpec
from robustcf.robustness.curves import SavedCurve, kind_words
from robustcf.robustness.table import CERTIFICATE, CUTOFFS

SHOWN = ("ndcg@10", "mrr@10", "coverage@10", "recall@20")
METRIC = "ndcg@10"
# Beyond this a mean over thousands of users says nothing, and files stay small.
_DIGITS = 7
Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Summary:
    """What a sweep found.

    Args:
        plan: what was asked for.
        out: its folder.
        fingerprint: of the data.
        curves: attack -> setting -> the saved curve of each seed.
        settings: setting -> what it was trained with (of the first seed), by flat names.
    """

    plan: SweepPlan
    out: Path
    fingerprint: str
    curves: Mapping[str, Mapping[str, list[SavedCurve]]]
    settings: Mapping[str, Mapping[str, Any]]

    @property
    def attacks(self) -> list[str]:
        """The attacks proper, without random controls and certificate."""
        return list(self.plan.attacks)

    @property
    def first(self) -> SavedCurve:
        """Any curve: what all of them share can be read there."""
        return self.curves[self.attacks[0]][self.plan.regs[0]][0]

    def values(self, attack: str, setting: str, metric: str = METRIC) -> Array:
        """Seeds x epsilons."""
        return np.array([curve.facts[metric] for curve in self.curves[attack][setting]])

    def area(self, attack: str, setting: str, metric: str = METRIC) -> float:
        """Mean over the seeds of the area under the curve."""
        return float(area(self.plan.epsilons, self.values(attack, setting, metric).T).mean())

    @cached_property
    def comparisons(self) -> dict[str, Comparison]:
        """Attack, or certificate -> all pairs of settings compared; empty for a single setting."""
        if len(self.settings) < 2:
            return {}
        pairs = len(self.settings) * (len(self.settings) - 1) // 2
        tests = pairs * (len(self.plan.epsilons) + 1)
        return {
            attack: compare_curves(
                {
                    setting: [curve.per_user(METRIC) for curve in curves]
                    for setting, curves in self.curves[attack].items()
                },
                self.plan.epsilons,
                metric=METRIC,
                resamples=max(10_000, 40 * tests),
            )
            for attack in (*self.attacks, CERTIFICATE)
            if attack in self.curves
        }

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON: the plan, then metrics seed by seed."""
        first = self.first.facts
        return {
            "format": "robustcf sweep 1",
            "plan": self.plan.identity(),
            "fingerprint": self.fingerprint,
            "protocol": first["protocol"],
            "axis": axis(first),
            "epsilons": list(self.plan.epsilons),
            "environment": environment() | {"threads": self.plan.threads},
            "settings": {name: dict(settings) for name, settings in self.settings.items()},
            "curves": {
                attack: {
                    setting: {
                        metric: np.round(self.values(attack, setting, metric), _DIGITS).tolist()
                        for metric in curves[0].facts["metrics"]
                    }
                    for setting, curves in by_setting.items()
                }
                for attack, by_setting in self.curves.items()
            },
            "comparisons": {attack: found.as_dict() for attack, found in self.comparisons.items()},
        }

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """One row for each attack, setting, seed, epsilon and metric."""
        for attack, by_setting in self.curves.items():
            for setting, curves in by_setting.items():
                for seed, curve in zip(self.plan.seeds, curves, strict=True):
                    for metric in curve.facts["metrics"]:
                        for size, value in zip(curve.epsilons, curve.facts[metric], strict=True):
                            yield attack, setting, seed, size, metric, round(value, _DIGITS)

    def panel(self, attack: str, metric: str, title: str = "") -> Panel:
        """A metric under an attack: all settings, each with its random control and certificate."""
        kinds: dict[str, Kind] = {
            attack: "attack",
            control_of(attack): "random",
            CERTIFICATE: "certificate",
        }
        lines = [
            Line(setting, self.plan.epsilons, self.values(name, setting, metric), kind)
            for setting in self.plan.regs
            for name, kind in kinds.items()
            if metric in self.metrics(name)
        ]
        return Panel(lines, axis(self.first.facts), display(metric), title)

    def words(self, name: str) -> str:
        """Whose perturbation a curve is of, and what the attacker knows."""
        return kind_words(next(iter(self.curves[name].values()))[0].facts)

    def metrics(self, name: str) -> list[str]:
        """The metrics that a curve of this name has; certificates know no coverage."""
        if name not in self.curves:
            return []
        found: list[str] = self.curves[name][self.plan.regs[0]][0].facts["metrics"]
        return found


def axis(facts: Mapping[str, Any]) -> str:
    """What epsilon means, short enough for a panel."""
    unit = {"row": "median row norms"}.get(facts["budget"], f"{facts['budget']} norms")
    unit = "each row's own length" if facts["unit"] == "own" else unit
    where = f"in {unit}" if facts["relative"] else "absolute"
    return f"epsilon, {facts['budget']} budget, {where}"


def display(metric: str) -> str:
    """A metric's name as people write it.

    Example:
        >>> display("ndcg@10"), display("coverage@10")
        ('NDCG@10', 'Coverage@10')
    """
    name, at, k = metric.partition("@")
    return (name.upper() if name in ("ndcg", "mrr", "map") else name.capitalize()) + at + k


def places(plan: SweepPlan, name: str) -> dict[str, dict[str, Any]]:
    """Names -> settings of the curves that measuring ``name`` gives: it and its control."""
    spec = AttackSpec.parse(name)
    where = (plan.threat, "test", plan.epsilons, CUTOFFS)
    found = {name: spec.settings(*where)}
    if not spec.way.certifies:
        found[control_of(name)] = spec.control_settings(*where)
    return found


def summarize(plan: SweepPlan, out: Path, runs: Path, split: Split) -> Summary:
    """Read the curves of all runs and write ``curves.json``, ``curves.csv`` and the pictures."""
    curves: dict[str, dict[str, list[SavedCurve]]] = {}
    settings: dict[str, Mapping[str, Any]] = {}
    wanted = {name: found for each in plan.measured for name, found in places(plan, each).items()}
    for reg in plan.regs:
        opened = [open_run(runs / f"{reg}-seed{seed}") for seed in plan.seeds]
        settings[reg] = opened[0].settings
        for name, found in wanted.items():
            curves.setdefault(name, {})[reg] = [run.find(found) for run in opened]
    curves = {name: curves[name] for name in plan.curves()}
    summary = Summary(plan, out, split.fingerprint, curves, settings)
    write_bytes(out / "curves.json", compact_json(summary.as_dict()))
    head = ("attack", "setting", "seed", "epsilon", "metric", "value")
    rows = (dict(zip(head, row, strict=True)) for row in summary.rows())
    write_bytes(out / "curves.csv", csv_bytes(rows))
    for attack in summary.attacks:
        panels = [summary.panel(attack, metric) for metric in SHOWN]
        title = f"{plan.model} on {split.name} (test) under {attack}"
        for suffix in ("png", "svg"):
            plot_panels([panels[:2], panels[2:]], out / f"{attack}.{suffix}", title=title)
    return summary
