"""Certificates against fake accounts, for recommenders that rank items by votes.

A served user has candidates: the *relevant* items, and the *outsiders*, all others that may be
recommended. Say that of relevant item i at most ``O_i`` outsiders can be ranked above i at once,
whatever ``e`` fake accounts hold: :func:`above_by_accounts` proves such a bound where every account
votes for itself, :func:`above_by_groups` where hashed groups of accounts vote. From these follow
the worst places of the relevant items, by the theorem of
:func:`robustcf.metrics.ranking.worst_hits`, and so lower bounds of all metrics. There is no
confidence level, and nothing is drawn at random.

Partitions that bound what an injected account can change are those of Levine and Feizi (2021,
arXiv:2006.14768), and of Jia et al. (2023, arXiv:2303.14601) for recommenders.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

# Where the line that bounds a corrupted group's influence is hung, in numbers of fakes below the
# votes of the last outsider that must rise. Each place is a valid bound; the best one counts.
_HANGERS = (0.0, 0.25, 0.5, 1.0)
# Comparisons of one step: rows of pairs x items.
_BLOCK = 1 << 24


@dataclass(frozen=True, eq=False)
class AccountVotes:
    """Votes for a block of users where every account votes.

    Args:
        votes: users x items.
        degrees: of the items: accounts that hold them.
        damping: factor by degree, falling, long enough for the degrees plus the fakes.
        most: the largest vote of one account.
    """

    votes: Values
    degrees: Counts
    damping: Values
    most: float


def above_by_accounts(
    cast: AccountVotes, outsiders: Mask, owners: Counts, items: Counts, fakes: int
) -> Counts:
    """Bound how many outsiders can stand above each of some items, when every account votes.

    The score of item i is ``votes_i * damping[degrees_i]``: the votes of the accounts that hold i,
    times a factor that falls with their number. An account has one vote for all items it holds,
    between 0 and W, so ``votes_i <= W degrees_i``. Ties go to the lower item id. Write
    ``s(v, d) = v damping(d)``, with damping ``(d + prior)^-p``, p < 1. Then ``s(v + y W, d + y)``
    grows with y, for ``v <= W d``: its logarithm has the derivative ``W / (v + y W) - p / (d + y +
    prior)``, and the first term is at least ``1 / (d + y)``.

    Accounts that are added take no vote away. Say that n of the e fakes hold i, that their votes
    are W T in all, and let ``x = T + e - n``, a number from 0 to e.

    - No outsider gains more than W x votes: each fake that holds i adds its own vote, each other
      one at most W. It takes at least x accounts to gain that, so its score is at most
      ``s(votes_o + W x, degrees_o + x)``.
    - Item i has the votes ``votes_i + W T`` of ``degrees_i + (e - x) + T`` accounts, so its score
      is at least ``s(votes_i, degrees_i + e - x)``.

    So the outsiders above i are among those whose first bound beats the second, for one x that is
    the same for all of them. The first grows with x, the second too: [0, e] is cut into ranges, and
    in each the first is taken at its upper and the second at its lower end. Without damping (p = 0)
    x = e is the worst, and the bound is met by e fakes that hold all outsiders and have the vote W.

    Args:
        cast: the votes.
        outsiders: users x items, True for candidates that are not relevant.
        owners: row of each item in question.
        items: the items in question.
        fakes: e.

    Cost: about log2(e) comparisons of pairs x items.

    Example:
        >>> flat = np.ones(20)  # no damping
        >>> cast = AccountVotes(np.array([[9.0, 5.0, 3.0]]), np.array([9, 5, 3]), flat, 1.0)
        >>> outsiders, first = np.array([[False, True, True]]), np.array([0])
        >>> [int(above_by_accounts(cast, outsiders, first, first, e)[0]) for e in (3, 4, 5, 6, 7)]
        [0, 0, 1, 1, 2]
    """
    votes, degrees, damping = cast.votes, cast.degrees, cast.damping
    above = np.zeros(len(items), dtype=np.int64)
    own = votes[owners, items]
    ids = np.arange(votes.shape[1])
    rows = max(1, _BLOCK // max(1, votes.shape[1]))
    for least, largest in _ranges(fakes, flat=bool(damping[0] == damping[-1])):
        raised = damping[degrees + largest]
        lowered = own * damping[degrees[items] + fakes - least]
        for start in range(0, len(items), rows):
            part = slice(start, start + rows)
            mine = owners[part]
            reached = (votes[mine] + largest * cast.most) * raised
            low = lowered[part, None]
            beats = (reached > low) | ((reached == low) & (ids < items[part, None]))
            counted = (beats & outsiders[mine]).sum(axis=1)
            above[part] = np.maximum(above[part], counted)
    return above


def _ranges(fakes: int, *, flat: bool) -> list[tuple[int, int]]:
    """Ranges that cover [0, e], finer towards e, where the worst case nearly always is.

    Without damping nothing can be lowered: one range does, as it does for no fakes.
    """
    if flat or fakes == 0:
        return [(fakes, fakes)]
    ends = [fakes]
    while ends[-1] > 0:
        ends.append(max(0, fakes - max(1, 2 * (fakes - ends[-1]))))
    return [(least, largest) for largest, least in pairwise(ends)]


def above_by_groups(ballots: Counts, outsiders: Mask, item: int, fakes: int) -> int:
    """Bound how many outsiders can stand above one item of one user, when groups vote.

    Group g votes for the items ``ballots[g]``, at most N' of them; items are ranked by votes, ties
    to the lower id. A fake account is in one group, so at most e groups, S, are *corrupted*:
    whatever these vote, the others vote as before. This holds for accounts that are altered or
    removed, too, as long as the other accounts stay in their groups: groups go by label, or, where
    there are no labels, by id, and then a removed account must keep its place, with an empty row.
    With ``v_o`` the votes now, ``s_o`` those that come from S, and ``a_o`` the new ones, an
    outsider has ``v_o - s_o + a_o`` and the item i at least ``v_i - s_i``, where
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
