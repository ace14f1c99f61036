"""What an attacker is handed: all pairs, those of some users, or popularity alone.

An attack sees the training data only through this object, so that what it claims not to know it
cannot use.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from robustcf._randomness import stream
from robustcf.data.interactions import Interactions
from robustcf.errors import InputError
from robustcf.poisoning.threat import DATA, NONE, PoisonThreat


@dataclass(frozen=True, eq=False)
class Knowledge:
    """The attacker's view of the training data.

    Args:
        kind: ``data``, ``part`` or ``none``.
        n_items: size of the catalogue, which everybody can see.
        popularity: known pairs of each item.
        sample: the pairs that are known, users numbered anew; None where none are.

    Example:
        >>> from robustcf.data import checkerboard
        >>> train = checkerboard().train
        >>> known = Knowledge.of(train, PoisonThreat(knowledge="none"), seed=0)
        >>> known.sample is None, int(known.popularity.sum()) == len(train)
        (True, True)
        >>> known.pairs("copy")
        Traceback (most recent call last):
        robustcf.errors.InputError: copy needs pairs to learn from and knows none: grant it the
        knowledge data or part
    """

    kind: str
    n_items: int
    popularity: npt.NDArray[np.int64]
    sample: Interactions | None

    @classmethod
    def of(cls, train: Interactions, threat: PoisonThreat, seed: int) -> Knowledge:
        """What the threat grants of these pairs; the sample of users is drawn by the seed."""
        if threat.knowledge == DATA:
            return cls(DATA, train.n_items, train.item_degrees, train)
        if threat.knowledge == NONE:
            return cls(NONE, train.n_items, train.item_degrees, None)
        rng = stream(seed, "poisoning", "known")
        warm = np.flatnonzero(train.user_degrees)
        count = max(1, round(threat.known * len(warm)))
        users = np.sort(rng.choice(warm, count, replace=False))
        number = np.full(train.n_users, -1, dtype=np.int64)
        number[users] = np.arange(count)
        mine = number[train.users] >= 0
        sample = Interactions(number[train.users[mine]], train.items[mine], count, train.n_items)
        return cls(threat.knowledge, train.n_items, sample.item_degrees, sample)

    def pairs(self, asker: str) -> Interactions:
        """The known pairs, or an error that says who needs them."""
        if self.sample is None:
            raise InputError(
                f"{asker} needs pairs to learn from and knows none: grant it the knowledge data or "
                "part"
            )
        return self.sample
