"""The threat of fake accounts: their number, targets, goal and knowledge."""

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
from robustcf._registry import DEFENCES
from robustcf.data.interactions import ITEM_GROUPS, Interactions, item_group
from robustcf.errors import InputError

ItemIds = npt.NDArray[np.int64]

GOALS = ("promote", "demote", "availability")
PROMOTE, DEMOTE, AVAILABILITY = GOALS
KNOWLEDGE = ("data", "part", "none")
DATA, PART, NONE = KNOWLEDGE
TARGET_KINDS = ITEM_GROUPS
#: The name of no defence.
UNDEFENDED = "none"


@dataclass(frozen=True)
class Targets:
    """The items that an attack is about: drawn by popularity, or named.

    Args:
        count: number of targets to draw.
        kind: the items that targets are drawn from, of those with training pairs: the ``rare``
            fifth, the ``middle`` one or the ``popular`` one.
        labels: labels of the target items (ids if the data has none), instead of drawn ones.

    Example:
        >>> from robustcf.data import load
        >>> len(Targets(count=3).choose(load("demo").train, seed=0))
        3
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
                got = shown(list(self.labels))
                raise InputError(f"target labels must be of different items, got {got}")
            return items
        there = np.flatnonzero(train.item_degrees)
        if self.count > len(there):
            raise InputError(
                f"{self.count:,} targets cannot be drawn from {len(there):,} items: ask for fewer"
            )
        band = item_group(train.item_degrees, self.kind, self.count)
        rng = stream(seed, "poisoning", "targets", self.kind)
        return np.sort(rng.choice(band, self.count, replace=False)).astype(np.int64)

    def words(self) -> str:
        """Describe them for reports."""
        if self.labels:
            return f"the items {', '.join(self.labels)}"
        return f"{self.count} {self.kind} item{'' if self.count == 1 else 's'}"


@dataclass(frozen=True)
class PoisonThreat:
    """Budget, goal and knowledge of an attacker with fake accounts.

    Args:
        fakes: an integer counts the accounts; a float is their share of the genuine users. 0
            means that there is no attack.
        length: maximum number of items of a profile; None for the mean of the genuine users.
        goal: ``promote``: recommend the targets; ``demote``: do not recommend them;
            ``availability``: make recommendations worse for all users.
        knowledge: ``data``: all training pairs; ``part``: the pairs of some users; ``none``: the
            popularity of the items alone.
        known: share of the users whose pairs are known, for ``part``.
        defence: the defence of the victim, for attackers who know it; or ``none``.

    Example:
        >>> from robustcf.data import load
        >>> PoisonThreat(fakes=0.01).granted(load("demo").train, seed=0)[0]
        20
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
    defence: str = UNDEFENDED

    def __post_init__(self) -> None:
        check_number("fakes", self.fakes)
        if not isinstance(self.fakes, int | np.integer):
            if self.fakes > 1:
                raise InputError(
                    f"fakes must be a share of at most 1 or an integer, got {self.fakes!r}"
                )
            object.__setattr__(self, "fakes", float(self.fakes))
        if self.length is not None:
            check_integer("the length of a profile", self.length)
        check_choice("goal", self.goal, GOALS)
        check_choice("knowledge", self.knowledge, KNOWLEDGE)
        if not 0 < check_number("known", self.known) <= 1:
            raise InputError(f"known must be a share above 0 and at most 1, got {self.known!r}")
        if self.defence != UNDEFENDED:
            DEFENCES[self.defence]

    def granted(self, train: Interactions, seed: int) -> tuple[int, int, ItemIds]:
        """Return the number of fake accounts, the most items of each, and the targets."""
        count = self.fakes
        if isinstance(count, float):
            # A positive share is at least one account.
            count = max(1, round(count * train.n_users)) if count else 0
        if count > train.n_users:
            raise InputError(
                f"fakes must be at most the {train.n_users:,} genuine users, got {count:,}"
            )
        warm = train.user_degrees[train.user_degrees > 0]
        length = self.length or max(1, round(float(warm.mean()) if len(warm) else 0.0))
        if length > train.n_items:
            raise InputError(
                f"a profile of {length:,} items is longer than the catalogue of {train.n_items:,}"
            )
        targets = self.targets.choose(train, seed)
        if self.goal == PROMOTE and len(targets) > length:
            raise InputError(
                f"{len(targets)} targets do not fit into a profile of {length}: ask for fewer "
                "targets or longer profiles"
            )
        if self.goal != PROMOTE and len(targets) == train.n_items:
            raise InputError(
                f"all {train.n_items} items are targets, but {self.goal} needs others for profiles"
            )
        return int(count), length, targets


@dataclass(frozen=True, eq=False)
class Knowledge:
    """The attacker's view of the training data.

    Example:
        >>> from robustcf.data import checkerboard
        >>> Knowledge.of(checkerboard().train, PoisonThreat(knowledge="none"), seed=0).sample
    """

    popularity: npt.NDArray[np.int64]  # known pairs per item
    sample: Interactions | None  # the known pairs, users renumbered; None without knowledge

    @classmethod
    def of(cls, train: Interactions, threat: PoisonThreat, seed: int) -> Knowledge:
        """Return the knowledge that a threat grants; the seed draws the known users."""
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
        """The size of the catalogue, which is public."""
        return len(self.popularity)

    def pairs(self, asker: str) -> Interactions:
        """Return the known pairs, or raise an error that names the attack."""
        if self.sample is None:
            raise InputError(f"{asker} needs pairs to learn from: use knowledge data or part")
        return self.sample


def invalid_profile(ids: npt.NDArray[Any], n_items: int) -> str | None:
    """Return the defect of a profile in words, or None."""
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        return f"{ids.dtype} of shape {ids.shape}"
    if len(ids) and not 0 <= ids.min() <= ids.max() < n_items:
        return f"items from {ids.min()} to {ids.max()}, outside of [0, {n_items})"
    return "an item twice in one profile" if len(np.unique(ids)) < len(ids) else None


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
            f"fakes must be a share such as 1% or a number such as 60, got {shown(text)}"
        )
    if not percent and word.isdecimal():
        return int(word)
    return PoisonThreat(fakes=number / 100 if percent else number).fakes


def fakes_name(fakes: float) -> str:
    """Return the number or share of fakes in words for file names.

    Example:
        >>> fakes_name(0.005), fakes_name(60)
        ('0.5%', '60')
    """
    return f"{100 * fakes:.10g}%" if isinstance(fakes, float) else str(fakes)


def _item_of(train: Interactions, label: str) -> int:
    if train.item_labels is None:
        # Python refuses thousands of digits; 01 is not a name of item 1.
        if label.isdecimal() and len(label) <= len(str(train.n_items)):
            number = int(label)
            if str(number) == label and number < train.n_items:
                return number
        last = train.n_items - 1
        raise InputError(
            f"the data has no labels: there is no item {shown(label)}, give ids from 0 to {last}"
        )
    names = train.item_labels.astype(str)
    found = np.flatnonzero(names == label)
    if len(found) == 0:
        close = difflib.get_close_matches(label, names[:10_000].tolist(), n=1)
        hint = f"did you mean {close[0]!r}?" if close else "look into the data for its name"
        raise InputError(f"there is no item {shown(label)}: {hint}")
    return int(found[0])
