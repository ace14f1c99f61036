"""Settings of the vote."""

from __future__ import annotations

from dataclasses import dataclass

from robustcf.certificates.votes import MOST_FAKES
from robustcf.errors import InputError
from robustcf.support.checks import check_choice, check_integer, check_number

BASES = ("ridge", "knn")
REFITS = ("auto", "yes", "no")


@dataclass(frozen=True)
class VoteConfig:
    """Who votes, and how.

    The certificate takes all of these as fixed before the attack.

    Args:
        groups: None: every account is a voter of its own. A number K: accounts are hashed into K
            groups, each fits a small model and votes.
        cap: of single accounts: the similarity from which on an account has its full vote. Less
            makes more accounts equal, which certifies more and follows single tastes less. None
            chooses it on validation data, see :func:`robustcf.voting.choose`.
        power: of single accounts: how fast the vote falls below ``cap``.
        excess: of single accounts: how much of the similarity that chance explains is taken off.
        damping: of single accounts: votes are divided by the ``damping``-th power of the number
            of accounts that hold an item; 0 leaves them, less than 1. None chooses it, too.
        prior: of single accounts: what is added to that number.
        base: of groups: ``ridge`` or ``knn``.
        votes: of groups: how many items a group votes for, N'.
        ridge: of groups: the ridge, in mean lengths of the group's own profiles.
        key: of groups: of the hash.
        fakes: how many fake accounts what is chosen should stand; None for one in 200 accounts.
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
    ridge: float = 1.0
    key: str = "robustcf"
    fakes: int | None = None
    refit: str = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.groups is not None:
            check_integer("groups", self.groups)
        if self.cap is not None:
            check_number("cap", self.cap, positive=True)
        if self.fakes is not None:
            check_integer("fakes", self.fakes, most=MOST_FAKES)
        check_integer("power", self.power, most=64)
        check_integer("votes", self.votes)
        check_integer("seed", self.seed, least=0)
        check_number("excess", self.excess)
        check_number("ridge", self.ridge, positive=True)
        check_number("prior", self.prior, positive=True)
        check_choice("base", self.base, BASES)
        check_choice("refit", self.refit, REFITS)
        if not isinstance(self.key, str):
            raise InputError(f"key must be a text, got {self.key!r}")
        if self.damping is not None and check_number("damping", self.damping) >= 1:
            raise InputError(
                f"damping must be less than 1, got {self.damping}: from 1 on a fake could lower "
                "an outsider by holding it, and the proof would not hold"
            )
