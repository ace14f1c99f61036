"""Who is flagged, fake and genuine: every detector against every attack, and on clean data.

No recommender is trained here; what a defence does to exposure and quality is measured by
``robustcf poison --defence``, for adaptive attacks with ``--profiles`` and what ``--write`` keeps.
Adaptive attacks change the profiles of ``copy`` or ``surrogate``: ``mixed`` draws a profile from
four real ones and ``blended`` from four of the fakes' own (against twins), ``shared out`` gives
every fake user two of the five targets and ``one target`` pushes a single item (against groups);
two of them do both.

    python scripts/poison_defences.py --dataset ml-1m --fakes 0.01 --seeds 3

``--matrix`` prints tables instead: the threshold of each detector's score is tuned on one attack
(rows), so that nine of ten of its fakes are above it, and judged on another (columns), in counts of
fakes found / genuine users above it. The first row has a threshold fixed before, on clean data: one
in a hundred genuine users is above it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from robustcf._io.text import aligned
from robustcf._registry import POISONINGS
from robustcf.data import Interactions, load
from robustcf.poisoning import PoisonThreat, Targets, inject, write_profiles
from robustcf.poisoning.defences import Detector, Groups, PCASelection, Twins

Ids = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Change = Callable[[Interactions, tuple[Ids, ...], Ids, np.random.Generator], list[Ids]]


def mixed(
    train: Interactions, profiles: tuple[Ids, ...], targets: Ids, rng: np.random.Generator
) -> list[Ids]:
    """Fillers from four real profiles each, as many as before."""
    warm = np.flatnonzero(train.user_degrees)
    found = []
    for profile in profiles:
        four = rng.choice(warm, size=4, replace=False)
        pool = np.unique(np.concatenate([train.items_of(int(user)) for user in four]))
        pool = np.setdiff1d(pool, targets)
        mine = np.intersect1d(profile, targets)
        count = min(len(pool), len(profile) - len(mine))
        found.append(np.union1d(rng.choice(pool, count, replace=False), mine).astype(np.int64))
    return found


def blended(
    train: Interactions, profiles: tuple[Ids, ...], targets: Ids, rng: np.random.Generator
) -> list[Ids]:
    """Fillers from four of the fake users' own profiles each: the crowd stays, the copies go."""
    found = []
    for profile in profiles:
        four = rng.choice(len(profiles), size=min(4, len(profiles)), replace=False)
        pool = np.setdiff1d(np.concatenate([profiles[n] for n in four]), targets)
        mine = np.intersect1d(profile, targets)
        count = min(len(pool), len(profile) - len(mine))
        found.append(np.union1d(rng.choice(pool, count, replace=False), mine).astype(np.int64))
    return found


def shared_out(
    train: Interactions, profiles: tuple[Ids, ...], targets: Ids, rng: np.random.Generator
) -> list[Ids]:
    """Two targets each."""
    return [
        np.setdiff1d(profile, rng.permutation(targets)[2:]).astype(np.int64) for profile in profiles
    ]


#: Name -> the attack it starts from, the number of targets, what is changed.
ADAPTIVE: dict[str, tuple[str, int, Change | None]] = {
    "mixed": ("copy", 5, mixed),
    "blended": ("surrogate", 5, blended),
    "shared out": ("copy", 5, shared_out),
    "one target": ("copy", 1, None),
    "mixed, one target": ("copy", 1, mixed),
    "blended, one target": ("surrogate", 1, blended),
}


def main() -> None:
    """Print one line of JSON for each data set, attack and seed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--dataset", nargs="+", default=["ml-1m"])
    parser.add_argument("--data-dir")
    parser.add_argument("--attacks", nargs="+", default=["none", *POISONINGS, *ADAPTIVE])
    parser.add_argument("--fakes", type=float, default=0.01)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--write", type=Path, help="keep the profiles in this folder")
    parser.add_argument("--matrix", action="store_true", help="thresholds tuned on other attacks")
    args = parser.parse_args()
    detectors: list[Detector] = [PCASelection(), Twins(), Groups()]
    for dataset in args.dataset:
        scores: dict[str, list[dict[str, tuple[npt.NDArray[np.float64], Flags]]]] = {}
        for attack in args.attacks:
            for seed in range(args.seeds):
                options = {} if args.data_dir is None else {"data_dir": args.data_dir}
                # On clean data the only thing that a seed can change is the split.
                split_seed = seed if attack == "none" else 0
                train = load(dataset, seed=split_seed, **options).train
                genuine, targets = train.n_users, 0
                if attack != "none":
                    start, targets, change = ADAPTIVE.get(attack, (attack, 5, None))
                    threat = PoisonThreat(fakes=args.fakes, targets=Targets(targets))
                    made = POISONINGS[start]().attack(train, threat, seed=seed)
                    profiles = made.profiles
                    if change is not None:
                        rng = np.random.default_rng(seed)
                        profiles = tuple(change(train, profiles, made.targets, rng))
                    if args.write is not None:
                        args.write.mkdir(parents=True, exist_ok=True)
                        name = f"{dataset}-{attack}-{seed}.csv".replace(", ", "-").replace(" ", "-")
                        write_profiles(args.write / name, profiles, train)
                    train = inject(train, profiles)
                fake = np.arange(train.n_users) >= genuine
                line: dict[str, object] = {"dataset": dataset, "attack": attack, "seed": seed}
                line |= {"genuine": genuine, "fakes": int(fake.sum()), "targets": targets}
                if args.matrix:
                    each = {d.name: (d.detect(train).scores, fake) for d in detectors}
                    scores.setdefault(attack, []).append(each)
                    continue
                together = np.zeros(train.n_users, dtype=bool)
                for detector in detectors:
                    began = time.process_time()
                    found = detector.detect(train)
                    together |= found.flagged
                    line[detector.name] = counts(found.flagged, fake)
                    line[f"{detector.name} seconds"] = round(time.process_time() - began, 1)
                line["all"] = counts(together, fake)
                print(json.dumps(line), flush=True)
        for detector in detectors if args.matrix else ():
            print(f"{dataset}, {detector.name}, fakes / genuine users, sums of {args.seeds} seeds")
            print(matrix({a: [s[detector.name] for s in each] for a, each in scores.items()}))


def matrix(scores: dict[str, list[tuple[npt.NDArray[np.float64], Flags]]]) -> str:
    """Return a table: the threshold by attack (rows) and what it finds of others (columns)."""
    judged = [attack for attack in scores if attack != "none"]
    rows = []
    for tuned, each in scores.items():
        lines = [
            np.quantile(s[fake], 0.1) if fake.any() else np.quantile(s, 0.99) for s, fake in each
        ]
        cells = []
        for attack in judged:
            found = [
                counts(s > line, fake)
                for line, (s, fake) in zip(lines, scores[attack], strict=True)
            ]
            cells.append(" / ".join(f"{n}" for n in np.sum(found, axis=0)))
        rows.append(["clean, 1 %" if tuned == "none" else tuned, *cells])
    return aligned(["tuned on", *judged], rows)


def counts(flagged: Flags, fake: Flags) -> list[int]:
    """Fakes and genuine users among the flagged."""
    return [int((flagged & fake).sum()), int((flagged & ~fake).sum())]


if __name__ == "__main__":
    main()
