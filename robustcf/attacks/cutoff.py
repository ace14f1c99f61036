"""The attack at the cutoff: one perturbation for all users that minimizes NDCG@k.

**Objective.** The approximate NDCG of Qin, Liu and Li (2010, doi:10.1007/s10791-009-9124-x) on the
head of each ranking: the first ``3 k`` candidates by attacked score. (Losses over the whole
catalogue spend an attack on other scores, too.) For a relevant item i among them::

    rank_i = 1 + sum over the others j of sigmoid((s_j - s_i) / t)
    gain_i = sigmoid(k + 1/2 - rank_i) / log2(1 + rank_i)

With t -> 0 the sum of the gains over relevant items, divided by its best possible value, is NDCG@k
(but for the soft end of the list).

**Temperature.** A score moves by about ``reach = a ||v|| + b ||u||`` at most when rows of U and V
move by a and b, and items further apart cannot pass each other. The temperature falls from ``0.3
reach`` (the whole head competes) to ``0.01 reach`` (neighbours compete).

**Ascent.** Steps with momentum (Dong et al., 2018, arXiv:1710.06081), in which every row moves by
the same share of its budget, each followed by a projection; the share falls from the whole budget
to a tenth of it. The step with the least NDCG@k is returned. If items may not move, and every row
has a budget of its own, each user keeps their own best row.

**Rankings.** The first steps rank the whole catalogue; later ones, which are short, do so ever less
often, and in between rank the items near the top of the last full ranking.

One start draws nothing at random. Other starts hardly help: the first steps span the budget.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from robustcf._checks import check_cutoff, check_integer
from robustcf._io.progress import bar as progress_bar
from robustcf.attacks.base import Attack, Point
from robustcf.data.interactions import Interactions
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.metrics.evaluate import hits_of
from robustcf.metrics.ranking import ndcg
from robustcf.metrics.topk import near_the_top
from robustcf.objectives.kernels import SparseRows, add_sparse_product

if TYPE_CHECKING:
    from tqdm import tqdm

STEPS = 50
_TEMPERATURES = (0.3, 0.01)  # first and last, in reaches
_SHARES = (1.0, 0.1)  # first and last step, in budgets
_POLISH = (0.1, 0.01), (0.5, 0.05)  # the same for the last steps, of users alone
_MOMENTUM = 0.75
_NOTHING = 1e-3  # the ascent ends below this share of the clean value
_DEEPEST = 1000  # larger cutoffs are attacked at this one: deeper places are worth little
_LONGER = 2  # length of the list that is ranked again, in heads
_LIST_BYTES = 2**28  # of such lists
_FRESH = 3  # after n steps, lists are made anew every 1 + n / 3 steps
_BLOCK = 2**16  # relevant items compared with the head of their list at a time
_PLACES = 2**22  # numbers in the embeddings of heads at a time

Sizes = tuple[float, float]


@dataclass(frozen=True, eq=False)
class Heads:
    """The first places of rankings: rows x places."""

    rows: Tensor  # places of the users in those of the attack; others have no gain to lose
    items: Tensor  # 0 where a list has ended
    there: Tensor  # whether a place holds an item
    hits: Tensor  # whether that item is relevant
    values: npt.NDArray[np.float64]  # NDCG@k of each user


class HeadOfRanking:
    """The metric under attack, and the gradient of its smooth form.

    Args:
        relevant: relevant items by user, at least one.
        seen: pairs that are not candidates, or None.
        k: cutoff; at most 1,000 is used.
    """

    times = 3.0  # places of a head, in cutoffs; twice as many cost twice as much and find no more

    def __init__(self, relevant: Interactions, seen: Interactions | None, k: int) -> None:
        if len(relevant) == 0:
            raise InputError("an attack at the cutoff needs relevant pairs, got none")
        self.relevant, self.seen = relevant, seen
        self.k = min(check_cutoff("k", k), _DEEPEST)
        self.width = math.ceil(self.times * self.k)
        self.users = np.flatnonzero(relevant.user_degrees).astype(np.int64)
        self.counts = relevant.user_degrees[self.users]
        discounts = 1 / np.log2(np.arange(2, self.k + 2))
        self.best = np.cumsum(discounts)[np.minimum(self.counts, self.k) - 1]
        # Users whose longer lists hold a relevant item, and these lists.
        self._lists: tuple[Tensor, Tensor, Tensor] | None = None

    def at(self, U: Tensor, V: Tensor, *, anew: bool = True) -> Heads:
        """Return the heads of the rankings by these factors.

        Unless ``anew``, only the items near the top of the last full ranking are ranked: for
        factors that have hardly moved since, at a fraction of its cost.
        """
        if anew or self._lists is None:
            length = max(self.width, min(_LONGER * self.width, _LIST_BYTES // 8 // len(self.users)))
            near = near_the_top(Factors(U, V), self.users, length, self.seen)
            parts = near, hits_of(near, self.relevant, self.users)
            items, hits = (torch.from_numpy(part).to(V.device) for part in parts)
            rows = torch.arange(len(items), device=V.device)
            kept = torch.nonzero(hits.any(dim=1))[:, 0]
            self._lists = kept, items[kept], hits[kept]
            items, hits = items[:, : self.width], hits[:, : self.width]
        else:
            rows, items, hits = self._lists
            order = self._order(U[self._ids(V)[rows]], V, items)
            items, hits = items.gather(1, order), hits.gather(1, order)
        values, at = np.zeros(len(self.users)), rows.cpu().numpy()
        values[at] = ndcg(hits.cpu().numpy(), self.counts[at], self.k)
        return Heads(rows, items.clamp_min(0), items >= 0, hits, values)

    def _ids(self, V: Tensor) -> Tensor:
        return torch.from_numpy(self.users).to(V.device)

    def _order(self, Ub: Tensor, V: Tensor, items: Tensor) -> Tensor:
        """The first places of each list by these factors."""
        found = [items.new_empty((0, min(self.width, items.shape[1])))]
        size = max(1, _PLACES // max(1, items.shape[1] * V.shape[1]))
        for start in range(0, len(items), size):
            some, block = items[start : start + size], Ub[start : start + size]
            scores = torch.bmm(V[some.clamp_min(0)], block[:, :, None])[:, :, 0]
            scores.masked_fill_(some < 0, -torch.inf)
            order = scores.sort(dim=1, descending=True, stable=True).indices
            found.append(order[:, : self.width])
        return torch.cat(found)

    def gradient(self, heads: Heads, U: Tensor, V: Tensor, temperatures: Tensor) -> Point:
        """Return the steepest descent of the smooth metric, summed over users, in U and V.

        ``heads`` are those of U and V; ``temperatures`` has one per user with a relevant item.

        Cost: heads x dim, and one number for each relevant item and place in a head.
        """
        to_users, to_items = torch.zeros_like(U), torch.zeros_like(V)
        active = torch.nonzero(heads.hits.any(dim=1))[:, 0]
        best, all_ids = torch.from_numpy(self.best).to(V), self._ids(V)
        places = heads.items.shape[1]
        size = max(1, _PLACES // max(1, places * V.shape[1]))
        for start in range(0, len(active), size):
            part = active[start : start + size]
            rows = heads.rows[part]
            ids = all_ids[rows]
            items, block = heads.items[part], U[ids]
            embedded = V[items]
            scores = torch.bmm(embedded, block[:, :, None])[:, :, 0]
            # Beyond the end of a list, rivals are infinitely far behind.
            scores.masked_fill_(~heads.there[part], -torch.inf)
            pull = self._pull(scores, heads.hits[part], temperatures[rows], best[rows])
            to_users[ids] = torch.bmm(pull[:, None, :], embedded)[:, 0]
            at = torch.arange(len(ids), device=U.device).repeat_interleave(places)
            entries = SparseRows(at, items.flatten(), pull.flatten())
            add_sparse_product(to_items, entries, block, scale=1.0, transposed=True)
        return to_users, to_items

    def _pull(self, scores: Tensor, hits: Tensor, temperatures: Tensor, best: Tensor) -> Tensor:
        """The gradient for the scores: up for rivals, down for relevant items."""
        pull = torch.zeros_like(scores)
        at, place = torch.nonzero(hits, as_tuple=True)
        size = max(1, min(_BLOCK, _PLACES // scores.shape[1]))
        for n in range(0, len(at), size):
            row, own = at[n : n + size], place[n : n + size]
            t = temperatures[row, None]
            ahead = torch.sigmoid((scores[row] - scores[row, own][:, None]) / t)
            rank = 0.5 + ahead.sum(dim=1)  # every item counts itself for one half
            log, counted = torch.log2(1 + rank), torch.sigmoid(self.k + 0.5 - rank)
            # How fast the gain falls with the rank: by its place, and by the end of the list.
            falls = counted * (1 / ((1 + rank) * log**2 * np.log(2)) + (1 - counted) / log)
            moves = ahead.mul_(1 - ahead).mul_((falls / best[row])[:, None] / t)
            pull.index_add_(0, row, moves)
            pull.index_put_((row, own), -moves.sum(dim=1), accumulate=True)
        return pull


class Cutoff(Attack):
    """Projected ascent on a smooth NDCG@k, the best step kept by the metric itself.

    Args:
        relevant: the relevant pairs that the attacker knows.
        seen: pairs that are not candidates, or None.
        k: cutoff of the metric.
        *arguments: see :class:`robustcf.attacks.base.Attack`, as for ``options``.
        steps: gradients per start.
        restarts: starts; the first from the factors themselves, others from random points.
        seed: seed of the random starts.

    Cost: for 50 steps and each start, 12 rankings (one product of users x items x dim each) per
    epsilon, and as many products of ``6 k`` items per user as steps; fewer once a thousandth of the
    clean value is left. Memory of a few copies of the factors, and of the lists.

    Example:
        >>> from robustcf.data import checkerboard
        >>> split = checkerboard()
        >>> parity = torch.eye(2)[torch.arange(30) % 2]
        >>> attack = Cutoff(split.test, split.train, k=10, steps=5)
        >>> attacked = attack.perturb(Factors(parity[:20], parity), 0.8).factors
        >>> head = HeadOfRanking(split.test, split.train, k=10)
        >>> bool(head.at(*attacked).values.mean() < 0.5)
        True
    """

    name = "cutoff"
    #: The metric and its gradient.
    metric: type[HeadOfRanking] = HeadOfRanking
    #: One in so many steps comes again at the end, for users alone; 0 for none.
    polished = 0

    def __init__(
        self,
        relevant: Interactions,
        seen: Interactions | None = None,
        k: int = 10,
        *arguments: Any,
        steps: int = STEPS,
        restarts: int = 1,
        seed: int = 0,
        progress: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self.head = self.metric(relevant, seen, k)
        self.steps = check_integer("steps", steps)
        self.restarts = check_integer("restarts", restarts)
        self.seed, self.progress = seed, progress

    def propose(self, factors: Factors, allowed: dict[str, float]) -> Point:
        """Return the strongest perturbation out of all steps of all starts."""
        sizes = allowed["users"], allowed["items"]
        if factors.users.dtype.itemsize < 4:  # half precision
            factors = Factors(*(part.float() for part in factors))
        # Stored users do not depend on each other, given the items.
        alone = self.budgets[0].by_row and self.histories is None
        best = _Best(factors, joint=sizes[1] > 0 or not alone)
        generator = torch.Generator().manual_seed(self.seed)
        last = self.steps // self.polished if self.polished and min(sizes) > 0 and alone else 0
        total = (self.steps + 1) * self.restarts + (last + 1 if last else 0)
        with progress_bar(total, "attack", "step", self.progress, leave=False) as bar:
            still = torch.zeros_like(factors.users), torch.zeros_like(factors.items)
            course = _Course(0, self.steps, _TEMPERATURES, _SHARES)
            for number in range(self.restarts):
                point = still
                if number:
                    U, V = (torch.randn(part.shape, generator=generator).to(part) for part in point)
                    point = self._each("scale", (U, V), sizes)
                self._climb(factors, sizes, point, best, course, bar)
            if last:
                users, items = best.point
                best = _Best(factors, joint=False)
                moved = Factors(factors.users, factors.items + items)
                course = _Course(self.steps, last, *_POLISH)
                self._climb(moved, (sizes[0], 0.0), (users, still[1]), best, course, bar)
                return best.point[0], items
        return best.point

    def _climb(
        self,
        factors: Factors,
        sizes: Sizes,
        point: Point,
        best: _Best,
        course: _Course,
        bar: tqdm[Any],
    ) -> None:
        """Offer all points of an ascent."""
        U, V = factors
        momentum = torch.zeros_like(U), torch.zeros_like(V)
        anew, least, reach = 0, 0.0, U.new_zeros(0)
        for step in range(course.steps + 1):
            here = Factors(U + point[0], V + point[1])
            served = self.served(here)
            heads = self.head.at(*served, anew=step == anew)
            if step == anew:
                anew += 1 + (course.first + step) // _FRESH
            if step == 0:
                reach = self._reach(factors, heads, sizes)
                least = _NOTHING * heads.values.mean()
            best.offer(self.head.users, heads.values, point)
            bar.update()
            if step == course.steps or best.values.mean() <= least:
                break
            done = step / max(1, course.steps - 1)
            temperature, share = _between(course.temperatures, done), _between(course.shares, done)
            found = self.head.gradient(heads, served.users, served.items, reach * temperature)
            gradient = self.pulled(here, found)
            directions = self._each("scale", gradient, (1.0, 1.0))
            for kept, new in zip(momentum, directions, strict=True):
                kept.mul_(_MOMENTUM).add_(new, alpha=1 - _MOMENTUM)
            moves = self._each("scale", momentum, (share * sizes[0], share * sizes[1]))
            point = self._each("project", (point[0] + moves[0], point[1] + moves[1]), sizes)

    def _reach(self, factors: Factors, heads: Heads, sizes: Sizes) -> Tensor:
        """About how far an attack may move a score of each user."""
        U, V = (self.free(part) for part in factors)
        ids = torch.from_numpy(self.head.users).to(U.device)
        items = self.budgets[1].row_sizes(V, sizes[1])
        if self.histories is not None:
            U = self.served(factors).users
        norms = torch.linalg.vector_norm(U[ids], dim=1)
        lengths = torch.linalg.vector_norm(V, dim=1)
        places = heads.there.sum(dim=1).clamp_min(1)

        def mean(values: Tensor) -> Tensor:
            return torch.where(heads.there, values[heads.items], 0.0).sum(dim=1) / places

        reach = norms * mean(items)
        if self.histories is None:
            # Computed users move less: for all at once, a history's items go many ways.
            reach += self.budgets[0].row_sizes(U, sizes[0])[ids] * mean(lengths)
        # If no row can move, any temperature will do.
        return torch.where(reach > 0, reach, 1.0)


@dataclass(frozen=True)
class _Course:
    """Steps of an ascent, of which the first has this number, and what falls from step to step."""

    first: int
    steps: int
    temperatures: tuple[float, float]
    shares: tuple[float, float]


class _Best:
    """The strongest perturbation so far; per user if they are independent (not ``joint``)."""

    def __init__(self, factors: Factors, *, joint: bool) -> None:
        self.point: Point = torch.zeros_like(factors.users), torch.zeros_like(factors.items)
        self.joint = joint
        self.values = np.full(1, np.inf)

    def offer(
        self, users: npt.NDArray[np.int64], values: npt.NDArray[np.float64], point: Point
    ) -> None:
        if self.joint:
            if values.mean() < self.values.mean():
                self.values, self.point = values, (point[0].clone(), point[1].clone())
            return
        better = values < self.values
        rows = torch.from_numpy(users[better]).to(point[0].device)
        self.point[0][rows] = point[0][rows]
        self.values = np.minimum(self.values, values)


def _between(ends: tuple[float, float], done: float) -> float:
    """Return the geometric interpolation between two ends."""
    return float(ends[0] * (ends[1] / ends[0]) ** done)
