"""ALS: implicit matrix factorization by alternating least squares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from robustcf._checks import check_number, check_numbers
from robustcf._distributed import Ranks
from robustcf._randomness import stream
from robustcf.data.interactions import Interactions
from robustcf.data.shards import Shard
from robustcf.models.base import NO_EPOCHS, Model
from robustcf.models.folding import LEAST_SQUARES, FoldIn
from robustcf.models.spectral import spectral_factors
from robustcf.objectives.kernels import SparseRows, sparse_scores
from robustcf.objectives.weights import check_max_share, item_weights

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

_CG_STEPS = 3
# What all items that a user does not have weigh together by default; chosen on the validation pairs
# of seven sets with 1,500 to 41,000 items.
_ABSENT, _MOST_UNOBSERVED = 300.0, 0.3


def unobserved_weight(n_items: int, all_items: float = _ABSENT) -> float:
    """Return the weight of one unobserved pair, by that of a whole catalogue of them.

    Example:
        >>> unobserved_weight(30_000), unobserved_weight(100)
        (0.01, 0.3)
    """
    return min(_MOST_UNOBSERVED, all_items / n_items)


@dataclass(frozen=True)
class ALSConfig:
    """Settings of ALS.

    Args:
        dim: columns of the factors.
        unobserved: weight of an unobserved pair, against 1 for an observed one; None for 300 over
            the number of items, at most 0.3.
        ridge: weight of the squared norm of a row, times the weight of all its pairs.
        sweeps: how many times both sides are solved for.
        max_share: the most that one user may decide of what an item learns, see
            :func:`robustcf.objectives.weights.item_weights`; None for no cap.
    """

    dim: int = 64
    unobserved: float | None = None
    ridge: float = 0.01
    sweeps: int = 10
    max_share: float | None = None

    def __post_init__(self) -> None:
        check_numbers(self)
        if self.unobserved is not None:
            check_number("unobserved", self.unobserved, positive=True)
        check_number("ridge", self.ridge, positive=True)
        check_max_share(self.max_share)

    def weight(self, n_items: int) -> float:
        """Return the weight of an unobserved pair in a catalogue of so many items."""
        return unobserved_weight(n_items) if self.unobserved is None else self.unobserved


class ALS(Model[ALSConfig]):
    """Implicit ALS (Hu, Koren and Volinsky, 2008, doi:10.1109/ICDM.2008.22).

    It is regularized by frequency (Rendle et al., 2022, arXiv:2110.14037) and minimizes, with a
    the weight of unobserved pairs::

        sum over pairs w_ui (s_ui - 1)^2 + a * sum over all u, i of s_ui^2
        + ridge * (sum over u of (deg u + a n_items) ||u||^2 + the same for items)

    where w_ui is 1, or less for items of few pairs (``max_share``), and deg u is their sum; one
    side at a time, each row by a few steps of conjugate gradients from where it was. It starts from
    the spectral factors, so that few sweeps suffice; they are all made there: it has no epochs.

    Cost of a sweep: ten products of pairs x dim and a few of rows x dim^2.

    Example:
        >>> from robustcf.data import checkerboard
        >>> ALS(checkerboard().train, dim=4).factors().dim
        4
    """

    name = "als"
    Config = ALSConfig
    objective = "softmax"
    reg = "none"
    training_defaults = NO_EPOCHS

    @classmethod
    def fold_in_by(cls, config: ALSConfig, pairs: Interactions) -> FoldIn:
        """Return the least squares of a row; the weights of items with few pairs are left out."""
        weight = config.weight(pairs.n_items)
        settings = {
            "unobserved": weight,
            "ridge": config.ridge * weight * pairs.n_items,
            "ridge_per_pair": config.ridge,
        }
        return FoldIn(LEAST_SQUARES, settings)

    def _start(self) -> tuple[Tensor, Tensor]:
        config = self.config
        # One column more, the constant one, which is left out; in float32, as all that follows.
        start = spectral_factors(
            self.shard, config.dim + 1, stream(self.seed, "init"), base_logit=0.0
        )
        U, V = (torch.from_numpy(np.ascontiguousarray(part[:, : config.dim])) for part in start)
        R = self.train.csr().astype(np.float32)
        weights = item_weights(self.shard.item_degrees, config.max_share)
        if weights is not None:
            R.data = weights[R.indices].astype(np.float32)
        back, weight = R.T.tocsr(), config.weight(self.train.n_items)
        for _ in range(config.sweeps):
            V = _solve(back, V, U, weight, config.ridge, self.shard)
            U = _solve(R, U, V, weight, config.ridge)
        return U.to(self.device, self.dtype), V.to(self.device, self.dtype)


def _solve(
    R: csr_matrix,
    X: Tensor,
    Y: Tensor,
    unobserved: float,
    ridge: float,
    shard: Shard | None = None,
) -> Tensor:
    """Rows X that fit R, the other side Y held fixed, from X on.

    With a shard, X are all items and Y the users of one rank: what users say is added up.
    """
    ranks = Ranks() if shard is None else shard.ranks
    gram = unobserved * ranks.sum(Y.T @ Y)
    others = R.shape[1] if shard is None else shard.rows.count
    mass = ranks.sum(torch.from_numpy(np.array(R.sum(axis=1, dtype=np.float64)).ravel()))
    decay = (mass + unobserved * others).to(Y.dtype) * ridge
    rows = torch.from_numpy(np.repeat(np.arange(R.shape[0]), np.diff(R.indptr)))
    columns = torch.from_numpy(R.indices.astype(np.int64))

    def product(weights: npt.NDArray[np.float32]) -> Tensor:
        """S Y for the sparse matrix S with these entries at the pairs."""
        from scipy.sparse import csr_matrix

        found = csr_matrix((weights, R.indices, R.indptr), R.shape) @ Y.numpy()
        return ranks.sum(torch.from_numpy(found))

    def applied(P: Tensor) -> Tensor:
        scores = sparse_scores(P, Y, SparseRows(rows, columns, columns))
        return P @ gram + product(scores.numpy() * R.data) + decay[:, None] * P

    X = X.clone()
    residual = product(R.data) - applied(X)
    direction = residual.clone()
    size = (residual * residual).sum(dim=1)
    for _ in range(_CG_STEPS):
        image = applied(direction)
        curvature = (direction * image).sum(dim=1)
        # A row that is solved already has no direction left.
        step = torch.where(curvature > 0, size / curvature, 0.0)
        X += step[:, None] * direction
        residual -= step[:, None] * image
        new = (residual * residual).sum(dim=1)
        direction = residual + torch.where(size > 0, new / size, 0.0)[:, None] * direction
        size = new
    return X
