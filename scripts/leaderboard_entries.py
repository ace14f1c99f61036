"""Make the entries of the leaderboard: train each model, measure it, write its entry.

    python scripts/leaderboard_entries.py --dataset ml-1m --data-dir DIR --out results/leaderboard

Models of this library have their usual settings or presets; those of implicit, Cornac and LensKit
are trained by these libraries and read through the adapters. A model whose library is not installed
is left out, and named at the end. Entries that exist are kept, an interrupted one is resumed.
Numbers do not depend on the order of models.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from robustcf import Recommender, adapters, harden, load, train
from robustcf.auditing import submit
from robustcf.data import Split
from robustcf.recommender.matching import fit_on_of

IMPLICIT = "https://github.com/benfred/implicit"
CORNAC = "https://github.com/PreferredAI/cornac"
LENSKIT = "https://github.com/lenskit/lkpy"
PAPERS = {
    "als": "https://doi.org/10.1109/ICDM.2008.22",
    "bpr": "https://arxiv.org/abs/1205.2618",
    "ultragcn": "https://arxiv.org/abs/2110.15114",
    "lightgcn": "https://arxiv.org/abs/2002.02126",
    "logistic": "https://web.stanford.edu/~rezab/nips2014workshop/submits/logmat.pdf",
}


def own(model: str, paper: str | None = None, /, **settings: Any) -> dict[str, Any]:
    """A model of this library, with the command that trains it."""
    options = {key.replace("_", "-"): value for key, value in settings.items()}
    words = [f"--{key} {value}" for key, value in options.items()]

    def made(split: Split, seed: int) -> Recommender:
        return train(split, model, seed=seed, **settings)

    command = " ".join(["robustcf train --dataset {data} --model", model, *words, "--seed {seed}"])
    return {"make": made, "commands": [command], "paper": PAPERS.get(paper or "")}


def judged(found: Recommender, split: Split) -> Recommender:
    """The recommender with its rows in the order of the split, fit on its training pairs."""
    labels = (found.user_labels, found.item_labels)
    rows = [slice(None) if own is None else np.argsort(own) for own in labels]
    users, items = (part[row] for part, row in zip(found.factors, rows, strict=True))
    how = {"fixed": found.fixed, "fit_on": fit_on_of(split), "label": found.label}
    return Recommender(users, items, split, **how)


def outside(make: Callable[[Split, int], Recommender], code: str, paper: str) -> dict[str, Any]:
    """A model of another library."""
    return {"make": make, "commands": [], "code": code, "paper": PAPERS[paper]}


def of_implicit(module: str, kind: str, **settings: Any) -> Callable[[Split, int], Recommender]:
    def made(split: Split, seed: int) -> Recommender:
        from importlib import import_module

        pairs = split.fit_pairs(fit_on_of(split)).csr().copy()
        fitted = getattr(import_module(f"implicit.{module}"), kind)(random_state=seed, **settings)
        fitted.fit(pairs, show_progress=False)
        return judged(adapters.from_implicit(fitted), split)

    return made


def of_cornac(kind: str, **settings: Any) -> Callable[[Split, int], Recommender]:
    def made(split: Split, seed: int) -> Recommender:
        import cornac

        pairs = split.fit_pairs(fit_on_of(split))
        rows = zip(pairs.users.tolist(), pairs.items.tolist(), [1.0] * len(pairs), strict=True)
        data = cornac.data.Dataset.from_uir(list(rows), seed=seed)
        fitted = getattr(cornac.models, kind)(seed=seed, **settings).fit(data)
        return judged(adapters.from_cornac(fitted), split)

    return made


def of_lenskit(module: str, kind: str, **settings: Any) -> Callable[[Split, int], Recommender]:
    def made(split: Split, seed: int) -> Recommender:
        from importlib import import_module

        import pandas as pd
        from lenskit.data import from_interactions_df
        from lenskit.training import TrainingOptions

        pairs = split.fit_pairs(fit_on_of(split))
        table = pd.DataFrame({"user_id": pairs.users, "item_id": pairs.items})
        fitted = getattr(import_module(f"lenskit.{module}"), kind)(**settings)
        fitted.train(from_interactions_df(table), TrainingOptions(rng=seed))
        return judged(adapters.from_lenskit(fitted), split)

    return made


def hardened(make: Callable[[Split, int], Recommender]) -> Callable[[Split, int], Recommender]:
    return lambda split, seed: harden(make(split, seed))


ALS = of_implicit("als", "AlternatingLeastSquares", factors=64, regularization=1.0, alpha=5.0)

# Name in the tables -> what makes it. The cheapest come first.
MODELS: dict[str, dict[str, Any]] = {
    "ALS": own("als", "als", factors=64),
    "UltraGCN, robust preset": own("ultragcn", "ultragcn", preset="robust"),
    "UltraGCN, robust preset, users not stored": own(
        "ultragcn", "ultragcn", preset="robust", serve="fold-in"
    ),
    "UltraGCN, no regularizer": own("ultragcn", "ultragcn", reg="none", factors=64),
    "UltraGCN, max_norm": own("ultragcn", "ultragcn", reg="max_norm", factors=64),
    "BPR-MF, no regularizer": own("bpr-mf", "bpr", reg="none", factors=64),
    "UltraGCN, two_to_inf": own("ultragcn", "ultragcn", reg="two_to_inf", factors=64),
    "UltraGCN, weight decay": own("ultragcn", "ultragcn", reg="weight_decay", factors=64),
    "ALS (implicit)": outside(ALS, IMPLICIT, "als"),
    "ALS (implicit), hardened": outside(hardened(ALS), IMPLICIT, "als"),
    "BPR (implicit)": outside(
        of_implicit(
            "bpr",
            "BayesianPersonalizedRanking",
            factors=64,
            iterations=100,
            learning_rate=0.05,
            num_threads=1,
        ),
        *(IMPLICIT, "bpr"),
    ),
    "logistic MF (implicit)": outside(
        of_implicit(
            "lmf",
            "LogisticMatrixFactorization",
            factors=32,
            iterations=60,
            learning_rate=0.3,
            regularization=5.0,
            neg_prop=10,
            num_threads=1,
        ),
        *(IMPLICIT, "logistic"),
    ),
    "BPR (Cornac)": outside(
        of_cornac("BPR", k=64, max_iter=100, learning_rate=0.05, lambda_reg=0.001, num_threads=1),
        *(CORNAC, "bpr"),
    ),
    "ALS (LensKit)": outside(
        of_lenskit(
            "als", "ImplicitMFScorer", embedding_size=64, epochs=15, user_embeddings="prefer"
        ),
        *(LENSKIT, "als"),
    ),
    "softmax MF": own("softmax-mf", factors=64),
    "BPR-MF, two_to_inf": own("bpr-mf", "bpr", reg="two_to_inf", factors=64),
    "BPR-MF, max_norm": own("bpr-mf", "bpr", reg="max_norm", factors=64),
    "BPR-MF, weight decay": own("bpr-mf", "bpr", reg="weight_decay", factors=64),
    "BPR-MF, robust preset": own("bpr-mf", "bpr", preset="robust"),
}
SEEDED = ("ALS", "UltraGCN, max_norm", "UltraGCN, two_to_inf", "BPR-MF, no regularizer")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", default="ml-1m")
    parser.add_argument("--data-dir", default=None)
    parser.add_argument("--out", type=Path, default=Path("results/leaderboard"))
    parser.add_argument("--only", nargs="*", choices=list(MODELS), metavar="NAME", default=None)
    parser.add_argument("--seeds", type=int, default=1, help=f"of {', '.join(SEEDED)}")
    parser.add_argument("--precision", default="int6")
    options = parser.parse_args()
    split = load(options.dataset, data_dir=options.data_dir)
    missing = []
    for seed in range(options.seeds):
        for name, told in MODELS.items():
            if name in (options.only or MODELS) and (seed == 0 or name in SEEDED):
                try:
                    enter(split, name, told, seed, options)
                except ImportError as error:
                    missing.append(f"{name}: {error}")
    print("\n".join(["", *missing, f"verify: robustcf verify {shlex.quote(str(options.out))}/*/*"]))


def enter(
    split: Split, name: str, told: dict[str, Any], seed: int, options: argparse.Namespace
) -> None:
    """Train and measure one model, unless its entry exists."""
    title = f"{name}, seed {seed}" if seed else name
    folder = "-".join("".join(c if c.isalnum() else " " for c in title.lower()).split())
    place = options.out / options.dataset / folder
    if sorted(place.glob("[!.]*.json")):
        return
    facts = {key: value for key, value in told.items() if key != "make"}
    script = "python scripts/leaderboard_entries.py --dataset {data} --only " + shlex.quote(name)
    facts["commands"] = [
        line.replace("{data}", split.name).replace("{seed}", str(seed))
        for line in [*facts["commands"], f"{script} --seeds {seed + 1}"]
    ]
    model = told["make"](split, seed)
    print(f"{split.name}: {title}, clean {model.evaluate((10,)).values['ndcg@10']:.4f}", flush=True)
    entry = submit(
        *(model, place),
        **{"name": title, "authors": "robustcf", "precision": options.precision, **facts},
    )
    flags = ", ".join(flag["name"] for flag in entry.facts["flags"]) or "none"
    certified = entry.certified()
    print(f"  at 0.05: {entry.attacked():.4f}, certified {certified}, flags: {flags}", flush=True)


if __name__ == "__main__":
    main()
