"""Popularity: every user is recommended the items that most users have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from robustcf.data.interactions import Interactions
from robustcf.models.base import NO_EPOCHS, Model
from robustcf.models.folding import MEAN, FoldIn


@dataclass(frozen=True)
class PopularityConfig:
    """Popularity has nothing to set."""


class Popularity(Model[PopularityConfig]):
    """One column: 1 for every user, the share of users who have it for every item.

    The least that a recommender has to beat. Nothing is learnt: it has no epochs.

    Example:
        >>> from robustcf.data import checkerboard
        >>> Popularity(checkerboard().train).factors().dim
        1
    """

    name = "popularity"
    Config = PopularityConfig
    objective = "softmax"
    reg = "none"
    training_defaults = NO_EPOCHS

    @classmethod
    def fold_in_by(cls, config: Any, pairs: Interactions) -> FoldIn:
        """Return the mean: a new user gets the items that every user gets."""
        return FoldIn(MEAN)

    def _start(self) -> tuple[Tensor, Tensor]:
        shares = self.shard.item_degrees / max(1, self.shard.rows.count)
        users = np.ones((self.train.n_users, 1), dtype=np.float32)
        return self._tensor(users), self._tensor(shares.astype(np.float32)[:, None])
