"""Attacks without a model: random items, popular items, copies of real profiles."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from robustcf.poisoning.base import Poisoning, Task
from robustcf.poisoning.threat import DEMOTE, ItemIds

# The popular tenth.
_TENTH = 10


class RandomItems(Poisoning):
    """The targets, and fillers drawn from the whole catalogue: the control for every attack.

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
    """The targets, and fillers drawn from the most popular tenth of the items.

    Fake users are then near everybody. A profile longer than that tenth goes on with the next in
    popularity. To demote, the popular items gain what the targets are to lose; to harm everybody,
    lists become more alike.
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
    """The targets, and items of one genuine user who is known: no filter of habits tells it.

    To demote, users who have a target are copied, without the targets: what they like otherwise
    gains on them. To harm everybody, plain copies: the control of that goal. A profile that is
    shorter than allowed stays so, as a genuine one would.
    """

    name = "copy"
    needs_pairs = True

    def propose(self, task: Task) -> Iterator[ItemIds]:
        """Return the targets and a user's items, drawn where not all of them fit."""
        pairs = task.known.pairs(self.name)
        targeted = np.isin(pairs.items, task.targets)
        # A profile must not become empty without its targets.
        others = pairs.take(~targeted)
        able = np.flatnonzero(others.user_degrees)
        if task.goal == DEMOTE:
            owns = np.isin(able, pairs.users[targeted])
            able = able[owns] if owns.any() else able
        if len(able) == 0:
            for _ in range(task.fakes if len(task.forced) else 0):
                yield task.profile([])
            return
        # Everybody once before anybody twice.
        rounds = -(-task.fakes // len(able))
        chosen = np.concatenate([task.rng.permutation(able) for _ in range(rounds)])
        for user in chosen[: task.fakes]:
            yield task.profile(task.rng.permutation(others.items_of(int(user))))
