"""Weight decay: squared norms of rows, all alike or as often as pairs touch them."""

from __future__ import annotations

from torch import Tensor

from robustcf._distributed import Rows
from robustcf.errors import InputError
from robustcf.regularizers.base import Regularizer


class _Decay(Regularizer):
    """A sum over single rows: each rank has its own, and all have the items'."""

    on = "parameters"

    def _of_items(self, V: Tensor) -> Tensor:
        """The items' part of the penalty."""
        raise NotImplementedError

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
        """See :meth:`Regularizer.add_shared_gradient`; a sum over rows: each rank has its own."""
        places = (user_gradient, item_gradient)
        value = self.add_gradient(U, V, rows, *places, weight=weight, row_scale=row_scale)
        if shared.whole:
            return value
        of_items = float(self._of_items(V))
        return shared.ranks.total(value - of_items)[0] + of_items


class WeightDecay(_Decay):
    """||U||_F^2 + ||V||_F^2.

    (The official UltraGCN code has half of it: its weight 1e-4 is 5e-5 here.)

    Cost: one pass over the factors.

    Example:
        >>> import torch
        >>> float(WeightDecay()(torch.ones(2, 1), torch.ones(3, 1)))
        5.0
    """

    name = "weight_decay"

    def forward(self, U: Tensor, V: Tensor) -> Tensor:
        """The penalty."""
        return U.square().sum() + V.square().sum()

    def add_gradient(
        self,
        U: Tensor,
        V: Tensor,
        rows: Tensor | None,
        user_gradient: Tensor,
        item_gradient: Tensor,
        *,
        weight: float = 1.0,
        row_scale: float = 1.0,
    ) -> float:
        """See :meth:`Regularizer.add_gradient`; in closed form, and for the rows alone.

        The value returned counts the rows only, scaled: all of U would have to be read for more.
        """
        u = U if rows is None else U[rows]
        user_gradient.add_(u, alpha=2.0 * weight * row_scale)
        item_gradient.add_(V, alpha=2.0 * weight)
        return float(row_scale * u.square().sum() + V.square().sum())

    def _of_items(self, V: Tensor) -> Tensor:
        return V.square().sum()


class DegreeDecay(_Decay):
    """Weight decay of the rows that pairs touch, as LightGCN and other BPR models publish it.

    There a pair (u, i) with its negative j is charged ``(||u||^2 + ||i||^2 + ||j||^2) / 2``. This
    is what 1,024 pairs are charged in expectation, negatives uniform over the catalogue: rows
    count as often as they occur. So the ``weight`` of training is the published weight itself.

    Cost: one pass over the factors.

    Example:
        >>> import torch
        >>> reg = DegreeDecay()
        >>> reg.prepare(torch.tensor([3, 1]), torch.tensor([2, 2]))
        >>> float(reg(torch.ones(2, 1), torch.zeros(2, 1))) / 1024
        0.5
    """

    name = "degree_decay"
    users: Tensor | None = None
    items: Tensor | None = None

    def prepare(self, user_degrees: Tensor, item_degrees: Tensor) -> None:
        """How often each row occurs among 1,024 pairs and their negatives, in expectation, halved.

        The attributes are no buffers: they follow from the data, and need not be saved.
        """
        # By the items, who are all here where users are on several ranks.
        pairs = item_degrees.sum().double().clamp_min(1.0)
        self.users = 512.0 * user_degrees.double() / pairs
        self.items = 512.0 * (item_degrees.double() / pairs + 1.0 / max(1, len(item_degrees)))

    def forward(self, U: Tensor, V: Tensor) -> Tensor:
        """The penalty."""
        users, items = self._weights(U, V)
        return users @ U.square().sum(dim=1) + items @ V.square().sum(dim=1)

    def _weights(self, U: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
        return self._told(self.users).to(U), self._told(self.items).to(V)

    @staticmethod
    def _told(weights: Tensor | None) -> Tensor:
        if weights is None:
            raise InputError(
                "degree_decay must be told the number of pairs of each user and item: call "
                "prepare(user_degrees, item_degrees) first"
            )
        return weights

    def add_gradient(
        self,
        U: Tensor,
        V: Tensor,
        rows: Tensor | None,
        user_gradient: Tensor,
        item_gradient: Tensor,
        *,
        weight: float = 1.0,
        row_scale: float = 1.0,
    ) -> float:
        """See :meth:`Regularizer.add_gradient`; in closed form, and for the rows alone.

        The value returned counts the rows only, scaled: all of U would have to be read for more.
        """
        users, items = self._weights(U, V)
        u, mine = (U, users) if rows is None else (U[rows], users[rows])
        user_gradient.add_(u * mine[:, None], alpha=2.0 * weight * row_scale)
        item_gradient.add_(V * items[:, None], alpha=2.0 * weight)
        value = row_scale * (mine @ u.square().sum(dim=1)) + items @ V.square().sum(dim=1)
        return float(value)

    def _of_items(self, V: Tensor) -> Tensor:
        return self._told(self.items).to(V) @ V.square().sum(dim=1)
