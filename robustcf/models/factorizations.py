"""Plain factorizations: UltraGCN and BPR-MF; softmax MF, whose scored rows have length 1."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from robustcf._distributed import Ranks
from robustcf._randomness import stream
from robustcf.factors import Factors
from robustcf.models.base import Model, ModelConfig
from robustcf.objectives.base import Gradient

# Rows at a time, so that intermediate results stay in the cache. Large tensors are reused between
# steps, since the system clears new memory first.
_ROWS = 4096

#: Rows divided by their lengths (n x d), and the lengths (n x 1).
UnitRows = tuple[Tensor, Tensor]


class UltraGCN(Model[ModelConfig]):
    """UltraGCN (Mao et al., 2021, arXiv:2110.15114): embeddings trained with BCE.

    It replaces the layers of a graph network by their limit: the weights of a cross-entropy and an
    item-item term, both of which :class:`robustcf.objectives.BCE` has.

    Example:
        >>> from robustcf.data import checkerboard
        >>> UltraGCN(checkerboard().train, factors=4).factors().dim
        4
    """

    name = "ultragcn"
    # Heavy negatives pull every score to about -5; training would first have to get there.
    base_logit = 5.0


class BPRMF(Model[ModelConfig]):
    """Matrix factorization trained with BPR (Rendle et al., 2009, arXiv:1205.2618)."""

    name = "bpr-mf"
    objective = "bpr"
    base_logit = 0.0  # only differences of scores count


@dataclass(frozen=True)
class SoftmaxMFConfig(ModelConfig):
    """Settings of softmax MF, next to those of :class:`robustcf.models.ModelConfig`.

    Args:
        normalize: whether scores are cosines, by scored rows of length 1.
    """

    factors: int = 128
    init: str = "smooth"
    init_std: float = 0.1
    normalize: bool = True


class SoftmaxMF(Model[SoftmaxMFConfig]):
    """Matrix factorization trained with :class:`robustcf.objectives.Softmax`, scored by cosines.

    Scored rows have length 1, so that cosine and dot product agree in training, attacks,
    certificates and serving. Users and items without pairs start in random directions; such users
    are scored by the mean direction of the others.

    Example:
        >>> from robustcf.data import checkerboard
        >>> model = SoftmaxMF(checkerboard().train, factors=4)
        >>> torch.linalg.vector_norm(model.scored()[1], dim=1).round(decimals=5).unique().tolist()
        [1.0]
    """

    name = "softmax-mf"
    Config = SoftmaxMFConfig
    objective = "softmax"
    reg = "none"
    base_logit = 0.0
    # A user is visited once per epoch and needs longer steps.
    training_defaults = MappingProxyType(
        {"temperature": 0.15, "weighting": "pairs", "lr": 1e-2, "user_lr": 3e-2, "epochs": 16}
    )

    _units: tuple[UnitRows, UnitRows]

    def _start(self) -> tuple[Tensor, Tensor]:
        config = self.config
        if config.init == "normal":
            start = super()._start()
        else:  # without the constant direction, which would stay 0
            start = self._spectral(config.factors, smooth=config.init == "smooth", constant=False)
        users, items = self._placed(*start)
        self._fill_zero_rows(users, "users", self.shard.ranks)
        self._fill_zero_rows(items, "items", Ranks())
        return users, items

    def _fill_zero_rows(self, rows: Tensor, name: str, ranks: Ranks) -> None:
        """Replace rows of zeros by random directions of the other rows' mean length.

        Every rank draws the rows of all ranks, as one process would.
        """
        lengths = torch.linalg.vector_norm(rows, dim=1)
        zero = lengths == 0
        counts = ranks.joined(zero.sum().reshape(1).cpu())
        count, before = int(counts.sum()), int(counts[: ranks.rank].sum())
        if count == 0:
            return
        drawn = stream(self.seed, "init", name).standard_normal((count, rows.shape[1]))
        new, _ = unit_rows(torch.tensor(drawn[before : before + int(zero.sum())]).to(rows))
        some = lengths[~zero]
        mean: Tensor | float = some.mean() if len(some) else 1.0
        if ranks.size > 1:
            total, others = ranks.total(float(some.sum()), len(some))
            mean = total / others if others else 1.0
        rows[zero] = new * mean

    def scored(self) -> tuple[Tensor, Tensor]:
        """Return the parameters divided by their lengths, or as they are."""
        if not self.config.normalize:
            return self.users, self.items
        return self._units[0][0], self._units[1][0]

    def updated(self, rows: Tensor | None) -> None:
        """Divide again: all items, and these users (None: all)."""
        if not self.config.normalize:
            return
        if rows is None:
            self._units = unit_rows(self.users), unit_rows(self.items)
            return
        (users, lengths), items = self._units
        unit_rows(self.items, out=items)
        users[rows], lengths[rows] = unit_rows(self.users[rows])

    def pull_back(self, gradient: Gradient) -> Gradient:
        """Return the gradient for the parameters; that for the items is overwritten."""
        return through_units(gradient, *self._units) if self.config.normalize else gradient

    def factors(self) -> Factors:
        """See :meth:`Model.factors`; the mean of users without pairs has length 1, too."""
        factors = super().factors()
        if self.config.normalize:
            cold = torch.from_numpy(self.train.user_degrees == 0).to(self.device)
            factors.users[cold] = unit_rows(factors.users[cold])[0]
        return factors


def unit_rows(rows: Tensor, out: UnitRows | None = None) -> UnitRows:
    """Divide rows by their lengths, into ``out`` where given; a row of zeros stays, with length 1.

    Example:
        >>> rows, lengths = unit_rows(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        >>> rows.tolist(), lengths.flatten().tolist()
        ([[0.6000000238418579, 0.800000011920929], [0.0, 0.0]], [5.0, 1.0])
    """
    units, lengths = (torch.empty_like(rows), rows.new_empty(len(rows), 1)) if out is None else out
    for start in range(0, len(rows), _ROWS):
        span = slice(start, start + _ROWS)
        norms = torch.linalg.vector_norm(rows[span], dim=1, keepdim=True)
        lengths[span] = torch.where(norms > 0, norms, 1.0)
        torch.div(rows[span], lengths[span], out=units[span])
    return units, lengths


def through_units(gradient: Gradient, users: UnitRows, items: UnitRows) -> Gradient:
    """Return the gradient for rows, from that for the rows divided by their lengths.

    It is ``(g - <g, x> x) / length``. The items' part is overwritten.
    """
    if gradient.rows is not None:
        users = users[0][gradient.rows], users[1][gradient.rows]
    to_users = _through(gradient.users, users, torch.empty_like(gradient.users))
    to_items = _through(gradient.items, items, gradient.items)
    return Gradient(to_users, gradient.rows, to_items, gradient.value)


def _through(gradient: Tensor, rows: UnitRows, out: Tensor) -> Tensor:
    units, lengths = rows
    for start in range(0, len(gradient), _ROWS):
        span = slice(start, start + _ROWS)
        g, x = gradient[span], units[span]
        along = (g * x).sum(dim=1, keepdim=True)
        torch.addcmul(g, x, along, value=-1.0, out=out[span]).div_(lengths[span])
    return out
