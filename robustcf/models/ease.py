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

# The smaller side of the data up to which a dense matrix of it is inverted.
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

    Cost: that of a randomized SVD; where ``dim`` is the smaller side of the data, at most 4,096,
    that of inverting a dense matrix of it.

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
        if self.shard.rows.whole and rank == min(R.shape) <= _DENSE:
            exact = _exact(R, config.ridge)
            return self._placed(exact[0]), self._placed(exact[1])
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


def _exact(R: csr_matrix, ridge: float) -> tuple[Tensor, Tensor]:
    """The factors of all singular values, by the inverse of the smaller side's matrix.

    With P as above and K = (R R^T + ridge I)^-1 it is R P = K R, so what the singular values give,
    R (I - ridge P), is (I - ridge K) R: only one of the two is needed.
    """
    R = R.astype(np.float64)
    by_users = R.shape[0] <= R.shape[1]
    gram = torch.from_numpy((R @ R.T if by_users else R.T @ R).toarray())
    gram.diagonal().add_(ridge)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(gram))
    kept = torch.eye(len(gram), dtype=torch.float64) - ridge * inverse
    if by_users:
        explained = np.asarray(R.multiply(inverse.numpy() @ R).sum(axis=0)).ravel()
        rest = torch.from_numpy(1.0 - explained)
        return kept, torch.from_numpy(R.T.toarray()) / rest[:, None]
    return torch.from_numpy(R.toarray()), kept / (ridge * inverse.diagonal())[:, None]
