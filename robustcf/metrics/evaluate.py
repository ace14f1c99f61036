"""Full-ranking evaluation of factors on a split, with its protocol."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from robustcf._checks import check_choice, check_cutoffs
from robustcf._distributed import alone
from robustcf._io.progress import bar as progress_bar
from robustcf._io.text import rows_table, wrapped
from robustcf.data.interactions import Interactions
from robustcf.data.shards import SplitShard
from robustcf.data.split import EvaluationProtocol, Split
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.metrics import ranking
from robustcf.metrics.topk import TopItems, top_items

if TYPE_CHECKING:
    import pandas as pd

    from robustcf.metrics.groups import GroupValue

Part = Literal["train", "valid", "test"]
PARTS: tuple[str, ...] = ("train", "valid", "test")

# Metrics of hits. Certificates take the same table: a metric must not fall when a relevant item
# moves up. Metrics of items, such as coverage, are computed in ``evaluate_rankings``.
PER_USER = {
    "ndcg": ranking.ndcg,
    "recall": ranking.recall,
    "mrr": ranking.reciprocal_rank,
    "precision": ranking.precision,
    "hit_rate": ranking.hit_rate,
    "map": ranking.average_precision,
}
# Places of rankings kept at a time, for all users together.
_LONGEST_RANKINGS = 2**20
# Steps of a progress bar, and users per step, at least.
_STEPS, _SHORTEST_STEP = 40, 512


@dataclass(frozen=True)
class Protocol:
    """How metrics were computed: only numbers of one protocol can be compared.

    Args:
        dataset: name of the split.
        part: split of the relevant items.
        masked: splits whose items are not recommended again.
        n_users: users evaluated: those with a relevant item.
        n_users_left_out: users without one.
        n_items: size of the catalogue; every item that is not masked is ranked.
        capped: cutoffs beyond the catalogue; they count all its items.
        sampled_from: the number of users with a relevant item, if a sample is evaluated.
        sample_seed: seed of that sample.
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
        left_out = capped = ""
        if self.n_users_left_out:
            left_out = f" ({self.n_users_left_out:,} without are left out)"
        if self.capped:
            ks = " and ".join(map(str, self.capped))
            capped = f"; beyond the catalogue, @{ks} counts all {self.n_items:,} items"
        return (
            f"{self.dataset}, {self.part}: all {self.n_items:,} items ranked, pairs of {masked} "
            f"masked, mean over {self._users_words} with a {self.part} item{left_out}, "
            f"ties to the lower item id{capped}"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        found: dict[str, Any] = {
            "dataset": self.dataset,
            "part": self.part,
            "masked": list(self.masked),
            "ranking": "full",
            "ties": "lower item id first",
            "n_users": self.n_users,
            "n_users_left_out": self.n_users_left_out,
            "n_items": self.n_items,
        }
        if self.capped:
            found["capped"] = list(self.capped)
        return found if self.sampled_from is None else found | self._sample

    @property
    def _users_words(self) -> str:
        if self.sampled_from is None:
            return f"the {self.n_users:,} users"
        return (
            f"a sample of {self.n_users:,} (seed {self.sample_seed}) of the "
            f"{self.sampled_from:,} users"
        )

    @property
    def _sample(self) -> dict[str, int]:
        return {"sampled_from": self.sampled_from or 0, "sample_seed": self.sample_seed}


@dataclass(frozen=True, eq=False)
class MetricReport:
    """Metrics of one evaluation: means, the value of every user, and the protocol.

    Args:
        values: ``"ndcg@10"`` and the like -> mean over users (coverage: of all users).
        per_user: the same names without coverage -> one value for each of ``users``.
        users: ids of the users evaluated, ascending.
        groups: metrics by group, where they were asked for.
    """

    values: Mapping[str, float]
    per_user: Mapping[str, npt.NDArray[np.float64]]
    users: npt.NDArray[np.int64]
    protocol: Protocol
    groups: tuple[GroupValue, ...] = ()

    def by_group(self) -> pd.DataFrame:
        """Return one row per group and metric, with its 95 % interval over users."""
        import pandas as pd  # slow to import

        return pd.DataFrame([row.as_dict() for row in self.groups])

    def __getitem__(self, name: str) -> float:
        if name not in self.values:
            raise InputError(f"no metric {name!r}; expected one of {', '.join(self.values)}")
        return self.values[name]

    def as_dict(self) -> dict[str, Any]:
        """Return the means, then the protocol under ``"protocol"``."""
        return {**self.values, "protocol": self.protocol.as_dict()}

    def __repr__(self) -> str:
        shown = list(self.values)[:3]
        values = ", ".join(f"{name} {self.values[name]:.4f}" for name in shown)
        return f"MetricReport({values}, ...; {self.protocol.dataset}, {self.protocol.part})"

    def _table(self) -> list[list[str]]:
        """A row per metric, a column per cutoff, with a header."""
        names = dict.fromkeys(name.split("@")[0] for name in self.values)
        ks = dict.fromkeys(name.split("@")[1] for name in self.values)
        rows = [[name, *(f"{self.values[f'{name}@{k}']:.4f}" for k in ks)] for name in names]
        return [["", *(f"@{k}" for k in ks)], *rows]

    def _repr_html_(self) -> str:
        header, *rows = self._table()
        return rows_table(header, rows, str(self.protocol))

    def __str__(self) -> str:
        table = self._table()
        width = max(len(name) for name, *_ in table)
        lines = [name.ljust(width) + "".join(f"{v:>9}" for v in row) for name, *row in table]
        return "\n".join((*lines, wrapped(str(self.protocol))))


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
    """Rank the whole catalogue for every user and compare with the relevant items.

    Users without a relevant item are left out; the split's protocol may name a seeded sample of the
    others. Ties go to the lower item id. The result is the same, to the bit, for every block size
    and number of threads and ranks.

    Args:
        factors: embeddings with the ids of the split.
        split: the data; a ``SplitShard`` if each of several ranks has the factors of its own users.
            All ranks then call this, and get the same report of all users.
        ks: cutoffs. One beyond the catalogue counts all items, and the protocol says so; precision
            is still divided by it.
        part: ``test``; ``valid`` for model selection; ``train`` for the fit, not the quality.
        mask: splits whose items are not candidates; None for the split's own protocol, which
            published numbers follow.
        block_users: users scored at a time; None: up to 512, their scores within 40 MB.

    Raises:
        InputError: factors of other sizes than the split, or not finite; no user to evaluate.

    Cost: one product of users x items x dim; memory of a few blocks, regardless of the cutoffs.

    Example:
        >>> import torch
        >>> from robustcf.data import load
        >>> factors = Factors(torch.zeros(2000, 1), torch.zeros(1500, 1))
        >>> report = evaluate(factors, load("demo"))
        >>> report["recall@10"] < 0.05, len(report.per_user["ndcg@10"])
        (True, 2000)
        >>> print(report.protocol)
        demo, test: all 1,500 items ranked, pairs of train and valid masked, mean over the
        2,000 users with a test item, ties to the lower item id
    """
    check_same_data(factors, split)

    def rank(users: npt.NDArray[np.int64], k: int, seen: Interactions | None) -> TopItems:
        # With a shard, other ranks have the factors of other users.
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
    """Evaluate any function that ranks items; see :func:`evaluate`.

    Args:
        rank: (users, places, masked pairs or None) -> items per user, best first, -1 at the end.
    """
    cutoffs = check_cutoffs(ks)
    judged = judged_users(split, part, mask)
    users, relevant = judged.users, judged.relevant
    shown: dict[int, npt.NDArray[np.bool_]] = {k: np.zeros(split.n_items, bool) for k in cutoffs}
    parts: list[dict[str, npt.NDArray[np.float64]]] = []
    places = min(cutoffs[-1], split.n_items)
    blocks = user_blocks(users, places)
    if progress:
        step = max(_SHORTEST_STEP, -(-len(users) // _STEPS))
        blocks = user_blocks(users, places, min(_LONGEST_RANKINGS, step * places))
    with progress_bar(len(users), "evaluate", "user", progress) as bar:
        # At least one block, even if empty, for the names of the metrics.
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
        seen = {k: ranks.joined_array(found[None].view("u1")) for k, found in shown.items()}
        shown = {k: np.asarray(rows.any(axis=0)) for k, rows in seen.items()}
    values = {name: float(value.mean()) for name, value in per_user.items()}
    values |= {f"coverage@{k}": float(found.sum() / len(found)) for k, found in shown.items()}
    return MetricReport(values, per_user, users, judged.protocol(cutoffs, len(users)))


@dataclass(frozen=True, eq=False)
class Judged:
    """The users evaluated on a split, their relevant items, and the masked ones.

    Args:
        users: those with a relevant item, or a sample of them, ascending.
        n_known: the number of users with a relevant item, on all ranks.
        seen: the masked pairs, or None.
    """

    split: Split | SplitShard
    part: str
    masked: tuple[str, ...]
    users: npt.NDArray[np.int64]
    n_known: int
    relevant: Interactions
    seen: Interactions | None

    def protocol(self, cutoffs: Sequence[int], n_judged: int) -> Protocol:
        """Return the protocol for so many users, of all ranks, at these cutoffs."""
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
    """Return the users to evaluate on ``part`` of a split; see :func:`evaluate`."""
    check_choice("part", part, PARTS)
    masked = split.masked(part) if mask is None else tuple(mask)
    relevant: Interactions = getattr(split, part)
    whole = _whole(split)
    if len(getattr(whole, part)) == 0:
        raise InputError(f"{split.name} has no {part} pairs: nothing to evaluate on")
    how = whole.protocol or EvaluationProtocol()
    known = np.flatnonzero(relevant.user_degrees).astype(np.int64)
    if isinstance(split, SplitShard):
        # A sample is drawn from the users of all ranks, by their ids in the whole split.
        known = split.rows.ranks.joined_array(known + split.rows.start)
    users = how.sample(known, whole.n_users)
    if isinstance(split, SplitShard):
        start, stop = split.rows.start, split.rows.stop
        users = users[(users >= start) & (users < stop)] - start
    seen = masked_pairs(split, part, masked)
    return Judged(split, part, masked, users, len(known), relevant, seen)


def _whole(split: Split | SplitShard) -> Split:
    return split.whole if isinstance(split, SplitShard) else split


def user_blocks(
    users: npt.NDArray[np.int64], places: int, limit: int = _LONGEST_RANKINGS
) -> list[npt.NDArray[np.int64]]:
    """Return users in blocks whose rankings, of so many places each, have ``limit`` in all."""
    size = max(1, limit // max(1, places))
    return [users[start : start + size] for start in range(0, len(users), size)]


def per_user_metrics(
    hits: npt.NDArray[np.bool_],
    relevant: Interactions,
    users: npt.NDArray[np.int64],
    ks: Sequence[int],
) -> dict[str, npt.NDArray[np.float64]]:
    """Return all per-user metrics at all cutoffs, from the hits in the rankings."""
    counts = relevant.user_degrees[users]
    return {
        f"{name}@{k}": function(hits, counts, k) for name, function in PER_USER.items() for k in ks
    }


def hits_of(
    top: TopItems, relevant: Interactions, users: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Return whether each ranked item is relevant; the padding -1 never is."""
    stride = relevant.n_items + 1  # a place below every item, for the padding
    rows, items = relevant.rows(users)
    if len(rows) == 0:
        return np.zeros(top.shape, dtype=bool)
    keys = rows * stride + items + 1
    wanted = np.arange(len(users))[:, None] * stride + top + 1
    places = np.minimum(np.searchsorted(keys, wanted.ravel()), len(keys) - 1)
    found: npt.NDArray[np.bool_] = (keys[places] == wanted.ravel()).reshape(top.shape)
    return found


def check_same_data(factors: Factors, split: Split | SplitShard) -> None:
    """Raise unless factors have the sizes of a split."""
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
    """Return the pairs of these splits, which are not candidates when evaluating on ``part``."""
    unknown = [name for name in masked if name not in PARTS]
    if unknown or len(set(masked)) != len(masked):
        raise InputError(f"mask must name parts out of {', '.join(PARTS)}, got {list(masked)}")
    if part in masked:
        raise InputError(f"{part} cannot be masked when evaluating on {part}")
    if set(masked) == {"train", "valid"}:
        return split.train_full
    parts: list[Interactions] = [getattr(split, name) for name in masked]
    return functools.reduce(Interactions.union, parts) if parts else None
