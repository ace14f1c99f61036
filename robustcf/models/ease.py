"""EASE in factors: the linear autoencoder in closed form, at any rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from robustcf._checks import check_number, check_numbers
from robustcf._randomness import stream
from robustcf.models.base import NO_EPOCHS, Model
from robustcf.models.spectral import truncated_svd

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

# The smaller side of the data up to which a dense matrix of it is inverted, and the most cells of
# users x items: the factors are as large.
_DENSE, _CELLS = 4_096, 5e7
# At least a rounding error: of an item that its neighbours explain in full.
_LEAST = 1e-6


@dataclass(frozen=True)
class EASEConfig:
    """Settings of EASE.

    Args:
        dim: the rank; with the smaller side of the data it is exact.
        ridge: the weight of the squared entries of the item-item matrix.
    """

    dim: int = 512
    ridge: float = 300.0

    def __post_init__(self) -> None:
        check_numbers(self)
        check_number("ridge", self.ridge, positive=True)


class EASE(Model[EASEConfig]):
    """EASE (Steck, 2019, arXiv:1905.03375): a ridge regression on a user's other items.

    With P = (R^T R + ridge I)^-1 the item-item matrix is B = I - P diag(P)^-1 and scores are R B.
    Let R = L S W^T be the singular value decomposition and f = s^2 / (s^2 + ridge). For items
    that a user does not have, the only ones that are ranked, the identity adds nothing and the
    scores are ``(L S f) (W / d)^T``, d_j = 1 - sum over k of f_k W_jk^2: plain factors. Cut at
    ``dim`` singular values, the matrix needs neither to be formed nor to be inverted. It has no
    epochs.

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
    training_defaults = NO_EPOCHS

    def _start(self) -> tuple[Tensor, Tensor]:
        config, train = self.config, self.train
        rank = min(config.dim, self.shard.rows.count, train.n_items)
        R = train.csr().astype(np.float32)
        if self.shard.rows.whole and rank == min(R.shape) and is_small(*R.shape):
            exact = _exact(R, config.ridge)
            if exact is not None:
                return self._placed(*exact)
        left, sizes, right = truncated_svd(R, rank, stream(self.seed, "init"), self.shard.rows)
        squares = sizes.double() ** 2
        kept = squares / (squares + config.ridge)
        rest = (1.0 - (right.double() ** 2) @ kept).clamp_min_(_LEAST)
        return self._placed(left.double() * (sizes.double() * kept), right.double() / rest[:, None])

    def _placed(self, *parts: Tensor) -> tuple[Tensor, Tensor]:
        users, items = (part.contiguous().to(self.device, self.dtype) for part in parts)
        return users, items


def is_small(n_users: int, n_items: int) -> bool:
    """Return whether EASE with all columns is exact, by a dense inverse, for data of this size.

    Example:
        >>> is_small(900, 3_000), is_small(1_000_000, 900)
        (True, False)
    """
    return min(n_users, n_items) <= _DENSE and n_users * n_items <= _CELLS


def _exact(R: csr_matrix, ridge: float) -> tuple[Tensor, Tensor] | None:
    """The factors of all singular values, by the inverse of the smaller side's matrix.

    None where rounding errors are too much for that: a ridge next to nothing.

    With P as above and K = (R R^T + ridge I)^-1 it is R P = K R, so what the singular values give,
    R (I - ridge P), is (I - ridge K) R: only one of the two is needed.
    """
    R = R.astype(np.float64)
    by_users = R.shape[0] <= R.shape[1]
    gram = torch.from_numpy((R @ R.T if by_users else R.T @ R).toarray())
    gram.diagonal().add_(ridge)
    root, failed = torch.linalg.cholesky_ex(gram)
    if failed or ridge < _LEAST:
        return None
    inverse = torch.cholesky_inverse(root)
    kept = torch.eye(len(gram), dtype=torch.float64) - ridge * inverse
    if by_users:
        explained = np.asarray(R.multiply(inverse.numpy() @ R).sum(axis=0)).ravel()
        rest = torch.from_numpy(1.0 - explained).clamp_min_(_LEAST)
        return kept, torch.from_numpy(R.T.toarray()).div_(rest[:, None])
    rest = (ridge * inverse.diagonal()).clamp_min_(_LEAST)
    return torch.from_numpy(R.toarray()), kept.div_(rest[:, None])
