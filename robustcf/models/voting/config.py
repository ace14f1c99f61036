"""Settings of the vote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from robustcf._checks import (
    MOST_COUNT,
    MOST_INTEGER,
    check_choice,
    check_integer,
    check_list,
    check_number,
)
from robustcf._io.schema import shown
from robustcf.errors import InputError

BASES = ("ridge", "knn")
REFITS = ("auto", "yes", "no")
#: Used where there is nothing to choose by.
FALLBACK_CAP, FALLBACK_DAMPING = 0.15, 0.3
#: More fakes than this are beyond any recommender that could be certified.
MOST_FAKES = 10**6
# Where numbers are exact and nothing overflows; far beyond what makes sense.
_COUNTS = {
    "groups": (1, MOST_COUNT),
    "fakes": (1, MOST_FAKES),
    "power": (1, 64),
    "votes": (1, MOST_COUNT),
    "seed": (0, MOST_INTEGER),
}
_RANGES = {"cap": (1e-3, 1.0), "excess": (0.0, 1e3), "prior": (1.0, 1e9), "ridge": (0.01, 1e6)}


@dataclass(frozen=True)
class VoteConfig:
    """Who votes, and how; the certificate takes these settings as fixed before the attack.

    Args:
        groups: None: every account is a voter of its own. A number K: accounts are hashed into K
            groups, each fits a small model and votes.
        cap: accounts: the similarity from which on an account has its full vote. Less makes more
            accounts equal, which certifies more and follows single tastes less. None chooses it on
            validation pairs, see :func:`robustcf.models.voting.choose`.
        power: accounts: how fast the vote falls below ``cap``.
        excess: accounts: how much of the similarity that chance explains is taken off.
        damping: accounts: votes are divided by the ``damping``-th power of the number of accounts
            that hold an item; 0 leaves them, less than 1. None chooses it, too.
        prior: accounts: added to that number.
        base: groups: ``ridge`` or ``knn``.
        votes: groups: how many items a group votes for, N'.
        ridge: groups: the ridge, in mean lengths of the group's own profiles.
        key: groups: of the hash.
        fakes: how many fake accounts the chosen settings should withstand; None for one in 200
            accounts.
        refit: whether valid is learnt from as well, once settings are chosen: ``auto`` where it
            was carved out of the training pairs, ``yes``, ``no``.
        seed: of the users that settings are chosen on.

    Example:
        >>> VoteConfig(groups=100).votes
        20
        >>> VoteConfig(damping=1.0)
        Traceback (most recent call last):
        robustcf.errors.InputError: damping must be less than 1, got 1.0: from 1 on a fake could
        lower an outsider by holding it, and the proof would not hold
    """

    groups: int | None = None
    cap: float | None = None
    power: int = 6
    excess: float = 0.5
    damping: float | None = None
    prior: float = 50.0
    base: str = "ridge"
    votes: int = 20
    ridge: float = 0.3
    key: str = "robustcf"
    fakes: int | None = None
    refit: str = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        for name, (least, most) in _COUNTS.items():
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), least, most)
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if value is not None and not low <= check_number(name, value) <= high:
                raise InputError(f"{name} must be a number from {low:g} to {high:g}, got {value}")
        check_choice("base", self.base, BASES)
        check_choice("refit", self.refit, REFITS)
        if not isinstance(self.key, str):
            raise InputError(f"key must be a text, got {shown(self.key)}")
        if self.damping is not None and check_number("damping", self.damping) >= 1:
            raise InputError(
                f"damping must be less than 1, got {self.damping}: from 1 on a fake could lower "
                "an outsider by holding it, and the proof would not hold"
            )


def check_fakes(fakes: Sequence[int]) -> tuple[int, ...]:
    """Return numbers of fake accounts: integers of at least 0, ascending.

    Example:
        >>> check_fakes([0, 1, 10])
        (0, 1, 10)
        >>> check_fakes([-1])
        Traceback (most recent call last):
        robustcf.errors.InputError: fakes must be integers from 0 to 1000000, got -1
    """
    found = check_list("fakes", fakes)
    for value in found:
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not whole or not 0 <= value <= MOST_FAKES:
            raise InputError(f"fakes must be integers from 0 to {MOST_FAKES}, got {value!r}")
    numbers = tuple(int(value) for value in found)
    if not numbers or list(numbers) != sorted(set(numbers)):
        raise InputError(
            f"fakes must be one or more different numbers in ascending order, got {list(numbers)}"
        )
    return numbers
