"""Seeded hold-outs and filters: which pairs go where, for all users at once or block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from robustcf._io.text import counted
from robustcf._randomness import stream
from robustcf.data.interactions import Ids, Interactions, described
from robustcf.data.split import Split
from robustcf.data.times import Blocks, Moment, TimeUnit, cut_at_ratio, moment_of, shown
from robustcf.errors import DataError

Strategy = Literal["random", "leave-one-out", "time"]
RATIO = 0.1

Mask = npt.NDArray[np.bool_]
Degrees = npt.NDArray[np.int64]
_EXAMPLES = 3  # labels that a note names


def hold_out(users: Ids, ratio: float, rng: np.random.Generator) -> Mask:
    """Choose a share of each user's pairs at random, of the users of sorted pairs.

    A user with n pairs gives ``round(ratio * n)`` of them, but at least one, and always keeps
    at least one: a user with a single pair gives none. (Halves are rounded up.) Called for one
    block of users after another with one generator, it chooses as called once for all.

    Cost: one sort of the pairs.

    Example:
        >>> mask = hold_out(np.repeat([0, 1], [10, 1]), 0.2, np.random.default_rng(0))
        >>> int(mask[:10].sum()), bool(mask[10])
        (2, False)
    """
    _check_ratio(ratio)
    starts, counts = _runs(users)
    wanted = np.maximum(np.floor(ratio * counts + 0.5).astype(np.int64), 1)
    wanted = np.minimum(wanted, counts - 1)
    # Pairs are sorted by user already, so shuffling within each user is one sort by a random
    # key in [user, user + 1]; a stable sort keeps even equal keys repeatable, and in their user.
    order = np.argsort(users + rng.random(len(users)), kind="stable")
    return _first_of_each_user(order, starts, counts, wanted)


def hold_out_last(users: Ids, times: Ids | None, rng: np.random.Generator) -> Mask:
    """Choose each user's latest pair (a random one where times are absent or tie).

    A user with a single pair keeps it. In blocks of users as :func:`hold_out`.
    """
    # ~t is -t - 1: descending in time without the overflow of -t.
    keys = (users,) if times is None else (~times, users)
    order = np.lexsort((rng.random(len(users)), *keys))
    starts, counts = _runs(users)
    return _first_of_each_user(order, starts, counts, np.minimum(counts - 1, 1))


def _check_ratio(ratio: float) -> None:
    if not 0.0 < ratio < 1.0:
        raise DataError(f"the held-out ratio must be between 0 and 1, got {ratio}")


def _runs(users: Ids) -> tuple[Degrees, Degrees]:
    """Return where each user's pairs begin in sorted pairs, and how many there are."""
    starts = np.flatnonzero(np.diff(users, prepend=-1)).astype(np.int64)
    return starts, np.diff(starts, append=len(users))


def _first_of_each_user(
    order: npt.NDArray[np.intp], starts: Degrees, counts: Degrees, wanted: Degrees
) -> Mask:
    rank_within_user = np.arange(len(order)) - np.repeat(starts, counts)
    mask = np.zeros(len(order), dtype=bool)
    mask[order] = rank_within_user < np.repeat(wanted, counts)
    return mask


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
    sources: Mapping[str, str] | None = None,
) -> Split:
    """Cut unsplit pairs into train, valid and test, user by user or at points in time.

    Args:
        name: name of the split.
        pairs: all interactions.
        seed: test and valid draw from streams of their own.
        strategy: ``random``: ``test_ratio`` of each user's pairs to test, then ``valid_ratio``
            of the rest to valid (at least one each, and at least one stays in train);
            ``leave-one-out``: the latest pair to test, the one before to valid;
            ``time``: the latest pairs of all to test, the latest of the rest to valid.
        test_ratio: this and all others: see :func:`robustcf.data.load`.

    Example:
        >>> times = np.arange(10)
        >>> x = Interactions(times // 5, times % 5, 2, 5, timestamps=times)
        >>> split_pairs("x", x, 0, strategy="time", test_ratio=0.3, valid_from=5)
        Split('x', 2 users x 5 items, train 5, valid 2, test 3)
    """
    how = HoldOut(strategy, seed, test_ratio, valid_ratio, test_from, valid_from)
    return how.split(name, pairs, notes, sources)


@dataclass
class HoldOut:
    """Choose the pairs of test and valid; the fields are arguments of :func:`split_pairs`."""

    strategy: Strategy
    seed: int
    test_ratio: float | None = None
    valid_ratio: float | None = None
    test_from: Moment | None = None
    valid_from: Moment | None = None
    unit: TimeUnit = "numbers"  # known when the times have been read

    def __post_init__(self) -> None:
        if self.strategy not in get_args(Strategy):
            known = ", ".join(get_args(Strategy))
            raise DataError(f"split must be one of {known}, got {self.strategy!r}")
        for part in ("test", "valid"):
            ratio, moment = getattr(self, f"{part}_ratio"), getattr(self, f"{part}_from")
            if ratio is not None:
                _check_ratio(ratio)
            if moment is not None and self.strategy != "time":
                raise DataError(f"{part}_from needs split='time', got split={self.strategy!r}")
            if moment is not None and ratio is not None:
                raise DataError(f"give {part}_ratio or {part}_from, not both")
        self._ratios = {"test": self.test_ratio or RATIO, "valid": self.valid_ratio or RATIO}
        self._streams = {part: stream(self.seed, "split", part) for part in ("test", "valid")}
        self._cuts: dict[str, int | None] = {}
        self._tied: int | None = None  # users with several latest pairs; None without times

    def look_at(self, times: Blocks | None) -> None:
        """Find the cuts in time, if that is the strategy; ``times`` gives all times in blocks."""
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
        given: Moment | None = getattr(self, f"{part}_from")
        if given is None:
            return cut_at_ratio(times, self._ratios[part])
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

    def parts(self, users: Ids, times: Ids | None) -> dict[str, Mask]:
        """Return which of sorted pairs, all of each user's, go to train, valid and test."""
        in_test = self._held("test", users, times)
        in_valid, rest = np.zeros_like(in_test), ~in_test
        in_valid[rest] = self._held("valid", users[rest], None if times is None else times[rest])
        return {"train": rest & ~in_valid, "valid": in_valid, "test": in_test}

    def _held(self, part: str, users: Ids, times: Ids | None) -> Mask:
        if self.strategy == "random":
            return hold_out(users, self._ratios[part], self._streams[part])
        if self.strategy == "leave-one-out":
            if part == "test" and times is not None:
                self._tied = (self._tied or 0) + _users_with_ties(users, times)
            return hold_out_last(users, times, self._streams[part])
        cut = self._cuts[part]
        if cut is None or times is None:
            return np.zeros(len(users), dtype=bool)
        return np.asarray(times >= cut)

    def carve_valid(self, train: Interactions) -> dict[str, Interactions]:
        """Return train without a random share of each user's pairs, and these as valid."""
        mask = hold_out(train.users, self._ratios["valid"], self._streams["valid"])
        return {"train": train.take(~mask), "valid": train.take(mask)}

    def notes(self, new: str, empty: Sequence[str]) -> tuple[str, ...]:
        """Return notes on the split, on who is ``new`` after the cut, and on ``empty`` parts."""
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
        masks = self.parts(pairs.users, times)
        parts: dict[str, Any] = {part: pairs.take(mask) for part, mask in masks.items()}
        missing = {
            kind: np.flatnonzero(
                (getattr(pairs, f"{kind}_degrees") > 0)
                & (getattr(parts["train"], f"{kind}_degrees") == 0)
            )
            for kind in ("user", "item")
        }
        labels = {"user": pairs.user_labels, "item": pairs.item_labels}

        def named(kind: str, ids: npt.NDArray[np.intp]) -> list[object]:
            own = labels[kind]
            found: list[object] = (ids if own is None else own[ids]).tolist()
            return found

        empty = [part for part in ("test", "valid") if not len(parts[part])]
        return Split(
            name,
            **parts,
            valid_source="carved" if len(parts["valid"]) else "none",
            notes=(*notes, *self.notes(new_in(missing, named), empty)),
            sources=sources or {},
        )


def new_in(
    missing: Mapping[str, npt.NDArray[np.intp]],
    labels: Callable[[str, npt.NDArray[np.intp]], list[object]],
) -> str:
    """Return how many users and items are missing, and the labels of some of them.

    Example:
        >>> new_in({"user": np.arange(5), "item": np.arange(0)}, lambda kind, ids: list("abc"))
        "5 users ('a', 'b', 'c', ...)"
    """
    told = []
    for kind, ids in missing.items():
        if len(ids):
            examples = [*map(repr, labels(kind, ids[:_EXAMPLES]))]
            more = ["..."] if len(ids) > _EXAMPLES else []
            told.append(f"{counted(len(ids), kind)} ({', '.join(examples + more)})")
    return " and ".join(told)


def _users_with_ties(users: Ids, times: Ids) -> int:
    starts, counts = _runs(users)
    if len(starts) == 0:
        return 0
    latest = np.repeat(np.maximum.reduceat(times, starts), counts)
    return int((np.add.reduceat((times == latest).astype(np.int64), starts) > 1).sum())


def core_degrees(
    blocks: Callable[[], Iterable[tuple[Ids, Ids]]], degrees: tuple[Degrees, Degrees], k: int
) -> tuple[Degrees, Degrees]:
    """Return the degrees of users and items in the k-core; 0 for those that fall out.

    Cost: one pass over the pairs (a call of ``blocks``) per round; tens at most on real data.
    """
    users, items = degrees
    while True:
        enough_users, enough_items = users >= k, items >= k
        if np.array_equal(enough_users, users > 0) and np.array_equal(enough_items, items > 0):
            if not users.any():
                before = told(*degrees)
                raise DataError(f"no pair is left in the {k}-core of {before}; choose a smaller k")
            return users, items
        users, items = np.zeros_like(users), np.zeros_like(items)
        for of_users, of_items in blocks():
            stay = enough_users[of_users] & enough_items[of_items]
            users += np.bincount(of_users[stay], minlength=len(users))
            items += np.bincount(of_items[stay], minlength=len(items))


def told(users: Degrees, items: Degrees) -> str:
    """Return how a set of pairs of these degrees is told."""
    return described(int(users.sum()), int((users > 0).sum()), int((items > 0).sum()))


def check_core(k: int | None) -> None:
    """Raise unless k is a least degree, or None."""
    if k is not None and k < 1:
        raise DataError(f"k-core needs k of at least 1, got {k}")


def k_core(pairs: Interactions, k: int) -> Interactions:
    """Return the largest subset in which every user and every item has at least k pairs.

    Users and items that fall out disappear from the ids; labels follow.

    Cost: see :func:`core_degrees`.

    Example:
        >>> x, _ = Interactions.from_pairs([0, 0, 1, 1, 2], [0, 1, 0, 1, 2], 3, 3)
        >>> k_core(x, 2)
        Interactions(4 pairs, 2 users x 2 items)
    """
    check_core(k)
    degrees = pairs.user_degrees, pairs.item_degrees
    users, items = core_degrees(lambda: [(pairs.users, pairs.items)], degrees, k)
    return compact(pairs.take((users > 0)[pairs.users] & (items > 0)[pairs.items]))


def compact(pairs: Interactions, *, items: bool = True) -> Interactions:
    """Renumber so that no user (and no item) is without a pair; order and labels are kept."""
    kept: dict[str, Any] = {}
    for kind, degrees in (("user", pairs.user_degrees), ("item", pairs.item_degrees)):
        used = degrees > 0 if items or kind == "user" else np.ones(pairs.n_items, dtype=bool)
        labels = getattr(pairs, f"{kind}_labels")
        kept[f"{kind}s"] = (np.cumsum(used) - 1)[getattr(pairs, f"{kind}s")]
        kept[f"n_{kind}s"] = int(used.sum())
        kept[f"{kind}_labels"] = None if labels is None else labels[used]
    return Interactions(**kept, timestamps=pairs.timestamps, weights=pairs.weights)
