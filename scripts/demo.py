"""The demo: from nothing to robustness curves, on the embedded synthetic data.

    python scripts/demo.py --out demo-output
    python scripts/demo.py --dataset ml-1m --data-dir DIR --out DIR --attacks auto

The second line draws the README's picture.

Trains softmax MF, UltraGCN with weight decay and with the two-to-infinity regularizer, and the
robust preset, with stored users and with users computed from their histories. Then it attacks all
of them with growing budgets: first as the paper does (one gradient step on the cross-entropy,
absolute sizes), then with the headline attack: one perturbation for all users, by an attacker who
knows the test pairs, at sizes in lengths of each row. The random control and the certificate are
drawn next to them.
"""

from __future__ import annotations

import argparse
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import robustcf
from robustcf import Recommender, Threat, measure
from robustcf._io.files import write_json
from robustcf._io.plots import Kind, Line, Panel, plot_panels
from robustcf.cli.main import run
from robustcf.robustness import AttackSpec, RobustnessCurve
from robustcf.robustness.table import CERTIFICATE

METRIC = "ndcg@10"
# What to train -> the options of `robustcf train`.
SETTINGS = {
    "softmax MF": ("--model", "softmax-mf"),
    "UltraGCN, weight decay": ("--reg", "weight_decay"),
    "UltraGCN, two_to_inf": ("--reg", "two_to_inf"),
    "robust preset": ("--preset", "robust"),
    "robust preset, fold-in": ("--preset", "robust", "--serve", "fold-in"),
}
# Attack -> what the attacker may do, and the sizes; finer than the table's, for a picture.
ATTACKS: dict[str, tuple[Threat, tuple[float, ...]]] = {
    "fgm-bce": (Threat(unit="absolute"), (0.0, 0.1, 0.2, 0.4, 0.6, 0.8, 1.2, 1.6)),
    "auto": (Threat(), (0.0, 0.01, 0.02, 0.05, 0.1, 0.2)),
}
TITLES = {
    "fgm-bce": "the paper's attack, which knows train",
    "auto": "the headline attack, which knows test",
}
Curves = dict[Kind, RobustnessCurve]


def step(title: str, *arguments: str) -> None:
    """Run a command of robustcf as a user would, and stop the demo if it fails."""
    print(f"\n{title}\n  $ robustcf {' '.join(arguments)}\n", flush=True)
    if code := run(arguments):
        raise SystemExit(code)


def five_lines(folder: Path) -> None:
    """The way of the README: a table in, a model by search, recommendations, a folder that serves.

    The search has 6 seconds here; without a number it takes what pays, five minutes at most.
    """
    pairs = robustcf.load("demo").train_full
    df = pd.DataFrame({"user": pairs.users, "item": pairs.items})
    df = df.assign(user="user " + df["user"].astype(str), item="film " + df["item"].astype(str))
    print("\nFive lines of Python: a DataFrame in, recommendations out.\n", flush=True)
    model = robustcf.train(robustcf.load(df), minutes=0.1)
    print(model.recommend(["user 7"], k=3).to_string(index=False))
    shutil.rmtree(folder, ignore_errors=True)
    model.save(folder)
    new = robustcf.open(folder).recommend(items=["film 213", "film 12"], k=3)
    print(f"\nSaved, opened, and asked for a new user:\n{new.to_string(index=False)}", flush=True)


def curves_of(model: Recommender, attack: str) -> Curves:
    """The curve under an attack, its random control, and the certified lower bound."""
    threat, sizes = ATTACKS[attack]
    # What an attacker without labels does is not drawn, so the control is asked for by itself.
    result = measure(model, attack, threat, sizes, control=attack != "auto")
    curves: Curves = {"attack": result.curve}
    noise = result.control or measure(model, "random", threat, sizes).curve
    curves["random"] = noise
    if threat.relative:  # at the paper's sizes nothing is certain
        curves["certificate"] = measure(model, CERTIFICATE, threat, sizes).curve
    return curves


def panel(attack: str, curves: dict[str, Curves]) -> Panel:
    lines = [
        Line(setting, curve.epsilons, curve[METRIC], kind)
        for setting, by_kind in curves.items()
        for kind, curve in by_kind.items()
    ]
    return Panel(lines, ATTACKS[attack][0].axis, METRIC.upper(), TITLES[attack])


def table(curves: dict[str, Curves], kind: Kind) -> str:
    first = next(iter(curves.values()))["attack"]
    lines = [f"  {'epsilon':<24}" + "".join(f"{size:>8g}" for size in first.epsilons)]
    lines += [
        f"  {setting:<24}" + "".join(f"{value:8.4f}" for value in by_kind[kind][METRIC])
        for setting, by_kind in curves.items()
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("demo-output"))
    parser.add_argument("--dataset", default="demo")
    parser.add_argument("--data-dir")
    parser.add_argument("--attacks", nargs="+", choices=ATTACKS, default=list(ATTACKS))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    where = ["--data-dir", options.data_dir] if options.data_dir else []

    step("The data.", "datasets", "info", options.dataset, *where)
    found: dict[str, dict[str, Curves]] = {name: {} for name in options.attacks}
    for setting, how in SETTINGS.items():
        folder = options.out / re.sub(r"[ ,_]+", "-", setting.lower())
        shutil.rmtree(folder, ignore_errors=True)
        arguments = ["--dataset", options.dataset, *where, *how, "--out", str(folder)]
        step(f"Train: {setting}.", "train", *arguments)
        model = robustcf.open(folder)
        for attack in found:
            found[attack][setting] = curves_of(model, attack)

    if options.dataset == "demo":
        five_lines(options.out / "from-a-table")
    synthetic = " (synthetic data)" if options.dataset == "demo" else ""
    picture = plot_panels(
        [[panel(attack, curves) for attack, curves in found.items()]],
        options.out / "robustness.png",
        title=f"Recommenders on {options.dataset}{synthetic} under attack",
    )
    write_json(options.out / "robustness.json", numbers(found))

    kinds: dict[Kind, str] = {
        "attack": "attacked",
        "random": "the same budget in a random direction, the control",
        "certificate": "certified lower bound, which no attack of this size goes below",
    }
    for attack, curves in found.items():
        print(f"\nNDCG@10 under {TITLES[attack]}")
        print(f"  {AttackSpec.parse(attack).words()}\n  {ATTACKS[attack][0].axis}")
        for kind, words in kinds.items():
            if all(kind in by_kind for by_kind in curves.values()):
                print(f"\n  {words}:\n{table(curves, kind)}")
    print(f"\nLook at {picture}: how far each recommender falls as the attack grows.")
    print("What two_to_inf gains under the paper's attack belongs to that attack; the other one is")
    print("harder. More about one of them, by whom and for whom:")
    print(f"  .venv/bin/robustcf attack {options.out}/robust-preset")
    print("Then try your own data: .venv/bin/robustcf train --dataset my.csv --preset robust")


def numbers(found: dict[str, dict[str, Curves]]) -> dict[str, Any]:
    """All means by attack, to seven digits: more say nothing."""
    return {
        attack: {
            "axis": ATTACKS[attack][0].axis,
            "epsilons": list(ATTACKS[attack][1]),
            METRIC: {
                setting: {kind: np.round(curve[METRIC], 7).tolist() for kind, curve in each.items()}
                for setting, each in curves.items()
            },
        }
        for attack, curves in found.items()
    }


if __name__ == "__main__":
    main()
