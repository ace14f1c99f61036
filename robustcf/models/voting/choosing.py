"""Settings of the vote that suit the data, chosen on validation pairs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from robustcf._randomness import stream
from robustcf.data.split import Split
from robustcf.metrics.evaluate import judged_users
from robustcf.models.voting.config import FALLBACK, VoteConfig, trusted_accounts
from robustcf.models.voting.voters import Accounts, blocks_of, masked_rows

CAPS = (0.05, 0.075, 0.1, 0.125, 0.15, 0.18, 0.22, 0.26, 0.3, 0.4)
DAMPINGS = (0.0, 0.3, 0.5)
# The default share of fakes is one in so many accounts.
_ONE_IN = 200
# Enough users to tell settings apart that differ by more than chance.
_USERS = 500


@dataclass(frozen=True, eq=False)
class ChosenVote:
    """Settings with everything chosen, and their trials.

    Args:
        config: the settings.
        fakes: the number of fake accounts they were chosen for.
        trials: settings, clean and certified precision@10 of each trial.
    """

    config: VoteConfig
    fakes: int
    trials: tuple[Mapping[str, Any], ...]


def choose(split: Split, config: VoteConfig | None = None) -> ChosenVote:
    """Choose the cap and the damping that are not given, on validation pairs.

    The combination with the largest sum of the clean precision@10 and half of the certified one
    wins, for ``config.fakes`` fake accounts, on up to 500 users. The certificate takes settings as
    fixed before the attack. With ``trusted`` or ``trusted_before`` the choice is made from trusted
    accounts alone, as voters and as users, so that added accounts cannot change it; else set both
    where validation pairs may be under attack, too.

    Cost: one serving of the users for each cap.

    Example:
        >>> from robustcf.data import checkerboard
        >>> choose(checkerboard(), VoteConfig(cap=0.1, damping=0.0)).trials
        ()
    """
    config = VoteConfig() if config is None else config
    trusted = trusted_accounts(split.train, config)
    count = split.n_users if trusted is None else int(trusted.sum())
    fakes = config.fakes or max(1, math.ceil(count / _ONE_IN))
    chosen = {name: value for name, value in FALLBACK.items() if getattr(config, name) is None}
    if config.groups is not None or not chosen:
        return ChosenVote(config, fakes, ())
    trials = _trials(split, config, fakes, trusted) if len(split.valid) else []
    best = max(trials, key=lambda trial: trial["clean"] + trial["certified"] / 2, default=None)
    if best is not None and best["clean"] > 0:  # else there are too few pairs to choose by
        chosen = {name: best[name] for name in chosen}
    return ChosenVote(replace(config, **chosen), fakes, tuple(trials))


def _trials(
    split: Split, config: VoteConfig, fakes: int, trusted: npt.NDArray[np.bool_] | None
) -> list[dict[str, Any]]:
    """Return clean and certified precision@10 of all combinations; overlaps are counted once."""
    users = np.flatnonzero(split.valid.user_degrees)
    voters = split.train
    if trusted is not None:
        users, voters = users[trusted[users]], voters.take(trusted[voters.users])
        if len(users) == 0:
            return []
    if len(users) > _USERS:
        rng = stream(config.seed, "vote users")
        users = np.sort(rng.choice(users, _USERS, replace=False))
    caps = CAPS if config.cap is None else (config.cap,)
    dampings = DAMPINGS if config.damping is None else (config.damping,)
    judged = judged_users(split, "valid")
    first = Accounts(voters, config)
    sums = {(cap, damping): np.zeros(2) for cap in caps for damping in dampings}
    for block in blocks_of(users, split.train):
        histories = split.train.csr()[block]
        masked = masked_rows(judged.seen, block, split.n_items)
        overlaps = first.overlaps(histories)
        for cap in caps:
            counted = first.with_settings(replace(config, cap=cap)).votes(histories, overlaps)
            for damping in dampings:
                own = first.with_settings(replace(config, cap=cap, damping=damping))
                found = own.served(counted, histories, masked).certified(
                    judged, block, (0, fakes), (10,)
                )
                sums[cap, damping] += [values["precision@10"].sum() for values in found]
    names = ("cap", "damping", "clean", "certified")
    return [
        dict(zip(names, (*key, *(total / len(users)).tolist()), strict=True))
        for key, total in sums.items()
    ]
