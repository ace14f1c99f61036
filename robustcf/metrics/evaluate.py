"""Full-ranking evaluation of factors on a split, with the protocol behind the numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from robustcf._checks import check_choice, check_cutoffs
from robustcf._distributed import Ranks, alone
from robustcf._io.progress import bar as progress_bar
from robustcf._io.text import rows_table
from robustcf.data.interactions import Interactions
from robustcf.data.shards import SplitShard
from robustcf.data.split import EvaluationProtocol, Split
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.metrics import ranking
from robustcf.metrics.topk import TopItems, top_items

Part = Literal["train", "valid", "test"]
PARTS: tuple[str, ...] = ("train", "valid", "test")

# To add a metric of hits, write it in ``ranking`` and name it here. Certificates take the same
# table: a metric must not fall when a relevant item moves up. Metrics of the items themselves,
# as coverage, are computed in ``evaluate_rankings``.
PER_USER = {
    "ndcg": ranking.ndcg,
    "recall": ranking.recall,
    "mrr": ranking.reciprocal_rank,
    "precision": ranking.precision,
    "hit_rate": ranking.hit_rate,
    "map": ranking.average_precision,
}
# Places of the rankings that are kept at a time, all users together.
_LONGEST_RANKINGS = 2**20
# Of a bar: how many steps at least, and how many users one has at least.
_STEPS, _SHORTEST_STEP = 40, 512


@dataclass(frozen=True)
class Protocol:
    """How a number was made: without it, two numbers cannot be compared.

    Args:
        dataset: name of the split.
        part: the pairs that count as relevant.
        masked: the parts whose pairs may not be recommended.
        n_users: users evaluated: those with at least one relevant pair.
        n_users_left_out: users without one.
        n_items: size of the catalogue; every item that is not masked is ranked.
        capped: cutoffs beyond the catalogue; they count all its items.
        sampled_from: the users with a relevant pair, where those evaluated are a sample of them.
        sample_seed: of that sample.
    """

    dataset: str
    part: str
    masked: tuple[str, ...]
    n_users: int
    n_users_left_out: int
    n_items: int
    capped: tuple[int, ...] = ()
    sampled_from: int | None = None
    sample_seed: int = 0

    def __str__(self) -> str:
        masked = " and ".join(self.masked) or "nothing"
        left_out = f" ({self.n_users_left_out:,} without are left out)"
        return (
            f"{self.dataset}, {self.part}: all {self.n_items:,} items ranked, pairs of {masked} "
            f"masked, mean over {self._users_words} with a {self.part} item"
            f"{left_out if self.n_users_left_out else ''}, ties to the lower item id"
            f"{self._capped_words}"
        )

    @property
    def _users_words(self) -> str:
        if self.sampled_from is None:
            return f"the {self.n_users:,} users"
        return (
            f"a sample of {self.n_users:,} (seed {self.sample_seed}) of the "
            f"{self.sampled_from:,} users"
        )

    @property
    def _capped_words(self) -> str:
        if not self.capped:
            return ""
        ks = " and ".join(map(str, self.capped))
        return f"; beyond the catalogue, @{ks} counts all {self.n_items:,} items"

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "dataset": self.dataset,
            "part": self.part,
            "masked": list(self.masked),
            "ranking": "full",
            "ties": "lower item id first",
            "n_users": self.n_users,
            "n_users_left_out": self.n_users_left_out,
            "n_items": self.n_items,
            **({"capped": list(self.capped)} if self.capped else {}),
            **self._sample,
        }

    @property
    def _sample(self) -> dict[str, int]:
        if self.sampled_from is None:
            return {}
        return {"sampled_from": self.sampled_from, "sample_seed": self.sample_seed}


@dataclass(frozen=True, eq=False)
class MetricReport:
    """Metrics of one evaluation: means, the value of every user, and the protocol.

    Args:
        values: ``"ndcg@10"`` and the like -> mean over users (coverage: of the whole).
        per_user: the same names without coverage -> one value for each of ``users``.
        users: ids of the users evaluated, ascending.
        protocol: what was ranked, masked and averaged.

    Example:
        >>> import torch
        >>> from robustcf.data import load
        >>> split = load("demo")
        >>> nothing_learnt = Factors(torch.zeros(2000, 1), torch.zeros(1500, 1))
        >>> report = evaluate(nothing_learnt, split, ks=(10,))
        >>> report["recall@10"] < 0.05
        True
        >>> len(report.per_user["ndcg@10"]) == report.protocol.n_users
        True
    """

    values: Mapping[str, float]
    per_user: Mapping[str, npt.NDArray[np.float64]]
    users: npt.NDArray[np.int64]
    protocol: Protocol

    def __getitem__(self, name: str) -> float:
        if name not in self.values:
            raise InputError(f"no metric {name!r} here; there are {', '.join(self.values)}")
        return self.values[name]

    def as_dict(self) -> dict[str, Any]:
        """The means, then the protocol under ``"protocol"``."""
        return {**self.values, "protocol": self.protocol.as_dict()}

    def __repr__(self) -> str:
        shown = list(self.values)[:3]
        values = ", ".join(f"{name} {self.values[name]:.4f}" for name in shown)
        return f"MetricReport({values}, ...; {self.protocol.dataset}, {self.protocol.part})"

    def _repr_html_(self) -> str:
        names = dict.fromkeys(name.split("@")[0] for name in self.values)
        ks = dict.fromkeys(int(name.split("@")[1]) for name in self.values)
        rows = [[name, *(f"{self.values[f'{name}@{k}']:.4f}" for k in ks)] for name in names]
        return rows_table(["", *(f"@{k}" for k in ks)], rows, str(self.protocol))

    def __str__(self) -> str:
        names = dict.fromkeys(name.split("@")[0] for name in self.values)
        ks = dict.fromkeys(int(name.split("@")[1]) for name in self.values)
        width = max(len(name) for name in names)
        lines = [" " * width + "".join(f"{f'@{k}':>9}" for k in ks)]
        lines += [
            name.ljust(width) + "".join(f"{self.values[f'{name}@{k}']:9.4f}" for k in ks)
            for name in names
        ]
        return "\n".join((*lines, str(self.protocol)))


def evaluate(
    factors: Factors,
    split: Split | SplitShard,
    ks: Sequence[int] = (10, 20),
    *,
    part: Part = "test",
    mask: Sequence[str] | None = None,
    block_users: int | None = None,
    progress: bool = False,
) -> MetricReport:
    """Rank the whole catalogue for every user and compare with the held-out pairs.

    Population: users with at least one pair in ``part``; the others are left out and counted. Where
    the split's protocol names a number of users, a seeded sample of so many of them.
    Denominators are those of :mod:`robustcf.metrics.ranking`. Ties go to the lower item id.
    The result is the same, to the bit, for every block size and number of threads, and of ranks:
    those share the users among them, or each has the factors of its own (a ``SplitShard``).

    Args:
        factors: embeddings with the ids of the split.
        split: the data; where each of several ranks has the factors of its own users, those of
            these users. All ranks then call this, and have the same report of all users.
        ks: cutoffs. One beyond the catalogue counts all items, and the protocol says so; the metric
            is named as it was asked for, and precision is divided by it.
        part: ``test``; ``valid`` to choose by; ``train`` where there is nothing else, for what a
            model has learnt and not for its quality.
        mask: parts whose pairs are not candidates; None for the split's own protocol. Masking
            more than that makes numbers that published ones do not compare with.
        block_users: users scored at a time; None: up to 512, their scores within 40 MB.

    Raises:
        InputError: factors of other sizes than the split, or not finite; no user to evaluate.

    Cost: one product of users x items x dim; memory of a few blocks, whatever the cutoffs.

    Example:
        >>> import torch
        >>> from robustcf.data import load
        >>> factors = Factors(torch.zeros(2000, 1), torch.zeros(1500, 1))
        >>> print(evaluate(factors, load("demo")).protocol)
        demo, test: all 1,500 items ranked, pairs of train and valid masked, mean over the
        2,000 users with a test item, ties to the lower item id
    """
    check_same_data(factors, split)

    def rank(users: npt.NDArray[np.int64], k: int, seen: Interactions | None) -> TopItems:
        # Of a shard, other ranks have the factors of other users.
        with alone() if isinstance(split, SplitShard) else nullcontext():
            return top_items(factors, users, k, seen, block_users=block_users)

    return evaluate_rankings(rank, split, ks, part=part, mask=mask, progress=progress)


def evaluate_rankings(
    rank: Callable[[npt.NDArray[np.int64], int, Interactions | None], TopItems],
    split: Split | SplitShard,
    ks: Sequence[int] = (10, 20),
    *,
    part: Part = "test",
    mask: Sequence[str] | None = None,
    progress: bool = False,
) -> MetricReport:
    """As :func:`evaluate`, for whatever ranks items.

    Args:
        rank: users, the number of places and the pairs that may not be shown in; the items of each
            user out, best first, -1 where they run out.

    Example:
        >>> from robustcf.data import load
        >>> first = lambda users, k, seen: np.tile(np.arange(k), (len(users), 1))
        >>> evaluate_rankings(first, load("demo"), (10,)).protocol.n_users
        2000
    """
    cutoffs = check_cutoffs(ks)
    judged = judged_users(split, part, mask)
    users, relevant = judged.users, judged.relevant
    shown = {k: np.zeros(split.n_items, dtype=bool) for k in cutoffs}
    parts: list[dict[str, npt.NDArray[np.float64]]] = []
    places = min(cutoffs[-1], split.n_items)
    blocks = user_blocks(users, places)
    if progress:  # at least forty steps, of a few hundred users each
        step = max(_SHORTEST_STEP, -(-len(users) // _STEPS))
        blocks = user_blocks(users, places, min(_LONGEST_RANKINGS, step * places))
    with progress_bar(len(users), "evaluate", "user", progress) as bar:
        # At least one block, of nobody perhaps: it has the names of the metrics.
        for block in blocks or [users]:
            top = rank(block, cutoffs[-1], judged.seen)
            parts.append(per_user_metrics(hits_of(top, relevant, block), relevant, block, cutoffs))
            for k, found in shown.items():
                found |= ranking.shown_items(top, split.n_items, k)
            bar.update(len(block))
    per_user = {name: np.concatenate([values[name] for values in parts]) for name in parts[0]}
    if isinstance(split, SplitShard):
        ranks = split.rows.ranks
        per_user = {name: ranks.joined_array(values) for name, values in per_user.items()}
        users = ranks.joined_array(users + split.rows.start)
        shown = {k: _of_any(found, ranks) for k, found in shown.items()}
    values = {name: float(value.mean()) for name, value in per_user.items()}
    values |= {f"coverage@{k}": float(found.sum() / len(found)) for k, found in shown.items()}
    return MetricReport(values, per_user, users, judged.protocol(cutoffs, len(users)))


@dataclass(frozen=True, eq=False)
class Judged:
    """Whose rankings count, by which pairs, and what may not be shown to them.

    Args:
        part: the pairs that count.
        masked: the parts whose pairs may not be shown.
        users: those with a pair that counts, or a sample of them, ascending.
        n_known: how many users have a pair that counts, on all ranks.
        seen: the pairs that may not be shown, or None.
    """

    split: Split | SplitShard
    part: str
    masked: tuple[str, ...]
    users: npt.NDArray[np.int64]
    n_known: int
    relevant: Interactions
    seen: Interactions | None

    def protocol(self, cutoffs: Sequence[int], n_judged: int) -> Protocol:
        """What stands behind numbers of so many users, of all ranks, at these cutoffs."""
        whole = _whole(self.split)
        how = whole.protocol or EvaluationProtocol()
        sampled = n_judged < self.n_known
        return Protocol(
            whole.name,
            self.part,
            self.masked,
            n_judged,
            whole.n_users - self.n_known,
            whole.n_items,
            tuple(k for k in cutoffs if k > whole.n_items),
            sampled_from=self.n_known if sampled else None,
            sample_seed=how.seed if sampled else 0,
        )


def judged_users(split: Split | SplitShard, part: str, mask: Sequence[str] | None = None) -> Judged:
    """Who is evaluated on a part of a split, and what is masked; None for the split's protocol.

    Example:
        >>> from robustcf.data import load
        >>> len(judged_users(load("demo"), "test").users)
        2000
    """
    check_choice("part", part, PARTS)
    masked = split.masked(part) if mask is None else tuple(mask)
    relevant: Interactions = getattr(split, part)
    whole = _whole(split)
    if len(getattr(whole, part)) == 0:
        raise InputError(f"{split.name} has no {part} pairs: there is nothing to evaluate on")
    how = whole.protocol or EvaluationProtocol()
    known = np.flatnonzero(relevant.user_degrees).astype(np.int64)
    if isinstance(split, SplitShard):
        # A sample is drawn from the users of all ranks, by their ids in the whole.
        known = split.rows.ranks.joined_array(known + split.rows.start)
    users = how.sample(known, whole.n_users)
    if isinstance(split, SplitShard):
        start, stop = split.rows.start, split.rows.stop
        users = users[(users >= start) & (users < stop)] - start
    seen = masked_pairs(split, part, masked)
    return Judged(split, part, masked, users, len(known), relevant, seen)


def _whole(split: Split | SplitShard) -> Split:
    return split.whole if isinstance(split, SplitShard) else split


def _of_any(found: npt.NDArray[np.bool_], ranks: Ranks) -> npt.NDArray[np.bool_]:
    """What is true on any of the ranks."""
    rows = ranks.joined_array(found[None, :].astype(np.uint8))
    return np.asarray(rows.any(axis=0), dtype=bool)


def user_blocks(
    users: npt.NDArray[np.int64], places: int, limit: int = _LONGEST_RANKINGS
) -> list[npt.NDArray[np.int64]]:
    """Users in blocks whose rankings, of so many places each, are at most ``limit`` long in all.

    Whoever keeps whole rankings goes by these: memory then does not grow with users x items.

    Example:
        >>> [len(block) for block in user_blocks(np.arange(10), places=1500, limit=6000)]
        [4, 4, 2]
    """
    size = max(1, limit // max(1, places))
    return [users[start : start + size] for start in range(0, len(users), size)]


def per_user_metrics(
    hits: npt.NDArray[np.bool_],
    relevant: Interactions,
    users: npt.NDArray[np.int64],
    ks: Sequence[int],
) -> dict[str, npt.NDArray[np.float64]]:
    """All metrics of single users at all cutoffs, from the hits in their rankings."""
    counts = relevant.user_degrees[users]
    return {
        f"{name}@{k}": function(hits, counts, k) for name, function in PER_USER.items() for k in ks
    }


def hits_of(
    top: TopItems, relevant: Interactions, users: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Which of the ranked items are relevant; the padding -1 never is.

    Example:
        >>> pairs = Interactions.from_pairs([0, 1], [2, 0], 2, 3)[0]
        >>> hits_of(np.array([[2, 0], [1, -1]]), pairs, np.array([0, 1])).tolist()
        [[True, False], [False, False]]
    """
    if len(relevant) == 0:
        return np.zeros(top.shape, dtype=bool)
    stride = relevant.n_items + 1  # a place below every item, for the padding
    # Of these users alone: all pairs of a large set are more than there is memory for.
    rows, items = relevant.rows(users)
    if len(rows) == 0:
        return np.zeros(top.shape, dtype=bool)
    keys = rows * stride + items + 1
    wanted = np.arange(len(users))[:, None] * stride + top + 1
    places = np.minimum(np.searchsorted(keys, wanted.ravel()), len(keys) - 1)
    found: npt.NDArray[np.bool_] = (keys[places] == wanted.ravel()).reshape(top.shape)
    return found


def check_same_data(factors: Factors, split: Split | SplitShard) -> None:
    """Raise unless factors have the sizes of a split: before an attack, not after it."""
    if (factors.n_users, factors.n_items) != (split.n_users, split.n_items):
        swapped = (factors.n_items, factors.n_users) == (split.n_users, split.n_items)
        why = "are U and V swapped?" if swapped else "they belong to different data"
        raise InputError(
            f"factors are for {factors.n_users} users x {factors.n_items} items, {split.name} "
            f"has {split.n_users} x {split.n_items}: {why}"
        )


def masked_pairs(
    split: Split | SplitShard, part: str, masked: tuple[str, ...]
) -> Interactions | None:
    """The pairs of these parts, which are not candidates when evaluating on ``part``.

    Example:
        >>> from robustcf.data import load
        >>> len(masked_pairs(load("demo"), "test", ("train", "valid")))
        89913
    """
    unknown = [name for name in masked if name not in PARTS]
    if unknown or len(set(masked)) != len(masked):
        raise InputError(f"mask must name parts out of {', '.join(PARTS)}, got {list(masked)}")
    if part in masked:
        raise InputError(f"{part} cannot be masked when evaluating on {part}")
    if set(masked) == {"train", "valid"}:
        return split.train_full
    seen: Interactions | None = None
    for name in masked:
        pairs: Interactions = getattr(split, name)
        seen = pairs if seen is None else seen.union(pairs)
    return seen
