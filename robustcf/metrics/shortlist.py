"""The k best items of factors that move a little at a time, without ranking the whole catalogue.

An attack ranks all items at each of its steps, and from one step to the next hardly any item far
down a ranking can get near its top. So each user's best items are kept as a short list, several
times as long as what is wanted, together with the best score beyond it. Where user and items have
moved by at most ``d`` and ``e`` since, no item beyond the list scores more than that plus
``d ||v|| + e ||u||``. As long as the k-th of the list is above, the first k of the list are the
first k of all.

Users of whom that cannot be said are ranked in full. The result is that of
:func:`robustcf.metrics.topk.top_items`, to the last tie, whatever was kept.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from robustcf._distributed import current, shared
from robustcf.data.interactions import Interactions
from robustcf.factors import Factors
from robustcf.metrics.topk import (
    TopItems,
    dot64,
    near_the_top,
    norms_of,
    overflows,
    product_error,
    sorted_by_score,
    top_items,
)

# Length of a list, in places that are wanted.
_TIMES = 8
# Candidates beyond k that are looked at closely first.
_SPARE = 8
# A list is worth its while where the catalogue is this many times as long.
_WORTH = 16
# Lists, and embeddings of their items, in memory at a time.
_LIST_BYTES, _BLOCK_BYTES = 2**28, 16 * 2**20
# If fewer users than this share can be ranked by their lists, lists are made anew.
_ENOUGH = 0.5
# Of norms and sums that are computed in floating point.
_ROUNDING = 1.0 + 1e-5


class Shortlists:
    """Rankings of some users by factors that change from call to call.

    Args:
        users: ids, one row of each result.
        k: places wanted.
        seen: pairs that may not be recommended, or None.

    Cost: where a list will do, products of ``8 k`` items a user instead of all; memory of the lists
    (at most 256 MB, else there are none) and of a copy of the factors they were made by.

    Example:
        >>> U, V = torch.randn(50, 8), torch.randn(2000, 8)
        >>> lists = Shortlists(np.arange(50), 10, None)
        >>> near = lists.top(U, V), lists.top(U + 1e-3, V - 1e-3)
        >>> bool((near[1] == top_items(Factors(U + 1e-3, V - 1e-3), np.arange(50), 10)).all())
        True
    """

    def __init__(self, users: npt.NDArray[np.int64], k: int, seen: Interactions | None) -> None:
        self.users, self.k, self.seen = users, k, seen
        self.length = _TIMES * k
        self._kept: _Lists | None = None
        # Calls for which no lists are made: how many next time, and how many are left now.
        self._wait = self._left = 0

    def top(self, U: Tensor, V: Tensor) -> TopItems:
        """What ``top_items(Factors(U, V), users, k, seen)`` gives."""
        factors = Factors(U, V)
        short = len(V) < _WORTH * self.length or U.dtype not in (torch.float32, torch.float64)
        # By the users of all ranks: all of them must answer alike.
        large = 4 * len(self.users) * self.length > _LIST_BYTES * current().size
        if short or large or overflows(U, V):
            return top_items(factors, self.users, self.k, self.seen)
        factors.check_finite()
        return shared(self.users, lambda own: self._top(own, factors))

    @torch.no_grad()
    def _top(self, own: npt.NDArray[np.int64], factors: Factors) -> TopItems:
        if len(own) == 0:
            return np.empty((0, self.k), dtype=np.int64)
        U, V = factors
        lists = self._kept
        if lists is not None and lists.fit(own, U, V):
            limits = lists.limits(U, V)
            if float(lists.hopeful(limits).double().mean()) >= _ENOUGH:
                self._wait = 0
                lists.served = True
                return self._by_lists(lists, limits, own, factors)
        if lists is not None and not lists.served:
            # While steps are so long that lists never serve, they are made ever less often.
            self._wait = 2 * self._wait + 1
            self._left, self._kept = self._wait, None
        if self._left:
            self._left -= 1
            return top_items(factors, own, self.k, self.seen)
        items, others = near_the_top(factors, own, self.length, self.seen)
        lists = self._kept = _Lists(own, items, others, self.k, U, V)
        return self._by_lists(lists, lists.limits(U, V), own, factors)

    def _by_lists(
        self, lists: _Lists, limits: Tensor, own: npt.NDArray[np.int64], factors: Factors
    ) -> TopItems:
        found, sure = lists.ranked(factors.users, factors.items, limits)
        doubtful = np.flatnonzero(~sure)
        if len(doubtful):
            found[doubtful] = top_items(factors, own[doubtful], self.k, self.seen)
        return found


class _Lists:
    """The best items of each user, and the factors by which they are."""

    def __init__(
        self,
        users: npt.NDArray[np.int64],
        items: Tensor,
        others: Tensor,
        k: int,
        U: Tensor,
        V: Tensor,
    ) -> None:
        self.users, self.ids = users, torch.from_numpy(users).to(U.device)
        self.items, self.beyond = items.to(U.device), others.to(U.device)
        self.k, self.served = k, False
        self.U, self.V = U[self.ids].clone(), V.clone()
        self.buffer = V.new_empty(0)
        self.lengths = norms_of(self.U)
        self.error, self.least = product_error(U)
        # Lists come with the best first, as far as that is known: about the k-th score to come.
        self.kth = dot64(self.U, V[self.items[:, k - 1].clamp_min(0).long()])

    def fit(self, users: npt.NDArray[np.int64], U: Tensor, V: Tensor) -> bool:
        """Whether the lists can be of such users and factors."""
        same = V.shape == self.V.shape and V.dtype == self.V.dtype and V.device == self.V.device
        return same and len(U) > users.max() and np.array_equal(users, self.users)

    def limits(self, U: Tensor, V: Tensor) -> Tensor:
        """What no item beyond a user's list can score by these factors."""
        users = norms_of(U[self.ids] - self.U)
        items, longest = norms_of(V - self.V).max(), norms_of(V).max()
        moved = users * longest + self.lengths * items
        # And what float64 rounds: scores are those of dot64.
        error, least = product_error(V.new_empty(0, V.shape[1], dtype=torch.float64))
        rounded = 4.0 * (error * self.lengths * longest + least)
        return self.beyond + moved * _ROUNDING + rounded

    def hopeful(self, limits: Tensor) -> Tensor:
        """Whose list will do, if the k-th score is about what it was."""
        return (self.kth > limits) | (limits == -torch.inf)

    def ranked(
        self, U: Tensor, V: Tensor, limits: Tensor
    ) -> tuple[TopItems, npt.NDArray[np.bool_]]:
        """The first k of each list, and whether they are the first k of all."""
        norms = norms_of(V)
        size = self.items.shape[1] * V.shape[1] * V.element_size()
        rows = max(1, _BLOCK_BYTES // max(1, size))
        found: list[Tensor] = []
        sure: list[Tensor] = []
        for start in range(0, len(self.ids), rows):
            part = slice(start, start + rows)
            items, Ub = self.items[part].long(), U[self.ids[part]]
            top, kth = self._first(items, Ub, V, norms)
            limit = limits[part]
            found.append(top)
            sure.append((kth > limit) | (limit == -torch.inf))
        return torch.cat(found).cpu().numpy(), torch.cat(sure).cpu().numpy()

    def _embedded(self, items: Tensor, V: Tensor) -> Tensor:
        """The rows of some items, in memory that is used again: fresh memory takes longer."""
        size = items.numel() * V.shape[1]
        if self.buffer.numel() < size:
            self.buffer = V.new_empty(size)
        out = self.buffer[:size].view(items.numel(), -1)
        torch.index_select(V, 0, items.flatten(), out=out)
        return out.view(*items.shape, -1)

    def _first(self, items: Tensor, Ub: Tensor, V: Tensor, norms: Tensor) -> tuple[Tensor, Tensor]:
        """The first k of some lists, and what the k-th scores at least."""
        none = items < 0
        items = items.clamp_min(0)
        embedded = self._embedded(items, V)
        rough = torch.bmm(Ub[:, None, :], embedded.transpose(1, 2))[:, 0, :]
        rough.masked_fill_(none, -torch.inf)
        found, places = rough.topk(min(self.k + _SPARE, rough.shape[1]), dim=1)
        best, top = found.double(), items.gather(1, places)
        slack = self.error * norms_of(Ub)[:, None]
        # Each is told from the next for certain, or they are scored in float64.
        low = best - slack * norms[top] - self.least
        most = best + slack * norms.max() + self.least
        nothing = found[:, 1 : self.k + 1] == -torch.inf
        clear = (low[:, : self.k] > most[:, 1 : self.k + 1]) | nothing
        first, kth = top[:, : self.k], low[:, self.k - 1]
        near = torch.nonzero(~clear.all(dim=1))[:, 0]
        if len(near):
            ended = found[near] == -torch.inf
            first[near], kth[near] = self._exact(Ub[near], V, top[near], ended)
            # Nothing else in the list scores more than the last of these.
            open_ = near[~(kth[near] > most[near, -1]) & (found[near, -1] > -torch.inf)]
            first[open_], kth[open_] = self._exact(Ub[open_], V, items[open_], none[open_])
        ended = torch.arange(self.k, device=V.device) >= (~none).sum(dim=1)[:, None]
        return torch.where(ended, -1, first), kth

    def _exact(self, Ub: Tensor, V: Tensor, items: Tensor, ended: Tensor) -> tuple[Tensor, Tensor]:
        """The first k of these items by their float64 scores, and that of the k-th."""
        scores = dot64(Ub[:, None, :], V[items]).masked_fill_(ended, -torch.inf)
        # Places where a list has ended come behind every item.
        ranked = sorted_by_score(scores, items.masked_fill(ended, len(V)))
        return ranked[:, : self.k], scores.topk(self.k, dim=1).values[:, -1]
