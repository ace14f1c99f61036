"""The exact k best items per user, regardless of blocks, threads and BLAS library.

Items are ranked by their scores in float64, ties to the lower id. Scores are computed in bulk, in
the factors' own precision; a ranking whose gaps all exceed the error bound is right already. Where
a gap is smaller, the candidates are scored again in float64, in a fixed order of additions; if even
the last candidate is in doubt, so is every item that could take its place.
"""

from __future__ import annotations

import copy
import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from robustcf._checks import check_cutoff, check_integer
from robustcf._distributed import shared
from robustcf.data.interactions import Interactions
from robustcf.errors import InputError
from robustcf.factors import Factors

BLOCK_BYTES = 16 * 2**20  # of numbers at a time: few enough for the cache
# Users and bulk scores of one block: products of fewer users are slower, of more no faster.
_MOST_USERS, _SCORE_BYTES = 512, 40 * 2**20
_AGAIN_BYTES = 16 * 2**20  # embeddings of candidates in float64, at a time
_SPARE = 8  # candidates beyond k; more make the float64 ranking of whole rows rarer
_MANY = 4096  # with more open items, a plain float64 product rules most of them out first

TopItems = npt.NDArray[np.int64]


def top_items(
    factors: Factors,
    users: npt.ArrayLike,
    k: int,
    seen: Interactions | None = None,
    *,
    block_users: int | None = None,
    ranker: Ranker | None = None,
) -> TopItems:
    """Return the k best items of each user, best first, without those already seen.

    Ranked by the float64 value of ``U[u] @ V[i]``, equal scores by lower item id. The result
    does not depend on ``block_users``, threads, ranks or hardware.

    Args:
        factors: embeddings; half precision is widened to float32 first.
        seen: pairs that may not be recommended, or None; same ids as the factors.
        block_users: users scored at a time; None: up to 512, their scores within 40 MB.
        ranker: a :class:`Ranker` of these factors and this k, to save preparing it again.

    Returns:
        len(users) x min(k, items) item ids; -1 where a user has fewer items left.

    Cost: one product of users x items x dim, memory of the result and of a few blocks (at least
    one row of scores, and the embeddings of its candidates).

    Example:
        >>> factors = Factors(torch.eye(2), torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]]))
        >>> top_items(factors, [0, 1], k=2).tolist()
        [[1, 0], [2, 0]]
    """
    ids = user_ids(users, factors.n_users)
    k = min(check_cutoff("k", k), factors.n_items)
    _check_seen(factors, seen)
    if block_users is not None:
        check_integer("block_users", block_users)
    if ranker is None:
        factors.check_finite()

    @torch.no_grad()
    def ranked(ids: npt.NDArray[np.int64]) -> TopItems:
        top = np.full((len(ids), k), -1, dtype=np.int64)
        if factors.n_items and len(ids):
            own = Ranker(factors, k) if ranker is None else ranker.for_one_call()
            for part in own.blocks(len(ids), block_users):
                top[part] = own.rank(ids[part], seen)
        return top

    return shared(ids, ranked)


def near_the_top(
    factors: Factors, users: npt.NDArray[np.int64], length: int, seen: Interactions | None
) -> TopItems:
    """Return about the first items of each user's ranking, -1 where a user has fewer left.

    Ranked by bulk scores, in the precision of the factors: close items may be swapped, and one of
    them left out. Ranks share whole blocks of users, so that the result does not depend on them.

    Cost: as :func:`top_items`, without scoring close items again.
    """
    _check_seen(factors, seen)
    factors.check_finite()
    ranker = Ranker(factors, min(length, factors.n_items))

    @torch.no_grad()
    def ranked(blocks: list[npt.NDArray[np.int64]]) -> TopItems:
        found = [np.empty((0, ranker.k), dtype=np.int64)]
        for block in blocks:
            _, _, rough, items, _ = ranker.looked_at(block, seen)
            found.append(items.masked_fill_(rough == -torch.inf, -1)[:, : ranker.k].cpu().numpy())
        return np.concatenate(found)

    return shared([users[part] for part in ranker.blocks(len(users))], ranked)


def _check_seen(factors: Factors, seen: Interactions | None) -> None:
    if seen is not None and (seen.n_users, seen.n_items) != (factors.n_users, factors.n_items):
        raise InputError(
            f"factors are for {factors.n_users} users x {factors.n_items} items, seen for "
            f"{seen.n_users} x {seen.n_items}: they belong to different data"
        )


def user_ids(users: npt.ArrayLike, n_users: int) -> npt.NDArray[np.int64]:
    """Return ids of users as int64, or raise unless they are integers in [0, n_users)."""
    ids = np.asarray(users)
    if ids.size == 0:
        return np.empty(0, dtype=np.int64)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise InputError(f"users must be a list of integer ids, got {ids.dtype}, shape {ids.shape}")
    if ids.min() < 0 or ids.max() >= n_users:
        raise InputError(f"user ids must be in [0, {n_users}), got {ids.min()} to {ids.max()}")
    return ids.astype(np.int64)


class Ranker:
    """Preparation to rank by some factors: padded items, norms, a buffer for scores."""

    def __init__(self, factors: Factors, k: int) -> None:
        U, V = factors
        wide = U.dtype in (torch.float32, torch.float64)
        self.U, self.V = (U, V) if wide else (U.float(), V.float())
        if overflows(self.U, self.V):
            self.U, self.V = self.U.double(), self.V.double()
        self.k, self.n_items = k, factors.n_items
        self.candidates = min(self.n_items, k + _SPARE)
        # n / g groups are compared, then the members of the best: least work at the root.
        self.group = 2 ** max(0, round(math.log2(self.n_items / self.candidates) / 2))
        spare_items = -self.n_items % self.group
        self.width = self.n_items + spare_items
        if spare_items:
            self.V = torch.cat((self.V, self.V.new_zeros(spare_items, factors.dim)))
        self.error, self.least = product_error(self.V)
        self.norms = norms_of(self.V).to(self.V.dtype)
        self.largest = self.norms.max()
        self.buffer = self.V.new_empty(0)

    def for_one_call(self) -> Ranker:
        """Return a copy with a buffer of its own: several threads may rank at a time."""
        own = copy.copy(self)
        own.buffer = self.V.new_empty(0)
        return own

    def blocks(self, count: int, size: int | None = None) -> list[slice]:
        """Return slices of so many users; by default, their scores fill a block's memory."""
        most = max(1, _SCORE_BYTES // (self.width * self.V.element_size()))
        size = size or min(_MOST_USERS, most)
        return [slice(start, start + size) for start in range(0, count, size)]

    def looked_at(
        self, users: npt.NDArray[np.int64], seen: Interactions | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return users' rows, all bulk scores, candidates' scores, candidates, users' errors."""
        device = self.V.device
        Ub = self.U[torch.from_numpy(users).to(device)]
        scores = self._bulk_scores(Ub)
        if seen is not None:
            rows, items = seen.rows(users)
            flat = torch.from_numpy(rows * self.width + items).to(device)
            scores.view(-1)[flat] = -torch.inf
        slack = self.error * norms_of(Ub).to(Ub.dtype)[:, None]
        return Ub, scores, *self._candidates(scores), slack

    def rank(self, users: npt.NDArray[np.int64], seen: Interactions | None) -> TopItems:
        """Return the k best items of a block of users."""
        Ub, scores, rough, items_t, slack = self.looked_at(users, seen)
        left = np.full(len(users), self.n_items)
        if seen is not None:
            left = left - seen.user_degrees[users]
        top = items_t[:, : self.k].cpu().numpy()
        near = torch.nonzero(~self._told_apart(rough, items_t, slack))[:, 0]
        if len(near):
            top[near.cpu().numpy()] = self._rank_again(
                scores, Ub, near, rough[near], items_t[near], slack[near, 0].double()
            )
        top[np.arange(self.k) >= left[:, None]] = -1
        return np.asarray(top, dtype=np.int64)

    def _told_apart(self, rough: Tensor, items: Tensor, slack: Tensor) -> Tensor:
        """Whether the bulk scores alone separate each of the first k from the next."""
        errors = slack * self.norms[items] + self.least
        high, low = rough - errors, rough + errors
        if self.candidates < self.n_items:
            # Other items score at most the last candidate, with the largest error.
            low[:, -1] = rough[:, -1] + slack[:, 0] * self.largest + self.least
        last = min(self.k, rough.shape[1] - 1)
        clear = (high[:, :last] > low[:, 1 : last + 1]) | (rough[:, 1 : last + 1] == -torch.inf)
        whole: Tensor = clear.all(dim=1)
        return whole

    def _rank_again(
        self, scores: Tensor, Ub: Tensor, near: Tensor, rough: Tensor, items: Tensor, slack: Tensor
    ) -> TopItems:
        """Candidates by their float64 scores; if these leave doubt, all open items."""
        rows = max(1, _AGAIN_BYTES // (8 * items.shape[1] * max(1, Ub.shape[1])))
        exact = torch.cat(
            [
                dot64(Ub[near[at : at + rows]][:, None, :], self.V[items[at : at + rows]])
                for at in range(0, len(near), rows)
            ]
        )
        exact = torch.where(rough == -torch.inf, -torch.inf, exact)
        top = sorted_by_score(exact, items)[:, : self.k].cpu().numpy()
        if self.candidates < self.n_items:
            kept = exact.sort(dim=1, descending=True).values[:, self.k - 1]
            # Other items scored at most the last candidate, up to the error of the bulk.
            bound = rough[:, -1].double() + slack * self.largest + self.least
            unsure = ~(kept > bound) & (rough[:, -1] > -torch.inf)
            for place in torch.nonzero(unsure)[:, 0].tolist():
                row = int(near[place])
                reach = scores[row].double() + slack[place] * self.norms + self.least
                # Not "reach >= kept": NaN of an overflow is open too.
                may_be = ~(reach < kept[place]) & (scores[row] != -torch.inf)
                open_items = torch.nonzero(may_be)[:, 0]
                top[place] = self._rank_open(open_items, Ub[row]).cpu().numpy()
        return np.asarray(top, dtype=np.int64)

    def _bulk_scores(self, Ub: Tensor) -> Tensor:
        size = len(Ub) * self.width
        if self.buffer.numel() < size:
            self.buffer = self.V.new_empty(size)
        scores = self.buffer[:size].view(len(Ub), self.width)
        torch.mm(Ub, self.V.T, out=scores)
        scores[:, self.n_items :] = -torch.inf
        return scores

    def _candidates(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """The best scores of each row, descending, and their items.

        The best c of a row lie in its c groups with the largest maxima. Group number n holds
        items n, n + G, n + 2G, ...: its maximum then runs along contiguous rows.
        """
        if self.group == 1:
            rough, items = scores.topk(self.candidates, dim=1)
            return rough, items
        groups = self.width // self.group
        best = scores.view(-1, self.group, groups).amax(dim=1)
        chosen = best.topk(min(self.candidates, groups), dim=1, sorted=False).indices
        step = torch.arange(0, self.width, groups, device=scores.device)
        members = (chosen[:, :, None] + step).flatten(1)
        rough, place = scores.gather(1, members).topk(self.candidates, dim=1)
        # Padding is a candidate only if no item is left: any id will do.
        return rough, members.gather(1, place).clamp_(max=self.n_items - 1)

    def _rank_open(self, items: Tensor, u: Tensor) -> Tensor:
        """The first k of open items, given in ascending order."""
        if not bool(u.any()):
            return items[: self.k]  # a row of zeros scores nothing: ids decide
        if len(items) > _MANY:
            wide = self.V[items].double() @ u.double()
            error = (len(u) + 2) * 2.0**-53 * torch.linalg.vector_norm(u.double()) * self.largest
            items = items[wide >= wide.topk(self.k).values[-1] - 4 * error]
        exact = dot64(u[None, :], self.V[items])
        return items[torch.sort(exact, descending=True, stable=True).indices[: self.k]]


def product_error(rows: Tensor) -> tuple[float, float]:
    """Return e and f: a computed product errs by at most ``e ||u|| ||v|| + f``, f for underflow."""
    kind, dim = torch.finfo(rows.dtype), rows.shape[1]
    return float((dim + 4) * kind.eps / 2), float((dim + 1) * kind.tiny)


def overflows(U: Tensor, V: Tensor) -> bool:
    """Whether products of rows may overflow their dtype."""
    largest = [float(part.abs().max()) if part.numel() else 0.0 for part in (U, V)]
    return largest[0] * largest[1] * U.shape[1] > torch.finfo(U.dtype).max / 4


def norms_of(rows: Tensor) -> Tensor:
    """Return row norms in float64: squares of small numbers would vanish."""
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    return norms


def dot64(left: Tensor, right: Tensor) -> Tensor:
    """Return inner products over the last dimension in float64, added in a fixed order (a tree).

    Library sums may add in an order that depends on the shape; element-wise additions cannot.
    """
    terms = left.double() * right.double()
    while terms.shape[-1] > 1:
        half = terms.shape[-1] // 2
        odd = terms[..., 2 * half :]
        terms = terms[..., :half] + terms[..., half : 2 * half]
        if odd.shape[-1]:
            terms = torch.cat((terms[..., :-1], terms[..., -1:] + odd), dim=-1)
    return terms[..., 0] if terms.shape[-1] else terms.sum(dim=-1)


def sorted_by_score(scores: Tensor, items: Tensor) -> Tensor:
    """Sort each row's items by descending score, equal scores by ascending id."""
    items, by_id = items.sort(dim=1)
    order = scores.gather(1, by_id).sort(dim=1, descending=True, stable=True).indices
    return items.gather(1, order)
