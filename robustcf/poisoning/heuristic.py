"""Attacks without a model: random items, popular items, copies of real profiles."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from robustcf.poisoning.base import Poisoning, Task
from robustcf.poisoning.threat import DEMOTE, ItemIds

_TENTH = 10


class RandomItems(Poisoning):
    """The targets and random fillers from the whole catalogue: the control for every attack.

    Example:
        >>> from robustcf.data import load
        >>> from robustcf.poisoning import PoisonThreat
        >>> found = RandomItems().attack(load("demo").train, PoisonThreat(fakes=3, length=10))
        >>> found.realised
        {'fakes': 3, 'length': 10, 'pairs': 30}
    """

    name = "random"

    def propose(self, task: Task) -> Iterator[ItemIds]:
        """Return the targets and random items."""
        for _ in range(task.fakes):
            yield task.profile(task.rng.permutation(task.known.n_items))


class Bandwagon(Poisoning):
    """The targets and fillers from the most popular tenth of the items, then by popularity.

    Fake users are then similar to all users.
    """

    name = "bandwagon"

    def propose(self, task: Task) -> Iterator[ItemIds]:
        """Return the targets and popular items."""
        ranked = np.argsort(-task.known.popularity, kind="stable")
        size = max(len(ranked) // _TENTH, 1)
        popular, rest = ranked[:size], ranked[size:]
        for _ in range(task.fakes):
            yield task.profile(np.concatenate((task.rng.permutation(popular), rest)))


class CopiedProfiles(Poisoning):
    """The targets and the items of one known genuine user, at most ``length``.

    ``demote`` copies users who have a target, without the targets, so that their other items gain.
    ``availability`` makes plain copies, the control of that goal.
    """

    name = "copy"
    needs_pairs = True

    def propose(self, task: Task) -> Iterator[ItemIds]:
        """Return the targets and a user's items, drawn if not all of them fit."""
        pairs = task.known.pairs(self.name)
        targeted = np.isin(pairs.items, task.targets)
        others = pairs.take(~targeted)
        able = np.flatnonzero(others.user_degrees)
        if task.goal == DEMOTE:
            owns = np.isin(able, pairs.users[targeted])
            able = able[owns] if owns.any() else able
        if len(able) == 0:
            for _ in range(task.fakes if len(task.forced) else 0):
                yield task.profile([])
            return
        # All users are copied once before any is copied twice.
        rounds = -(-task.fakes // len(able))
        chosen = np.concatenate([task.rng.permutation(able) for _ in range(rounds)])
        for user in chosen[: task.fakes]:
            yield task.profile(task.rng.permutation(others.items_of(int(user))))
