"""The Poisoning contract: a subclass proposes profiles; the base checks them against the threat."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from robustcf._randomness import stream
from robustcf.data.interactions import Interactions
from robustcf.errors import InputError, RobustcfError
from robustcf.poisoning.threat import GOALS, PROMOTE, ItemIds, Knowledge, PoisonThreat


class ProfileError(RobustcfError, RuntimeError):
    """Profiles beyond what the threat allows: a defect of the attack, never of the input."""


@dataclass(frozen=True, eq=False)
class Task:
    """What a subclass is to do, by what it knows of the data; all randomness is from ``rng``."""

    fakes: int  # profiles at most
    length: int  # items of a profile at most
    targets: ItemIds  # ascending
    goal: str
    known: Knowledge
    rng: np.random.Generator

    @property
    def forced(self) -> ItemIds:
        """Items that every profile has: the targets where they are to be promoted."""
        return self.targets if self.goal == PROMOTE else self.targets[:0]

    def profile(self, fillers: Sequence[int] | ItemIds) -> ItemIds:
        """Return the forced items and the first fillers that fit, targets not among them."""
        order = np.asarray(fillers, dtype=np.int64)
        order = order[np.sort(np.unique(order, return_index=True)[1])]
        order = order[~np.isin(order, self.targets)]
        return np.sort(np.concatenate((self.forced, order[: self.length - len(self.forced)])))


@dataclass(frozen=True, eq=False)
class Injected:
    """Profiles of fake users and their cost.

    Args:
        attack: the name of the attack.
        profiles: the items of each fake user, ascending.
        targets: ids of the targets.
        allowed: ``fakes`` and ``length`` -> what the threat allows.
        realised: what was spent, see :func:`spent`.
    """

    attack: str
    profiles: tuple[ItemIds, ...]
    targets: ItemIds
    allowed: dict[str, int]
    realised: dict[str, int]


class Poisoning(ABC):
    """A way to choose the profiles of fake users.

    A subclass defines :meth:`propose`. It gets the knowledge that the threat grants and not the
    training data. It may propose fewer and shorter profiles than allowed, never more or longer.
    """

    name: ClassVar[str] = ""
    #: What it can be asked for.
    goals: ClassVar[tuple[str, ...]] = GOALS
    #: Whether it learns from pairs, and so cannot do with popularity alone.
    needs_pairs: ClassVar[bool] = False

    @abstractmethod
    def propose(self, task: Task) -> Iterable[Any]:
        """Return for each fake user the ids of its items, each once, in any order."""

    def attack(self, train: Interactions, threat: PoisonThreat, seed: int = 0) -> Injected:
        """Return profiles that keep to a threat; the seed draws targets and known users too.

        Raises:
            InputError: the threat does not fit the data, or the attack does not have this goal.
            ProfileError: the attack proposes more than it may.
        """
        called = self.name or type(self).__name__
        if threat.goal not in self.goals:
            raise InputError(
                f"{called} has the goals {', '.join(self.goals)}, not {threat.goal!r}: take "
                "another attack"
            )
        # What is refused must not depend on the number of fakes.
        fakes, length, targets = threat.granted(train, seed)
        profiles: list[ItemIds] = []
        if fakes:
            known = Knowledge.of(train, threat, seed)
            rng = stream(seed, "poisoning", called)
            for entry in self.propose(Task(fakes, length, targets, threat.goal, known, rng)):
                ids = np.asarray(entry)
                wrong = _wrong(ids, length, train.n_items)
                if len(profiles) == fakes:
                    wrong = f"more than the {fakes} fake users that it may have"
                if wrong is not None:
                    raise ProfileError(f"{called} proposed {wrong}: a bug, report it")
                profiles.append(np.sort(ids.astype(np.int64)))
        allowed = {"fakes": fakes, "length": length}
        return Injected(called, tuple(profiles), targets, allowed, spent(profiles))


def _wrong(ids: Any, length: int, n_items: int) -> str | None:
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or len(ids) == 0:
        return f"{ids.dtype} of shape {ids.shape}, expected lists of item ids, at least one each"
    if len(ids) > length:
        return f"a profile of {len(ids)} items and may have {length}"
    if ids.min() < 0 or ids.max() >= n_items:
        return f"items from {ids.min()} to {ids.max()}, expected ids in [0, {n_items})"
    return "an item twice in one profile" if len(np.unique(ids)) < len(ids) else None


def spent(profiles: Sequence[ItemIds]) -> dict[str, int]:
    """Return what profiles cost: how many, the longest, and all their pairs.

    Example:
        >>> spent([np.array([1, 2]), np.array([3])])
        {'fakes': 2, 'length': 2, 'pairs': 3}
    """
    lengths = [len(profile) for profile in profiles]
    return {"fakes": len(lengths), "length": max(lengths, default=0), "pairs": sum(lengths)}
