"""Exposure of genuine users to the targets: hit rate, NDCG and share of the lists."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from robustcf._checks import check_cutoffs
from robustcf.data.split import Split
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.metrics import ranking
from robustcf.metrics.evaluate import masked_pairs, user_blocks
from robustcf.metrics.topk import TopItems, top_items
from robustcf.models.scorer import Scorer

CUTOFFS = (10, 50)
#: Users, a number of places and masked pairs in; ranked items out.
Rank = Callable[[npt.NDArray[np.int64], int, Any], TopItems]


@dataclass(frozen=True, eq=False)
class Exposure:
    """Recommendations of the targets to genuine users, see :func:`exposure`."""

    values: Mapping[str, float]  # ``hit_rate@k`` and the like
    by_target: Mapping[int, list[float]]  # k -> hit rate of each target over users who lack it
    n_users: int  # users who lack at least one target

    def __getitem__(self, name: str) -> float:
        if name not in self.values:
            raise InputError(f"unknown metric {name!r}; known: {', '.join(self.values)}")
        return self.values[name]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            **self.values,
            "by_target": {f"hit_rate@{k}": values for k, values in self.by_target.items()},
            "n_users": self.n_users,
        }


def genuine_ranking(model: Factors | Scorer, split: Split) -> Rank:
    """Return the ranking function of a poisoned model for the genuine users, who come first."""
    if model.n_users < split.n_users or model.n_items != split.n_items:
        raise InputError(
            f"the model must be for {split.n_users} users x {split.n_items} items of "
            f"{split.name}, got {model.n_users} x {model.n_items}: they belong to different data"
        )
    if isinstance(model, Factors):
        return partial(top_items, Factors(model.users[: split.n_users], model.items))
    return model.rank


def exposure(
    model: Factors | Scorer,
    split: Split,
    targets: npt.ArrayLike,
    ks: Sequence[int] = CUTOFFS,
    *,
    mask: Sequence[str] | None = None,
) -> Exposure:
    """Return the exposure of genuine users to targets that they lack in train, valid and test.

    - ``hit_rate@k``: users with a lacked target in their first k places / users who lack a target.
    - ``ndcg@k``: NDCG with the lacked targets as the relevant items, mean over the same users.
    - ``share@k``: places among the first k with a lacked target / all filled places, of all users.
    - ``t_hr@k`` and ``t_ndcg@k``: hit rate and NDCG of each target alone, over the users who lack
      it, mean over targets: T-HR and T-NDCG of publications.

    Args:
        model: the genuine users first; further ones, of fakes, are ignored.
        split: the genuine users' data, without fakes.
        targets: ids, in any order.
        mask: splits whose pairs are not candidates; None for the set's own protocol on test.

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
        raise InputError(f"targets must be at least one of the ids of items, got {targets!r}")
    if wanted[0] < 0 or wanted[-1] >= split.n_items:
        raise InputError(
            f"targets must be in [0, {split.n_items}), got {wanted[0]} to {wanted[-1]}"
        )
    rank = genuine_ranking(model, split)
    seen = masked_pairs(split, "test", split.masked("test") if mask is None else tuple(mask))
    parts = (split.train, split.valid, split.test)
    has = np.logical_or.reduce([part.csr()[:, wanted].toarray() > 0 for part in parts])
    # Users who are shown a target at a place: whole numbers, the same for any blocks.
    shown = np.zeros((len(wanted), cutoffs[-1]), dtype=np.int64)
    discounts = 1.0 / np.log2(np.arange(2, cutoffs[-1] + 2))
    filled = dict.fromkeys(cutoffs, 0)
    blocks: list[dict[str, npt.NDArray[np.float64]]] = []
    for users in user_blocks(np.arange(split.n_users), min(cutoffs[-1], split.n_items)):
        top = rank(users, cutoffs[-1], seen)
        # The place of each recommended item among the targets; only lacked ones are hits.
        place = np.minimum(np.searchsorted(wanted, top), len(wanted) - 1)
        hits = (wanted[place] == top) & ~np.take_along_axis(has[users], place, axis=1)
        lacks = len(wanted) - has[users].sum(axis=1)
        some = lacks > 0
        owners, ranks = np.nonzero(hits)
        np.add.at(shown, (place[owners, ranks], ranks), 1)
        values = {}
        for k in cutoffs:
            filled[k] += int((top[:, :k] >= 0).sum())
            values[f"hit_rate@{k}"] = ranking.hit_rate(hits[some], lacks[some], k)
            values[f"ndcg@{k}"] = ranking.ndcg(hits[some], lacks[some], k)
        blocks.append(values)
    joined = {name: np.concatenate([values[name] for values in blocks]) for name in blocks[0]}
    n_users = len(next(iter(joined.values())))
    means = {name: float(value.mean()) if n_users else 0.0 for name, value in joined.items()}
    means |= {f"share@{k}": int(shown[:, :k].sum()) / max(1, filled[k]) for k in cutoffs}
    lacking = np.maximum(split.n_users - has.sum(axis=0), 1)
    rates = {k: shown[:, :k].sum(axis=1) / lacking for k in cutoffs}
    gains = {k: shown[:, :k] @ discounts[:k] / lacking for k in cutoffs}
    by_target = {k: rate.tolist() for k, rate in rates.items()}
    for name, found in (("t_hr", rates), ("t_ndcg", gains)):
        means |= {f"{name}@{k}": float(found[k].mean()) for k in cutoffs}
    return Exposure(means, by_target, n_users)
