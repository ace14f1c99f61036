"""Certified metrics and radii of many users: what each of them keeps under any attack.

Of each relevant item the number of candidates is counted that some attack may bring level with or
ahead of it; :func:`robustcf.metrics.ranking.worst_hits` has the theorem by which these give lower
bounds of every per-user metric. When items alone may move (``side="items"``) the bound is
attained, by one attack on that user: moving every relevant item against u and all others along
it does to all pairs at once what the count allows. Coverage is about all users together and has
no such bound; it is left out.

What is certified is the worst for each user alone. An attack on all users at once has one set of
items, so the mean over users can only be better than the certificate says.

**Radii.** The top k of a user change exactly when one of them falls behind one of the rest, so
the smallest radius of such a pair is the radius of the set; with the tight bound it is exact: at
that size an attack exists (in two dimensions or more).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from robustcf._checks import check_choice
from robustcf.attacks.certificates.radius import Budgets, Radius, plain_radius, tight_radius
from robustcf.attacks.certificates.search import Ids, Items, Search
from robustcf.data.interactions import Interactions
from robustcf.factors import Factors
from robustcf.metrics.evaluate import per_user_metrics, user_blocks
from robustcf.metrics.ranking import worst_hits
from robustcf.metrics.topk import top_items

BOUNDS: Mapping[str, Radius] = {"tight": tight_radius, "plain": plain_radius}

PerUser = dict[str, npt.NDArray[np.float64]]


def usable_bound(bound: str, fixed: Sequence[int]) -> str:
    """Return the bound that is really used: with fixed columns, only the plain one is proved.

    Example:
        >>> usable_bound("tight", ()), usable_bound("tight", (7,))
        ('tight', 'plain')
    """
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
) -> list[PerUser]:
    """Return lower bounds of every per-user metric (metric -> values) under attacks of each size.

    Args:
        factors: embeddings.
        budgets: how far rows may move at size 1.
        users: ids of users with relevant items.
        relevant: the relevant pairs.
        seen: pairs that are not candidates, or None.
        sizes: of attacks, ascending, positive.
        ks: cutoffs of the metrics, ascending.
        bound: ``tight``, exact for every pair, or ``plain``, the sum of the worst of each term.
        fixed: columns that no attack may touch; the bound is then the plain one.

    Cost: one float64 product of users x items x dim, whatever the number of sizes; memory of a
    few blocks, whatever the cutoffs.
    """
    length = min(ks[-1], factors.n_items)
    radius = BOUNDS[usable_bound(bound, fixed)]
    search = Search(factors, budgets, radius, count=length, cap=sizes[-1], fixed=fixed)
    found: list[list[PerUser]] = [[] for _ in sizes]
    # In blocks: of every relevant item as many radii are kept as the list is long.
    most = int(relevant.user_degrees[users].max(initial=1))
    for block in user_blocks(users, most * length):
        rows, items = relevant.rows(block)
        own = Items(rows, items.astype(np.int64))
        radii = search.radii(block, own, seen)
        for parts, size in zip(found, sizes, strict=True):
            hits = worst_hits((radii <= size).sum(axis=1), own.rows, len(block), length)
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
) -> npt.NDArray[np.float64]:
    """Return, per user, how large an attack must be before the top k are another set.

    Arguments are those of :func:`certified_metrics`. Infinite where a user has no other candidates.

    Cost: one ranking, and one float64 product of users x items x dim.
    """
    radius = BOUNDS[usable_bound(bound, fixed)]
    if k >= factors.n_items:
        return np.full(len(users), np.inf)  # all items: no set is another one
    search = Search(factors, budgets, radius, count=1, fixed=fixed)
    found = []
    for block in user_blocks(users, k):
        top = top_items(factors, block, k, seen)
        rows, places = np.nonzero(top >= 0)
        own = Items(rows, top[rows, places])
        radii = np.full(len(block), np.inf)
        np.minimum.at(radii, rows, search.radii(block, own, seen)[:, 0])
        found.append(radii)
    return np.concatenate(found) if found else np.empty(0)
