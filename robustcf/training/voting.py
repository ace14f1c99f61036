"""``fit_vote``: a recommender by vote, fit to data."""

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
from robustcf.training.config import learns_valid


class Vote:
    """A recommender by vote, certified against fake accounts, with a config or single settings.

    Example:
        >>> from robustcf.data import load
        >>> Vote(cap=0.2, damping=0.5).fit(load("demo"))
        Recommender(vote, 2,000 users x 1,500 items, judged by 10,087 test pairs)
    """

    def __init__(self, config: VoteConfig | None = None, **settings: Any) -> None:
        check_known(VoteConfig, settings)
        self.config = VoteConfig(**settings) if config is None else config

    def fit(self, data: Any) -> Recommender:
        """Choose open settings on validation pairs of a split or of data for ``load``, and fit."""
        split = data if isinstance(data, Split) else load(data)
        start = time.perf_counter()
        chosen = choose(split, self.config)
        fit_on = "train and valid" if learns_valid(chosen.config.refit, split) else "train"
        vote = PartitionVote(split.fit_pairs(fit_on), chosen.config)
        training = {
            "config": {"vote": dataclasses.asdict(self.config)},
            "fakes": chosen.fakes,
            "trials": [dict(trial) for trial in chosen.trials],
            "epochs": 0,
            "train_seconds": round(time.perf_counter() - start, 3),
        }
        return Recommender.of(vote, split, fit_on=fit_on, label="vote", training=training)


def fit_vote(split: Split, config: VoteConfig | None = None, **settings: Any) -> Recommender:
    """Return :class:`Vote` with a config or single settings, fit to a split."""
    return Vote(config, **settings).fit(split)
