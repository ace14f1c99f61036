"""Certified metrics and radii of a whole split: what every user keeps under any attack.

**Theorem (worst places of the relevant items).** For a user and an attack size, let n_i be the
number of other candidates that some attack may bring level with or ahead of the relevant item
i, and let n_(1) <= n_(2) <= ... be these numbers in order. Then under every attack of that size
the r-th of the relevant items in the ranking is at place n_(r) + r or better.

*Proof.* Take the r relevant items with the smallest n_i, and of these the one that the attacked
ranking puts last, i*. At least r relevant items are at or before it, so the r-th relevant item
is at or before it too, and the irrelevant ones ahead of it are among those ahead of i*: at most
n_{i*} <= n_(r). Ahead of it are r - 1 relevant items and no others. []

Every per-user metric of :mod:`robustcf.metrics.ranking` rises when relevant items move up, so its
value at those places is a lower bound. When items alone may move (``side="items"``) the bound is
attained, by one attack on that user: moving every relevant item against u and all others along
it does to all pairs at once what the count allows. Coverage is about all users together and has
no such bound; it is left out.

What is certified is the worst for each user alone. An attack on everybody at once has one set of
items for all, so the mean over users can only be better than the certificate says.

**Radii.** The top k of a user change exactly when one of them falls behind one of the rest, so
the smallest radius of such a pair is the radius of the set; with the tight bound it is exact: at
that size an attack exists (in two dimensions or more).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from robustcf.attacks.base import SIDES, Side
from robustcf.attacks.budgets import RowBudget
from robustcf.certificates.radius import Budgets, Radius, plain_radius, tight_radius
from robustcf.certificates.search import Ids, Items, smallest_radii
from robustcf.data.interactions import Interactions, Split
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.metrics.evaluate import (
    PER_USER,
    MetricReport,
    Part,
    Protocol,
    evaluate,
    masked_pairs,
)
from robustcf.metrics.topk import rows_of, top_items
from robustcf.robustness import RobustnessCurve, check_epsilons

BOUNDS: Mapping[str, Radius] = {"tight": tight_radius, "plain": plain_radius}


@dataclass(frozen=True, eq=False)
class CertifiedRadii:
    """For each user and k, the attack size below which the k recommended items stay the same set.

    Args:
        radii: k -> one radius a user; infinite where a user has no other candidates.
        users: ids of the users.
        relative: whether radii are in median row norms of U and of V.
        side: which factors may move.
        bound: ``tight`` (the radii are exact) or ``plain``.
        protocol: what was ranked and masked.
    """

    radii: Mapping[int, npt.NDArray[np.float64]]
    users: npt.NDArray[np.int64]
    relative: bool
    side: str
    bound: str
    protocol: Protocol

    def as_dict(self) -> dict[str, Any]:
        """Mean and quartiles over users for each k, ready for JSON; None where infinite."""

        def finite(value: float) -> float | None:
            return float(value) if np.isfinite(value) else None

        return {
            f"top{k}": {
                "mean": finite(values.mean()),
                # Of infinite radii no mean can be taken, but the nearest of them can.
                **{
                    name: finite(np.quantile(values, share, method="lower"))
                    for name, share in (("q25", 0.25), ("median", 0.5), ("q75", 0.75))
                },
            }
            for k, values in self.radii.items()
        }


def certified_curve(
    factors: Factors,
    split: Split,
    epsilons: Sequence[float],
    ks: Sequence[int] = (10, 20),
    *,
    relative: bool = False,
    side: Side = "both",
    mask: Sequence[str] | None = None,
    bound: str = "tight",
    part: Part = "test",
) -> RobustnessCurve:
    """Lower bounds of every per-user metric under all attacks with a row budget.

    No attack that moves each row of U and of V by at most epsilon (in the Euclidean norm) brings
    any user below these values; the proofs are in this module and in
    :mod:`robustcf.certificates.radius`. The budget is what is measured: the factors of an attack
    in float32 may have moved a rounding error further than they were asked to.

    Args:
        factors: trained embeddings.
        split: the data.
        epsilons: ascending, from 0 on.
        ks: cutoffs of the metrics.
        relative: epsilons in units of the median row norm, of U for users and of V for items.
        side: which factors may move.
        mask: parts that are not candidates; None for the set's own protocol.
        bound: ``tight``, exact for every pair, or ``plain``, the sum of the worst of each term.
        part: the pairs that count as relevant: ``test``, or ``valid`` to choose by.

    Returns:
        A curve with ``attack="certificate"``, with values of single users and without coverage.
        At epsilon 0 it is the clean result to the bit.

    Raises:
        InputError: bad epsilons, side or bound; factors that do not fit the split.

    Cost: one evaluation and one float64 product of users x items x dim, whatever the number of
    epsilons.

    Example:
        >>> from robustcf.data import checkerboard
        >>> parity = torch.eye(2)[torch.arange(30) % 2]
        >>> curve = certified_curve(Factors(parity[:20], parity), checkerboard(), [0, 0.2])
        >>> curve.attack, float(curve["ndcg@10"][1])
        ('certificate', 1.0)
    """
    sizes = check_epsilons(epsilons)
    clean = evaluate(factors, split, ks, part=part, mask=mask)
    pairs: Interactions = getattr(split, part)
    budgets = row_budgets(factors, relative, side)
    cutoffs = sorted({int(k) for k in ks})
    rows, items = rows_of(pairs, clean.users)
    own = Items(rows, items.astype(np.int64))
    radii = smallest_radii(
        factors,
        budgets,
        _radius(bound),
        clean.users,
        own,
        masked_pairs(split, part, clean.protocol.masked),
        cutoffs[-1],
        sizes[-1],
    )
    relevant = pairs.user_degrees[clean.users]
    per_size: list[Mapping[str, npt.NDArray[np.float64]]] = []
    for size in sizes:
        if size == 0:
            per_size.append(clean.per_user)
            continue
        overtakers = (radii <= size).sum(axis=1)
        hits = worst_hits(overtakers, own.rows, len(clean.users), cutoffs[-1])
        per_size.append(
            {
                f"{name}@{k}": function(hits, relevant, k)
                for name, function in PER_USER.items()
                for k in cutoffs
            }
        )
    return curve_of("certificate", per_size, clean, sizes, budgets, relative, side)


def curve_of(
    attack: str,
    per_size: Sequence[Mapping[str, npt.NDArray[np.float64]]],
    clean: MetricReport,
    sizes: tuple[float, ...],
    budgets: Budgets,
    relative: bool,
    side: str,
) -> RobustnessCurve:
    """A curve from the values of single users at each size; where it is 0, the clean ones."""
    per_user = {name: np.stack([values[name] for values in per_size]) for name in clean.per_user}
    means = {name: values.mean(axis=1) for name, values in per_user.items()}
    if sizes[0] == 0:
        for name, values in means.items():
            values[0] = clean[name]  # the very bits, whatever the order of summation
    return RobustnessCurve(
        attack=attack,
        objective=None,
        budget=RowBudget.name,
        relative=relative,
        side=side,
        epsilons=sizes,
        values=means,
        per_user=per_user,
        users=clean.users,
        realised=tuple({"users": e * budgets.users, "items": e * budgets.items} for e in sizes),
        protocol=clean.protocol,
    )


def worst_hits(
    overtakers: npt.NDArray[np.integer[Any]], rows: Ids, n_users: int, length: int
) -> npt.NDArray[np.bool_]:
    """The worst places of relevant items by the theorem above, as hits.

    Args:
        overtakers: for each relevant item, how many irrelevant ones may be ahead of it; numbers
            from ``length`` on are all the same.
        rows: the user of each relevant item, ascending.
        n_users: rows of the result.
        length: places of the result.

    Returns:
        users x length, True at place n_(r) + r (counted from 1) for every r.

    Example:
        >>> worst_hits(np.array([2, 0, 9]), np.array([0, 0, 1]), 2, 4).astype(int).tolist()
        [[1, 0, 0, 1], [0, 0, 0, 0]]
    """
    order = np.lexsort((overtakers, rows))
    first = np.searchsorted(rows, rows)  # ascending: the order keeps every user's range
    places = overtakers[order] + np.arange(len(rows)) - first
    hits = np.zeros((n_users, length), dtype=bool)
    kept = places < length
    hits[rows[kept], places[kept]] = True
    return hits


def certified_radii(
    factors: Factors,
    split: Split,
    ks: Sequence[int] = (1, 10),
    *,
    relative: bool = False,
    side: Side = "both",
    mask: Sequence[str] | None = None,
    bound: str = "tight",
) -> CertifiedRadii:
    """How large an attack must be before a user's top k are no longer the same items.

    Args:
        factors: trained embeddings.
        split: the data; users with a test pair are looked at.
        ks: sizes of the set; 1 is the first recommendation.
        relative: as in :func:`certified_curve`, as are side, mask and bound.
        side: which factors may move.
        mask: parts that are not candidates; None for the set's own protocol.
        bound: ``tight`` gives the exact radius, ``plain`` a lower bound of it.

    Returns:
        The radii.

    Raises:
        InputError: bad side or bound; factors that do not fit the split.

    Cost: one evaluation, and for each k one float64 product of users x items x dim.

    Example:
        >>> from robustcf.data import checkerboard
        >>> parity = torch.eye(2)[torch.arange(30) % 2]
        >>> found = certified_radii(Factors(parity[:20], parity), checkerboard(), ks=(1,))
        >>> found.radii[1].max()  # many items are alike: the first is a tie
        np.float64(0.0)
    """
    clean = evaluate(factors, split, ks, mask=mask)
    budgets, radius = row_budgets(factors, relative, side), _radius(bound)
    seen = masked_pairs(split, "test", clean.protocol.masked)
    radii: dict[int, npt.NDArray[np.float64]] = {}
    for k in sorted({int(k) for k in ks}):
        top = top_items(factors, clean.users, k, seen)
        rows, places = np.nonzero(top >= 0)
        own = Items(rows, top[rows, places])
        pairs = smallest_radii(factors, budgets, radius, clean.users, own, seen, 1, np.inf)[:, 0]
        radii[k] = np.full(len(clean.users), np.inf)
        np.minimum.at(radii[k], rows, pairs)
    return CertifiedRadii(radii, clean.users, relative, side, bound, clean.protocol)


def row_budgets(factors: Factors, relative: bool, side: str) -> Budgets:
    """The units of a row budget on these factors."""
    if side not in SIDES:
        raise InputError(f"side must be one of {', '.join(SIDES)}, got {side!r}")
    unit = RowBudget().unit if relative else lambda _: 1.0
    largest = torch.linalg.vector_norm(factors.items.double(), dim=1).max().item()
    return Budgets(
        users=unit(factors.users) if side != "items" else 0.0,
        items=unit(factors.items) if side != "users" else 0.0,
        dim=factors.dim,
        largest_item=largest * (1 + 1e-9),
    )


def _radius(bound: str) -> Radius:
    if bound not in BOUNDS:
        raise InputError(f"bound must be one of {', '.join(BOUNDS)}, got {bound!r}")
    return BOUNDS[bound]
