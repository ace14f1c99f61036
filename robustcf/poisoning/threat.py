"""What an attacker with fake accounts may do, wants and knows."""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from robustcf._checks import check_choice, check_integer, check_list, check_number
from robustcf._io.schema import shown
from robustcf._randomness import stream
from robustcf.data.interactions import Interactions
from robustcf.errors import InputError

ItemIds = npt.NDArray[np.int64]

GOALS = ("promote", "demote", "availability")
PROMOTE, DEMOTE, AVAILABILITY = GOALS
KNOWLEDGE = ("data", "part", "none")
DATA, PART, NONE = KNOWLEDGE
TARGET_KINDS = ("rare", "middle", "popular")
# The least, the middle and the most popular fifth of the items that have pairs.
_BAND = 5


@dataclass(frozen=True)
class Targets:
    """The items that an attack is about: drawn by popularity, or named.

    Args:
        count: how many targets are drawn.
        kind: ``rare``, ``middle`` or ``popular``: the fifth of the items with training pairs that
            they are drawn from.
        labels: names of items instead (ids where the data has no labels); count and kind then do
            not matter.

    Example:
        >>> from robustcf.data import load
        >>> train = load("demo").train
        >>> rare = Targets(count=3).choose(train, seed=0)
        >>> len(rare), bool(train.item_degrees[rare].max() < train.item_degrees.mean())
        (3, True)
    """

    count: int = 5
    kind: str = "rare"
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_integer("the number of targets", self.count)
        check_choice("the kind of targets", self.kind, TARGET_KINDS)
        labels = tuple(str(label) for label in check_list("target labels", self.labels))
        object.__setattr__(self, "labels", labels)
        if len(set(labels)) != len(labels):
            raise InputError(f"target labels must differ, got {list(labels)}")

    def choose(self, train: Interactions, seed: int) -> ItemIds:
        """Return the ids of the targets, ascending; the same for the same seed."""
        if self.labels:
            items = np.sort(np.array([_item_of(train, label) for label in self.labels]))
            if np.any(items[1:] == items[:-1]):
                raise InputError(
                    f"target labels must be of different items, got {shown(list(self.labels))}: "
                    "name each once"
                )
            return items
        there = np.flatnonzero(train.item_degrees)
        if self.count > len(there):
            raise InputError(
                f"{self.count:,} targets cannot be drawn from {len(there):,} items with pairs: "
                "ask for fewer"
            )
        ranked = there[np.argsort(train.item_degrees[there], kind="stable")]
        # A band may be smaller than what is asked for: then as many of the nearest.
        size = max(self.count, len(ranked) // _BAND)
        begin = {"rare": 0, "middle": (len(ranked) - size) // 2, "popular": len(ranked) - size}
        band = ranked[begin[self.kind] : begin[self.kind] + size]
        rng = stream(seed, "poisoning", "targets", self.kind)
        return np.sort(rng.choice(band, self.count, replace=False)).astype(np.int64)

    def words(self) -> str:
        """Describe them for reports."""
        if self.labels:
            return f"the items {', '.join(self.labels)}"
        return f"{self.count} {self.kind} item{'' if self.count == 1 else 's'}"


@dataclass(frozen=True)
class PoisonThreat:
    """What an attacker with fake accounts may do, wants and knows.

    Args:
        fakes: an integer counts the accounts; a float is their share of the genuine users. 0 is no
            attack.
        length: items of a profile at most; None for the mean of the genuine users.
        targets: the items that it is about.
        goal: ``promote``: the targets are to be recommended; ``demote``: they are not to be;
            ``availability``: recommendations are to be worse for everybody.
        knowledge: ``data``: all training pairs; ``part``: the pairs of some users; ``none``: the
            popularity of the items alone.
        known: share of the users that is known, for ``part``.

    Example:
        >>> from robustcf.data import load
        >>> fakes, length, targets = PoisonThreat(fakes=0.01).granted(load("demo").train, seed=0)
        >>> fakes, len(targets)
        (20, 5)
        >>> PoisonThreat(fakes=-1)
        Traceback (most recent call last):
        robustcf.errors.InputError: fakes must be a finite number and not negative, got -1
    """

    fakes: float = 0.01
    length: int | None = None
    targets: Targets = field(default_factory=Targets)
    goal: str = PROMOTE
    knowledge: str = DATA
    known: float = 0.2

    def __post_init__(self) -> None:
        check_number("fakes", self.fakes)
        if not isinstance(self.fakes, int | np.integer):
            if self.fakes > 1:
                raise InputError(
                    f"fakes must be a share of at most 1 or a whole number, got {self.fakes!r}: "
                    "give an integer to count accounts"
                )
            object.__setattr__(self, "fakes", float(self.fakes))
        if self.length is not None:
            check_integer("the length of a profile", self.length)
        check_choice("goal", self.goal, GOALS)
        check_choice("knowledge", self.knowledge, KNOWLEDGE)
        if not 0 < check_number("known", self.known) <= 1:
            raise InputError(f"known must be a share above 0 and at most 1, got {self.known!r}")

    def granted(self, train: Interactions, seed: int) -> tuple[int, int, ItemIds]:
        """Return the fake accounts, the items of each at most, and the targets, for these pairs."""
        count = self.fakes
        if isinstance(count, float):
            # A share that is not 0 is at least one account.
            count = max(1, round(count * train.n_users)) if count else 0
        if count > train.n_users:
            raise InputError(
                f"fakes must be at most as many as the {train.n_users:,} genuine users, got "
                f"{count:,}"
            )
        warm = train.user_degrees[train.user_degrees > 0]
        length = self.length or max(1, round(float(warm.mean()) if len(warm) else 0.0))
        if length > train.n_items:
            raise InputError(
                f"a profile of {length:,} items is longer than the catalogue of "
                f"{train.n_items:,}: choose a smaller length"
            )
        targets = self.targets.choose(train, seed)
        if self.goal == PROMOTE and len(targets) > length:
            raise InputError(
                f"{len(targets)} targets do not fit into a profile of {length}: ask for fewer "
                "targets or longer profiles"
            )
        if self.goal != PROMOTE and len(targets) == train.n_items:
            raise InputError(
                f"all {train.n_items} items are targets, and for the goal {self.goal!r} profiles "
                "need others: ask for fewer targets"
            )
        return int(count), length, targets


@dataclass(frozen=True, eq=False)
class Knowledge:
    """The attacker's view of the training data; an attack sees nothing else of them.

    Args:
        popularity: known pairs of each item.
        sample: the known pairs, users numbered anew; None where none are known.

    Example:
        >>> from robustcf.data import checkerboard
        >>> train = checkerboard().train
        >>> known = Knowledge.of(train, PoisonThreat(knowledge="none"), seed=0)
        >>> known.sample is None, int(known.popularity.sum()) == len(train)
        (True, True)
    """

    popularity: npt.NDArray[np.int64]
    sample: Interactions | None

    @classmethod
    def of(cls, train: Interactions, threat: PoisonThreat, seed: int) -> Knowledge:
        """Return what the threat grants of these pairs; the seed draws the known users."""
        if threat.knowledge != PART:
            return cls(train.item_degrees, train if threat.knowledge == DATA else None)
        rng = stream(seed, "poisoning", "known")
        warm = np.flatnonzero(train.user_degrees)
        count = max(1, round(threat.known * len(warm)))
        users = np.sort(rng.choice(warm, count, replace=False))
        number = np.full(train.n_users, -1, dtype=np.int64)
        number[users] = np.arange(count)
        mine = number[train.users] >= 0
        sample = Interactions(number[train.users[mine]], train.items[mine], count, train.n_items)
        return cls(sample.item_degrees, sample)

    @property
    def n_items(self) -> int:
        """The size of the catalogue, which everybody can see."""
        return len(self.popularity)

    def pairs(self, asker: str) -> Interactions:
        """Return the known pairs, or raise an error that says who needs them."""
        if self.sample is None:
            raise InputError(
                f"{asker} needs pairs to learn from and knows none: grant it the knowledge data or "
                "part"
            )
        return self.sample


def parse_fakes(text: str) -> float:
    """Read ``1%`` and ``0.01`` as a share (a float), ``60`` as a number of accounts (an integer).

    Example:
        >>> parse_fakes("0.5%"), parse_fakes("60"), parse_fakes("0")
        (0.005, 60, 0)
    """
    word, percent = text.strip().removesuffix("%"), text.strip().endswith("%")
    try:
        number = float(word)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or number < 0:
        raise InputError(
            f"fakes must be a share such as 1% or a number such as 60, not negative, got "
            f"{shown(text)}"
        )
    if not percent and word.isdecimal():
        return int(word)
    return PoisonThreat(fakes=number / 100 if percent else number).fakes


def fakes_name(fakes: float) -> str:
    """Return the number or share of fakes in words that a file name can hold.

    Example:
        >>> fakes_name(0.005), fakes_name(60)
        ('0.5%', '60')
    """
    return f"{100 * fakes:.10g}%" if isinstance(fakes, float) else str(fakes)


def _item_of(train: Interactions, label: str) -> int:
    if train.item_labels is None:
        # Python converts no text of thousands of digits; one item has one name, not also 01.
        if label.isdecimal() and len(label) <= len(str(train.n_items)):
            number = int(label)
            if str(number) == label and number < train.n_items:
                return number
        raise InputError(
            f"there is no item {shown(label)}: the data has no labels, give ids from 0 to "
            f"{train.n_items - 1}"
        )
    names = train.item_labels.astype(str)
    found = np.flatnonzero(names == label)
    if len(found) == 0:
        close = difflib.get_close_matches(label, names[:10_000].tolist(), n=1)
        hint = f"did you mean {close[0]!r}?" if close else "look into the data for its name"
        raise InputError(f"there is no item {shown(label)} in the data: {hint}")
    return int(found[0])
