"""Certificates against fake accounts, for recommenders that rank items by votes.

A served user has candidates: the *relevant* items, which count, and the *outsiders*, all others
that may be shown. Say that of item i at most ``O_i`` outsiders can be ranked above i at once,
whatever ``e`` fake accounts hold. Sorted, ``O_(1) <= O_(2) <= ...``, these prove the worst places:

    **Lemma.** The first ``j + O_(j)`` places hold at least ``j`` relevant items.

Proof. Say that the first k places hold fewer than j of them. Of the j items with the smallest
``O_i`` one, i, is then not among the k. All k items that are shown stand above i, at most j - 1 of
them relevant, so at least k - j + 1 outsiders stand above i: ``k - j + 1 <= O_i <= O_(j)``, and
``k < j + O_(j)``.

What remains is to bound ``O_i``, in :func:`above_by_accounts` where every account votes for itself,
in :func:`above_by_groups` where hashed groups of accounts vote. Both are deterministic: there is
no confidence level, and nothing is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from robustcf._checks import check_list
from robustcf.errors import InputError

Counts = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]

#: More fakes than this are beyond any recommender that could be certified.
MOST_FAKES = 10**6
# Where the line that bounds a corrupted group's influence is hung, in numbers of fakes below the
# votes of the last outsider that must rise. Each place is a valid bound; the best one counts.
_HANGERS = (0.0, 0.25, 0.5, 1.0)
# Comparisons of one step: rows of pairs x items.
_BLOCK = 1 << 24


def check_fakes(fakes: Sequence[int]) -> tuple[int, ...]:
    """Numbers of fake accounts, ascending, each an integer of at least 0.

    Raises:
        InputError: they are not.

    Example:
        >>> check_fakes([0, 1, 10])
        (0, 1, 10)
        >>> check_fakes([-1])
        Traceback (most recent call last):
        robustcf.errors.InputError: fakes must be integers from 0 to 1000000, got -1
    """
    found = check_list("fakes", fakes)
    for value in found:
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not whole or not 0 <= value <= MOST_FAKES:
            raise InputError(f"fakes must be integers from 0 to {MOST_FAKES}, got {value!r}")
    numbers = tuple(int(value) for value in found)
    if not numbers or list(numbers) != sorted(set(numbers)):
        raise InputError(
            f"fakes must be one or more different numbers in ascending order, got {list(numbers)}"
        )
    return numbers


def worst_places(above: Counts, owners: Counts, n_users: int, length: int) -> npt.NDArray[Any]:
    """The worst ranking of every user, as hits: users x length, True where an item is relevant.

    Every prefix of the real ranking holds at least as many hits, see the lemma of this module. So
    each metric that never falls when hits are added or move forward (precision, recall, NDCG, hit
    rate, reciprocal rank, average precision) is at least that of these hits.

    Args:
        above: for each relevant item, how many outsiders may stand above it at most.
        owners: which row each of these items belongs to.
        n_users: rows.
        length: places.

    Example:
        >>> worst_places(np.array([0, 1, 1]), np.array([0, 0, 1]), 2, 4).tolist()
        [[True, False, True, False], [False, True, False, False]]
    """
    hits = np.zeros((n_users, length), dtype=bool)
    order = np.lexsort((above, owners))
    rows, outsiders = owners[order], above[order]
    starts = np.searchsorted(rows, np.arange(n_users))
    place = np.arange(len(rows)) - starts[rows] + outsiders
    there = place < length
    hits[rows[there], place[there]] = True
    return hits


def above_by_accounts(
    votes: Values,
    outsiders: npt.NDArray[np.bool_],
    degrees: Counts,
    damping: Values,
    most: float,
    owners: Counts,
    items: Counts,
    fakes: int,
) -> Counts:
    """How many outsiders can stand above each of some items, when every account is a voter.

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
        votes: users x items.
        outsiders: users x items, True for candidates that are not relevant.
        degrees: of the items: accounts that hold them.
        damping: factor by degree, falling, long enough for the degrees plus the fakes.
        most: the largest vote of one account.
        owners: row of each item in question.
        items: the items in question.
        fakes: e.

    Cost: about log2(e) comparisons of pairs x items.

    Example:
        >>> votes = np.array([[9.0, 5.0, 3.0]])
        >>> outsiders = np.array([[False, True, True]])
        >>> flat = np.ones(20)  # no damping
        >>> degrees = np.array([9, 5, 3])
        >>> first = np.array([0])
        >>> [int(above_by_accounts(votes, outsiders, degrees, flat, 1.0, first, first, e)[0])
        ...  for e in (3, 4, 5, 6, 7)]
        [0, 0, 1, 1, 2]
    """
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
            reached = (votes[mine] + largest * most) * raised
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


def above_by_groups(
    ballots: Counts, outsiders: npt.NDArray[np.bool_], item: int, fakes: int
) -> int:
    """How many outsiders can stand above one item of one user, when groups of accounts vote.

    Group g votes for the items ``ballots[g]``, at most N' of them; items are ranked by votes, ties
    to the lower id. A fake account is in one group, so at most e groups, S, are *corrupted*:
    whatever these vote, the others vote as before. This holds for accounts that are altered or
    removed, too, as long as the other accounts stay in their groups: groups go by label, or, where
    there are no labels, by id, and then a removed account must keep its place, with an empty row.
    With ``v_o`` the votes now, ``s_o`` those that come from S, and ``a_o`` the new
    ones, an outsider has ``v_o - s_o + a_o`` and the item i at least ``v_i - s_i``, where
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
        fakes: e.

    Returns:
        An upper bound of the number of outsiders above i; exact for e = 0.

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
    # The condition of c + 1 outsiders includes that of c: look for the last that is met.
    voted = (ballots == item).any(axis=1)
    while least < most:
        middle = (least + most + 1) // 2
        if _possible(ballots, voted, effective, cast, best, own, middle, fakes):
            least = middle
        else:
            most = middle - 1
    return most


def _possible(
    ballots: Counts,
    voted: npt.NDArray[np.bool_],
    effective: Counts,
    cast: Counts,
    best: Counts,
    own: int,
    wanted: int,
    fakes: int,
) -> bool:
    """The third condition for ``wanted`` outsiders, at several places of the chord."""
    room = np.minimum(fakes, cast)
    for hanger in _HANGERS:
        line = best[wanted - 1] - hanger * fakes
        over = np.maximum(0.0, effective - line)
        under = np.maximum(0.0, effective - room - line)
        slope = np.zeros(len(cast) + 1)  # the last place is for the padding, -1
        np.divide(over - under, room, out=slope[:-1], where=room > 0)
        added = min(ballots.shape[1], wanted) + wanted * voted - slope[ballots].sum(axis=1)
        gains = np.maximum(0.0, added)
        if fakes < len(gains):
            gains = np.partition(gains, len(gains) - fakes)[len(gains) - fakes :]
        # Rounding must not refute what is possible.
        if wanted * line + over.sum() + gains.sum() < wanted * own - 1e-6 * (1 + wanted * own):
            return False
    return True
