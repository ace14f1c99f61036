"""``fit_vote``: data in, a recommender by vote out."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from robustcf._checks import check_known
from robustcf.data.loading import load
from robustcf.data.split import Split
from robustcf.models.voting.choosing import choose
from robustcf.models.voting.config import VoteConfig
from robustcf.models.voting.vote import PartitionVote
from robustcf.recommender import Recommender


def fit_vote(split: Split, config: VoteConfig | None = None, **settings: Any) -> Recommender:
    """Choose the settings that are not given on validation pairs, and let the accounts vote.

    Args:
        split: train to vote, valid to choose by.
        config: the settings that are given; None for the defaults.
        **settings: single ones instead of a config.

    Example:
        >>> from robustcf.data import load
        >>> fit_vote(load("demo"), cap=0.2, damping=0.5)
        Recommender(vote, 2,000 users x 1,500 items, judged by 10,087 test pairs)
    """
    if config is None:
        check_known(VoteConfig, settings)
        config = VoteConfig(**settings)
    start = time.perf_counter()
    chosen = choose(split, config)
    wanted = chosen.config.refit
    refit = wanted == "yes" or (wanted == "auto" and split.valid_source == "carved")
    fit_on = "train and valid" if refit and len(split.valid) else "train"
    vote = PartitionVote(split.fit_pairs(fit_on), chosen.config)
    training = {
        "config": {"vote": dataclasses.asdict(config)},
        "fakes": chosen.fakes,
        "trials": [dict(trial) for trial in chosen.trials],
        "epochs": 0,
        "train_seconds": round(time.perf_counter() - start, 3),
    }
    return Recommender.of(vote, split, fit_on=fit_on, label="vote", training=training)


class Vote:
    """A recommender by vote, certified against fake accounts.

    Args:
        config: see :class:`VoteConfig`; None for the defaults.
        **settings: single settings instead of a config.

    Example:
        >>> from robustcf.data import load
        >>> Vote(cap=0.2, damping=0.5).fit(load("demo")).kind
        'vote'
    """

    def __init__(self, config: VoteConfig | None = None, **settings: Any) -> None:
        """Check the settings."""
        check_known(VoteConfig, settings)
        self.config = VoteConfig(**settings) if config is None else config

    def fit(self, data: Any) -> Recommender:
        """Return the recommender; data are a split, or anything that ``load`` takes."""
        return fit_vote(data if isinstance(data, Split) else load(data), self.config)
