"""Random fillers: the control that every attack must beat."""

from __future__ import annotations

from collections.abc import Iterator

from robustcf.poisoning.base import Poisoning, Task
from robustcf.poisoning.threat import ItemIds


class RandomItems(Poisoning):
    """Every profile: the targets, and fillers drawn from the whole catalogue.

    To demote or to harm everybody there is nothing to push: the profiles are random items without
    the targets. That is the control of these goals.

    Cost: one permutation of the catalogue for each fake user.

    Example:
        >>> from robustcf.data import load
        >>> from robustcf.poisoning import PoisonThreat
        >>> found = RandomItems().attack(load("demo").train, PoisonThreat(fakes=3, length=10))
        >>> found.realised
        {'fakes': 3, 'length': 10, 'pairs': 30}
    """

    name = "random"

    def propose(self, task: Task) -> Iterator[ItemIds]:
        """The targets and random items."""
        for _ in range(task.fakes):
            yield task.profile(task.rng.permutation(task.known.n_items))
