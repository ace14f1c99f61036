"""Seeded hold-outs and filters: which pairs go where."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from robustcf.data.interactions import Ids, Interactions, Labels
from robustcf.data.split import Split
from robustcf.errors import DataError
from robustcf.support.randomness import stream

Strategy = Literal["random", "leave-one-out"]
STRATEGIES: tuple[Strategy, ...] = ("random", "leave-one-out")

Mask = npt.NDArray[np.bool_]

NO_TIMES = "leave-one-out without timestamps: the pairs held out are drawn at random"
EMPTY_PART = "is empty: no user has enough pairs to give one away"


def hold_out(pairs: Interactions, ratio: float, rng: np.random.Generator) -> Mask:
    """Choose a share of each user's pairs at random.

    A user with n pairs gives ``round(ratio * n)`` of them, but at least one, and always keeps
    at least one: a user with a single pair gives none. (Halves are rounded up.)

    Returns:
        A mask over the pairs, True where held out.

    Cost: one sort of the pairs.

    Example:
        >>> import numpy as np
        >>> x, _ = Interactions.from_pairs(np.repeat([0, 1], [10, 1]), range(11), 2, 11)
        >>> mask = hold_out(x, 0.2, np.random.default_rng(0))
        >>> int(mask[:10].sum()), bool(mask[10])
        (2, False)
    """
    return hold_out_of(pairs.users, ratio, rng)


def hold_out_of(users: Ids, ratio: float, rng: np.random.Generator) -> Mask:
    """:func:`hold_out` of the users of sorted pairs, all of each user's.

    Called for one block of users after another, with one generator, it chooses the same pairs as
    called once for all: each pair has its number of the stream, and is held against those of its
    own user alone.
    """
    if not 0.0 < ratio < 1.0:
        raise DataError(f"the held-out ratio must be between 0 and 1, got {ratio}")
    starts, counts = _runs(users)
    wanted = np.maximum(np.floor(ratio * counts + 0.5).astype(np.int64), 1)
    wanted = np.minimum(wanted, counts - 1)
    # Pairs are sorted by user already, so shuffling within each user is one sort by a random
    # key in [user, user + 1]; a stable sort keeps even equal keys repeatable, and in their user.
    order = np.argsort(users + rng.random(len(users)), kind="stable")
    return _first_of_each_user(order, starts, counts, wanted)


def hold_out_last(pairs: Interactions, rng: np.random.Generator) -> Mask:
    """Choose each user's latest pair (a random one where timestamps are absent or tie).

    A user with a single pair keeps it.
    """
    return hold_out_last_of(pairs.users, pairs.timestamps, rng)


def hold_out_last_of(users: Ids, times: Ids | None, rng: np.random.Generator) -> Mask:
    """:func:`hold_out_last` of sorted pairs; in blocks of users as :func:`hold_out_of`."""
    tie_break = rng.random(len(users))
    if times is None:
        order = np.lexsort((tie_break, users))
    else:
        # ~t is -t - 1: descending in time without the overflow of -t.
        order = np.lexsort((tie_break, ~times, users))
    starts, counts = _runs(users)
    return _first_of_each_user(order, starts, counts, np.minimum(counts - 1, 1))


def _runs(users: Ids) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Where each user's pairs begin in sorted pairs, and how many there are."""
    starts = np.flatnonzero(np.diff(users, prepend=-1)).astype(np.int64)
    return starts, np.diff(starts, append=len(users))


def _first_of_each_user(
    order: npt.NDArray[np.intp],
    starts: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int64],
    wanted: npt.NDArray[np.int64],
) -> Mask:
    rank_within_user = np.arange(len(order)) - np.repeat(starts, counts)
    mask = np.zeros(len(order), dtype=bool)
    mask[order] = rank_within_user < np.repeat(wanted, counts)
    return mask


def carve_valid(
    train: Interactions, seed: int, ratio: float = 0.1
) -> tuple[Interactions, Interactions]:
    """Take a validation part out of train: ``(what stays, valid)``; see :func:`hold_out`."""
    mask = hold_out(train, ratio, stream(seed, "split", "valid"))
    return train.take(~mask), train.take(mask)


def split_pairs(
    name: str,
    pairs: Interactions,
    seed: int,
    *,
    strategy: Strategy = "random",
    test_ratio: float = 0.1,
    valid_ratio: float = 0.1,
    notes: tuple[str, ...] = (),
    sources: dict[str, str] | None = None,
) -> Split:
    """Cut unsplit pairs into train, valid and test, user by user.

    Args:
        name: the name of the split.
        pairs: all interactions.
        seed: same seed, same split; test and valid draw from streams of their own.
        strategy: ``random``: ``test_ratio`` of each user's pairs to test, then ``valid_ratio``
            of the rest to valid (at least one each, and at least one stays in train);
            ``leave-one-out``: the latest pair to test, the one before to valid.
        test_ratio: share for test, between 0 and 1.
        valid_ratio: share of what is left for valid.
        notes: sentences to hand on.
        sources: file name -> sha256 to hand on.
    """
    if strategy not in STRATEGIES:
        raise DataError(f"split must be one of {', '.join(STRATEGIES)}, got {strategy!r}")
    test_rng, valid_rng = stream(seed, "split", "test"), stream(seed, "split", "valid")
    by_ratio = strategy == "random"
    notes = notes if by_ratio else (*notes, *_about_times(pairs))
    in_test = hold_out(pairs, test_ratio, test_rng) if by_ratio else hold_out_last(pairs, test_rng)
    rest = pairs.take(~in_test)
    in_valid = (
        hold_out(rest, valid_ratio, valid_rng) if by_ratio else hold_out_last(rest, valid_rng)
    )
    for part, mask in (("test", in_test), ("valid", in_valid)):
        if not mask.any():
            notes = (*notes, f"{part} {EMPTY_PART}")
    return Split(
        name,
        train=rest.take(~in_valid),
        valid=rest.take(in_valid),
        test=pairs.take(in_test),
        valid_source="carved" if in_valid.any() else "none",
        notes=notes,
        sources=sources or {},
    )


def _about_times(pairs: Interactions) -> tuple[str, ...]:
    """What must be said where "the latest" is not what the data tell."""
    if pairs.timestamps is None:
        return (NO_TIMES,)
    return about_ties(users_with_ties(pairs.users, pairs.timestamps))


def users_with_ties(users: Ids, times: Ids) -> int:
    """How many users have several latest pairs; the pairs sorted by user."""
    starts, counts = _runs(users)
    if len(starts) == 0:
        return 0
    latest = np.repeat(np.maximum.reduceat(times, starts), counts)
    return int((np.add.reduceat((times == latest).astype(np.int64), starts) > 1).sum())


def about_ties(tied: int) -> tuple[str, ...]:
    """What must be said where so many users have several latest pairs."""
    if tied:
        return (f"leave-one-out: {tied:,} users have several latest pairs; one is drawn at random",)
    return ()


def k_core(pairs: Interactions, k: int) -> Interactions:
    """The largest subset in which every user and every item has at least k pairs.

    Users and items that fall out disappear from the ids; labels follow.

    Cost: one pass over the pairs a round; rounds are few (tens at most on real data).

    Example:
        >>> x, _ = Interactions.from_pairs([0, 0, 1, 1, 2], [0, 1, 0, 1, 2], 3, 3)
        >>> k_core(x, 2)
        Interactions(4 pairs, 2 users x 2 items)
    """
    if k < 1:
        raise DataError(f"k-core needs k of at least 1, got {k}")
    kept = np.arange(len(pairs))
    while True:
        users, items = pairs.users[kept], pairs.items[kept]
        enough = (np.bincount(users, minlength=pairs.n_users)[users] >= k) & (
            np.bincount(items, minlength=pairs.n_items)[items] >= k
        )
        if enough.all():
            break
        kept = kept[enough]
    if len(kept) == 0:
        raise DataError(f"no pair is left in the {k}-core of {pairs!r}; choose a smaller k")
    return compact(pairs.take(kept))


def at_least(pairs: Interactions, least: int) -> Interactions:
    """The pairs of users with at least ``least`` of them; ids are renumbered, items kept."""
    chosen = pairs.take(pairs.user_degrees[pairs.users] >= least)
    return compact(chosen, items=False)


def compact(pairs: Interactions, *, items: bool = True) -> Interactions:
    """Renumber so that no user (and no item) is without a pair; order and labels are kept."""
    users_used = np.flatnonzero(pairs.user_degrees)
    items_used = np.flatnonzero(pairs.item_degrees) if items else np.arange(pairs.n_items)
    new_user = np.zeros(pairs.n_users, dtype=np.int32)
    new_user[users_used] = np.arange(len(users_used))
    new_item = np.zeros(pairs.n_items, dtype=np.int32)
    new_item[items_used] = np.arange(len(items_used))

    def kept(labels: Labels | None, used: npt.NDArray[np.intp]) -> Labels | None:
        return None if labels is None else labels[used]

    return Interactions(
        new_user[pairs.users],
        new_item[pairs.items],
        len(users_used),
        len(items_used),
        user_labels=kept(pairs.user_labels, users_used),
        item_labels=kept(pairs.item_labels, items_used),
        timestamps=pairs.timestamps,
        weights=pairs.weights,
    )
