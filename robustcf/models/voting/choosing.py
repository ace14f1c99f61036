"""Settings of the vote that suit the data, chosen on validation pairs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from robustcf._randomness import stream
from robustcf.data.split import Split
from robustcf.metrics.evaluate import judged_users
from robustcf.models.voting.config import FALLBACK_CAP, FALLBACK_DAMPING, VoteConfig
from robustcf.models.voting.voters import Accounts, blocks_of, masked_rows

CAPS = (0.05, 0.075, 0.1, 0.125, 0.15, 0.18, 0.22, 0.26, 0.3, 0.4)
DAMPINGS = (0.0, 0.3, 0.5)
# One fake in so many accounts, unless told otherwise.
_ONE_IN = 200
# Enough users to tell settings apart that differ by more than chance.
_USERS = 500


@dataclass(frozen=True, eq=False)
class ChosenVote:
    """Settings with everything chosen, and how they came about.

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
    fixed before the attack; set both where validation pairs may be under attack, too.

    Cost: one serving of the users for each cap.

    Example:
        >>> from robustcf.data import checkerboard
        >>> choose(checkerboard(), VoteConfig(cap=0.1, damping=0.0)).trials
        ()
    """
    config = VoteConfig() if config is None else config
    fakes = config.fakes or max(1, math.ceil(split.n_users / _ONE_IN))
    if config.groups is not None or (config.cap is not None and config.damping is not None):
        return ChosenVote(config, fakes, ())
    if len(split.valid) == 0:
        return ChosenVote(_filled(config), fakes, ())
    users = np.flatnonzero(split.valid.user_degrees)
    if len(users) > _USERS:
        rng = stream(config.seed, "vote users")
        users = np.sort(rng.choice(users, _USERS, replace=False))
    trials = _trials(split, config, users, fakes)
    best = max(trials, key=lambda trial: trial["clean"] + trial["certified"] / 2)
    if best["clean"] == 0:  # too few pairs to tell settings apart
        return ChosenVote(_filled(config), fakes, tuple(trials))
    chosen = dataclasses.replace(config, cap=best["cap"], damping=best["damping"])
    return ChosenVote(chosen, fakes, tuple(trials))


def _filled(config: VoteConfig) -> VoteConfig:
    return dataclasses.replace(
        config,
        cap=FALLBACK_CAP if config.cap is None else config.cap,
        damping=FALLBACK_DAMPING if config.damping is None else config.damping,
    )


def _trials(
    split: Split, config: VoteConfig, users: npt.NDArray[np.int64], fakes: int
) -> list[dict[str, Any]]:
    """Clean and certified precision@10 of all combinations: what accounts share is counted once."""
    caps = CAPS if config.cap is None else (config.cap,)
    dampings = DAMPINGS if config.damping is None else (config.damping,)
    judged = judged_users(split, "valid")
    first = Accounts(split.train, config)
    sums = {(cap, damping): np.zeros(2) for cap in caps for damping in dampings}
    for block in blocks_of(users, split.train):
        histories = split.train.csr()[block]
        masked = masked_rows(judged.seen, block, split.n_items)
        overlaps = first.overlaps(histories)
        for cap in caps:
            settings = dataclasses.replace(config, cap=cap)
            counted = first.with_settings(settings).votes(histories, overlaps)
            for damping in dampings:
                settings = dataclasses.replace(settings, damping=damping)
                served = first.with_settings(settings).served(counted, masked)
                found = served.certified(judged, block, (0, fakes), (10,))
                sums[cap, damping] += [values["precision@10"].sum() for values in found]
    return [
        {"cap": cap, "damping": damping, "clean": clean, "certified": certified}
        for (cap, damping), (clean, certified) in (
            (key, (total / len(users)).tolist()) for key, total in sums.items()
        )
    ]
