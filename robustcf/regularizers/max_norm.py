"""The longest row of each factor."""

from __future__ import annotations

import torch
from torch import Tensor

from robustcf._distributed import Rows
from robustcf.regularizers.base import Regularizer


class MaxNorm(Regularizer):
    """||U||_{2->inf}^2 + ||V||_{2->inf}^2: the squared norms of the longest row of each factor.

    Ties go to the lowest row.

    Cost: one pass over the factors; the gradient touches one row of each.

    Example:
        >>> float(MaxNorm()(torch.tensor([[3.0, 4.0], [1.0, 0.0]]), torch.ones(1, 2)))
        27.0
    """

    name = "max_norm"

    def forward(self, U: Tensor, V: Tensor) -> Tensor:
        """The penalty."""
        return self._row(U).square().sum() + self._row(V).square().sum()

    @staticmethod
    def _row(matrix: Tensor) -> Tensor:
        if len(matrix) == 0:
            return matrix.new_zeros(0)
        with torch.no_grad():
            row = int(matrix.square().sum(dim=1).argmax())
        return matrix[row]

    def add_shared_gradient(
        self,
        U: Tensor,
        V: Tensor,
        rows: Tensor | None,
        user_gradient: Tensor,
        item_gradient: Tensor,
        *,
        shared: Rows,
        weight: float = 1.0,
        row_scale: float = 1.0,
    ) -> float:
        """See :meth:`Regularizer.add_shared_gradient`; one row of each rank is compared."""
        longest = shared.leaders(U.detach().square().sum(dim=1), 1)
        here, mine = shared.own(longest)
        # A row of everybody's, which is the longest of a matrix of one row: nobody sends the rest.
        row = shared.fetch(U, longest)
        to_row = torch.zeros_like(row)
        value = self.add_gradient(row, V, None, to_row, item_gradient, weight=weight)
        if len(here):
            place = mine if rows is None else (rows == mine).nonzero()[:, 0]
            add = to_row.expand(len(place), -1)
            user_gradient.index_add_(0, place, add, alpha=row_scale)
        return value
