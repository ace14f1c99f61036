"""The paper's table of Jacobian regularizers: accuracy, FGSM, PGD, stable rank, several seeds.

Small scale: a WideResNet-10-1 on CIFAR-10 images averaged down to 16 x 16 and on scikit-learn's
digits, for a CPU. Paper scale: WideResNet-16-10 on CIFAR-100 and TinyImageNet, 200 epochs, for a
GPU (``--device cuda``). The paper does not publish its weights (lambda), so they are chosen here,
on validation images: for each regularizer the largest weight of a grid that costs at most one
point of validation accuracy against no regularizer, with a seed that the table does not use.

``--strong-steps N`` adds the accuracy under Auto-PGD and its targeted runs, and says whether the
order of the regularizers is the one under PGD. At paper scale one run takes 1,852 GFLOP per plain
step (``results/every_k_small.json``), 391 steps per epoch and 200 epochs: 145 PFLOP, about 4 hours
at 10 TFLOP/s; with a penalty in every step 4 to 8.3 times as much. The whole table has 32 runs per
data set.

Every run has a directory in ``--work``; a script that was stopped goes on where it was, and the
table in ``--out`` always holds the runs finished so far.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from _estimation import save_json

from robustcf._runtime import set_threads
from robustcf.vision.attacks import apgd
from robustcf.vision.config import REGS, VisionConfig, VisionRunConfig
from robustcf.vision.images import ImageSplit
from robustcf.vision.loading import load_images
from robustcf.vision.measures import accuracy
from robustcf.vision.runs import VisionRun, open_or_create, summary

COLUMNS = ("accuracy", "fgsm", "pgd", "strong", "stable_rank")
NORMS = ("frobenius", "spectral", "infinity", "two_to_inf")
TUNING_SEED = 1000
# Accuracy, FGSM, PGD in percent, stable rank; mean and spread of three trials, table 1.
PAPER = {
    "cifar100": {
        "none": ((75.5, 0.2), (24.4, 0.6), (11.7, 0.3), (32.0, 1.1)),
        "frobenius": ((75.7, 0.5), (23.5, 0.2), (13.3, 0.2), (31.6, 0.2)),
        "spectral": ((75.7, 0.3), (23.3, 0.7), (11.3, 0.4), (32.0, 1.0)),
        "infinity": ((75.8, 0.4), (23.7, 0.7), (11.1, 0.2), (30.7, 1.2)),
        "two_to_inf": ((77.3, 0.1), (26.9, 0.5), (14.5, 0.5), (18.3, 0.8)),
    },
    "tinyimagenet": {
        "none": ((57.8, 1.3), (30.4, 0.3), (20.2, 0.1), (30.9, 4.3)),
        "frobenius": ((58.6, 0.3), (31.1, 0.2), (20.7, 0.5), (27.8, 0.9)),
        "spectral": ((57.4, 0.8), (30.0, 1.1), (20.0, 0.5), (28.2, 0.3)),
        "infinity": ((57.1, 0.7), (29.6, 1.4), (19.7, 1.0), (28.8, 0.9)),
        "two_to_inf": ((59.6, 0.9), (31.0, 1.0), (23.4, 0.7), (24.9, 0.3)),
    },
}


@dataclass(frozen=True)
class Setting:
    """One half of the table: a data set, a recipe, and the weights to choose from."""

    name: str
    dataset: str
    recipe: VisionConfig
    grid: dict[str, tuple[float, ...]]
    size: int | None = None


def settings(scale: str, cifar10: str) -> list[Setting]:
    if scale == "paper":
        grid = dict.fromkeys(("frobenius", "spectral", "two_to_inf"), (1e-4, 1e-3, 1e-2, 1e-1))
        grid["infinity"] = (1e-7, 1e-6, 1e-5, 1e-4)
        return [Setting(name, name, VisionConfig(reg_images=None), grid) for name in PAPER]
    narrow = VisionConfig(depth=10, width=1)
    return [
        Setting("digits", "digits", narrow.replace(epochs=8, reg_images=16), SMALL_GRID["digits"]),
        Setting(
            "cifar10-16px",
            cifar10,
            narrow.replace(epochs=12, reg_images=32),
            SMALL_GRID["cifar10-16px"],
            16,
        ),
    ]


SMALL_GRID: dict[str, dict[str, tuple[float, ...]]] = {
    "digits": {
        "frobenius": (1e-3, 3e-3),
        "spectral": (3e-3, 1e-2),
        "infinity": (1e-4, 3e-4),
        "two_to_inf": (1e-2, 3e-2),
    },
    "cifar10-16px": {
        "frobenius": (1e-3, 3e-3, 1e-2),
        "spectral": (3e-3, 1e-2, 3e-2),
        "infinity": (3e-5, 1e-4, 3e-4),
        "two_to_inf": (0.1, 0.3, 1.0),
    },
}


class Table:
    """Runs the settings and keeps what is known so far in one JSON file."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.work: Path = options.work / options.scale
        self.target: Path = options.out / f"vision_{options.scale}.json"
        self.results: dict[str, Any] = {}

    def run(self, setting: Setting, reg: str, weight: float, seed: int, valid: float) -> VisionRun:
        """One cell of the table, or one try of the tuning: opened, gone on with or made."""
        options = self.options
        train = setting.recipe.replace(reg=reg, reg_weight=weight, seed=seed)
        if options.epochs is not None:
            train = train.replace(epochs=options.epochs)
        data: dict[str, Any] = {"size": setting.size, "valid_share": valid}
        if options.data_dir is not None:
            data["data_dir"] = options.data_dir
        config = VisionRunConfig(setting.dataset, data, train, options.threads, options.device)
        part = "tuning" if valid else "table"
        folder = self.work / setting.name / part / f"{reg}-{weight:g}-seed{seed}"
        print(f"{folder}", flush=True)
        return open_or_create(folder, config, self.split(setting, valid))

    def split(self, setting: Setting, valid: float) -> ImageSplit:
        """The images; the last ones are kept."""
        key = (setting.name, valid)
        if getattr(self, "_key", None) != key:
            self._key = key
            self._split = load_images(
                setting.dataset, size=setting.size, valid_share=valid,
                data_dir=self.options.data_dir,
            )  # fmt: skip
        return self._split

    def tune(self, setting: Setting) -> dict[str, float]:
        """The weight of each regularizer, by validation accuracy at a seed of its own."""
        plain = self.run(setting, "none", 0.0, TUNING_SEED, 0.1).metrics()["valid_accuracy"]
        tried: dict[str, dict[str, float]] = {"none": {"0": plain}}
        chosen = {"none": 0.0}
        for reg, grid in setting.grid.items():
            tried[reg] = {}
            for weight in sorted(grid):
                run = self.run(setting, reg, weight, TUNING_SEED, 0.1)
                value = tried[reg][f"{weight:g}"] = run.metrics()["valid_accuracy"]
                if value >= plain - 0.01 or reg not in chosen:
                    chosen[reg] = weight
        entry = self.results.setdefault(setting.name, {})
        entry |= {"valid_accuracy_by_weight": tried, "weights": chosen}
        self.save()
        return chosen

    def fill(self, setting: Setting, weights: dict[str, float]) -> None:
        """All rows at one seed before the next seed, so that a stopped table is a fair one."""
        rows: dict[str, list[dict[str, Any]]] = {reg: [] for reg in REGS}
        for seed in range(self.options.seeds):
            for reg in REGS:
                run = self.run(setting, reg, weights[reg], seed, 0.0)
                rows[reg].append(self.measured(run, setting))
                self.results[setting.name]["rows"] = {
                    name: summarize(done) for name, done in rows.items() if done
                }
                self.save()

    def measured(self, run: VisionRun, setting: Setting) -> dict[str, Any]:
        """The metrics of a run, with the accuracy under Auto-PGD if it is asked for."""
        metrics, steps = run.metrics(), self.options.strong_steps
        if steps:
            kept = run.path / f"apgd-{steps}.json"
            if not kept.is_file():
                split, attack = self.split(setting, 0.0), partial(apgd, steps=steps)
                images, labels = (
                    part.to(self.options.device) for part in (split.test.images, split.test.labels)
                )
                found = accuracy(run.model(split), images, labels, attack=attack)
                kept.write_text(json.dumps({"strong": found}))
            metrics["test"] |= json.loads(kept.read_text())
        return metrics

    def save(self) -> None:
        """Write what is known so far."""
        recipes = {s.name: vars(s.recipe) for s in settings(self.options.scale, "cifar10_subset")}
        save_json(
            self.target,
            {"scale": self.options.scale, "recipes": recipes, "epochs": self.options.epochs,
             "results": self.results, "paper": PAPER},
        )  # fmt: skip


def summarize(done: list[dict[str, Any]]) -> dict[str, Any]:
    names = [name for name in (*COLUMNS, *NORMS) if name in done[0]["test"]]
    row: dict[str, Any] = {name: summary([run["test"][name] for run in done]) for name in names}
    row["train_accuracy"] = summary([run["train_accuracy"] for run in done])
    row["seeds"] = [run["seed"] for run in done]
    return row


def show(results: dict[str, Any]) -> None:
    for name, entry in results.items():
        print(f"\n{name}, weights {entry['weights']}")
        for reg, row in entry.get("rows", {}).items():
            cells = [f"{column} {row[column]['mean']:.4g}±{row[column]['std']:.2g}"
                     for column in (*COLUMNS, *NORMS) if column in row]  # fmt: skip
            print(f"  {reg:<11}" + "  ".join(cells))
        rows = entry.get("rows", {})
        for column in ("pgd", "strong"):
            if rows and all(column in row for row in rows.values()):
                order = sorted(rows, key=lambda reg, c=column, r=rows: -r[reg][c]["mean"])
                print(f"  by {column}: {' > '.join(order)}")


def draw(results: dict[str, Any], target: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = [(name, entry["rows"]) for name, entry in results.items() if "rows" in entry]
    if not shown:
        return
    columns = ("accuracy", "pgd", "stable_rank", "two_to_inf")
    figure = Figure(figsize=(3.1 * len(columns), 2.7 * len(shown)), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(shown), len(columns), squeeze=False)
    for line, (name, rows) in zip(grid, shown, strict=True):
        for axis, column in zip(line, columns, strict=True):
            regs = [reg for reg in rows if column in rows[reg]]
            means = [rows[reg][column]["mean"] for reg in regs]
            spread = [rows[reg][column]["std"] for reg in regs]
            axis.barh(regs, means, xerr=spread, color="#1b4f8a", ecolor="#c2410c")
            axis.invert_yaxis()
            axis.set_title(f"{name}: {column}", fontsize="small")
            axis.tick_params(labelsize="small")
            axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(target, dpi=120)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--scale", choices=["small", "paper"], default="small")
    arguments.add_argument("--seeds", type=int, default=3, help="runs per row (default 3)")
    arguments.add_argument("--data-dir", help="folder with the data sets")
    arguments.add_argument(
        "--cifar10", help="small scale: npz file of CIFAR-10 images (default: the official set)"
    )
    arguments.add_argument("--epochs", type=int, help="another number than the recipe's")
    arguments.add_argument(
        "--strong-steps", type=int, default=0, help="steps of Auto-PGD (0: without it)"
    )
    arguments.add_argument("--only", help="one half of the table, by name")
    arguments.add_argument("--threads", type=int, default=None, help="CPU threads")
    arguments.add_argument("--device", default="cpu", help="where the tensors live")
    arguments.add_argument("--work", type=Path, default=Path("runs/vision"), help="run folders")
    arguments.add_argument("--out", type=Path, default=Path("results"), help="output folder")
    options = arguments.parse_args()
    options.threads = set_threads(options.threads)
    if options.data_dir is not None:
        options.data_dir = os.path.abspath(options.data_dir)
    table = Table(options)
    if table.target.is_file():
        table.results = json.loads(table.target.read_text())["results"]
    for setting in settings(options.scale, options.cifar10 or "cifar10"):
        if options.only in (None, setting.name):
            table.fill(setting, table.tune(setting))
    show(table.results)
    draw(table.results, options.out / f"vision_{options.scale}.png")


if __name__ == "__main__":
    main()
