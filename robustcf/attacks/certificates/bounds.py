"""Certified metrics and radii of many users, under any attack.

For each relevant item the candidates are counted that some attack may bring level with or ahead of
it; by the theorem of :func:`robustcf.metrics.ranking.worst_hits` these counts give lower bounds of
every per-user metric. If items alone may move (``side="items"``) the bound is attained, by one
attack on that user: it moves every relevant item against u and all others along it. Coverage is
about all users together and has no such bound.

Each user is certified alone. An attack on all users at once has one set of items, so the mean over
users can only be better than certified.

**Radii.** The top k of a user change exactly when one of them falls behind one of the rest, so the
smallest radius of such a pair is the radius of the set. With the tight bound it is exact: at that
size an attack exists (in two dimensions or more).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from robustcf._checks import check_choice
from robustcf.attacks.certificates.radius import Budgets, Radius, plain_radius, tight_radius
from robustcf.attacks.certificates.search import Folded, Ids, Search
from robustcf.data.interactions import Interactions
from robustcf.factors import Factors
from robustcf.metrics.evaluate import per_user_metrics, user_blocks
from robustcf.metrics.ranking import worst_hits
from robustcf.metrics.topk import top_items

BOUNDS: Mapping[str, Radius] = {"tight": tight_radius, "plain": plain_radius}

PerUser = dict[str, npt.NDArray[np.float64]]


def usable_bound(bound: str, fixed: Sequence[int]) -> str:
    """Return the bound to use: with fixed columns, only the plain one is proved."""
    check_choice("bound", bound, BOUNDS)
    return "plain" if fixed else bound


def certified_metrics(
    factors: Factors,
    budgets: Budgets,
    users: Ids,
    relevant: Interactions,
    seen: Interactions | None,
    sizes: Sequence[float],
    ks: Sequence[int],
    *,
    bound: str = "tight",
    fixed: Sequence[int] = (),
    folded: Folded | None = None,
) -> list[PerUser]:
    """Return lower bounds of every per-user metric (metric -> values) under attacks of each size.

    Args:
        budgets: how far rows may move at size 1.
        users: ids of users with relevant items.
        relevant: the relevant pairs.
        seen: pairs that are not candidates, or None.
        sizes: attack sizes, ascending, positive.
        ks: cutoffs of the metrics, ascending.
        bound: ``tight``, exact for every pair, or ``plain``, the sum of the worst of each term.
        fixed: columns that no attack may change; the bound is then the plain one.
        folded: given for users computed from their histories.

    Cost: one float64 product of users x items x dim, for any number of sizes; memory of a few
    blocks, for any cutoffs.
    """
    length = min(ks[-1], factors.n_items)
    radius = BOUNDS[usable_bound(bound, fixed)]
    search = Search(
        factors, budgets, radius, count=length, cap=sizes[-1], fixed=fixed, folded=folded
    )
    found: list[list[PerUser]] = [[] for _ in sizes]
    # In blocks: every relevant item has as many radii as the list is long.
    most = int(relevant.user_degrees[users].max(initial=1))
    for block in user_blocks(users, most * length):
        rows, items = relevant.rows(block)
        radii = search.radii(block, rows, items.astype(np.int64), seen)
        for parts, size in zip(found, sizes, strict=True):
            hits = worst_hits((radii <= size).sum(axis=1), rows, len(block), length)
            parts.append(per_user_metrics(hits, relevant, block, ks))
    return [
        {name: np.concatenate([values[name] for values in parts]) for name in parts[0]}
        for parts in found
    ]


def top_radii(
    factors: Factors,
    budgets: Budgets,
    users: Ids,
    seen: Interactions | None,
    k: int,
    *,
    bound: str = "tight",
    fixed: Sequence[int] = (),
    folded: Folded | None = None,
) -> npt.NDArray[np.float64]:
    """Return, per user, the smallest attack size that changes the top k as a set.

    Arguments as for :func:`certified_metrics`. Infinite if a user has no other candidates.

    Cost: one ranking, and one float64 product of users x items x dim.
    """
    radius = BOUNDS[usable_bound(bound, fixed)]
    if k >= factors.n_items:
        return np.full(len(users), np.inf)
    search = Search(factors, budgets, radius, count=1, fixed=fixed, folded=folded)
    found = []
    for block in user_blocks(users, k):
        top = top_items(factors, block, k, seen)
        rows, places = np.nonzero(top >= 0)
        radii = np.full(len(block), np.inf)
        np.minimum.at(radii, rows, search.radii(block, rows, top[rows, places], seen)[:, 0])
        found.append(radii)
    return np.concatenate(found) if found else np.empty(0)
