"""Bandwagon: fillers that everybody has, so that fake users are near everybody."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from robustcf.poisoning.base import Poisoning, Task
from robustcf.poisoning.threat import ItemIds

# The popular tenth.
_TENTH = 10


class Bandwagon(Poisoning):
    """Every profile: the targets, and fillers drawn from the most popular tenth of the items.

    A profile longer than that tenth goes on with the next in popularity. To demote, the popular
    items gain what the targets are to lose; to harm everybody, lists become more alike.

    Cost: one permutation of the popular items for each fake user.

    Example:
        >>> from robustcf.data import load
        >>> from robustcf.poisoning import PoisonThreat
        >>> found = Bandwagon().attack(load("demo").train, PoisonThreat(fakes=3, length=10))
        >>> found.realised["pairs"]
        30
    """

    name = "bandwagon"

    def propose(self, task: Task) -> Iterator[ItemIds]:
        """The targets and popular items."""
        ranked = np.argsort(-task.known.popularity, kind="stable")
        size = max(len(ranked) // _TENTH, 1)
        popular, rest = ranked[:size], ranked[size:]
        for _ in range(task.fakes):
            yield task.profile(np.concatenate((task.rng.permutation(popular), rest)))
