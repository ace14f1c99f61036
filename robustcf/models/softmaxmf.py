"""Softmax MF: rows of length 1, trained with a softmax over the catalogue."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from robustcf._distributed import Ranks
from robustcf._randomness import stream
from robustcf.factors import Factors
from robustcf.models.base import Model, ModelConfig
from robustcf.models.spectral import spectral_factors
from robustcf.models.unit import through_unit_rows, unit_rows
from robustcf.objectives.base import Gradient


@dataclass(frozen=True)
class SoftmaxMFConfig(ModelConfig):
    """Settings of softmax MF.

    Args:
        dim: columns of the factors.
        init: where the parameters start.
        init_std: for ``normal``.
        normalize: whether the scored rows are the parameters divided by their lengths, so that
            scores are cosines; otherwise they are the parameters themselves.
    """

    dim: int = 128
    init: str = "smooth"
    init_std: float = 0.1
    normalize: bool = True


class SoftmaxMF(Model[SoftmaxMFConfig]):
    """Matrix factorization trained with :class:`robustcf.objectives.Softmax`, scored by cosines.

    The scored rows have length 1: cosine and dot product agree, for attacks, certificates and
    serving as for training. A user or an item without pairs starts in a random direction; such a
    user is then given the mean direction of the others, see :meth:`factors`.

    Args:
        train: the pairs to learn from.
        config: columns, start and whether to normalize; None for the defaults.
        **options: see :class:`robustcf.models.base.Model`.

    Example:
        >>> from robustcf.data import checkerboard
        >>> model = SoftmaxMF(checkerboard().train, dim=4)
        >>> torch.linalg.vector_norm(model.scored()[1], dim=1).round(decimals=5).unique().tolist()
        [1.0]
    """

    name = "softmax-mf"
    Config = SoftmaxMFConfig
    objective = "softmax"
    reg = "none"
    base_logit = 0.0
    # A user is visited once an epoch and needs the longer steps.
    training_defaults = MappingProxyType(
        {
            "temperature": 0.15,
            "weighting": "pairs",
            "lr": 1e-2,
            "user_lr": 3e-2,
            "epochs": 16,
        }
    )

    _units: tuple[Tensor, Tensor]
    _lengths: tuple[Tensor, Tensor]

    def _start(self) -> tuple[Tensor, Tensor]:
        config = self.config
        if config.init == "normal":
            users, items = super()._start()
        else:
            # The constant direction that comes last would be 0 here, and stay it: it is left out.
            U, V = spectral_factors(
                self.shard,
                config.dim + 1,
                stream(self.seed, "init"),
                base_logit=0.0,
                smooth=config.init == "smooth",
            )
            users, items = (
                self._tensor(np.ascontiguousarray(part[:, : config.dim]), self.dtype)
                for part in (U, V)
            )
        self._fill_zero_rows(users, "users", self.shard.ranks)
        self._fill_zero_rows(items, "items", Ranks())
        return users, items

    def _fill_zero_rows(self, rows: Tensor, name: str, ranks: Ranks) -> None:
        """Give rows of zeros, which have no direction, random ones of the others' mean length.

        Where ranks have some of the rows each, they draw for all of them as one process would.
        """
        lengths = torch.linalg.vector_norm(rows, dim=1)
        zero = lengths == 0
        counts = ranks.joined(zero.sum().reshape(1).cpu())
        count, before = int(counts.sum()), int(counts[: ranks.rank].sum())
        if count == 0:
            return
        drawn = stream(self.seed, "init", name).standard_normal((count, rows.shape[1]))
        mine = drawn[before : before + int(zero.sum())]
        new, _ = unit_rows(self._tensor(mine, rows.dtype))
        some = lengths[~zero]
        mean: Tensor | float = some.mean() if len(some) else 1.0
        if ranks.size > 1:
            total, others = ranks.total(float(some.sum()), len(some))
            mean = total / others if others else 1.0
        rows[zero] = new * mean

    # --- what is scored ---------------------------------------------------------------------

    def scored(self) -> tuple[Tensor, Tensor]:
        """The parameters divided by their lengths, or as they are."""
        if not self.config.normalize:
            return self.users, self.items
        return self._units[0], self._units[1]

    def updated(self, rows: Tensor | None) -> None:
        """Divide again: all items, and these users (None: all)."""
        if not self.config.normalize:
            return
        if rows is None:
            items, item_lengths = unit_rows(self.items)
            users, user_lengths = unit_rows(self.users)
        else:
            # In place, as the users': whoever keeps scored rows has a copy.
            items, item_lengths = unit_rows(self.items, (self._units[1], self._lengths[1]))
            users, user_lengths = self._units[0], self._lengths[0]
            users[rows], user_lengths[rows] = unit_rows(self.users[rows])
        self._units = users, items
        self._lengths = user_lengths, item_lengths

    def pull_back(self, gradient: Gradient) -> Gradient:
        """The gradient for the parameters; that for the items is overwritten."""
        if not self.config.normalize:
            return gradient
        users, lengths = self._units[0], self._lengths[0]
        if gradient.rows is not None:
            users, lengths = users[gradient.rows], lengths[gradient.rows]
        return Gradient(
            through_unit_rows(gradient.users, users, lengths),
            gradient.rows,
            through_unit_rows(gradient.items, self._units[1], self._lengths[1], out=gradient.items),
            gradient.value,
        )

    def factors(self) -> Factors:
        """See :meth:`Model.factors`; the mean that a user without pairs gets has length 1 too."""
        factors = super().factors()
        cold = self.train.user_degrees == 0
        if self.config.normalize and cold.any():
            where = self._tensor(np.flatnonzero(cold), torch.int64)
            factors.users[where] = unit_rows(factors.users[where])[0]
        return factors
