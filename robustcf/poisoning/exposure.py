"""What genuine users are shown of the targets: hit rate, NDCG and share of exposure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from robustcf._checks import check_cutoffs
from robustcf.data.interactions import Interactions
from robustcf.data.split import Split
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.metrics import ranking
from robustcf.metrics.evaluate import masked_pairs, user_blocks
from robustcf.metrics.topk import top_items
from robustcf.poisoning.threat import ItemIds

CUTOFFS = (10, 50)


@dataclass(frozen=True, eq=False)
class Exposure:
    """How much of the targets genuine users are recommended, see :func:`exposure`.

    Args:
        values: ``hit_rate@k``, ``ndcg@k``, ``share@k`` -> value.
        by_target: k -> the hit rate of each target alone, over the users who lack it.
        n_users: users who lack at least one target.
    """

    values: Mapping[str, float]
    by_target: Mapping[int, list[float]]
    n_users: int

    def __getitem__(self, name: str) -> float:
        if name not in self.values:
            raise InputError(f"no metric {name!r} here; there are {', '.join(self.values)}")
        return self.values[name]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            **self.values,
            "by_target": {f"hit_rate@{k}": values for k, values in self.by_target.items()},
            "n_users": self.n_users,
        }


def exposure(
    factors: Factors,
    split: Split,
    targets: npt.ArrayLike,
    ks: Sequence[int] = CUTOFFS,
    *,
    mask: Sequence[str] | None = None,
) -> Exposure:
    """Return what the lists of genuine users hold of the targets.

    A user *lacks* a target without a pair in train, valid and test.

    - ``hit_rate@k``: users with at least one lacked target in their first k places, divided by the
      users who lack at least one target. It can reach 1 however many targets there are.
    - ``ndcg@k``: NDCG with the lacked targets as the relevant items, mean over the same users.
    - ``share@k``: places of the first k that hold a lacked target, divided by all places filled,
      over all genuine users.

    Args:
        factors: rows of the genuine users first; those behind them, of fakes, are ignored.
        split: the genuine users' data, without fakes.
        targets: ids, in any order.
        ks: cutoffs.
        mask: parts whose pairs are not candidates; None for the split's own protocol on test.

    Cost: one product of users x items x dim; memory of a few blocks.

    Example:
        >>> import torch
        >>> split = Split.from_csr(np.array([[1, 0, 0], [0, 1, 0]]))
        >>> factors = Factors(torch.ones(2, 1), torch.tensor([[2.0], [1.0], [3.0]]))
        >>> found = exposure(factors, split, [0], ks=(1, 2))
        >>> found["hit_rate@1"], found["hit_rate@2"], found["share@2"]
        (0.0, 1.0, 0.25)
    """
    cutoffs = check_cutoffs(ks)
    wanted = np.unique(np.asarray(targets))
    if wanted.ndim != 1 or wanted.dtype.kind not in "iu" or len(wanted) == 0:
        raise InputError(f"targets must be ids of items, at least one, got {targets!r}")
    if wanted[0] < 0 or wanted[-1] >= split.n_items:
        raise InputError(
            f"targets must be in [0, {split.n_items}), got {wanted[0]} to {wanted[-1]}"
        )
    if factors.n_users < split.n_users or factors.n_items != split.n_items:
        raise InputError(
            f"factors are for {factors.n_users} users x {factors.n_items} items, {split.name} has "
            f"{split.n_users} x {split.n_items}: they belong to different data"
        )
    genuine = Factors(factors.users[: split.n_users], factors.items)
    seen = masked_pairs(split, "test", split.masked("test") if mask is None else tuple(mask))
    has = _has(split, wanted)
    hits_by_target = {k: np.zeros(len(wanted)) for k in cutoffs}
    taken, filled = dict.fromkeys(cutoffs, 0), dict.fromkeys(cutoffs, 0)
    parts: list[dict[str, npt.NDArray[np.float64]]] = []
    for users in user_blocks(np.arange(split.n_users), min(cutoffs[-1], split.n_items)):
        top = top_items(genuine, users, cutoffs[-1], seen)
        # The place of each shown item among the targets; lacked ones alone count.
        place = np.minimum(np.searchsorted(wanted, top), len(wanted) - 1)
        hits = (wanted[place] == top) & ~np.take_along_axis(has[users], place, axis=1)
        lacks = len(wanted) - has[users].sum(axis=1)
        some = lacks > 0
        values = {}
        for k in cutoffs:
            taken[k] += int(hits[:, :k].sum())
            filled[k] += int((top[:, :k] >= 0).sum())
            hits_by_target[k] += np.bincount(place[:, :k][hits[:, :k]], minlength=len(wanted))
            values[f"hit_rate@{k}"] = ranking.hit_rate(hits[some], lacks[some], k)
            values[f"ndcg@{k}"] = ranking.ndcg(hits[some], lacks[some], k)
        parts.append(values)
    joined = {name: np.concatenate([values[name] for values in parts]) for name in parts[0]}
    n_users = len(next(iter(joined.values())))
    means = {name: float(value.mean()) if n_users else 0.0 for name, value in joined.items()}
    means |= {f"share@{k}": taken[k] / max(1, filled[k]) for k in cutoffs}
    lacking = np.maximum(split.n_users - has.sum(axis=0), 1)
    by_target = {k: (counted / lacking).tolist() for k, counted in hits_by_target.items()}
    return Exposure(means, by_target, n_users)


def _has(split: Split, targets: ItemIds) -> npt.NDArray[np.bool_]:
    """Users x targets: who has which of them, in any part."""
    has = np.zeros((split.n_users, len(targets)), dtype=bool)
    parts: tuple[Interactions, ...] = (split.train, split.valid, split.test)
    for pairs in parts:
        place = np.minimum(np.searchsorted(targets, pairs.items), len(targets) - 1)
        mine = targets[place] == pairs.items
        has[pairs.users[mine], place[mine]] = True
    return has
