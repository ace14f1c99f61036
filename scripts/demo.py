"""The demo: from nothing to robustness curves, on the embedded synthetic data.

    python scripts/demo.py --out demo-output
    python scripts/demo.py --dataset ml-1m --data-dir DIR --out DIR     # the README's picture

Trains UltraGCN with weight decay and with the two-to-infinity regularizer, and the robust preset.
Then it attacks all three with growing budgets: first as the paper does (one gradient step on the
cross-entropy, absolute sizes), then with a step that is aware of the ranking, at sizes relative to
the embeddings. The random control and the certificate are drawn beside.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from robustcf.attacks import FGM, RandomNoise
from robustcf.certificates import certified_curve
from robustcf.cli.main import run
from robustcf.support.files import write_json
from robustcf.studies.plots import Kind, Line, Panel, plot_panels
from robustcf.robustness import RobustnessCurve, objective_for, robustness_curve
from robustcf.runs import RunDir

METRIC = "ndcg@10"
# What to train -> the options of `robustcf train`.
SETTINGS = {
    "weight_decay": ("--reg", "weight_decay"),
    "two_to_inf": ("--reg", "two_to_inf"),
    "robust preset": ("--preset", "robust"),
}
# Objective of the attack -> sizes, and whether they are relative.
ATTACKS: dict[str, tuple[tuple[float, ...], bool]] = {
    "bce": ((0.0, 0.1, 0.2, 0.4, 0.6, 0.8, 1.2, 1.6), False),
    "softmax": ((0.0, 0.02, 0.05, 0.1, 0.15, 0.2), True),
}
TITLES = {
    "bce": "the paper's attack",
    "softmax": "an attack aware of the ranking",
}


def step(title: str, *arguments: str) -> None:
    """Run a command of robustcf as a user would, and stop the demo if it fails."""
    print(f"\n{title}\n  $ robustcf {' '.join(arguments)}\n", flush=True)
    if code := run(arguments):
        raise SystemExit(code)


def curves_of(folder: Path, objective: str) -> dict[Kind, RobustnessCurve]:
    """The attacked curve of a run, its random control, and what no attack can go below."""
    trained = RunDir(folder)
    split, factors = trained.split(), trained.factors()
    sizes, relative = ATTACKS[objective]
    mask = trained.mask(split)
    aim = objective_for(objective, trained.config.train, factors, trained.learnt_pairs(split))
    attack, noise = FGM(aim, relative=relative), RandomNoise(relative=relative)
    curves: dict[Kind, RobustnessCurve] = {
        "attack": robustness_curve(factors, split, attack, sizes, mask=mask),
        "random": robustness_curve(factors, split, noise, sizes, mask=mask),
    }
    if relative:  # at the paper's sizes nothing is certain
        curves["certificate"] = certified_curve(factors, split, sizes, relative=True, mask=mask)
    return curves


def panel(objective: str, curves: dict[str, dict[Kind, RobustnessCurve]]) -> Panel:
    lines = [
        Line(setting, curve.epsilons, curve[METRIC], kind)
        for setting, by_kind in curves.items()
        for kind, curve in by_kind.items()
    ]
    first = next(iter(curves.values()))["attack"]
    return Panel(lines, first.axis, METRIC.upper(), TITLES[objective])


def table(curves: dict[str, dict[Kind, RobustnessCurve]], kind: Kind) -> str:
    first = next(iter(curves.values()))["attack"]
    lines = [f"  {'epsilon':<14}" + "".join(f"{size:>8g}" for size in first.epsilons)]
    lines += [
        f"  {setting:<14}" + "".join(f"{value:8.4f}" for value in by_kind[kind][METRIC])
        for setting, by_kind in curves.items()
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("demo-output"))
    parser.add_argument("--dataset", default="demo")
    parser.add_argument("--data-dir")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    where = ["--data-dir", options.data_dir] if options.data_dir else []

    step("The data.", "datasets", "info", options.dataset, *where)
    found: dict[str, dict[str, dict[Kind, RobustnessCurve]]] = {name: {} for name in ATTACKS}
    for setting, how in SETTINGS.items():
        folder = options.out / setting.replace(" ", "-")
        shutil.rmtree(folder, ignore_errors=True)
        arguments = ["--dataset", options.dataset, *where, *how, "--out", str(folder)]
        step(f"Train: {setting}.", "train", *arguments)
        for objective in ATTACKS:
            found[objective][setting] = curves_of(folder, objective)

    synthetic = " (synthetic data)" if options.dataset == "demo" else ""
    picture = plot_panels(
        [[panel(objective, curves) for objective, curves in found.items()]],
        options.out / "robustness.png",
        title=f"Recommenders on {options.dataset}{synthetic} under attack",
    )
    write_json(options.out / "robustness.json", numbers(found))

    kinds: dict[Kind, str] = {
        "attack": "attacked",
        "random": "the same budget in a random direction, the control",
        "certificate": "what no attack of this size can take, proved",
    }
    for objective, curves in found.items():
        attack = f"{TITLES[objective]} (fgm on {objective})"
        print(f"\nNDCG@10 under {attack}; {next(iter(curves.values()))['attack'].axis}")
        for kind, words in kinds.items():
            if all(kind in by_kind for by_kind in curves.values()):
                print(f"\n  {words}:\n{table(curves, kind)}")
    print(f"\nLook at {picture}: how far each recommender falls as the attack grows.")
    print("Left, what two_to_inf gains belongs to that attack; right, a harder one. The number to")
    print(f"quote: .venv/bin/robustcf attack {options.out}/two_to_inf --attack auto")
    print("Then try your own data: .venv/bin/robustcf train --dataset my.csv --preset robust")


def numbers(found: dict[str, dict[str, dict[Kind, RobustnessCurve]]]) -> dict[str, Any]:
    """All means, to seven digits: more say nothing."""
    return {
        objective: {
            "axis": next(iter(curves.values()))["attack"].axis,
            "epsilons": list(ATTACKS[objective][0]),
            METRIC: {
                setting: {kind: np.round(curve[METRIC], 7).tolist() for kind, curve in each.items()}
                for setting, each in curves.items()
            },
        }
        for objective, curves in found.items()
    }


if __name__ == "__main__":
    main()
