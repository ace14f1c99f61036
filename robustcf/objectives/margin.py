"""Margins: how much attacks of a size may take from a comparison of two items, and the gradient.

Rows of U move by at most a, rows of V by at most b. The gap ``u.(v_i - v_j)`` falls by at most::

    a ||v_i - v_j|| + 2 b ||u|| + 2 a b

An objective with every gap reduced by that is an upper bound of its value under *every* attack of
the size. For whole rows :class:`CentredMargin` uses ``||v_i - c|| + ||v_j - c||`` with a centre c
in place of the distance: one number per item and one per user, for a slightly larger bound.
"""

from __future__ import annotations

import torch
from torch import Tensor


class _Margin:
    """The charge ``by_user`` of the movement of the items."""

    def __init__(self, block: Tensor, a: float, b: float) -> None:
        self.block, self.a, self.b = block, a, b
        self.lengths = torch.linalg.vector_norm(block, dim=1)
        self.by_user = 2 * b * (self.lengths + a)

    def add_to_users(self, by_user: Tensor, users: Tensor) -> None:
        """Add the gradient of the users' charges, which have these weights."""
        users.add_(_directions(self.block, self.lengths) * by_user[:, None], alpha=2 * self.b)


class DrawnMargin(_Margin):
    """The charge of comparisons of a block of users with drawn items."""

    def __init__(self, block: Tensor, V: Tensor, some: Tensor, a: float, b: float) -> None:
        super().__init__(block, a, b)
        self.V, self.some = V, some
        self.distance = torch.cdist(V, some, compute_mode="use_mm_for_euclid_dist")
        #: Weights in the gradient of comparisons of each item with the drawn ones.
        self.counts = torch.zeros_like(self.distance)

    def add_gradient(self, drawn: Tensor, by_user: Tensor, users: Tensor, items: Tensor) -> None:
        """Add the charges' gradient, for the block's rows and for all items."""
        self.add_to_users(by_user, users)
        # Distances come from squares: below this level they are rounding, without a direction.
        lengths = [torch.linalg.vector_norm(part, dim=1) for part in (self.V, self.some)]
        rounding = 3 * torch.finfo(users.dtype).eps ** 0.5
        level = rounding * torch.maximum(lengths[0][:, None], lengths[1])
        pull = torch.where(self.distance > level, self.counts / self.distance, 0.0)
        items.add_(pull.sum(dim=1)[:, None] * self.V - pull @ self.some, alpha=self.a)
        back = pull.sum(dim=0)[:, None] * self.some - pull.T @ self.V
        items.index_add_(0, drawn, back, alpha=self.a)


class CentredMargin(_Margin):
    """The charge of comparisons with all items: ``by_item[i] + by_item[j] + by_user[u]``."""

    def __init__(self, block: Tensor, V: Tensor, a: float, b: float) -> None:
        super().__init__(block, a, b)
        self.from_centre = V - V.mean(dim=0)
        self.distances = torch.linalg.vector_norm(self.from_centre, dim=1)
        self.by_item = a * self.distances

    def add_gradient(self, by_user: Tensor, by_item: Tensor, users: Tensor, items: Tensor) -> None:
        """Add the charges' gradient; the centre counts as a constant, as any point would do."""
        self.add_to_users(by_user, users)
        outward = _directions(self.from_centre, self.distances)
        items.add_(outward * by_item[:, None], alpha=self.a)


def _directions(rows: Tensor, lengths: Tensor) -> Tensor:
    return rows / lengths.clamp_min(torch.finfo(rows.dtype).tiny)[:, None]
