"""ALS: implicit matrix factorization by alternating least squares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from robustcf._checks import check_number, check_numbers
from robustcf._distributed import Ranks
from robustcf.data.interactions import Interactions
from robustcf.data.shards import Shard
from robustcf.models.base import FitAtOnce
from robustcf.models.folding import LEAST_SQUARES, FoldIn
from robustcf.objectives.kernels import SparseRows, sparse_scores
from robustcf.objectives.weights import check_max_share, item_weights

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

_CG_STEPS = 3
# The default confidence of a pair, by the size of the catalogue, and the least one; chosen on the
# validation pairs of seven data sets with 1,500 to 41,000 items.
_PER_ITEM, _LEAST_MORE = 1.0 / 300.0, 10.0 / 3.0
_BY_FREQUENCY = 0.01


@dataclass(frozen=True)
class ALSConfig:
    """Settings of ALS, with the meaning that they have in the package implicit.

    Args:
        factors: columns of the factors.
        alpha: confidence of an observed pair; that of an unobserved one is 1. None for 1 + the
            number of items / 300, at least 13/3.
        regularization: weight of the squared norm of a row; None for 0.01 alpha / (alpha - 1), by
            frequency.
        iterations: how many times both sides are solved for.
        by_frequency: multiply a row's regularization by the confidence of all its pairs.
        max_share: largest share of one user in an item's update, see
            :func:`robustcf.objectives.weights.item_weights`; None for no cap.
    """

    factors: int = 64
    alpha: float | None = None
    regularization: float | None = None
    iterations: int = 10
    by_frequency: bool = False
    max_share: float | None = None

    def __post_init__(self) -> None:
        check_numbers(self)
        for name in ("alpha", "regularization"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), positive=True)
        check_max_share(self.max_share)

    def resolved(self, n_items: int) -> tuple[float, float, bool]:
        """Return alpha, the regularization and whether it is by frequency."""
        alpha = self.alpha
        if alpha is None:
            alpha = 1.0 + max(_LEAST_MORE, n_items * _PER_ITEM)
        if self.regularization is not None:
            return alpha, self.regularization, self.by_frequency
        return alpha, _BY_FREQUENCY * alpha / max(alpha - 1.0, 1e-3), True


class ALS(FitAtOnce[ALSConfig]):
    """Implicit ALS (Hu, Koren and Volinsky, 2008, doi:10.1109/ICDM.2008.22).

    It minimizes, with confidences c_ui = alpha for observed pairs and 1 for all others::

        sum over observed c_ui (s_ui - 1)^2 + sum over unobserved s_ui^2
        + regularization * (sum over u of m_u ||u||^2 + the same for items)

    where m_u is 1, or with ``by_frequency`` the sum of the row's confidences (Rendle et al., 2022,
    arXiv:2110.14037, whose weight of unobserved pairs is 1 / (alpha - 1)). With ``max_share`` the
    confidence of items with few pairs is lower: alpha - 1 times their weight, plus 1. Hu et al.
    write alpha - 1 for alpha and lambda for the regularization.

    Sides alternate; each row takes a few steps of conjugate gradients. Few iterations suffice,
    since it starts from the spectral factors. It has no epochs.

    Cost of an iteration: ten products of pairs x dim and a few of rows x dim^2.

    Example:
        >>> from robustcf.data import checkerboard
        >>> ALS(checkerboard().train, factors=4).factors().dim
        4
    """

    name = "als"
    Config = ALSConfig

    @classmethod
    def fold_in_by(cls, config: ALSConfig, pairs: Interactions) -> FoldIn:
        """Return the least squares of a row; the weights of items with few pairs are left out."""
        alpha, each, by_frequency = config.resolved(pairs.n_items)
        settings = {"unobserved": 1.0, "curvature": alpha - 1.0, "pull": alpha, "ridge": each}
        if by_frequency:
            settings |= {"ridge": each * pairs.n_items, "ridge_per_pair": each * (alpha - 1.0)}
        return FoldIn(LEAST_SQUARES, settings)

    def _start(self) -> tuple[Tensor, Tensor]:
        config = self.config
        U, V = self._spectral(config.factors, constant=False)
        R = self.train.csr().astype(np.float32)
        weights = item_weights(self.shard.item_degrees, config.max_share)
        if weights is not None:
            R.data = weights[R.indices].astype(np.float32)
        back, how = R.T.tocsr(), config.resolved(self.train.n_items)
        for _ in range(config.iterations):
            V = _solve(back, V, U, *how, self.shard)
            U = _solve(R, U, V, *how)
        return U, V


def _solve(
    R: csr_matrix,
    X: Tensor,
    Y: Tensor,
    alpha: float,
    regularization: float,
    by_frequency: bool,
    shard: Shard | None = None,
) -> Tensor:
    """Return rows that fit R with the other side Y held fixed, starting from X.

    With a shard, X are all items and Y the users of one rank, and sums run over all ranks.
    """
    ranks = Ranks() if shard is None else shard.ranks
    gram, more = ranks.sum(Y.T @ Y), alpha - 1.0
    others = R.shape[1] if shard is None else shard.rows.count
    decay = torch.full((len(X), 1), regularization, dtype=Y.dtype)
    if by_frequency:
        counts = ranks.sum(
            torch.from_numpy(np.array(R.sum(axis=1, dtype=np.float64)).reshape(-1, 1))
        )
        decay *= (more * counts + others).to(Y.dtype)
    rows = torch.from_numpy(np.repeat(np.arange(R.shape[0]), np.diff(R.indptr)))
    columns = torch.from_numpy(R.indices.astype(np.int64))

    def product(weights: npt.NDArray[Any]) -> Tensor:
        """Return S Y for the sparse matrix S with these entries at the pairs."""
        from scipy.sparse import csr_matrix

        found = csr_matrix((weights, R.indices, R.indptr), R.shape) @ Y.numpy()
        return ranks.sum(torch.from_numpy(found))

    def applied(P: Tensor) -> Tensor:
        scores = sparse_scores(P, Y, SparseRows(rows, columns, columns))
        return P @ gram + product(more * scores.numpy() * R.data) + decay * P

    X = X.clone()
    residual = product(alpha * R.data) - applied(X)
    direction = residual.clone()
    size = (residual * residual).sum(dim=1)
    for _ in range(_CG_STEPS):
        image = applied(direction)
        curvature = (direction * image).sum(dim=1)
        step = torch.where(curvature > 0, size / curvature, 0.0)
        X += step[:, None] * direction
        residual -= step[:, None] * image
        new = (residual * residual).sum(dim=1)
        direction = residual + torch.where(size > 0, new / size, 0.0)[:, None] * direction
        size = new
    return X
