"""PoisonThreat: how many fake users, how long, for or against which items, knowing what."""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from robustcf._checks import check_choice, check_integer, check_list, check_number
from robustcf._io.schema import shown
from robustcf._randomness import stream
from robustcf.data.interactions import Interactions
from robustcf.errors import InputError

ItemIds = npt.NDArray[np.int64]

PROMOTE, DEMOTE, AVAILABILITY = "promote", "demote", "availability"
GOALS = (PROMOTE, DEMOTE, AVAILABILITY)
DATA, PART, NONE = "data", "part", "none"
KNOWLEDGE = (DATA, PART, NONE)
TARGET_KINDS = ("rare", "middle", "popular")
# The least, the middle and the most popular fifth of the items that have pairs.
_BAND = 5


@dataclass(frozen=True)
class Targets:
    """Which items an attack is about: drawn by popularity, or named.

    Args:
        count: how many are drawn.
        kind: ``rare``, ``middle`` or ``popular``: drawn from the least popular, the middle or the
            most popular fifth of the items that have training pairs.
        labels: names of items instead; ids where the data has no labels. Count and kind then do
            not matter.

    Raises:
        InputError: count is no positive integer, the kind is unknown, or a label is given twice.

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
        """The ids of the targets, ascending; the same for the same seed.

        Raises:
            InputError: more targets than items that have pairs, an unknown label, or two of one
                item.
        """
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
        """What they are, for reports."""
        if self.labels:
            return f"the items {', '.join(self.labels)}"
        return f"{self.count} {self.kind} item{'' if self.count == 1 else 's'}"


@dataclass(frozen=True)
class PoisonThreat:
    """What somebody with fake accounts may do, wants and knows.

    Args:
        fakes: an integer counts the accounts; a float is their share of the genuine users. 0 is no
            attack.
        length: items of a profile at most; None for the mean of the genuine users.
        targets: the items that it is about.
        goal: ``promote``: the targets are to be shown; ``demote``: they are not to be shown;
            ``availability``: recommendations are to be worse for everybody.
        knowledge: ``data``: all training pairs; ``part``: the pairs of some users; ``none``: how
            popular the items are, and nothing else.
        known: for ``part``: the share of the users that is known.

    Raises:
        InputError: a number is out of its range, or a word unknown.

    Example:
        >>> PoisonThreat(fakes=0.01).budget(n_users=6000, n_items=3000, mean_length=132.2)
        (60, 132)
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

    def budget(self, n_users: int, n_items: int, mean_length: float) -> tuple[int, int]:
        """Fake accounts, and items of each at most, for data of this size.

        Raises:
            InputError: more fakes than users, or a profile longer than the catalogue.
        """
        if isinstance(self.fakes, float):
            # A share that is meant to be something is at least one account.
            count = max(1, round(self.fakes * n_users)) if self.fakes else 0
        else:
            count = int(self.fakes)
        if count > n_users:
            raise InputError(
                f"fakes must be at most as many as the {n_users:,} genuine users, got {count:,}"
            )
        length = max(1, round(mean_length)) if self.length is None else self.length
        if length > n_items:
            raise InputError(
                f"a profile of {length:,} items is longer than the catalogue of {n_items:,}: "
                "choose a smaller length"
            )
        return count, length

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "fakes": self.fakes,
            "length": self.length,
            "targets": {
                "count": self.targets.count,
                "kind": self.targets.kind,
                "labels": list(self.targets.labels),
            },
            "goal": self.goal,
            "knowledge": self.knowledge,
            **({"known": self.known} if self.knowledge == PART else {}),
        }


def parse_fakes(text: str) -> float:
    """``1%`` and ``0.01`` as a share (a float), ``60`` as a number of accounts (an integer).

    Raises:
        InputError: it is neither, negative or not finite.

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
    if percent:
        share = number / 100
    elif word.isdecimal():
        return int(word)
    else:
        share = number
    return PoisonThreat(fakes=float(share)).fakes


def fakes_name(fakes: float) -> str:
    """The number or share of fakes in words that a file name can hold.

    Example:
        >>> fakes_name(0.005), fakes_name(60)
        ('0.5%', '60')
    """
    return f"{100 * fakes:.10g}%" if isinstance(fakes, float) else str(fakes)


def _item_of(train: Interactions, label: str) -> int:
    labels = train.item_labels
    if labels is None:
        # Python converts no text of thousands of digits; one item has one name, not also 01.
        if label.isdecimal() and len(label) <= len(str(train.n_items)):
            number = int(label)
            if str(number) == label and number < train.n_items:
                return number
        raise InputError(
            f"there is no item {shown(label)}: the data has no labels, give ids from 0 to "
            f"{train.n_items - 1}"
        )
    names = labels.astype(str)
    found = np.flatnonzero(names == label)
    if len(found) == 0:
        close = difflib.get_close_matches(label, names[:10_000].tolist(), n=1)
        hint = f"did you mean {close[0]!r}?" if close else "look into the data for its name"
        raise InputError(f"there is no item {shown(label)} in the data: {hint}")
    return int(found[0])
