"""The smallest radii of an item against the rest of the catalogue, without looking at all of it.

The radius of a pair falls with the gap, so the catalogue is read in the order of its scores, and
left as soon as the gap alone, with the largest distance between items, rules the rest out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from robustcf._distributed import shared
from robustcf.attacks.certificates.radius import Budgets, Radius
from robustcf.data.interactions import Interactions
from robustcf.factors import Factors
from robustcf.metrics.topk import BLOCK_BYTES

# Where rounding may have changed a squared distance by a millionth, it is computed again.
_CLOSE = 1e6
# Radii computed at a time.
_MOST_RADII = 2**22
# Rivals read first; where they do not settle it, twice as many, and so on.
_FIRST_RIVALS = 64

Ids = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Items:
    """Pairs (row of a list of users, item), ascending by row: whose places are to be defended."""

    rows: Ids
    items: Ids


class Search:
    """The smallest radii of items against the user's other candidates.

    Candidates are all items that the user has not seen; rivals are those that are not own items of
    the same user. Exact: no pair left out could have been among the smallest.

    Args:
        factors: embeddings.
        budgets: the units of the attack.
        radius: of a pair, tight or plain.
        count: how many rivals matter.
        cap: radii above this need not be told apart.
        fixed: columns that no attack may touch; only the plain radius is sound with them, see
            :mod:`robustcf.attacks.certificates.radius`.
    """

    def __init__(
        self,
        factors: Factors,
        budgets: Budgets,
        radius: Radius,
        *,
        count: int,
        cap: float = np.inf,
        fixed: Sequence[int] = (),
    ) -> None:
        self.U, self.V = factors.users.cpu(), factors.items.cpu().double()
        self.budgets, self.radius, self.count, self.cap = budgets, radius, count, cap
        self.free = torch.tensor([n for n in range(factors.dim) if n not in fixed])
        # What an attack can move: all columns, or those that are not held fixed.
        self.movable = self.V[:, self.free] if fixed else self.V
        # Scores round by the whole rows, also by the columns that do not move.
        self.rounding = budgets.rounding * budgets.largest_item if fixed else 0.0
        self.squares = (self.movable**2).sum(dim=1)
        from_centre = torch.linalg.vector_norm(self.movable - self.movable.mean(dim=0), dim=1)
        # No two items are further apart than by way of the centre.
        self.farthest = (from_centre + from_centre.max()) * (1 + 1e-9)
        self.moves = budgets.item_moves(self.squares.sqrt() * (1 + 2 * budgets.rounding))
        self.largest_move = self.moves.max() if len(self.moves) else self.moves.sum()

    def radii(self, users: Ids, own: Items, seen: Interactions | None) -> Values:
        """Return the smallest radii of each own item: own items x count, ascending.

        They are at least ``cap`` or infinite where there are fewer rivals within it, and all 0
        where ``count`` rivals are ahead already.

        Args:
            users: ids of users.
            own: the items whose radii are wanted, by row of ``users``.
            seen: pairs that are not candidates, or None.

        Cost: one float64 product of users x items x dim, and little more; memory of a few blocks.
        """
        size = max(1, BLOCK_BYTES // (8 * max(1, len(self.V))))

        @torch.no_grad()
        def blocks(starts: range) -> Values:
            found = [np.zeros((0, self.count))]
            for start in starts:
                begin, end = np.searchsorted(own.rows, (start, start + size))
                if begin < end:
                    rows = torch.from_numpy(own.rows[begin:end] - start)
                    items = torch.from_numpy(own.items[begin:end])
                    found.append(self._block(users[start : start + size], rows, items, seen))
            return np.concatenate(found)

        # Ranks share whole blocks: other blocks would round differently.
        return shared(range(0, len(users), size), blocks)

    def _block(self, users: Ids, rows: Tensor, items: Tensor, seen: Interactions | None) -> Values:
        U = self.U[torch.from_numpy(users)].double()
        whole = torch.linalg.vector_norm(U, dim=1) * (1 + self.budgets.rounding)
        norms = whole
        scores = U @ self.V.T
        own = scores[rows, items]
        if self.movable is not self.V:
            moved = torch.linalg.vector_norm(U[:, self.free], dim=1)
            norms = moved * (1 + self.budgets.rounding)
            # Twice the rounding of a gap, for the clean and for the attacked ranking.
            own = own - 4 * self.rounding * whole[rows]
        if seen is not None:
            seen_rows, seen_items = seen.rows(users)
            scores[torch.from_numpy(seen_rows), torch.from_numpy(seen_items).long()] = -torch.inf
        scores[rows, items] = -torch.inf

        width = min(max(_FIRST_RIVALS, 2 * self.count), scores.shape[1])
        best, rivals = scores.topk(width, dim=1)
        place = torch.arange(len(users))
        found = torch.zeros(len(rows), self.count, dtype=torch.float64)
        pending = torch.arange(len(rows))
        if width >= self.count:
            pending = pending[own > best[rows, self.count - 1]]
        while len(pending):
            left = []
            for part in self._parts(pending, rows, width):
                at = place[rows[part]]
                radii, settled = self._smallest(
                    best, rivals, norms[rows[part]], at, items[part], own[part]
                )
                found[part] = radii
                left.append(part[~settled])
            pending = torch.cat(left)
            width = min(2 * width, scores.shape[1])
            undecided = torch.unique_consecutive(rows[pending])
            best, rivals = scores[undecided].topk(width, dim=1)
            place[undecided] = torch.arange(len(undecided))
        return np.asarray(found.numpy())

    def _parts(self, pending: Tensor, rows: Tensor, width: int) -> list[Tensor]:
        """Pending items in groups of whole users, small enough for embeddings and radii."""
        number = torch.unique_consecutive(rows[pending], return_inverse=True)[1]
        longest = max(width, int(torch.bincount(number).max()))
        size = max(1, BLOCK_BYTES // (8 * longest * max(1, self.V.shape[1])))
        sizes = torch.bincount(number // size)
        # A user with very many items, and very many rivals, is too much at once.
        most = max(1, _MOST_RADII // width)
        return [
            part[start : start + most]
            for part in torch.split(pending, sizes.tolist())
            for start in range(0, len(part), most)
        ]

    def _smallest(
        self, best: Tensor, rivals: Tensor, n: Tensor, at: Tensor, items: Tensor, own: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The smallest radii among the best rivals, and whether no other one matters."""
        width = rivals.shape[1]
        chosen, number = torch.unique_consecutive(at, return_inverse=True)
        inner = self._inner_products(number, items, rivals[chosen])
        distances = self._distances(items, rivals[at], inner) + 2 * self.rounding
        theirs, n = best[at], n[:, None]
        moved, mine = self.budgets.user_moves(n), self.moves[items][:, None]
        both = moved, mine + self.moves[rivals[at]]
        radii = self.radius(own[:, None] - theirs, n, distances, self.budgets, both)
        radii = torch.where(theirs == -torch.inf, torch.inf, radii)
        if width < self.count:
            radii = torch.nn.functional.pad(radii, (0, self.count - width), value=torch.inf)
        smallest = radii.topk(self.count, dim=1, largest=False).values
        # All others score at most the last rival seen, and are nowhere farther than the farthest.
        others = self.radius(
            own[:, None] - theirs[:, -1:],
            n,
            self.farthest[items][:, None] + 2 * self.rounding,
            self.budgets,
            (moved, mine + self.largest_move),
        )[:, 0]
        enough = smallest[:, -1].clamp_max(self.cap)
        settled = (others > enough) | (theirs[:, -1] == -torch.inf)
        return smallest, settled if width < len(self.V) else torch.ones_like(settled)

    def _distances(self, items: Tensor, rivals: Tensor, inner: Tensor) -> Tensor:
        """Upper bounds of ||v_i - v_j||, from inner products; of close items, from differences."""
        rounding = self.budgets.rounding
        sums = self.squares[items][:, None] + self.squares[rivals]
        squares = (sums - 2 * inner).clamp_min_(0)
        # What cancels in this difference must not shorten a distance.
        blur = sums.mul_(2 * rounding)
        row, place = torch.nonzero(squares < _CLOSE * blur, as_tuple=True)
        squares += blur
        size = max(1, BLOCK_BYTES // (8 * max(1, self.movable.shape[1])))
        for start in range(0, len(row), size):
            r, p = row[start : start + size], place[start : start + size]
            difference = self.movable[items[r]] - self.movable[rivals[r, p]]
            squares[r, p] = difference.square_().sum(dim=1)
        return squares.sqrt_().mul_(1 + rounding)

    def _inner_products(self, number: Tensor, items: Tensor, rivals: Tensor) -> Tensor:
        """v_i.v_j of each item with the rivals of its user: one small product per user."""
        first = torch.searchsorted(number, torch.arange(len(rivals)))
        within = torch.arange(len(number)) - first[number]
        padded = torch.zeros(len(rivals), int(within.max()) + 1, dtype=torch.int64)
        padded[number, within] = items
        products = torch.bmm(self.movable[padded], self.movable[rivals].mT)
        return products[number, within]
