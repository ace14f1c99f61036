"""Margins: what attacks of a size may take from a comparison of two items, and its gradient.

Rows of U move by at most a, rows of V by at most b. The gap ``u.(v_i - v_j)`` falls by at most::

    a ||v_i - v_j|| + 2 b ||u|| + 2 a b

An objective that compares items, with every gap less that, is an upper bound of its value under
*every* attack of the size, in closed form. :class:`DrawnMargin` has the distances of all items
from a few drawn ones. :class:`CentredMargin` is for whole rows, where all pairs of items would be
too many: by way of a centre c, ``||v_i - v_j|| <= ||v_i - c|| + ||v_j - c||``, so that the charge
is a sum of one number per item and one per user, and the bound is a little larger.
"""

from __future__ import annotations

import torch
from torch import Tensor


class DrawnMargin:
    """The charge of comparisons of a block of users with drawn items."""

    def __init__(self, block: Tensor, V: Tensor, some: Tensor, a: float, b: float) -> None:
        self.block, self.V, self.some, self.a, self.b = block, V, some, a, b
        self.lengths = torch.linalg.vector_norm(block, dim=1)
        self.by_user = 2 * b * (self.lengths + a)
        self.distance = torch.cdist(V, some, compute_mode="use_mm_for_euclid_dist")
        self.counts = torch.zeros_like(self.distance)

    def count(self, items: Tensor, weights: Tensor) -> None:
        """Comparisons of these items with the drawn ones had these weights in the gradient."""
        self.counts.index_add_(0, items, weights)

    def add_gradient(self, drawn: Tensor, by_user: Tensor, users: Tensor, items: Tensor) -> None:
        """Add the charges' gradient: for the block's rows, and for all items."""
        users.add_(_directions(self.block, self.lengths) * by_user[:, None], alpha=2 * self.b)
        # Distances by way of squares: this much is but rounding, and has no direction.
        lengths = [torch.linalg.vector_norm(part, dim=1) for part in (self.V, self.some)]
        rounding = 3 * torch.finfo(users.dtype).eps ** 0.5
        level = rounding * torch.maximum(lengths[0][:, None], lengths[1])
        pull = torch.where(self.distance > level, self.counts / self.distance, 0.0)
        items.add_(pull.sum(dim=1)[:, None] * self.V - pull @ self.some, alpha=self.a)
        back = pull.sum(dim=0)[:, None] * self.some - pull.T @ self.V
        items.index_add_(0, drawn, back, alpha=self.a)


class CentredMargin:
    """The charge of comparisons of users with all items, by way of the items' mean.

    The comparison of items i and j of a user is charged with
    ``by_item[i] + by_item[j] + by_user[u]``, which is at least what an attack can take.
    """

    def __init__(self, block: Tensor, V: Tensor, a: float, b: float) -> None:
        self.a, self.b = a, b
        self.block, self.from_centre = block, V - V.mean(dim=0)
        self.lengths = torch.linalg.vector_norm(block, dim=1)
        self.distances = torch.linalg.vector_norm(self.from_centre, dim=1)
        self.by_user = 2 * b * (self.lengths + a)
        self.by_item = a * self.distances

    def add_gradient(self, by_user: Tensor, by_item: Tensor, users: Tensor, items: Tensor) -> None:
        """Add the charges' gradient; the centre counts as a constant: any point would do."""
        users.add_(_directions(self.block, self.lengths) * by_user[:, None], alpha=2 * self.b)
        outward = _directions(self.from_centre, self.distances)
        items.add_(outward * by_item[:, None], alpha=self.a)


def _directions(rows: Tensor, lengths: Tensor) -> Tensor:
    return rows / lengths.clamp_min(torch.finfo(rows.dtype).tiny)[:, None]
