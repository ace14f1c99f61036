"""Recommenders by vote: certified quality against the number of fake accounts.

    python scripts/bench_votes.py --data-dir DIR --out results/votes.json
    python scripts/bench_votes.py --data-dir DIR --out votes.json --sets ml-1m

Settings are chosen on valid; the figures are on test. ``ml-100k-quarter`` holds a quarter of each
user's items out, with three seeds, as PORE does. ``ml-1m-groups`` is the vote of hashed groups.
Seconds are of the processor, for choosing and certifying all users. A picture of the first seed of
MovieLens 100K goes next to the JSON.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from robustcf._io.files import write_json
from robustcf.data import Split, load
from robustcf.data.holdout import split_pairs
from robustcf.experiments.results import plot_fakes, published
from robustcf.models.voting import CertifiedVotes, PartitionVote, VoteConfig, choose

SMALL, LARGE = (0, 1, 2, 5, 10, 20), (0, 1, 6, 30, 60, 120)
SETS: dict[str, tuple[str, tuple[int, ...], tuple[int, ...], VoteConfig]] = {
    "ml-100k-quarter": ("ml-100k", (0, 1, 2), SMALL, VoteConfig()),
    "ml-100k-quarter-groups": ("ml-100k", (0, 1, 2), SMALL, VoteConfig(groups=100)),
    "ml-1m": ("ml-1m", (0,), LARGE, VoteConfig()),
    "ml-1m-groups": ("ml-1m", (0,), LARGE, VoteConfig(groups=200)),
    "yelp2018": ("yelp2018", (0,), (0, 1, 2, 5, 10, 30, 150), VoteConfig()),
}


def quarter(split: Split, seed: int) -> Split:
    """All pairs of a set, a quarter of each user's held out."""
    pairs = split.train_full.union(split.test)
    return split_pairs(split.name, pairs, seed, test_ratio=0.25)


def measured(
    split: Split, fakes: tuple[int, ...], config: VoteConfig
) -> tuple[dict[str, Any], CertifiedVotes]:
    """Choose, fit and certify; everything that the tables tell, and the certificate."""
    start = time.process_time()
    chosen = choose(split, config)
    choosing = time.process_time() - start
    fit_on = "train and valid" if split.valid_source == "carved" else "train"
    vote = PartitionVote(split.fit_pairs(fit_on), chosen.config)
    found = vote.certify_fakes(split, fakes, (10, 20), mask=split.fit_mask(fit_on, "test"))
    facts = {
        "cap": chosen.config.cap,
        "damping": chosen.config.damping,
        "groups": chosen.config.groups,
        "fit_on": fit_on,
        "seconds": {"choose": choosing, "all": time.process_time() - start},
        **found.as_dict(),
    }
    return facts, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", help="where the data sets are")
    parser.add_argument("--out", type=Path, required=True, help="a JSON file")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    given = parser.parse_args()
    results: dict[str, list[dict[str, Any]]] = {}
    drawn: dict[str, CertifiedVotes] = {}
    for name in given.sets:
        dataset, seeds, fakes, config = SETS[name]
        whole = load(dataset, data_dir=given.data_dir)
        for seed in seeds:
            split = quarter(whole, seed) if "quarter" in name else whole
            result, certified = measured(split, fakes, config)
            results.setdefault(name, []).append({"seed": seed, **result})
            write_json(given.out, results)
            if "quarter" in name and seed == 0:
                drawn[f"{config.groups} groups vote" if config.groups else "accounts vote"] = (
                    certified
                )
                plot_fakes(drawn, given.out.with_suffix(".png"), published=published(split, 10))
            shown = " ".join(f"{value:.4f}" for value in result["precision@10"])
            print(f"{name} seed {seed}: precision@10 {shown} at {list(fakes)} fakes", flush=True)


if __name__ == "__main__":
    main()
