"""The cells of a grid of poisoning, out of their files, as means and spreads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from robustcf._io.files import csv_bytes, read_json, write_bytes
from robustcf._io.plots import Line, Panel, plot_panels
from robustcf._io.schema import (
    NOT_NEGATIVE,
    OBJECT,
    Kind,
    check_kind,
    list_of,
    record,
    whole,
)
from robustcf._runtime import environment
from robustcf.data import Split
from robustcf.errors import InputError
from robustcf.experiments.grids import compact_json
from robustcf.experiments.poisoning.plan import CLEAN, FILE, UNDEFENDED, Part, PoisonPlan
from robustcf.poisoning.threat import fakes_name
from robustcf.poisoning.victim import AUTO, QUALITY, damage

CELLS = "cells"
LOST = "ndcg@10 lost"
# Beyond this a mean over thousands of users says nothing, and files stay small.
_DIGITS = 7
Array = npt.NDArray[np.float64]
Cell = Mapping[str, Any]


def cell_path(folder: Path, model: str, defence: str, part: Part) -> Path:
    """The file of a victim under an attack."""
    victim = f"{model}-{defence}".replace(":", ".")
    return folder / CELLS / f"{victim}-{part.name}.json"


def cell_name(model: str, defence: str, part: Part) -> dict[str, Any]:
    """What a cell says of itself: which victim, under what."""
    return {
        "model": model,
        "defence": defence,
        "attack": part.attack,
        "fakes": part.fakes,
        "seed": part.seed,
    }


def read_cell(plan: PoisonPlan, folder: Path, model: str, defence: str, part: Part) -> Cell | None:
    """A cell from its file; None where it is not there, or is not what it should be.

    What is spoilt is as good as absent: it is made again.
    """
    path = cell_path(folder, model, defence, part)
    if not path.is_file():
        return None
    try:
        cell = read_json(path)
        check_kind(path, cell, _cell_kind(plan.ks))
    except InputError:
        return None
    named = cell_name(model, defence, part)
    return cell if {key: cell.get(key) for key in named} == named else None


def _cell_kind(ks: Sequence[int]) -> Kind:
    rates = {f"{kind}@{k}": NOT_NEGATIVE for kind in ("hit_rate", "ndcg", "share") for k in ks}
    single = record({f"hit_rate@{k}": list_of(NOT_NEGATIVE, 1) for k in ks})
    return record(
        {
            "spent": record({name: whole() for name in ("fakes", "length", "pairs")}),
            "exposure": record({**rates, "by_target": single}),
            "quality": record(dict.fromkeys(QUALITY, NOT_NEGATIVE)),
            "defence_report": OBJECT,
        }
    )


@dataclass(frozen=True, eq=False)
class PoisonSummary:
    """What a grid of poisoning found.

    Args:
        plan: what was asked for.
        out: its folder.
        dataset: name of the data.
        fingerprint: of the data.
        n_users: genuine users.
        cells: (model, defence, attack, name of the fakes, seed) -> the cell.
    """

    plan: PoisonPlan
    out: Path
    dataset: str
    fingerprint: str
    n_users: int
    cells: Mapping[tuple[str, str, str, str, int], Cell]

    @property
    def attacks(self) -> list[str]:
        """What has a row: the attacks that were tried, and ``auto`` where it was asked for."""
        auto = [AUTO] if AUTO in self.plan.attacks and self.plan.profiles is None else []
        return [*self.plan.tried, *auto]

    @property
    def metrics(self) -> list[str]:
        """The metrics of exposure, then quality and what is lost of it."""
        kinds = ("hit_rate", "ndcg", "share")
        return [*(f"target {kind}@{k}" for kind in kinds for k in self.plan.ks), *QUALITY, LOST]

    @property
    def headline(self) -> str:
        """The metric that the goal is about."""
        largest = max(self.plan.ks)
        return LOST if self.plan.goal == "availability" else f"target hit_rate@{largest}"

    def cell(self, model: str, defence: str, attack: str, fakes: float, seed: int) -> Cell:
        """A cell; of ``auto``, that of the attack that did most to this very victim."""
        if attack != AUTO:
            return self.cells[model, defence, attack, fakes_name(fakes), seed]
        found = [self.cell(model, defence, name, fakes, seed) for name in self.plan.tried]
        return max(found, key=lambda cell: damage(self.plan.goal, _rates(cell), cell["quality"]))

    def values(self, model: str, defence: str, attack: str, fakes: float, metric: str) -> Array:
        """A metric, seed by seed."""
        return np.array(
            [
                self._value(self.cell(model, defence, attack, fakes, seed), metric)
                for seed in self.plan.seeds
            ]
        )

    def _value(self, cell: Cell, metric: str) -> float:
        if metric == LOST:
            clean = self.cell(cell["model"], cell["defence"], CLEAN, 0, cell["seed"])
            return float(clean["quality"]["ndcg@10"] - cell["quality"]["ndcg@10"])
        if metric.startswith("target "):
            return float(cell["exposure"][metric.removeprefix("target ")])
        return float(cell["quality"][metric])

    def target_spread(
        self, model: str, defence: str, attack: str, fakes: float
    ) -> tuple[float, float, float]:
        """Hit rate at the largest cutoff of single targets, over all seeds: lowest, mean, highest.

        Each over the genuine users who lack that target.
        """
        k = f"hit_rate@{max(self.plan.ks)}"
        found = [
            value
            for seed in self.plan.seeds
            for value in self.cell(model, defence, attack, fakes, seed)["exposure"]["by_target"][k]
        ]
        return float(min(found)), float(np.mean(found)), float(max(found))

    def rows(self) -> Iterator[tuple[str, str, str, float]]:
        """Model, defence, attack and fakes of every row of a table; clean before all."""
        for model, defence in self.plan.victims():
            yield model, defence, CLEAN, 0
            for fakes in self.plan.sizes:
                for attack in self.attacks:
                    yield model, defence, attack, fakes

    def fakes_shown(self, model: str, defence: str, attack: str, fakes: float) -> str:
        """The fakes of a row in a word: as they were asked for; of a file, how many it holds."""
        if attack != FILE:
            return fakes_name(fakes)
        cell = self.cell(model, defence, attack, fakes, self.plan.seeds[0])
        return str(cell["spent"]["fakes"])

    def chosen(self, model: str, defence: str, fakes: float) -> list[str]:
        """The attacks that ``auto`` took, seed by seed."""
        return [
            str(self.cell(model, defence, AUTO, fakes, seed)["attack"]) for seed in self.plan.seeds
        ]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON: the plan, then metrics seed by seed."""
        results = []
        for model, defence, attack, fakes in self.rows():
            values = {
                metric: np.round(
                    self.values(model, defence, attack, fakes, metric), _DIGITS
                ).tolist()
                for metric in self.metrics
            }
            low, mean, high = self.target_spread(model, defence, attack, fakes)
            first = self.cell(model, defence, attack, fakes, self.plan.seeds[0])
            results.append(
                {
                    "model": model,
                    "defence": defence,
                    "attack": attack,
                    "fakes": self.fakes_shown(model, defence, attack, fakes),
                    "spent": dict(first["spent"]),
                    **values,
                    "single targets": [round(value, _DIGITS) for value in (low, mean, high)],
                    **({"chosen": self.chosen(model, defence, fakes)} if attack == AUTO else {}),
                    **(
                        {"defence_report": [
                            self.cell(model, defence, attack, fakes, seed)["defence_report"]
                            for seed in self.plan.seeds
                        ]}
                        if defence != UNDEFENDED
                        else {}
                    ),
                }
            )  # fmt: skip
        return {
            "format": "robustcf poisoning 1",
            "plan": self.plan.identity(),
            "fingerprint": self.fingerprint,
            "n_users": self.n_users,
            "headline": self.headline,
            "environment": environment() | {"threads": self.plan.threads},
            "results": results,
        }


def summarize(plan: PoisonPlan, folder: Path, split: Split) -> PoisonSummary:
    """Read all cells; write ``results.json``, ``results.csv`` and the picture."""
    cells = {}
    for model, defence in plan.victims():
        for part in plan.parts():
            cell = read_cell(plan, folder, model, defence, part)
            if cell is None:
                path = cell_path(folder, model, defence, part)
                raise InputError(f"{path} is not there: go on with the same command")
            cells[model, defence, part.attack, fakes_name(part.fakes), part.seed] = cell
    summary = PoisonSummary(plan, folder, split.name, split.fingerprint, split.n_users, cells)
    write_bytes(folder / "results.json", compact_json(summary.as_dict()))
    head = ("model", "defence", "attack", "fakes", "seed", "metric", "value")
    rows = []
    for model, defence, attack, fakes in summary.rows():
        for metric in summary.metrics:
            values = summary.values(model, defence, attack, fakes, metric)
            for seed, value in zip(plan.seeds, values, strict=True):
                size = summary.fakes_shown(model, defence, attack, fakes)
                row = (model, defence, attack, size, seed, metric, round(float(value), _DIGITS))
                rows.append(dict(zip(head, row, strict=True)))
    write_bytes(folder / "results.csv", csv_bytes(rows))
    _draw(summary)
    return summary


def _rates(cell: Cell) -> dict[str, float]:
    return {name: value for name, value in cell["exposure"].items() if "@" in name}


def _draw(summary: PoisonSummary) -> None:
    """Exposure above, quality lost below; a column for each victim, a line for each attack."""
    plan = summary.plan
    rows: list[list[Panel]] = []
    for metric in dict.fromkeys((f"target hit_rate@{max(plan.ks)}", LOST)):
        panels = []
        for model, defence in plan.victims():
            clean = summary.values(model, defence, CLEAN, 0, metric)[:, None]
            lines = []
            for attack in summary.attacks:
                sizes = [0.0, *(_percent(summary, size) for size in plan.sizes)]
                columns = [
                    summary.values(model, defence, attack, size, metric)[:, None]
                    for size in plan.sizes
                ]
                values = 100 * np.concatenate([clean, *columns], axis=1)
                lines.append(Line(attack, sizes, values))
            guarded = "" if defence == UNDEFENDED else f" with {defence}"
            name = "users who see a target, %" if metric != LOST else "NDCG@10 lost, x 100"
            if metric != LOST:
                name = f"{name} (first {max(plan.ks)})"
            below = None if metric == LOST else 0.0  # an attack may do good, too
            axis = "fake users, % of the genuine ones"
            panels.append(Panel(lines, axis, name, f"{model}{guarded}", below))
        rows.append(panels)
    title = f"{summary.dataset}: {plan.goal} {plan.targets.words()}"
    for suffix in ("png", "svg"):
        plot_panels(rows, summary.out / f"poison.{suffix}", title=title)


def _percent(summary: PoisonSummary, size: float) -> float:
    """Fakes that were spent, in percent of the genuine users."""
    plan = summary.plan
    attack = FILE if plan.profiles is not None else plan.tried[0]
    model, defence = plan.victims()[0]
    spent = summary.cell(model, defence, attack, size, plan.seeds[0])["spent"]
    return 100 * float(spent["fakes"]) / summary.n_users
