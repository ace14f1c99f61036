"""Seeded hold-outs and filters: which pairs go where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from robustcf._io.text import counted
from robustcf._randomness import stream
from robustcf.data.interactions import Ids, Interactions, Labels
from robustcf.data.split import Split
from robustcf.data.times import Blocks, Moment, TimeUnit, cut_at_ratio, moment_of, shown
from robustcf.errors import DataError

Strategy = Literal["random", "leave-one-out", "time"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
RATIO = 0.1

Mask = npt.NDArray[np.bool_]

EXAMPLES = 3  # labels that a note names


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
    _check_ratio(ratio)
    starts, counts = _runs(users)
    wanted = np.maximum(np.floor(ratio * counts + 0.5).astype(np.int64), 1)
    wanted = np.minimum(wanted, counts - 1)
    # Pairs are sorted by user already, so shuffling within each user is one sort by a random
    # key in [user, user + 1]; a stable sort keeps even equal keys repeatable, and in their user.
    order = np.argsort(users + rng.random(len(users)), kind="stable")
    return _first_of_each_user(order, starts, counts, wanted)


def _check_ratio(ratio: float) -> None:
    if not 0.0 < ratio < 1.0:
        raise DataError(f"the held-out ratio must be between 0 and 1, got {ratio}")


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
    test_ratio: float | None = None,
    valid_ratio: float | None = None,
    test_from: Moment | None = None,
    valid_from: Moment | None = None,
    notes: tuple[str, ...] = (),
    sources: dict[str, str] | None = None,
) -> Split:
    """Cut unsplit pairs into train, valid and test, user by user or at points in time.

    Args:
        name: the name of the split.
        pairs: all interactions.
        seed: same seed, same split; test and valid draw from streams of their own.
        strategy: ``random``: ``test_ratio`` of each user's pairs to test, then ``valid_ratio``
            of the rest to valid (at least one each, and at least one stays in train);
            ``leave-one-out``: the latest pair to test, the one before to valid;
            ``time``: the latest pairs of all to test, the latest of the rest to valid.
        test_ratio: share for test, between 0 and 1; default 0.1.
        valid_ratio: share of the rest for valid, default 0.1.
        test_from: with ``time``, the first moment of test instead of a share: a number in the
            unit of the timestamps, a date, or ISO text (see :func:`robustcf.data.load`).
        valid_from: with ``time``, the first moment of valid.
        notes: sentences to hand on.
        sources: file name -> sha256 to hand on.

    Raises:
        DataError: an option is out of range, or the pairs cannot be cut in time.

    Example:
        >>> times = np.arange(10)
        >>> x = Interactions(times // 5, times % 5, 2, 5, timestamps=times)
        >>> split_pairs("x", x, 0, strategy="time", test_ratio=0.3, valid_from=5)
        Split('x', 2 users x 5 items, train 5, valid 2, test 3)
    """
    how = HoldOut(
        strategy, seed, test_ratio=test_ratio, valid_ratio=valid_ratio,
        test_from=test_from, valid_from=valid_from,
    )  # fmt: skip
    return how.split(name, pairs, notes, sources)


class HoldOut:
    """Choose the pairs of test and valid, for all users at once or block by block.

    Args:
        strategy: see :func:`split_pairs`, as for all others.
        seed: of what is drawn.
        test_ratio: share for test.
        valid_ratio: share of the rest for valid.
        test_from: first moment of test.
        valid_from: first moment of valid.
        unit: what the timestamps are.

    Raises:
        DataError: an option is out of range or does not go with the strategy.
    """

    def __init__(
        self,
        strategy: Strategy,
        seed: int,
        *,
        test_ratio: float | None = None,
        valid_ratio: float | None = None,
        test_from: Moment | None = None,
        valid_from: Moment | None = None,
        unit: TimeUnit = "numbers",
    ) -> None:
        if strategy not in STRATEGIES:
            raise DataError(f"split must be one of {', '.join(STRATEGIES)}, got {strategy!r}")
        self.strategy, self.unit = strategy, unit
        self._ratios = {"test": test_ratio, "valid": valid_ratio}
        self._moments = {"test": test_from, "valid": valid_from}
        for part, ratio in self._ratios.items():
            if ratio is not None:
                _check_ratio(ratio)
            if self._moments[part] is None:
                continue
            if strategy != "time":
                raise DataError(f"{part}_from needs split='time', got split={strategy!r}")
            if ratio is not None:
                raise DataError(f"give {part}_ratio or {part}_from, not both")
        self._streams = {part: stream(seed, "split", part) for part in ("test", "valid")}
        self._cuts: dict[str, int | None] = {}
        self._tied: int | None = None  # users with several latest pairs; None without times

    def look_at(self, times: Blocks | None) -> None:
        """Find the cuts in time, if that is the strategy.

        Args:
            times: gives all times in blocks, each time it is called; None without times.

        Raises:
            DataError: there are no times, or no pair is left for one of the parts.
        """
        if self.strategy != "time":
            return
        if times is None:
            raise DataError(
                "split='time' needs the time of each interaction, and there are no times; name the "
                "column with time_col (--time-col), or choose another split"
            )
        test = self._cuts["test"] = self._cut("test", times)
        if test is None:
            raise DataError(
                "split='time' needs interactions at two times at least, got one time for all; "
                "choose another split"
            )
        self._cuts["valid"] = self._cut("valid", lambda: (t[t < test] for t in times()))

    def _cut(self, part: str, times: Blocks) -> int | None:
        given, ratio = self._moments[part], self._ratios[part]
        if given is None:
            return cut_at_ratio(times, RATIO if ratio is None else ratio)
        ends = [end for t in times() if len(t) for end in (int(t.min()), int(t.max()))]
        first, last = min(ends, default=0), max(ends, default=0)
        cut = moment_of(f"{part}_from", given, self.unit, last)
        if not first < cut <= last:
            before = "" if part == "test" else " before the test interactions"
            raise DataError(
                f"{part}_from must lie within the times{before}, after {shown(first, self.unit)} "
                f"and until {shown(last, self.unit)}, got {given!r}"
                + ("" if str(cut) == str(given) else f" (as a time: {shown(cut, self.unit)})")
            )
        return cut

    def hold_out(self, part: str, users: Ids, times: Ids | None) -> Mask:
        """Return which pairs go to a part: of whole users, sorted; first test, then valid."""
        if self.strategy == "random":
            ratio = self._ratios[part]
            return hold_out_of(users, RATIO if ratio is None else ratio, self._streams[part])
        if self.strategy == "leave-one-out":
            if part == "test" and times is not None:
                self._tied = (self._tied or 0) + users_with_ties(users, times)
            return hold_out_last_of(users, times, self._streams[part])
        cut = self._cuts[part]
        if cut is None or times is None:
            return np.zeros(len(users), dtype=bool)
        return np.asarray(times >= cut)

    def notes(self, new: str, empty: Sequence[str]) -> tuple[str, ...]:
        """Return what is to be said of the split.

        Args:
            new: who is not in train, see :func:`named`; a note of a cut in time.
            empty: the parts without pairs.
        """
        why = "no user has enough pairs to give one away"
        notes = []
        if self.strategy == "time":
            why = "all interactions before test have one time"
            cuts = [(part, self._cuts[part]) for part in ("valid", "test")]
            told = (f"{part} from {shown(cut, self.unit)}" for part, cut in cuts if cut is not None)
            notes.append(f"cut in time: {', '.join(told)}")
            if new:
                notes.append(f"not in train, only after the cut: {new}")
        elif self.strategy == "leave-one-out" and self._tied is None:
            notes.append("leave-one-out without timestamps: the pairs held out are drawn at random")
        elif self._tied:
            notes.append(
                f"leave-one-out: {self._tied:,} users have several latest pairs; one is drawn at "
                "random"
            )
        return (*notes, *(f"{part} is empty: {why}" for part in empty))

    def split(
        self,
        name: str,
        pairs: Interactions,
        notes: tuple[str, ...] = (),
        sources: Mapping[str, str] | None = None,
    ) -> Split:
        """Return the split of all pairs at once; see :func:`split_pairs`."""
        times = pairs.timestamps
        self.look_at(None if times is None else lambda: [times])
        in_test = self.hold_out("test", pairs.users, times)
        rest = pairs.take(~in_test)
        in_valid = self.hold_out("valid", rest.users, rest.timestamps)
        train, valid, test = rest.take(~in_valid), rest.take(in_valid), pairs.take(in_test)
        empty = [part for part, held in (("test", test), ("valid", valid)) if not len(held)]
        return Split(
            name,
            train,
            valid,
            test,
            valid_source="carved" if len(valid) else "none",
            notes=(*notes, *self.notes(_new_in(pairs, train), empty)),
            sources=sources or {},
        )


def _new_in(pairs: Interactions, train: Interactions) -> str:
    """The users and items of all pairs that are not in train, in words."""
    new = []
    for kind in ("user", "item"):
        there, learnt = (getattr(part, f"{kind}_degrees") > 0 for part in (pairs, train))
        ids = np.flatnonzero(there & ~learnt)
        labels = getattr(pairs, f"{kind}_labels")
        few = ids[:EXAMPLES]
        new.append(named(len(ids), kind, (few if labels is None else labels[few]).tolist()))
    return " and ".join(filter(None, new))


def named(count: int, kind: str, examples: Sequence[object]) -> str:
    """Return how many there are and who some of them are; nothing for none.

    Example:
        >>> named(5, "user", ["ann", "bob"])
        "5 users ('ann', 'bob', ...)"
    """
    if not count:
        return ""
    more = ["..."] if count > len(examples) else []
    return f"{counted(count, kind)} ({', '.join([*map(repr, examples), *more])})"


def users_with_ties(users: Ids, times: Ids) -> int:
    """How many users have several latest pairs; the pairs sorted by user."""
    starts, counts = _runs(users)
    if len(starts) == 0:
        return 0
    latest = np.repeat(np.maximum.reduceat(times, starts), counts)
    return int((np.add.reduceat((times == latest).astype(np.int64), starts) > 1).sum())


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
