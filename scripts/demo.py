"""The demo: from nothing to a picture, on the embedded synthetic data.

python scripts/demo.py --out demo-output
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from robustcf.data import load


def picture_of_data(out: Path) -> Path:
    """Who has how much, and what is how popular: the two skews every recommender lives with."""
    split = load("demo")
    everything = split.train_full.union(split.test)
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    popularity = np.sort(everything.item_degrees)[::-1]
    axes[0].loglog(np.arange(1, len(popularity) + 1), popularity, color="black")
    axes[0].set(xlabel="item, by popularity", ylabel="users of the item", title="Popularity")
    axes[1].hist(everything.user_degrees, bins=40, color="0.6", edgecolor="black", linewidth=0.5)
    axes[1].set(xlabel="items of a user", ylabel="users", title="Activity")
    figure.suptitle(f"{split.name} (synthetic): {split.n_interactions:,} interactions")
    path = out / "demo-data.png"
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("demo-output"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    from robustcf.cli.main import run

    for title, arguments in (
        ("The data sets robustcf knows:", ["datasets"]),
        ("The embedded one:", ["datasets", "info", "demo"]),
    ):
        print(f"\n{title}\n")
        if code := run(arguments):
            raise SystemExit(code)
    path = picture_of_data(options.out)
    print(f"\nLook at {path}: popularity and activity in the demo set.")
    print("Then try your own data: .venv/bin/robustcf datasets info my.csv")


if __name__ == "__main__":
    main()
