"""The Poisoning contract: a subclass proposes profiles; the base checks and reports the budget."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from robustcf._randomness import stream
from robustcf.data.interactions import Interactions
from robustcf.errors import InputError, RobustcfError
from robustcf.poisoning.knowledge import Knowledge
from robustcf.poisoning.threat import GOALS, PROMOTE, ItemIds, PoisonThreat


class ProfileError(RobustcfError, RuntimeError):
    """Profiles go beyond their budget: a defect of the attack, never of the input."""


@dataclass(frozen=True, eq=False)
class Task:
    """What a subclass is to do.

    Args:
        fakes: profiles at most.
        length: items of a profile at most.
        targets: ids of the targets, ascending.
        goal: ``promote``, ``demote`` or ``availability``.
        known: what is known of the data.
        rng: for everything random.
    """

    fakes: int
    length: int
    targets: ItemIds
    goal: str
    known: Knowledge
    rng: np.random.Generator

    @property
    def forced(self) -> ItemIds:
        """Items that every profile has: the targets where they are to be promoted."""
        return self.targets if self.goal == PROMOTE else self.targets[:0]

    def profile(self, fillers: Sequence[int] | ItemIds) -> ItemIds:
        """The forced items, then the first of the fillers that fit; never a target as a filler."""
        order = np.asarray(fillers, dtype=np.int64)
        order = order[np.sort(np.unique(order, return_index=True)[1])]
        order = order[~np.isin(order, self.targets)]
        return np.sort(np.concatenate((self.forced, order[: self.length - len(self.forced)])))


@dataclass(frozen=True, eq=False)
class Injected:
    """Profiles of fake users and what was really spent on them.

    Args:
        attack: the name of what made them.
        profiles: the items of each fake user, ascending.
        targets: ids of the targets.
        allowed: ``fakes`` and ``length`` -> the budget.
        realised: ``fakes``, ``length`` (the longest profile) and ``pairs`` -> what was spent.
    """

    attack: str
    profiles: tuple[ItemIds, ...]
    targets: ItemIds
    allowed: dict[str, int]
    realised: dict[str, int]


class Poisoning(ABC):
    """A way to choose the profiles of fake users within a budget.

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
        """Profiles: for each fake user the ids of its items, each once, in any order."""

    def attack(self, train: Interactions, threat: PoisonThreat, seed: int = 0) -> Injected:
        """Profiles for a threat, checked against its budget.

        Args:
            train: the training pairs of the genuine users.
            threat: what is allowed, wanted and known.
            seed: of the targets, of what is known, and of everything random in the attack.

        Raises:
            InputError: the threat does not fit the data, or the attack has not this goal.
            ProfileError: the attack proposes something beyond its budget.
        """
        if threat.goal not in self.goals:
            raise InputError(
                f"{self._called} has the goals {', '.join(self.goals)}, not {threat.goal!r}: take "
                "another attack"
            )
        # What is refused must not depend on the number of fakes.
        fakes, length, targets = granted(train, threat, seed)
        allowed = {"fakes": fakes, "length": length}
        profiles: tuple[ItemIds, ...] = ()
        if fakes:
            known = Knowledge.of(train, threat, seed)
            rng = stream(seed, "poisoning", self._called)
            task = Task(fakes, length, targets, threat.goal, known, rng)
            profiles = self._checked(self.propose(task), fakes, length, train.n_items)
        return Injected(self._called, profiles, targets, allowed, spent(profiles))

    @property
    def _called(self) -> str:
        return self.name or type(self).__name__

    def _checked(
        self, proposed: Iterable[Any], fakes: int, length: int, n_items: int
    ) -> tuple[ItemIds, ...]:
        """The profiles as sorted ids, or an error: no attack gets more than its budget."""
        profiles: list[ItemIds] = []
        for entry in proposed:
            if len(profiles) == fakes:
                raise ProfileError(
                    f"{self._called} proposed more than the {fakes} fake users that it may have: a "
                    "bug, report it"
                )
            ids = np.asarray(entry)
            if ids.ndim != 1 or ids.dtype.kind not in "iu" or len(ids) == 0:
                raise ProfileError(
                    f"{self._called} must propose lists of item ids, at least one each, got "
                    f"{ids.dtype} of shape {ids.shape}: a bug, report it"
                )
            ids = np.sort(ids.astype(np.int64))
            if len(ids) > length:
                raise ProfileError(
                    f"{self._called} proposed a profile of {len(ids)} items and may have {length}: "
                    "a bug, report it"
                )
            if ids[0] < 0 or ids[-1] >= n_items:
                raise ProfileError(
                    f"{self._called} proposed items from {ids[0]} to {ids[-1]}, expected ids in "
                    f"[0, {n_items}): a bug, report it"
                )
            if np.any(ids[1:] == ids[:-1]):
                raise ProfileError(
                    f"{self._called} proposed an item twice in one profile: a bug, report it"
                )
            profiles.append(ids)
        return tuple(profiles)


def granted(train: Interactions, threat: PoisonThreat, seed: int) -> tuple[int, int, ItemIds]:
    """Fake users, items of each at most, and the targets, for these training pairs.

    Raises:
        InputError: the threat does not fit the data.

    Example:
        >>> from robustcf.data import load
        >>> fakes, length, targets = granted(load("demo").train, PoisonThreat(fakes=3), seed=0)
        >>> fakes, len(targets)
        (3, 5)
    """
    warm = train.user_degrees[train.user_degrees > 0]
    mean = float(warm.mean()) if len(warm) else 0.0
    fakes, length = threat.budget(train.n_users, train.n_items, mean)
    targets = threat.targets.choose(train, seed)
    if threat.goal == PROMOTE and len(targets) > length:
        raise InputError(
            f"{len(targets)} targets do not fit into a profile of {length}: ask for fewer targets "
            "or longer profiles"
        )
    if threat.goal != PROMOTE and len(targets) == train.n_items:
        raise InputError(
            f"all {train.n_items} items are targets, and for the goal {threat.goal!r} profiles "
            "need others: ask for fewer targets"
        )
    return fakes, length, targets


def spent(profiles: Sequence[ItemIds]) -> dict[str, int]:
    """What profiles cost: how many, the longest, and all their pairs.

    Example:
        >>> spent([np.array([1, 2]), np.array([3])])
        {'fakes': 2, 'length': 2, 'pairs': 3}
    """
    lengths = [len(profile) for profile in profiles]
    return {"fakes": len(lengths), "length": max(lengths, default=0), "pairs": sum(lengths)}
