"""Copies of real profiles: fake users that no filter of habits tells from genuine ones."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from robustcf.poisoning.base import Poisoning, Task
from robustcf.poisoning.threat import DEMOTE, ItemIds


class CopiedProfiles(Poisoning):
    """Every profile: the targets, and items of one genuine user who is known.

    To demote, users who have a target are copied, without the targets: what they like otherwise
    gains on them. To harm everybody, plain copies: the control of that goal.

    A profile that is shorter than allowed stays so, as a genuine one would.

    Cost: one permutation of a profile for each fake user.

    Example:
        >>> from robustcf.data import load
        >>> from robustcf.poisoning import PoisonThreat
        >>> found = CopiedProfiles().attack(load("demo").train, PoisonThreat(fakes=3, length=10))
        >>> found.realised["fakes"]
        3
    """

    name = "copy"
    needs_pairs = True

    def propose(self, task: Task) -> Iterator[ItemIds]:
        """The targets and a user's items, in a random order where not all of them fit."""
        pairs = task.known.pairs(self.name)
        # A profile must not become empty without its targets.
        others = pairs.take(~np.isin(pairs.items, task.targets))
        able = np.flatnonzero(others.user_degrees)
        if task.goal == DEMOTE:
            owners = np.unique(pairs.users[np.isin(pairs.items, task.targets)])
            able = np.intersect1d(able, owners) if len(np.intersect1d(able, owners)) else able
        if len(able) == 0:
            for _ in range(task.fakes if len(task.forced) else 0):
                yield task.profile([])
            return
        # Everybody once before anybody twice.
        rounds = -(-task.fakes // len(able))
        chosen = np.concatenate([task.rng.permutation(able) for _ in range(rounds)])
        for user in chosen[: task.fakes]:
            yield task.profile(task.rng.permutation(others.items_of(int(user))))
