"""Run by torchrun: is what the ranks train together what one process trains? Prints one line each.

The first rank also trains alone, on all users, and compares. Factors are float64; the figure
printed is the largest difference of a number of the factors, relative to the largest number. (That
all ranks have the same items is looked at by the training itself, after each epoch.)
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from robustcf._distributed import Ranks, alone, current, joined
from robustcf.data.interactions import Interactions
from robustcf.data.shards import Shard
from robustcf.factors import Factors
from robustcf.models import BPRMF, LightGCN, SoftmaxMF, UltraGCN
from robustcf.objectives import BCE, BPR, BatchConfig, Batches, Softmax
from robustcf.regularizers import DegreeDecay, MaxNorm, NoPenalty, TwoToInf, WeightDecay
from robustcf.training.adversarial import AdversaryConfig, adversary
from robustcf.training.loop import Optimizer, Stop, fit

USERS, ITEMS, DIM = 23, 17, 4


def some_pairs(seed: int) -> Interactions:
    """Users 3 and 21 have no pairs, item 5 has none."""
    rng = np.random.default_rng(seed)
    dense = rng.random((USERS, ITEMS)) < 0.3
    dense[:, 0] = True
    dense[[3, 21]] = False
    dense[:, 5] = False
    return Interactions.from_csr(dense.astype(int))


class Foreign(nn.Module):
    """A user's own penalty, which is not a sum over rows."""

    def forward(self, U: Tensor, V: Tensor) -> Tensor:
        """The product of both means of squares."""
        return U.square().mean() * V.square().mean()


MODELS: dict[str, Any] = {
    "ultragcn": (UltraGCN, {}),
    "bpr-mf": (BPRMF, {}),
    "softmax-mf": (SoftmaxMF, {}),
    "lightgcn": (LightGCN, {"layers": 2}),
    "lightgcn, unit rows": (LightGCN, {"layers": 2, "normalize": True}),
}
OBJECTIVES: dict[str, Any] = {
    "bce": (BCE, {"negative_weight": 10.0, "negatives": 3, "item_weight": 0.1}),
    "bce, sampled": (BCE, {"negative_weight": 10.0, "sampled_items": 6}),
    "bpr": (BPR, {"sampled_items": 5}),
    "softmax": (Softmax, {}),
    "softmax, cool": (Softmax, {"temperature": 0.5, "weighting": "pairs"}),
    "softmax, sampled": (Softmax, {"temperature": 0.5, "sampled_items": 6}),
    "softmax, bilateral": (
        Softmax,
        {"temperature": 0.5, "positive_temperature": 0.7, "weighting": "damped"},
    ),
    "bce, capped": (BCE, {"negative_weight": 10.0, "max_share": 0.2}),
    "bpr, capped": (BPR, {"max_share": 0.2}),
    "softmax, capped": (Softmax, {"temperature": 0.5, "max_share": 0.2}),
}
PENALTIES: dict[str, Any] = {
    "none": NoPenalty,
    "weight_decay": WeightDecay,
    "degree_decay": DegreeDecay,
    "max_norm": MaxNorm,
    "two_to_inf": TwoToInf,
    "two_to_inf, pool": lambda: TwoToInf(top=2, refresh=3),
    "two_to_inf, items": lambda: TwoToInf(side="items", top=2),
    "two_to_inf, items, pool": lambda: TwoToInf(side="items", refresh=4, every=2),
    "twinest": lambda: TwoToInf("twinest", budget=9),
    "twinest, items": lambda: TwoToInf("twinest", budget=9, side="items"),
    "foreign": Foreign,
}
ADVERSARIES = ("none", "bpr", "bce", "softmax", "margin")
# Adversary, and whose size is whose.
SIZED = tuple(f"{name}, {size}" for name in ("bpr", "bce", "softmax") for size in ("loss", "norm"))
BATCHINGS = {
    "rows": BatchConfig("rows", block_users=8),
    "few users": BatchConfig("rows", block_users=2),
    "pairs": BatchConfig("pairs", batch_size=31),
}


def configurations() -> list[dict[str, str]]:
    """Every choice with several of the others: of some products, every third or fourth pair."""
    plain = {
        "model": "ultragcn", "objective": "bce", "penalty": "none", "adversary": "none",
        "batching": "rows",
    }  # fmt: skip
    chosen = [
        plain | {"objective": objective, "penalty": penalty}
        for objective, penalty in _some(OBJECTIVES, PENALTIES, of=4)
    ]
    chosen += [
        plain | {"objective": objective, "adversary": name, "batching": batching}
        for objective, name, batching in itertools.product(("bpr", "softmax"), SIZED, BATCHINGS)
        if objective == "bpr" or batching == "rows"
    ]
    chosen += [
        plain | {"objective": objective, "adversary": name, "penalty": "two_to_inf"}
        for objective, name in _some(OBJECTIVES, ADVERSARIES, of=3)
        if not (name == "margin" and objective == "softmax, bilateral")
    ]
    chosen += [
        plain | {"model": model, "objective": "bpr", "penalty": penalty, "batching": batching}
        for model, penalty in itertools.product(MODELS, ("weight_decay", "two_to_inf", "foreign"))
        for batching in (BATCHINGS if penalty == "two_to_inf" else ("rows",))
    ]
    chosen += [
        plain | {"objective": objective, "adversary": name, "batching": "pairs"}
        for objective, name in itertools.product(("bce", "bpr", "softmax, cool"), ADVERSARIES)
    ]
    return chosen


def _some(*choices: Iterable[str], of: int) -> Iterator[tuple[str, ...]]:
    numbered = itertools.product(*map(enumerate, choices))
    for each in numbered:
        if sum(number for number, _ in each) % of == 0:
            yield tuple(name for _, name in each)


def trained(choice: dict[str, str], shard: Shard, seed: int) -> tuple[Factors, list[Any]]:
    """Two epochs from a start that all share; the factors of the shard's users."""
    kind, settings = OBJECTIVES[choice["objective"]]
    options: dict[str, Any] = {} if shard.rows.whole else {"shard": shard}
    objective = kind(shard.pairs, dtype=torch.float64, **settings, **options)
    batches = Batches(objective, BATCHINGS[choice["batching"]], seed=seed)
    rng = np.random.default_rng(seed + 100)
    U, V = (torch.from_numpy(rng.normal(0, 0.5, (n, DIM))) for n in (USERS, ITEMS))
    U = U[shard.rows.start : shard.rows.stop]
    kind, settings = MODELS[choice["model"]]
    model = kind(
        shard.pairs, start=Factors(U, V), dtype=torch.float64, factors=DIM, **settings, **options
    )
    penalty = PENALTIES[choice["penalty"]]()
    if hasattr(penalty, "prepare"):
        degrees = shard.pairs.user_degrees, shard.item_degrees
        penalty.prepare(*(torch.tensor(each) for each in degrees))
    foe = None
    if choice["adversary"] != "none":
        name, _, size = choice["adversary"].partition(", ")
        foe = adversary(name, batches, AdversaryConfig(eps=0.2, size=size or "same"))
    done = fit(
        model, batches, Stop(2), reg=penalty, reg_weight=0.05, adversary=foe,
        optimizer=Optimizer(lr=0.02, user_lr=0.05),
    )  # fmt: skip
    return done.factors, done.history


def difference(choice: dict[str, str], seed: int) -> float:
    """Return the largest relative difference between training on ranks and in one process."""
    pairs, team = some_pairs(seed), current()
    with alone():
        part, shared = trained(choice, Shard.of(pairs, team), seed)
    found = Factors(team.joined(part.users), part.items)
    if not team.first:
        return 0.0
    with alone():
        whole, rows = trained(choice, Shard.of(pairs, Ranks()), seed)
    worst = 0.0
    for mine, theirs in zip(found, whole, strict=True):
        worst = max(worst, float((mine - theirs).abs().max() / theirs.abs().max()))
    for mine, theirs in zip(shared, rows, strict=True):
        for name in ("loss", "penalty", "two_to_inf", "attacked_loss"):
            if name in theirs:
                worst = max(worst, abs(mine[name] - theirs[name]) / max(1.0, abs(theirs[name])))
    return worst


def main() -> None:
    """One line of JSON for each configuration, from the first rank."""
    torch.set_num_threads(1)
    with joined() as team:
        for number, choice in enumerate(configurations()):
            found = difference(choice, number % 3)
            if team.first:
                print(json.dumps({**choice, "difference": found}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
