"""The smallest radii of an item against the rest of the catalogue.

The radius of a pair rises with the gap, so the catalogue is read in the order of its scores until
the gap alone, with the largest distance between items, rules the rest out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from robustcf._distributed import shared
from robustcf.attacks.certificates.radius import Budgets, Radius, folded_radius, plain_radius
from robustcf.data.interactions import Interactions
from robustcf.factors import Factors
from robustcf.metrics.topk import BLOCK_BYTES

_CLOSE = 1e6  # squared distances with a relative error above its inverse are computed again
_MOST_RADII = 2**22  # radii computed at a time
_FIRST_RIVALS = 64  # rivals read first; doubled until they settle it

Ids = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Folded:
    """Users computed from their histories, and how far an attack of size 1 moves them.

    Args:
        map: P, from sums of items to users.
        moves: of each user, E times the largest singular value of P, see
            :mod:`robustcf.attacks.certificates.radius`.
        any_way: whether users move in all directions (the map may move too).
    """

    map: Tensor
    moves: Tensor
    any_way: bool = False


class Search:
    """The smallest radii of items against the user's other candidates.

    Candidates are the items that the user has not seen; rivals are those that are not own items of
    the same user. Exact: no pair left out could be among the smallest.

    Args:
        radius: of a pair, tight or plain.
        count: radii per item.
        cap: radii above this need not be told apart.
        fixed: columns that no attack may change; only the plain radius is sound with them.
        folded: given for users computed from their histories.
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
        folded: Folded | None = None,
    ) -> None:
        self.U, self.V = factors.users.cpu(), factors.items.cpu().double()
        self.budgets, self.radius, self.count, self.cap = budgets, radius, count, cap
        self.free = torch.tensor([n for n in range(factors.dim) if n not in fixed])
        self.movable = self.V[:, self.free] if fixed else self.V
        # Scores round by whole rows, including the fixed columns.
        self.rounding = budgets.rounding * budgets.largest_item if fixed or folded else 0.0
        lengths = torch.linalg.vector_norm(self.movable, dim=1)
        self.folded, self.turn = folded, None
        if folded is not None:
            self.radius = plain_radius
            if not folded.any_way:
                # Distances count as far as the map turns them into moves of users.
                Q = folded.map.cpu().double()
                Q = Q / (torch.linalg.matrix_norm(Q, 2) * (1 - 1e-9)).clamp_min(1e-150)
                self.movable, self.turn = self.V @ Q.T, None if radius is plain_radius else Q
        self.squares = (self.movable**2).sum(dim=1)
        from_centre = torch.linalg.vector_norm(self.movable - self.movable.mean(dim=0), dim=1)
        # No two items are further apart than by way of the centre.
        self.farthest = (from_centre + from_centre.max()) * (1 + 1e-9)
        self.moves = budgets.item_moves(lengths * (1 + 2 * budgets.rounding))
        self.largest_move = self.moves.max() if len(self.moves) else self.moves.sum()

    def radii(self, users: Ids, rows: Ids, items: Ids, seen: Interactions | None) -> Values:
        """Return the smallest radii of own items: items x count, ascending.

        With fewer rivals within ``cap`` the others are at least ``cap`` or infinite; all are 0 if
        ``count`` rivals are ahead already.

        Args:
            rows: for each own item, the place of its user in ``users``, ascending.
            items: ids of the own items.
            seen: pairs that are not candidates, or None.

        Cost: one float64 product of users x items x dim, and little more; memory of a few blocks.
        """
        size = max(1, BLOCK_BYTES // (8 * max(1, len(self.V))))

        @torch.no_grad()
        def blocks(starts: range) -> Values:
            found = [np.zeros((0, self.count))]
            for start in starts:
                own = slice(*np.searchsorted(rows, (start, start + size)))
                if own.start < own.stop:
                    of = torch.from_numpy(rows[own] - start), torch.from_numpy(items[own])
                    found.append(self._block(users[start : start + size], *of, seen))
            return np.concatenate(found)

        # Ranks share whole blocks: other blocks would round differently.
        return shared(range(0, len(users), size), blocks)

    def _block(self, users: Ids, rows: Tensor, items: Tensor, seen: Interactions | None) -> Values:
        U = self.U[torch.from_numpy(users)].double()
        whole = torch.linalg.vector_norm(U, dim=1) * (1 + self.budgets.rounding)
        norms = whole
        scores = U @ self.V.T
        own = scores[rows, items]
        turned = lengths = None
        if self.turn is not None:
            w = U @ self.turn.T
            turned = w @ self.movable.T
            lengths = torch.linalg.vector_norm(w, dim=1) * (1 + self.budgets.rounding)
        if self.folded is None and self.movable is not self.V:
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
        moved = self.budgets.user_moves(norms)
        if self.folded is not None:
            moved = self.folded.moves[torch.from_numpy(users)]
        place = torch.arange(len(users))
        found = torch.zeros(len(rows), self.count, dtype=torch.float64)
        pending = torch.arange(len(rows))
        if width >= self.count:
            pending = pending[own > best[rows, self.count - 1]]
        while len(pending):
            left = []
            for part in self._parts(pending, rows, width):
                here = rows[part]
                at, bend = place[here], None
                if turned is not None and lengths is not None:
                    others = turned[here[:, None], rivals[at]]
                    bend = turned[here, items[part]][:, None] - others, lengths[here][:, None]
                radii, settled = self._smallest(
                    best, rivals, norms[here], moved[here], at, items[part], own[part], bend
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
        most = max(1, _MOST_RADII // width)
        return [
            part[start : start + most]
            for part in torch.split(pending, sizes.tolist())
            for start in range(0, len(part), most)
        ]

    def _smallest(
        self,
        best: Tensor,
        rivals: Tensor,
        n: Tensor,
        moved: Tensor,
        at: Tensor,
        items: Tensor,
        own: Tensor,
        bend: tuple[Tensor, Tensor] | None,
    ) -> tuple[Tensor, Tensor]:
        """The smallest radii among the best rivals, and whether no other one matters."""
        width = rivals.shape[1]
        chosen, number = torch.unique_consecutive(at, return_inverse=True)
        inner = self._inner_products(number, items, rivals[chosen])
        distances = self._distances(items, rivals[at], inner) + 2 * self.rounding
        theirs, n, moved = best[at], n[:, None], moved[:, None]
        mine = self.moves[items][:, None]
        both = moved, mine + self.moves[rivals[at]]
        pair = own[:, None] - theirs, n, distances, self.budgets, both
        radii = self.radius(*pair) if bend is None else folded_radius(*pair, bend)
        radii = torch.where(theirs == -torch.inf, torch.inf, radii)
        if width < self.count:
            radii = torch.nn.functional.pad(radii, (0, self.count - width), value=torch.inf)
        smallest = radii.topk(self.count, dim=1, largest=False).values
        # All others score at most the last rival read, and are at most the farthest away.
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
        # Cancellation in this difference must not shorten a distance.
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
