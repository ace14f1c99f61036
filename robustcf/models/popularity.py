"""Popularity: everybody is shown the items that most users have."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from torch import Tensor

from robustcf.data.interactions import Interactions
from robustcf.models.base import Model, ModelConfig
from robustcf.models.folding import MEAN, FoldIn


@dataclass(frozen=True)
class PopularityConfig(ModelConfig):
    """Popularity has one column and nothing to set."""

    dim: int = 1


class Popularity(Model[PopularityConfig]):
    """One column: 1 for every user, the share of users who have it for every item.

    The least that a recommender has to beat. Nothing is learnt: it has no epochs.

    Args:
        train: the pairs to count.
        config: nothing to set.
        **options: see :class:`robustcf.models.base.Model`.

    Example:
        >>> from robustcf.data import checkerboard
        >>> Popularity(checkerboard().train).factors().dim
        1
    """

    name = "popularity"
    Config = PopularityConfig
    objective = "softmax"
    reg = "none"
    training_defaults = MappingProxyType({"epochs": 0, "epochs_chosen": True})

    @classmethod
    def fold_in_by(cls, config: PopularityConfig, pairs: Interactions) -> FoldIn:
        """Return the mean: a new user gets the items that everybody gets."""
        return FoldIn(MEAN)

    def _start(self) -> tuple[Tensor, Tensor]:
        users = np.zeros((self.train.n_users, self.config.dim), dtype=np.float32)
        items = np.zeros((self.train.n_items, self.config.dim), dtype=np.float32)
        users[:, 0] = 1.0
        items[:, 0] = self.shard.item_degrees / max(1, self.shard.rows.count)
        return self._tensor(users, self.dtype), self._tensor(items, self.dtype)
