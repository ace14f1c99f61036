"""EASE in factors: the linear autoencoder in closed form, at any rank."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from robustcf._checks import check_number, check_numbers
from robustcf._randomness import stream
from robustcf.models.base import FitAtOnce
from robustcf.models.spectral import truncated_svd

# At least a rounding error, for an item that its neighbours explain in full.
_LEAST = 1e-6


@dataclass(frozen=True)
class EASEConfig:
    """Settings of EASE.

    Args:
        factors: the rank; with the smaller side of the data it is exact.
        regularization: the weight of the squared entries of the item-item matrix.
    """

    factors: int = 512
    regularization: float = 300.0

    def __post_init__(self) -> None:
        check_numbers(self)
        check_number("regularization", self.regularization, positive=True)


class EASE(FitAtOnce[EASEConfig]):
    """EASE (Steck, 2019, arXiv:1905.03375): a ridge regression on a user's other items.

    With P = (R^T R + l I)^-1, l the regularization, the item-item matrix is B = I - P diag(P)^-1
    and scores are R B. Let R = L S W^T be the singular value decomposition and
    f = s^2 / (s^2 + l). For items that a user does not have, the only ones that are ranked, the
    identity adds nothing and the scores are ``(L S f) (W / d)^T``,
    d_j = 1 - sum over k of f_k W_jk^2: plain factors. Cut at ``factors`` singular values, the
    matrix is neither formed nor inverted. It has no epochs.

    Cost: a randomized SVD. The whole matrix is that of the model ``sparse-ease`` with 0 neighbours.

    Example:
        >>> from robustcf.data import checkerboard
        >>> EASE(checkerboard().train, factors=4, regularization=10.0).factors().dim
        4
    """

    name = "ease"
    Config = EASEConfig

    def _start(self) -> tuple[Tensor, Tensor]:
        ridge, rows = self.config.regularization, self.shard.rows
        R = self.train.csr().astype(np.float32)
        rank = min(self.config.factors, rows.count, R.shape[1])
        left, sizes, right = (
            part.double() for part in truncated_svd(R, rank, stream(self.seed, "init"), rows)
        )
        kept = sizes**2 / (sizes**2 + ridge)
        rest = (1.0 - (right**2) @ kept).clamp_min_(_LEAST)
        return left * (sizes * kept), right / rest[:, None]
