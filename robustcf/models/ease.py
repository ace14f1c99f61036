"""EASE in factors: the linear autoencoder in closed form, at any rank."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from robustcf.models.base import Model, ModelConfig
from robustcf.models.svd import truncated_svd
from robustcf.support.checks import check_number
from robustcf.support.randomness import stream

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

# The smaller side of the data up to which all singular values are computed at once, by a dense
# matrix of that many rows.
_DENSE = 4_096


@dataclass(frozen=True)
class EASEConfig(ModelConfig):
    """Settings of EASE.

    Args:
        dim: the rank; with the smaller side of the data it is exact.
        ridge: the weight of the squared entries of the item-item matrix.
    """

    dim: int = 512
    ridge: float = 300.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("ridge", self.ridge, positive=True)


class EASE(Model[EASEConfig]):
    """EASE (Steck, 2019): items scored by a ridge regression on a user's other items.

    With P = (R^T R + ridge I)^-1 the item-item matrix is B = I - P diag(P)^-1 and scores are R B.
    Let R = L S W^T be the singular value decomposition and f = s^2 / (s^2 + ridge). For items
    that a user does not have, the only ones that are ranked, the identity adds nothing and the
    scores are ``(L S f) (W / d)^T``, d_j = 1 - sum over k of f_k W_jk^2: plain factors. Cut at
    ``dim`` singular values, the matrix needs neither to be formed nor to be inverted.

    Nothing is trained: it has no epochs.

    Args:
        train: the pairs.
        config: rank and ridge; None for the defaults.
        **options: see :class:`robustcf.models.base.Model`.

    Cost: that of a randomized SVD; where ``dim`` is more than half of the smaller side of the data,
    and that has at most 4,096 rows, of a dense eigenvalue decomposition.

    Example:
        >>> from robustcf.data import checkerboard
        >>> EASE(checkerboard().train, dim=4, ridge=10.0).factors().dim
        4
    """

    name = "ease"
    Config = EASEConfig
    objective = "softmax"
    reg = "none"
    training_defaults = MappingProxyType({"epochs": 0, "epochs_chosen": True})

    def _start(self) -> tuple[Tensor, Tensor]:
        config, train = self.config, self.train
        rank = min(config.dim, self.shard.rows.count, train.n_items)
        R = train.csr().astype(np.float32)
        smaller = min(R.shape)
        if self.shard.rows.whole and 2 * rank > smaller and smaller <= _DENSE:
            left, sizes, right = _dense_svd(R, rank)
        else:
            left, sizes, right = truncated_svd(R, rank, stream(self.seed, "init"), self.shard.rows)
        squares = sizes.double() ** 2
        kept = squares / (squares + config.ridge)
        # At least a rounding error: of an item that its neighbours explain in full.
        rest = (1.0 - (right.double() ** 2) @ kept).clamp_min_(1e-6)
        users = left.double() * (sizes.double() * kept)
        items = right.double() / rest[:, None]
        return self._placed(users), self._placed(items)

    def _placed(self, part: Tensor) -> Tensor:
        return part.contiguous().to(self.device, self.dtype)


def _dense_svd(R: csr_matrix, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """The leading singular values and vectors, by the products of the shorter side's rows."""
    if R.shape[0] > R.shape[1]:
        right, sizes, left = _dense_svd(R.T.tocsr(), rank)
        return left, sizes, right
    R = R.astype(np.float64)
    squares, vectors = torch.linalg.eigh(torch.from_numpy((R @ R.T).toarray()))
    left = vectors[:, -rank:].flip(1)
    sizes = squares[-rank:].flip(0).clamp_min(0.0).sqrt()
    # Where a singular value is a rounding error, so is its direction: it has no part in any score.
    inverse = torch.where(sizes > 1e-7 * sizes[0], 1.0 / sizes, 0.0)
    right = torch.from_numpy(R.T @ left.numpy()) * inverse
    return left, sizes, right
