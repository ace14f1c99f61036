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
from robustcf.poisoning import threat as threats
from robustcf.poisoning.threat import GOALS, PROMOTE, ItemIds, Knowledge, PoisonThreat


class ProfileError(RobustcfError, RuntimeError):
    """An attack proposed profiles beyond its threat: a bug of the attack, not of the input."""


@dataclass(frozen=True, eq=False)
class Task:
    """The task of an attack, with its knowledge of the data; all randomness is from ``rng``."""

    fakes: int  # profiles at most
    length: int  # items of a profile at most
    targets: ItemIds  # ascending
    goal: str
    known: Knowledge
    rng: np.random.Generator
    defence: str = threats.UNDEFENDED  # that of the victim, if the attacker knows it

    @property
    def forced(self) -> ItemIds:
        """Items that every profile has: the targets, if they are to be promoted."""
        return self.targets if self.goal == PROMOTE else self.targets[:0]

    def profile(self, fillers: Sequence[int] | ItemIds) -> ItemIds:
        """Return the forced items and the first fillers that fit, without other targets."""
        order = np.asarray(fillers, dtype=np.int64)
        order = order[np.sort(np.unique(order, return_index=True)[1])]
        order = order[~np.isin(order, self.targets)]
        return np.sort(np.concatenate((self.forced, order[: self.length - len(self.forced)])))


@dataclass(frozen=True, eq=False)
class Injected:
    """Profiles of fake users and their cost."""

    attack: str  # its name
    profiles: tuple[ItemIds, ...]  # the items of each fake user, ascending
    targets: ItemIds
    allowed: dict[str, int]  # the most ``fakes`` and ``length``
    realised: dict[str, int]  # see :func:`spent`


class Poisoning(ABC):
    """An attack that chooses the profiles of fake users; a subclass defines :meth:`propose`.

    It sees the knowledge that the threat grants, not the training data.
    """

    name: ClassVar[str] = ""
    goals: ClassVar[tuple[str, ...]] = GOALS
    #: Whether it learns from pairs, so that popularity alone is not enough.
    needs_pairs: ClassVar[bool] = False
    #: Whether it depends on the defence of the victim.
    knows_defence: ClassVar[bool] = False

    @abstractmethod
    def propose(self, task: Task) -> Iterable[Any]:
        """Return the item ids of each fake user, each once, in any order."""

    def attack(self, train: Interactions, threat: PoisonThreat, seed: int = 0) -> Injected:
        """Return profiles within a threat; the seed draws targets and known users too.

        Raises:
            InputError: the threat does not fit the data, or the attack does not have this goal.
            ProfileError: the attack proposes more than the threat allows.
        """
        called = self.name or type(self).__name__
        if threat.goal not in self.goals:
            raise InputError(f"{called} has the goals {', '.join(self.goals)}, not {threat.goal!r}")
        # Checked before, so that errors do not depend on the number of fakes.
        fakes, length, targets = threat.granted(train, seed)
        profiles: list[ItemIds] = []
        if fakes:
            known = Knowledge.of(train, threat, seed)
            rng = stream(seed, "poisoning", called)
            task = Task(fakes, length, targets, threat.goal, known, rng, threat.defence)
            for entry in self.propose(task):
                ids = np.asarray(entry)
                wrong = threats.invalid_profile(ids, train.n_items)
                if len(profiles) == fakes:
                    wrong = f"more than the {fakes} allowed fake users"
                elif wrong is None and not 0 < len(ids) <= length:
                    wrong = f"a profile of {len(ids)} items, and may have {length}"
                if wrong is not None:
                    raise ProfileError(f"{called} proposed {wrong}: a bug, report it")
                profiles.append(np.sort(ids.astype(np.int64)))
        allowed = {"fakes": fakes, "length": length}
        return Injected(called, tuple(profiles), targets, allowed, spent(profiles))


def spent(profiles: Sequence[ItemIds]) -> dict[str, int]:
    """Return the cost of profiles: their number, largest length and pairs.

    Example:
        >>> spent([np.array([1, 2]), np.array([3])])
        {'fakes': 2, 'length': 2, 'pairs': 3}
    """
    lengths = [len(profile) for profile in profiles]
    return {"fakes": len(lengths), "length": max(lengths, default=0), "pairs": sum(lengths)}
