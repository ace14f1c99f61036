"""Settings of the vote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from robustcf._checks import (
    MOST_COUNT,
    MOST_INTEGER,
    check_choice,
    check_integer,
    check_list,
    check_number,
)
from robustcf._io.schema import TEXT, check_kind, shown
from robustcf.data.interactions import Interactions
from robustcf.errors import InputError

BASES = ("ridge", "knn")
REFITS = ("auto", "yes", "no")
#: Used where there are no validation pairs to choose by.
FALLBACK: dict[str, Any] = {"cap": 0.15, "damping": 0.3}
#: More fakes than this are beyond any recommender that could be certified.
MOST_FAKES = 10**6
# Within these limits numbers are exact and nothing overflows.
_COUNTS = {
    "groups": (1, MOST_COUNT),
    "fakes": (1, MOST_FAKES),
    "new_account_items": (1, MOST_COUNT),
    "power": (1, 64),
    "votes": (1, MOST_COUNT),
    "seed": (0, MOST_INTEGER),
}
_RANGES = {
    "new_account_weight": (0.01, 1.0),
    "cap": (1e-3, 1.0),
    "excess": (0.0, 1e3),
    "prior": (1.0, 1e9),
    "ridge": (0.01, 1e6),
}


@dataclass(frozen=True)
class VoteConfig:
    """Who votes, and how; the certificate takes these settings as fixed before the attack.

    Args:
        groups: None: every account is a voter of its own. A number K: accounts are hashed into K
            groups, each of which fits a small model and votes.
        cap: accounts: the similarity from which on an account has its full vote. Less makes more
            accounts equal, which certifies more and follows single tastes less. None chooses it on
            validation pairs, see :func:`robustcf.models.voting.choose`.
        power: accounts: how fast the vote falls below ``cap``.
        excess: accounts: how much of the similarity that chance explains is taken off.
        damping: accounts: votes are divided by the ``damping``-th power of the number of accounts
            that hold an item; from 0 to less than 1. None chooses it, too.
        prior: accounts: added to that number.
        base: groups: ``ridge`` or ``knn``.
        votes: groups: the number N' of items that each group votes for.
        ridge: groups: the ridge, in mean lengths of the group's own profiles.
        key: groups: of the hash.
        new_account_weight: accounts: the largest vote of an account that is not trusted.
        new_account_items: accounts: items that an added account can have at most, a limit of the
            platform. With ``trusted`` or ``trusted_before``, other accounts with more have no vote.
        trusted: accounts: labels of the trusted ones (ids if the data has no labels).
        trusted_before: accounts: those with a pair before this time are trusted, too.
        fakes: the number of fake accounts to choose settings for; None for one in 200 accounts.
        refit: whether the chosen settings are fit on valid as well: ``auto`` where it was carved
            out of the training pairs, ``yes``, ``no``.
        seed: of the users that settings are chosen on.
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
    new_account_weight: float = 1.0
    new_account_items: int | None = None
    trusted: tuple[str, ...] = ()
    trusted_before: int | None = None
    fakes: int | None = None
    refit: str = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        # Only what is None by default may be None.
        given = {
            entry.name: getattr(self, entry.name)
            for entry in fields(self)
            if not (entry.default is None and getattr(self, entry.name) is None)
        }
        for name in filter(given.__contains__, _COUNTS):
            check_integer(name, given[name], *_COUNTS[name])
        for name in filter(given.__contains__, _RANGES):
            low, high = _RANGES[name]
            if not low <= check_number(name, value := given[name]) <= high:
                raise InputError(f"{name} must be a number from {low:g} to {high:g}, got {value}")
        check_choice("base", self.base, BASES)
        check_choice("refit", self.refit, REFITS)
        check_kind("", self.key, TEXT, "key")
        labels = check_list("trusted", self.trusted)
        object.__setattr__(self, "trusted", tuple(map(str, labels)))
        if self.trusted_before is not None:
            check_integer("trusted_before", self.trusted_before, -MOST_INTEGER)
        if self.new_account_weight < 1 and not self.knows_new:
            raise InputError(
                "new_account_weight must come with trusted (labels) or trusted_before (a time), "
                "got neither: they say which accounts are not new"
            )
        if self.groups is not None and (self.knows_new or self.new_account_items is not None):
            raise InputError("groups have no new accounts: leave the settings of accounts out")
        if self.damping is not None and check_number("damping", self.damping) >= 1:
            raise InputError(
                f"damping must be less than 1, got {self.damping}: with more, a fake could lower "
                "an outsider by holding it, and the proof would not hold"
            )

    @property
    def words(self) -> str:
        """Who votes, and how; of chosen settings."""
        if self.groups is None:
            return f"every account votes: cap {self.cap:g}, damping {self.damping:g}"
        return f"{self.groups:,} groups vote for {self.votes} items each ({self.base})"

    @property
    def knows_new(self) -> bool:
        """Whether some accounts are trusted, and the others new."""
        return bool(self.trusted) or self.trusted_before is not None


def trusted_accounts(pairs: Interactions, config: VoteConfig) -> npt.NDArray[np.bool_] | None:
    """Return whether each account is trusted; None where the settings name none.

    Example:
        >>> times = np.array([10, 30, 20])
        >>> pairs = Interactions(np.array([0, 0, 1]), np.array([0, 1, 1]), 2, 2, timestamps=times)
        >>> trusted_accounts(pairs, VoteConfig(trusted_before=20)).tolist()
        [True, False]
    """
    if not config.knows_new:
        return None
    labels = np.arange(pairs.n_users) if pairs.user_labels is None else pairs.user_labels
    names = labels.astype(str)
    unknown = sorted(set(config.trusted) - set(names.tolist()))
    if unknown:
        raise InputError(f"trusted must be labels of accounts, got {shown(unknown[0])}")
    found = np.isin(names, list(config.trusted))
    if config.trusted_before is not None:
        if pairs.timestamps is None:
            raise InputError("trusted_before needs data with times: give trusted labels instead")
        found[pairs.users[pairs.timestamps < config.trusted_before]] = True
    return found


def check_fakes(fakes: Sequence[int]) -> tuple[int, ...]:
    """Return numbers of fake accounts: integers of at least 0, ascending.

    Example:
        >>> check_fakes([0, 1, 10])
        (0, 1, 10)
    """
    given = check_list("fakes", fakes)
    numbers = tuple(check_integer("a number of fakes", value, 0, MOST_FAKES) for value in given)
    if not numbers or list(numbers) != sorted(set(numbers)):
        raise InputError(
            f"fakes must be one or more different numbers in ascending order, got {list(numbers)}"
        )
    return numbers
