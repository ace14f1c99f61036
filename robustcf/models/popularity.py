"""Popularity: every user is recommended the items that most users have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robustcf.data.interactions import Interactions
from robustcf.models.base import FitAtOnce
from robustcf.models.folding import MEAN, FoldIn


@dataclass(frozen=True)
class PopularityConfig:
    """Popularity has no settings."""


class Popularity(FitAtOnce[PopularityConfig]):
    """One column: 1 for every user, and per item the share of users who have it.

    The baseline that a recommender has to beat. It has no epochs.

    Example:
        >>> from robustcf.data import checkerboard
        >>> Popularity(checkerboard().train).factors().dim
        1
    """

    name = "popularity"
    Config = PopularityConfig

    @classmethod
    def fold_in_by(cls, config: Any, pairs: Interactions) -> FoldIn:
        """Return the mean: a new user gets the same items as all users."""
        return FoldIn(MEAN)

    def _start(self) -> tuple[Tensor, Tensor]:
        shares = self.shard.item_degrees / max(1, self.shard.rows.count)
        return torch.ones(self.train.n_users, 1), torch.from_numpy(shares.astype(np.float32))[
            :, None
        ]
