"""Seeded hold-outs and filters of pairs, for all users at once or block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from robustcf._io.text import counted
from robustcf._randomness import stream
from robustcf.data.columns import Columns
from robustcf.data.interactions import Ids, Interactions, sized
from robustcf.data.split import Split
from robustcf.data.times import Blocks, Moment, TimeUnit, cut_at_ratio, moment_of, shown
from robustcf.errors import DataError

Strategy = Literal["random", "leave-one-out", "time"]
_RATIO = 0.1

Mask = npt.NDArray[np.bool_]
Degrees = npt.NDArray[np.int64]
_EXAMPLES = 3  # labels that a note names


def hold_out(users: Ids, ratio: float, rng: np.random.Generator) -> Mask:
    """Choose a share of the pairs of each user at random; pairs are sorted by user.

    A user with n pairs gives ``round(ratio * n)`` of them (halves are rounded up), at least one,
    and keeps at least one. Calls for blocks of users with one generator choose as one call for all.

    Example:
        >>> mask = hold_out(np.repeat([0, 1], [10, 1]), 0.2, np.random.default_rng(0))
        >>> int(mask[:10].sum()), bool(mask[10])
        (2, False)
    """
    _check_ratio(ratio)
    starts, counts = _runs(users)
    wanted = np.maximum(np.floor(ratio * counts + 0.5).astype(np.int64), 1)
    # Sorting by a random key in [user, user + 1] shuffles within users; a stable sort keeps even
    # equal keys repeatable, and in their user.
    order = np.argsort(users + rng.random(len(users)), kind="stable")
    return _first_of_each_user(order, starts, counts, wanted)


def hold_out_last(users: Ids, times: Ids | None, rng: np.random.Generator) -> Mask:
    """Choose the latest pair of each user (a random one where times are absent or tie).

    A user with a single pair keeps it. Blocks of users as in :func:`hold_out`.
    """
    # ~t is -t - 1: descending in time without the overflow of -t.
    keys = (users,) if times is None else (~times, users)
    order = np.lexsort((rng.random(len(users)), *keys))
    starts, counts = _runs(users)
    return _first_of_each_user(order, starts, counts, np.ones_like(counts))


def _check_ratio(ratio: float) -> None:
    if not 0.0 < ratio < 1.0:
        raise DataError(f"the held-out ratio must be between 0 and 1, got {ratio}")


def _runs(users: Ids) -> tuple[Degrees, Degrees]:
    """Return the start and the number of each user's pairs, in sorted pairs."""
    starts = np.flatnonzero(np.diff(users, prepend=-1)).astype(np.int64)
    return starts, np.diff(starts, append=len(users))


def _first_of_each_user(
    order: npt.NDArray[np.intp], starts: Degrees, counts: Degrees, wanted: Degrees
) -> Mask:
    rank_within_user = np.arange(len(order)) - np.repeat(starts, counts)
    mask = np.zeros(len(order), dtype=bool)
    mask[order] = rank_within_user < np.repeat(np.minimum(wanted, counts - 1), counts)
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
    """Split pairs into train, valid and test, user by user or at points in time.

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
    plan = Plan(
        seed, split=strategy, test_ratio=test_ratio, valid_ratio=valid_ratio,
        test_from=test_from, valid_from=valid_from,
    )  # fmt: skip
    return plan.apply(name, pairs, notes, sources)


@dataclass
class Plan:
    """How rows become a split; the fields are arguments of :func:`robustcf.data.load`."""

    seed: int = 0
    user_col: str | int | None = None
    item_col: str | int | None = None
    rating_col: str | int | None = None
    time_col: str | int | None = None
    min_rating: float | None = None
    k_core: int | None = None
    split: Strategy | None = None
    test_ratio: float | None = None
    valid_ratio: float | None = None
    test_from: Moment | None = None
    valid_from: Moment | None = None

    unit: TimeUnit = field(default="numbers", init=False)  # set when the times have been read

    def __post_init__(self) -> None:
        _check_core(self.k_core)
        self._strategy = "random" if self.split is None else self.split
        if self._strategy not in get_args(Strategy):
            known = ", ".join(get_args(Strategy))
            raise DataError(f"split must be one of {known}, got {self._strategy!r}")
        for part in ("test", "valid"):
            ratio, moment = getattr(self, f"{part}_ratio"), getattr(self, f"{part}_from")
            if ratio is not None:
                _check_ratio(ratio)
            if moment is not None and self._strategy != "time":
                raise DataError(f"{part}_from needs split='time', got split={self._strategy!r}")
            if moment is not None and ratio is not None:
                raise DataError(f"give {part}_ratio or {part}_from, not both")
        self._ratios = {"test": self.test_ratio or _RATIO, "valid": self.valid_ratio or _RATIO}
        self._streams = {part: stream(self.seed, "split", part) for part in ("test", "valid")}
        self._cuts: dict[str, int | None] = {}
        self._tied: int | None = None  # users with several latest pairs; None without times

    @property
    def columns(self) -> Columns:
        """The columns to read."""
        given = (self.user_col, self.item_col, self.rating_col, self.time_col)
        return Columns(*(None if column is None else str(column) for column in given))

    def options(self, *names: str) -> dict[str, Any]:
        """Return some options by name."""
        return {name: getattr(self, name) for name in names}

    def look_at(self, times: Blocks | None) -> None:
        """Find the cuts of the strategy ``time``; ``times`` gives all times in blocks."""
        if self._strategy != "time":
            return
        if times is None:
            raise DataError(
                "split='time' needs the time of each interaction, got no times; name the column "
                "with time_col (--time-col), or choose another split"
            )
        test = self._cuts["test"] = self._cut("test", times)
        if test is None:
            raise DataError("split='time' needs at least two times, got one time; choose another")
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
        """Return the masks of train, valid and test, of all sorted pairs of some users."""
        in_test = self._held("test", users, times)
        in_valid, rest = np.zeros_like(in_test), ~in_test
        in_valid[rest] = self._held("valid", users[rest], None if times is None else times[rest])
        return {"train": rest & ~in_valid, "valid": in_valid, "test": in_test}

    def _held(self, part: str, users: Ids, times: Ids | None) -> Mask:
        if self._strategy == "random":
            return hold_out(users, self._ratios[part], self._streams[part])
        if self._strategy == "leave-one-out":
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
        """Return notes on the split, on ``new`` users and items, and on ``empty`` parts."""
        why = "no user has enough pairs to give one away"
        notes = []
        if self._strategy == "time":
            why = "all interactions before test have one time"
            cuts = [(part, self._cuts[part]) for part in ("valid", "test")]
            told = (f"{part} from {shown(cut, self.unit)}" for part, cut in cuts if cut is not None)
            notes.append(f"cut in time: {', '.join(told)}")
            if new:
                notes.append(f"not in train, only after the cut: {new}")
        elif self._strategy == "leave-one-out" and self._tied is None:
            notes.append("leave-one-out without timestamps: the pairs held out are drawn at random")
        elif self._tied:
            several = f"{self._tied:,} users have several latest pairs"
            notes.append(f"leave-one-out: {several}; one is drawn at random")
        return (*notes, *(f"{part} is empty: {why}" for part in empty))

    def apply(
        self, name: str, pairs: Interactions, notes: tuple[str, ...], sources: Any = None
    ) -> Split:
        """Return the split of all pairs at once; see :func:`split_pairs`."""
        times = pairs.timestamps
        self.look_at(None if times is None else lambda: [times])
        masks = self.parts(pairs.users, times)
        parts: dict[str, Any] = {part: pairs.take(mask) for part, mask in masks.items()}
        train = parts["train"]
        missing = {
            "user": np.flatnonzero((pairs.user_degrees > 0) & (train.user_degrees == 0)),
            "item": np.flatnonzero((pairs.item_degrees > 0) & (train.item_degrees == 0)),
        }

        def named(kind: str, ids: npt.NDArray[np.intp]) -> list[object]:
            labels = getattr(pairs, f"{kind}_labels")
            found: list[object] = (ids if labels is None else labels[ids]).tolist()
            return found

        empty = [part for part in ("test", "valid") if not len(parts[part])]
        return Split(
            name,
            **parts,
            valid_source="none" if "valid" in empty else "carved",
            notes=(*notes, *self.notes(new_in(missing, named), empty)),
            sources=sources or {},
        )


def new_in(
    missing: Mapping[str, npt.NDArray[np.intp]],
    labels: Callable[[str, npt.NDArray[np.intp]], list[object]],
) -> str:
    """Return the number of missing users and items, and the labels of some."""
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
    blocks: Callable[[], Iterable[tuple[Ids, ...]]], degrees: tuple[Degrees, Degrees], k: int
) -> tuple[Degrees, Degrees]:
    """Return the degrees of users and items in the k-core; 0 for those outside of it.

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
    """Return the short description of a set of pairs of these degrees."""
    return sized(int(users.sum()), int((users > 0).sum()), int((items > 0).sum()))


def _check_core(k: int | None) -> None:
    if k is not None and k < 1:
        raise DataError(f"k-core needs k of at least 1, got {k}")


def k_core(pairs: Interactions, k: int) -> Interactions:
    """Return the largest subset in which every user and every item has at least k pairs.

    All other users and items disappear from ids and labels. Cost: see :func:`core_degrees`.

    Example:
        >>> x, _ = Interactions.from_pairs([0, 0, 1, 1, 2], [0, 1, 0, 1, 2], 3, 3)
        >>> k_core(x, 2)
        Interactions(4 pairs, 2 users x 2 items)
    """
    _check_core(k)
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
