"""Penalties on the rows of the factors: weight decay, and the longest row."""

from __future__ import annotations

import torch
from torch import Tensor

from robustcf.errors import InputError
from robustcf.regularizers.base import Accumulator, Regularizer


class WeightDecay(Regularizer):
    """||U||_F^2 + ||V||_F^2, in one pass over the factors.

    (The official UltraGCN code has half of it: its weight 1e-4 is 5e-5 here.)

    Example:
        >>> import torch
        >>> float(WeightDecay()(torch.ones(2, 1), torch.ones(3, 1)))
        5.0
    """

    name = "weight_decay"
    on = "parameters"

    def _weights(self, U: Tensor, V: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """The weight of each row; None for 1."""
        return None, None

    def forward(self, U: Tensor, V: Tensor) -> Tensor:
        """Return the penalty."""
        users, items = self._weights(U, V)
        return _squares(U, users) + _squares(V, items)

    def add_gradient(self, U: Tensor, V: Tensor, into: Accumulator) -> float:
        """Add the gradient in closed form; the value is of the rows of this step, scaled."""
        users, items = self._weights(U, V)
        u = U if into.rows is None else U[into.rows]
        mine = users if users is None or into.rows is None else users[into.rows]
        into.users.add_(_weighted(u, mine), alpha=2.0 * into.weight * into.row_scale)
        into.items.add_(_weighted(V, items), alpha=2.0 * into.weight)
        of_items = _squares(V, items)
        value = float(into.row_scale * _squares(u, mine) + of_items)
        if into.owner(U).whole:
            return value
        return into.owner(U).ranks.total(value - float(of_items))[0] + float(of_items)


def _weighted(rows: Tensor, weights: Tensor | None) -> Tensor:
    return rows if weights is None else rows * weights[:, None]


def _squares(rows: Tensor, weights: Tensor | None) -> Tensor:
    return rows.square().sum() if weights is None else weights @ rows.square().sum(dim=1)


class DegreeDecay(WeightDecay):
    """Weight decay by the number of pairs per row, as in LightGCN (arXiv:2002.02126).

    There a pair (u, i) with its negative j is charged ``(||u||^2 + ||i||^2 + ||j||^2) / 2``. This
    is the expected charge of 1,024 pairs, negatives uniform over the catalogue, so the ``weight``
    of training is the published weight. Cost: one pass over the factors.

    Example:
        >>> import torch
        >>> reg = DegreeDecay()
        >>> reg.prepare(torch.tensor([3, 1]), torch.tensor([2, 2]))
        >>> float(reg(torch.ones(2, 1), torch.zeros(2, 1))) / 1024
        0.5
    """

    name = "degree_decay"
    # Not buffers: they follow from the data, and need not be saved.
    users: Tensor | None = None
    items: Tensor | None = None

    def prepare(self, user_degrees: Tensor, item_degrees: Tensor) -> None:
        """Set half the expected count of each row among 1,024 pairs and their negatives."""
        # By the items, which are all here even if users are on several ranks.
        pairs = item_degrees.sum().double().clamp_min(1.0)
        self.users = 512.0 * user_degrees.double() / pairs
        self.items = 512.0 * (item_degrees.double() / pairs + 1.0 / max(1, len(item_degrees)))

    def _weights(self, U: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
        if self.users is None or self.items is None:
            raise InputError("degree_decay: call prepare(user_degrees, item_degrees) first")
        return self.users.to(U), self.items.to(V)


class MaxNorm(Regularizer):
    """||U||_{2->inf}^2 + ||V||_{2->inf}^2: the squared norms of the longest row of each factor.

    Ties go to the lowest row. Cost: one pass over the factors; the gradient has one row of each.

    Example:
        >>> float(MaxNorm()(torch.tensor([[3.0, 4.0], [1.0, 0.0]]), torch.ones(1, 2)))
        27.0
    """

    name = "max_norm"

    def forward(self, U: Tensor, V: Tensor) -> Tensor:
        """Return the penalty."""
        return _longest(U).square().sum() + _longest(V).square().sum()

    def add_gradient(self, U: Tensor, V: Tensor, into: Accumulator) -> float:
        """Add the gradient; one row of each rank is compared."""
        shared = into.owner(U)
        if shared.whole:
            return super().add_gradient(U, V, into)
        longest = shared.leaders(U.detach().square().sum(dim=1), 1)
        here, mine = shared.own(longest)
        # The longest row alone is a matrix with the same penalty.
        row = shared.fetch(U, longest)
        to_row = torch.zeros_like(row)
        value = super().add_gradient(row, V, Accumulator(to_row, into.items, weight=into.weight))
        if len(here):
            place = mine if into.rows is None else (into.rows == mine).nonzero()[:, 0]
            into.users.index_add_(0, place, to_row.expand(len(place), -1), alpha=into.row_scale)
        return value


def _longest(matrix: Tensor) -> Tensor:
    if len(matrix) == 0:
        return matrix.new_zeros(0)
    with torch.no_grad():
        row = int(matrix.square().sum(dim=1).argmax())
    return matrix[row]
