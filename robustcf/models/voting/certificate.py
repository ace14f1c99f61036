"""Certificates against fake accounts, for recommenders that rank items by votes.

The candidates of a served user are the *relevant* items, and the *outsiders*, all others that may
be recommended. :func:`above_by_accounts` (every account votes) and :func:`above_by_groups` (hashed
groups vote) bound how many outsiders can be ranked above a relevant item at once, for any content
of ``e`` fake accounts. By the theorem of :func:`robustcf.metrics.ranking.worst_hits` these bounds
give the worst places of all relevant items, and lower bounds of all metrics, without sampling or
confidence levels.

Partitions that bound the effect of an injected account are those of Levine and Feizi (2021,
arXiv:2006.14768), and of Jia et al. (2023, arXiv:2303.14601) for recommenders.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

#: The largest vote of an account of mass 1; votes are whole numbers.
FULL_VOTE = 1 << 16

# Numbers t of the third condition, in numbers of fakes below the votes of the last outsider that
# must rise. Each gives a valid bound; the best one counts.
_HANGERS = (0.0, 0.25, 0.5, 1.0)
# Comparisons of one step: rows of pairs x items.
_BLOCK = 1 << 24


@dataclass(frozen=True, eq=False)
class AccountVotes:
    """Votes for a block of users where every account votes.

    An account has a mass of at most 1, and at most ``FULL_VOTE`` votes per mass. The degree of an
    item is the mass of the accounts that hold it, and its score ``votes * (degree + prior) **
    -power``.

    Args:
        votes: users x items.
        degrees: of the items.
        damping: added mass -> the factor of every item, falling.
        prior: added to the degree.
        power: of the damping, less than 1.
        most: per user, the largest vote of an added account for an item outside of the history.
        mass: of an added account.
        shared: per user, the largest sum of votes of an added account for 1, 2, ... such items, the
            last one for more, too; None where it is not limited.
    """

    votes: Values
    degrees: Values
    damping: Callable[[float], Values]
    prior: float
    power: float
    most: Values
    mass: float = 1.0
    shared: Values | None = None

    def highest(self, rows: Any, added: int) -> Values:
        """Bound the scores of users in ``rows`` from above, where votes of ``added`` accounts join.

        ``(v + M y) damping(d + y)`` falls, then rises with y, so one of its ends is the largest.
        """
        gained: Values = self.votes[rows] + (added * self.most)[rows, None]
        gained *= self.damping(self.mass * added)
        if self._grows:
            return gained
        np.maximum(gained, self.votes[rows] * self.damping(0.0), out=gained)
        return gained

    def lowest(self, rows: Any, items: Any, fakes: int, added: int) -> Values:
        """Bound scores from below, see :func:`above_by_accounts`; ``rows`` and ``items`` index."""
        own = self.votes[rows, items]
        found: Values = own * self.damping(self.mass * (fakes - added))[items]
        if self._grows:
            return found
        room = (self.degrees + (self.mass * (fakes - added) + self.prior))[items]
        most = self.most[rows] if np.ndim(rows) else self.most[:, None]
        grows = self.power * own <= most / self.mass * room
        return np.asarray(np.where(grows, found, own * self.damping(self.mass * fakes)[items]))

    @property
    def _grows(self) -> bool:
        """Whether one more account with the vote ``most`` raises every score: p v <= M (d + c)."""
        return self.power == 0 or bool((self.most >= self.mass * FULL_VOTE).all())


def above_by_accounts(
    cast: AccountVotes, outsiders: Mask, owners: Counts, items: Counts, fakes: int, longest: int = 0
) -> Counts:
    """Bound how many outsiders can stand above each of some items, when every account votes.

    The score of item i is ``votes_i * damping(degree_i)``, damping ``(d + prior)^-p``, p < 1. An
    account has one vote for all items it holds. Ties go to the lower item id. An added account has
    the mass a and a vote from 0 to aM, so e of them have the mass E = ea. Write
    ``s(v, d) = v damping(d)``. Where ``p v <= M (d + prior)``, ``s(v + M y, d + y)`` grows with y:
    its logarithm has the derivative ``M / (v + M y) - p / (d + y + prior)``. With M the full vote
    of an account this holds for all items, as ``v <= M d``; a limit of items makes M smaller.

    Added accounts take no vote away. Let those that hold i have the mass n, and votes M T in all,
    and let ``x = T + E - n``, a number from 0 to E.

    - No outsider gains more than M x votes: each fake that holds i adds its own vote, each other
      one at most its mass times M. Votes M y take a mass of at least y, so the score is at most
      ``s(votes_o + M y, degree_o + y)`` for some y up to x: the larger one of y = 0 and y = x.
    - Item i has ``votes_i + M T`` of the mass ``degree_i + (E - x) + T``. If the above holds at
      ``degree_i + E - x``, its score is at least ``s(votes_i, degree_i + E - x)``, else at least
      ``s(votes_i, degree_i + E)``.

    So the outsiders above i are among those whose first bound beats the second, for one common x.
    Both bounds grow with x: [0, E] is cut into ranges, and in each the first is taken at its upper
    and the second at its lower end. Without damping (p = 0) x = E is the worst, and the bound is
    met by e fakes that hold all outsiders and have the vote aM.

    *Limited items.* Let c outsiders stand above i. Outsider o needs at least ``low / damping_o -
    votes_o`` votes, low being the bound of i. A fake that holds q of them has at most the vote
    ``W(q)`` for a limit of items, so the c smallest needs sum to at most ``e max_q min(q, c)
    W(q)``, which is ``fakes * shared``. If that fails for c, fewer than c can stand above.

    Args:
        cast: the votes.
        outsiders: users x items, True for candidates that are not relevant.
        owners: row of each item in question.
        items: the items in question.
        fakes: e.
        longest: numbers from here on need not be told apart; for limited items.

    Cost: about log2(e) comparisons of pairs x items.

    Example:
        >>> cast = AccountVotes(
        ...     np.array([[9.0, 5.0, 3.0]]), np.array([9.0, 5.0, 3.0]), lambda mass: np.ones(3),
        ...     prior=1.0, power=0.0, most=np.ones(1))
        >>> outsiders, first = np.array([[False, True, True]]), np.array([0])
        >>> [int(above_by_accounts(cast, outsiders, first, first, e)[0]) for e in (3, 4, 5, 6, 7)]
        [0, 0, 1, 1, 2]
    """
    above = np.zeros(len(items), dtype=np.int64)
    n_items = cast.votes.shape[1]
    ids = np.arange(n_items)
    rows = max(1, _BLOCK // max(1, n_items))
    for least, largest in ranges(fakes, flat=cast.power == 0):
        lowered = cast.lowest(owners, items, fakes, least)
        for start in range(0, len(items), rows):
            part = slice(start, start + rows)
            mine, low = owners[part], lowered[part, None]
            reached = cast.highest(mine, largest)
            beats = (reached > low) | ((reached == low) & (ids < items[part, None]))
            beats &= outsiders[mine]
            counted = beats.sum(axis=1)
            if cast.shared is not None and fakes:
                needs = np.where(beats, low / cast.damping(0.0) - cast.votes[mine], np.inf)
                few = _affordable(needs, fakes * cast.shared[mine], longest)
                counted = np.where(few < longest, np.minimum(counted, few), counted)
            above[part] = np.maximum(above[part], counted)
    return above


def _affordable(needs: Values, limits: Values, longest: int) -> Counts:
    """Return how many of the smallest needs are within the limit of their number, per row.

    Limits of larger numbers than there are columns are those of the last.
    """
    count = min(longest, needs.shape[1])
    limits = limits[:, np.minimum(np.arange(count), limits.shape[1] - 1)]
    smallest = np.sort(np.partition(needs, count - 1, axis=1)[:, :count], axis=1)
    # Rounding must not refute what is possible.
    within = np.maximum(0.0, smallest).cumsum(axis=1) * (1 - 1e-9) <= limits
    return np.asarray(np.logical_and.accumulate(within, axis=1).sum(axis=1))


def ranges(fakes: int, *, flat: bool) -> list[tuple[int, int]]:
    """Return ranges that cover [0, e], finer towards e, the usual worst case; e without damping."""
    if flat or fakes == 0:
        return [(fakes, fakes)]
    ends = [fakes]
    while ends[-1] > 0:
        ends.append(max(0, fakes - max(1, 2 * (fakes - ends[-1]))))
    return [(least, largest) for largest, least in pairwise(ends)]


def above_by_groups(ballots: Counts, outsiders: Mask, item: int, fakes: int) -> int:
    """Bound how many outsiders can stand above one item of one user, when groups vote.

    Group g votes for the items ``ballots[g]``, at most N' of them; items are ranked by votes, ties
    to the lower id. A fake account is in one group, so at most e groups, S, are *corrupted*, and
    the others vote as before. This also holds for altered or removed accounts, as long as the other
    accounts stay in their groups (without labels, groups go by id, and a removed account must keep
    its place with an empty row). With ``v_o`` the votes now, ``s_o`` those from S, and ``a_o`` the
    new ones, an outsider has ``v_o - s_o + a_o`` and the item i at least ``v_i - s_i``, where
    ``0 <= s_o, a_o <= e``, and all ``a_o`` together are at most ``N' e``. An outsider of higher id
    needs one vote more, so its ``v_o`` counts one less. Three conditions are necessary for a set A
    of c outsiders to stand above i; if one fails for all A, at most c - 1 can:

    1. *One by one*: the c-th largest ``v_o`` reaches ``v_i - min(e, v_i) - e``.
    2. *Together*: what the c best lack to ``v_i - min(e, v_i)`` is at most ``N' e``.
    3. *The same groups*: adding up over A, ``sum_A (v_o - s_o) + e min(N', c) >= c (v_i - s_i)``.
       For any number t, ``sum_A (v_o - s_o) <= c t + sum_o max(0, v_o - s_o - t)``, where o runs
       over all outsiders. As a function of ``s_o`` in [0, m_o], ``m_o = min(e, v_o)``, the
       maximum is convex, so it is below its chord: ``max(0, v_o - t) - slope_o s_o``. That is
       linear in S: each corrupted group g adds ``min(N', c) + c x_gi - sum_o slope_o x_go`` (x is 1
       for its votes), and the worst S takes the e groups that add most. So it is necessary that
       ``c t + sum_o max(0, v_o - t)`` and these are at least ``c v_i``, for every t. A group that
       votes for i votes for good outsiders as well; corrupting it takes those votes back.

    Args:
        ballots: groups x N' item ids, -1 where a group has fewer votes.
        outsiders: of the items, True for candidates that are not relevant.
        item: i.
        fakes: e; for 0 the bound is exact.

    Cost: O(items + log(items) groups N').

    Example:
        >>> ballots = np.array([[0], [0], [0], [1]])
        >>> outsiders = np.array([False, True, True])
        >>> [above_by_groups(ballots, outsiders, 0, e) for e in (0, 1, 2)]
        [0, 0, 1]
    """
    n_items, limit = len(outsiders), ballots.shape[1]
    cast = np.bincount(ballots[ballots >= 0], minlength=n_items)
    own = int(cast[item])
    low = own - min(fakes, own)
    effective = np.where(outsiders, cast - (np.arange(n_items) > item), -n_items * len(ballots) - 1)
    best = np.sort(effective[outsiders])[::-1]
    most = int(np.count_nonzero(best + fakes >= low))
    if fakes == 0:
        return most
    lacking = np.cumsum(np.maximum(0, low - best[:most]))
    most = int(np.count_nonzero(lacking <= limit * fakes))
    least = int(np.count_nonzero(best >= own))
    voted = (ballots == item).any(axis=1)
    room = np.minimum(fakes, cast)

    def refuted(wanted: int, line: float) -> bool:
        """Whether the third condition fails for so many outsiders, with t = line."""
        over = np.maximum(0.0, effective - line)
        under = np.maximum(0.0, effective - room - line)
        slope = np.zeros(n_items + 1)  # the last place is for the padding, -1
        np.divide(over - under, room, out=slope[:-1], where=room > 0)
        added = min(limit, wanted) + wanted * voted - slope[ballots].sum(axis=1)
        gains = np.maximum(0.0, added)
        if fakes < len(gains):
            gains = np.partition(gains, len(gains) - fakes)[len(gains) - fakes :]
        # Rounding must not refute what is possible.
        reached: float = wanted * line + over.sum() + gains.sum()
        return reached < wanted * own - 1e-6 * (1 + wanted * own)

    # The condition of c + 1 outsiders includes that of c: look for the last that is met.
    while least < most:
        middle = (least + most + 1) // 2
        if any(refuted(middle, best[middle - 1] - hanger * fakes) for hanger in _HANGERS):
            most = middle - 1
        else:
            least = middle
    return most


def best(scores: Values, k: int) -> Counts:
    """Return the k best items, best first, ties to the lower id; -1 where scores are negative."""
    k = min(k, scores.shape[1])
    last = np.partition(scores, scores.shape[1] - k, axis=1)[:, scores.shape[1] - k]
    found = np.full((len(scores), k), -1, dtype=np.int64)
    for row, least in enumerate(last):
        near = np.flatnonzero(scores[row] >= max(0.0, least))
        chosen = near[np.argsort(-scores[row, near], kind="stable")][:k]
        found[row, : len(chosen)] = chosen
    return found


class Reach(NamedTuple):
    """What fakes can do to the lists of users: users x items each."""

    reached: Mask  # whether an item may be among the first k, an upper bound
    kept: Mask  # whether an item of today's first k stays there, a lower bound


def reach_by_accounts(
    cast: AccountVotes, masked: Mask, fakes: int, ks: Sequence[int]
) -> list[Reach]:
    """Bound which items e added accounts can bring into, or push out of, the first k places.

    With the notation of :func:`above_by_accounts`, let the fakes that hold the item i have the
    votes M x in all, 0 <= x <= E. All fakes have a mass of E, so votes that i does not get are at
    most M (E - x). Let those that hold a rival j have the mass n and the votes M T; then
    ``n - T <= E - x``, as that is a part of what i does not get.

    - The score of i is at most ``s(votes_i + M y, degree_i + y)`` for y = 0 or y = x.
    - The rival has at least ``votes_j + M T`` of a mass of at most ``degree_j + (E - x) + T``, so
      its score is at least ``s(votes_j, degree_j + E - x)``, or ``s(votes_j, degree_j + E)``
      where that does not grow with T. This holds for all rivals at once.

    So i is among the first k only if, for some x, fewer than k candidates beat the first bound by
    their second. Both grow with x, and ranges of x are taken as in :func:`above_by_accounts`.

    The other way round, an item of today stays among the first k unless k others can stand above
    it at once: its own bound is then the second, and theirs the first.

    Args:
        cast: the votes.
        masked: users x items, True for items that are not candidates.
        fakes: e; for 0, both are today's lists.
        ks: numbers of places.

    Returns:
        One for each of ``ks``.

    Cost: about 2 log2(e) partitions of users x items.

    Example:
        >>> cast = AccountVotes(
        ...     np.array([[9.0, 5.0, 3.0]]), np.array([9.0, 5.0, 3.0]), lambda mass: np.ones(3),
        ...     prior=1.0, power=0.0, most=np.ones(1))
        >>> nothing = np.zeros((1, 3), dtype=bool)
        >>> for e in (0, 4, 6):
        ...     found = reach_by_accounts(cast, nothing, e, [1])[0]
        ...     print(e, found.reached.tolist(), found.kept.tolist())
        0 [[True, False, False]] [[True, False, False]]
        4 [[True, False, False]] [[True, False, False]]
        6 [[True, True, False]] [[False, False, False]]
    """
    rows, ids = slice(None), np.arange(masked.shape[1])
    reached = [np.zeros(masked.shape, dtype=bool) for _ in ks]
    kept: list[Mask] = []
    today = best(np.where(masked, -1.0, cast.votes * cast.damping(0.0)), max(ks))
    for k in ks:
        kept.append(np.zeros(masked.shape, dtype=bool))
        owners, places = np.nonzero(today[:, :k] >= 0)
        kept[-1][owners, today[owners, places]] = True
    for least, largest in ranges(fakes, flat=cast.power == 0):
        high = np.where(masked, -1.0, cast.highest(rows, largest))
        low = np.where(masked, -1.0, cast.lowest(rows, rows, fakes, least))
        strong, rivals = best(low, max(ks)), best(high, max(ks) + 1)
        for n, k in enumerate(ks):
            score, last = _at(low, strong, k)
            reached[n] |= (high > score) | ((high == score) & (ids <= last))
            # The k-th rival of an item that is among the first k itself is the next one.
            owners, items = np.nonzero(kept[n])
            itself = (rivals[owners, :k] == items[:, None]).any(axis=1)
            (score, last), (after, other) = (_at(high, rivals, number) for number in (k, k + 1))
            score = np.where(itself, after[owners, 0], score[owners, 0])
            last = np.where(itself, other[owners, 0], last[owners, 0])
            own = low[owners, items]
            lost = (score > own) | ((score == own) & (last < items))
            kept[n][owners[lost], items[lost]] = False
    return [Reach(each & ~masked, stays) for each, stays in zip(reached, kept, strict=True)]


def _at(scores: Values, order: Counts, k: int) -> tuple[Values, Counts]:
    """Return score and item of the k-th place as columns; -inf where the items end before."""
    if k > order.shape[1]:
        return np.full((len(order), 1), -np.inf), np.full((len(order), 1), -1)
    last = order[:, k - 1 : k]
    found = np.take_along_axis(scores, np.maximum(last, 0), axis=1)
    return np.where(last >= 0, found, -np.inf), last


def reach_by_groups(
    votes: Values, masked: Mask, groups: int, each: int, fakes: int, ks: Sequence[int]
) -> list[Reach]:
    """Bound which items can enter, or leave, the first k places, when hashed groups vote.

    With the notation of :func:`above_by_groups`: item i has at most ``h = min(K, v_i + e)`` votes,
    and rivals lose at most ``min(e, v_j)`` each and ``N' e`` together. All but k - 1 of the rivals
    must fall to h votes: so ``v_j > h + e`` for at most k - 1, and what the others have beyond h is
    at most ``N' e``. An item of today stays if fewer than k others have at least ``v_i - min(e,
    v_i) - e`` votes, or if what the k nearest ones lack is more than ``N' e``. Ties count for the
    attacker, except for e = 0, where both are today's lists.

    Args:
        votes: users x items.
        masked: users x items, True for items that are not candidates.
        groups: their number K.
        each: the number N' of votes of a group.
        fakes: e.
        ks: numbers of places.

    Example:
        >>> votes, nothing = np.array([[6.0, 2.0, 0.0]]), np.zeros((1, 3), dtype=bool)
        >>> [reach_by_groups(votes, nothing, 6, 1, e, [1])[0].reached.tolist() for e in (1, 2)]
        [[[True, False, False]], [[True, True, False]]]
    """
    found = [Reach(*(np.zeros(masked.shape, dtype=bool) for _ in range(2))) for _ in ks]
    scores = np.where(masked, -1.0, votes)
    today = best(scores, max(ks))
    for row, own in enumerate(scores.astype(np.int64)):
        # beyond[t]: candidates with more than t votes; excess[t]: the sum of votes beyond t.
        counts = np.bincount(own[own >= 0], minlength=groups + 1)
        beyond = np.append(counts[::-1].cumsum()[::-1][1:], np.zeros(fakes + 1, np.int64))
        height = np.minimum(groups, own + fakes)
        for n, k in enumerate(ks):
            mine = today[row, :k][today[row, :k] >= 0]
            if fakes == 0:
                found[n].reached[row, mine] = found[n].kept[row, mine] = True
                continue
            falling = np.maximum(0, beyond - (k - 1))[::-1].cumsum()[::-1]
            able = (beyond[height + fakes] < k) & (falling[height] <= each * fakes)
            found[n].reached[row] = able & (own >= 0)
            for item in mine.tolist():
                low = int(own[item]) - min(fakes, int(own[item]))
                near = np.sort(np.delete(own, item)[np.delete(own, item) >= low - fakes])[::-1][:k]
                near = near[near >= 0]
                lack = np.maximum(0, low - near).sum()
                found[n].kept[row, item] = len(near) < k or lack > each * fakes
    return found
