"""The attack at the cutoff: one perturbation for all users that makes NDCG@k as small as it can.

A ranking metric changes only where items pass each other near the first k places. Losses over the
whole catalogue spend an attack on scores that nobody sees; this attack looks at the head of each
ranking alone, and at the metric itself.

**Objective.** Take the first ``3 k`` candidates of each user, in the order of the attacked scores.
For a relevant item i among them::

    rank_i = 1 + sum over the others j of sigmoid((s_j - s_i) / t)
    gain_i = sigmoid(k + 1/2 - rank_i) / log2(1 + rank_i)

With t -> 0 the sum of the gains over relevant items, divided by its best possible value, is NDCG@k
(but for the soft end of the list). Its gradient is large where two items contend for a place, and
counts each place by what it is worth.

**Temperature.** What decides is how far an attack can move a score: about
``reach = a ||v|| + b ||u||`` when rows of U and V move by a and b. Items further apart than that
cannot pass each other, and one temperature of that kind fits every model and size. It falls from
``0.3 reach``, where the whole head of the list is in contest, to ``0.01 reach``, where only what
lies next to each other is.

**Ascent.** Steps with momentum, in which every row moves by the same share of its budget, each
followed by a projection; the share falls from the whole budget to a tenth of it. The ranking at
each step is needed for the gradient anyway, so its metric costs nothing: the perturbation returned
is the best by the *metric*, of all that were seen. Where items may not move, and every row has a
budget of its own, users do not depend on each other, and each keeps its own best row.

Nothing is drawn at random with one start: the result is a function of factors and pairs. Starting
from other attacks' solutions, or from random points, was tried and changes nothing: the first steps
go as far as the budget does, and at a high temperature forget where they came from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from robustcf._checks import check_cutoff, check_integer
from robustcf._io.progress import bar as progress_bar
from robustcf.attacks.base import Attack
from robustcf.data.interactions import Interactions
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.metrics.evaluate import hits_of
from robustcf.metrics.ranking import ndcg
from robustcf.metrics.shortlist import Shortlists
from robustcf.objectives.kernels import SparseRows, add_sparse_product, sparse_scores

if TYPE_CHECKING:
    from tqdm import tqdm

STEPS = 50
# Places looked at, in cutoffs. Twice as many cost twice as much and find nothing more.
_WINDOW = 3
# First and last temperature, in reaches, and step, in budgets.
_TEMPERATURES = (0.3, 0.01)
_SHARES = (1.0, 0.1)
_MOMENTUM = 0.75
# Below this share of the clean value nothing is left to take: the ascent ends.
_NOTHING = 1e-3
# Cutoffs beyond this are attacked at this one: deeper places are worth little, and cost as much.
_DEEPEST = 1000
# Relevant items compared with the head of their list at a time, and places in heads.
_BLOCK = 2**16
_PLACES = 2**23

Point = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Heads:
    """The first places of all rankings.

    Args:
        items: users x places; 0 where a list has ended.
        there: whether a place holds an item.
        hits: whether that item is relevant.
        values: NDCG@k of each user.
    """

    items: Tensor
    there: Tensor
    hits: Tensor
    values: npt.NDArray[np.float64]


class HeadOfRanking:
    """The metric under attack, and the gradient of its smooth form.

    Args:
        relevant: the pairs that count.
        seen: pairs that are no candidates, or None.
        k: cutoff; the attack looks no deeper than 1,000 places.

    Raises:
        InputError: no pair counts, or k is no cutoff.

    Example:
        >>> pairs = Interactions(np.array([0]), np.array([1]), 1, 3)
        >>> head = HeadOfRanking(pairs, None, k=1)
        >>> head.at(torch.ones(1, 1), torch.tensor([[1.0], [2.0], [0.0]])).values.tolist()
        [1.0]
    """

    def __init__(self, relevant: Interactions, seen: Interactions | None, k: int) -> None:
        """Find the users that count."""
        if len(relevant) == 0:
            raise InputError("an attack at the cutoff needs pairs that count, got none")
        self.relevant, self.seen = relevant, seen
        self.k = min(check_cutoff("k", k), _DEEPEST)
        self.users = np.flatnonzero(relevant.user_degrees).astype(np.int64)
        self.counts = relevant.user_degrees[self.users]
        discounts = 1 / np.log2(np.arange(2, self.k + 2))
        self.best = np.cumsum(discounts)[np.minimum(self.counts, self.k) - 1]
        # Steps are small: most rankings are known from a list of each user's best items.
        self._lists: Shortlists | None = None

    def at(self, U: Tensor, V: Tensor) -> Heads:
        """The heads of the rankings by these factors."""
        width = min(_WINDOW * self.k, len(V))
        if self._lists is None or self._lists.k != width:
            self._lists = Shortlists(self.users, width, self.seen)
        top = self._lists.top(U, V)
        hits = hits_of(top, self.relevant, self.users)
        values = ndcg(hits, self.counts, self.k)
        items, there, own = (
            torch.from_numpy(part).to(V.device) for part in (np.maximum(top, 0), top >= 0, hits)
        )
        return Heads(items, there, own, values)

    def gradient(self, heads: Heads, U: Tensor, V: Tensor, temperatures: Tensor) -> Point:
        """Where to move U and V to make the smooth metric, summed over users, fall fastest.

        Args:
            heads: of the rankings by U and V.
            U: users.
            V: items.
            temperatures: one for each user that counts.

        Cost: heads x dim, and one number for each relevant item and place in a head.
        """
        to_users, to_items = torch.zeros_like(U), torch.zeros_like(V)
        size = max(1, _PLACES // heads.items.shape[1])
        for start in range(0, len(self.users), size):
            part = slice(start, start + size)
            self._add_gradient(heads, part, U, V, temperatures, (to_users, to_items))
        return to_users, to_items

    def _add_gradient(
        self, heads: Heads, part: slice, U: Tensor, V: Tensor, temperatures: Tensor, total: Point
    ) -> None:
        """Add what some of the users say to the gradient."""
        ids = torch.from_numpy(self.users[part]).to(U.device)
        items, there = heads.items[part], heads.there[part]
        block = U[ids]
        rows = torch.arange(len(ids), device=U.device).repeat_interleave(items.shape[1])
        entries = SparseRows(rows, items.flatten(), rows.new_zeros(0))
        scores = sparse_scores(block, V, entries).view_as(items)
        # A list that has ended has no more rivals: they are infinitely far behind.
        scores = torch.where(there, scores, -torch.inf)
        best = torch.from_numpy(self.best[part]).to(scores)
        pull = self._pull(scores, heads.hits[part], temperatures[part], best)
        entries = SparseRows(rows, items.flatten(), pull.flatten())
        moved = torch.zeros_like(block)
        add_sparse_product(moved, entries, V, scale=1.0)
        total[0][ids] = moved
        add_sparse_product(total[1], entries, block, scale=1.0, transposed=True)

    def _pull(self, scores: Tensor, hits: Tensor, temperatures: Tensor, best: Tensor) -> Tensor:
        """The gradient for the scores: what gains by rising takes from who must fall."""
        pull = torch.zeros_like(scores)
        at, place = torch.nonzero(hits, as_tuple=True)
        size = max(1, min(_BLOCK, _PLACES // scores.shape[1]))
        for n in range(0, len(at), size):
            row, own = at[n : n + size], place[n : n + size]
            t = temperatures[row, None]
            ahead = torch.sigmoid((scores[row] - scores[row, own][:, None]) / t)
            # Every item is level with itself: one half too much.
            rank = 0.5 + ahead.sum(dim=1)
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
        relevant: the pairs that count: for an attacker who knows the labels, those of the
            evaluation.
        seen: pairs that are no candidates, or None.
        k: cutoff of the metric.
        *arguments: see :class:`robustcf.attacks.base.Attack`.
        steps: gradients of a start.
        restarts: starts; the first from the factors themselves, others from random points.
        seed: of the random starts.
        progress: whether to show a progress bar.
        **options: see :class:`robustcf.attacks.base.Attack`.

    Cost: at most ``(steps + 2) * restarts`` rankings (one product of users x items x dim each) for
    every epsilon, fewer where less than a thousandth of the clean value is left; memory of a few
    copies of the factors, and of the heads.

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
        """Check and keep the options."""
        super().__init__(*arguments, **options)
        self.head = HeadOfRanking(relevant, seen, k)
        self.steps = check_integer("steps", steps)
        self.restarts = check_integer("restarts", restarts)
        self.seed, self.progress = seed, progress

    def propose(self, factors: Factors, allowed: dict[str, float]) -> Point:
        """The perturbation that left the least, out of all steps of all starts."""
        sizes = allowed["users"], allowed["items"]
        best = _Best(factors, joint=sizes[1] > 0 or not self.budgets[0].by_row)
        generator = torch.Generator().manual_seed(self.seed)
        total = (self.steps + 1) * self.restarts
        with progress_bar(total, "attack", "step", self.progress, leave=False) as bar:
            for number in range(self.restarts):
                point = torch.zeros_like(factors.users), torch.zeros_like(factors.items)
                if number:
                    U, V = (torch.randn(part.shape, generator=generator).to(part) for part in point)
                    point = self._each("scale", (U, V), sizes)
                self._climb(factors, sizes, point, best, bar)
        return best.point

    def _climb(
        self,
        factors: Factors,
        sizes: tuple[float, float],
        point: Point,
        best: _Best,
        bar: tqdm[Any],
    ) -> None:
        U, V = factors
        clean = self.head.at(U, V)
        reach = self._reach(factors, clean, sizes)
        least = _NOTHING * clean.values.mean()
        momentum = torch.zeros_like(U), torch.zeros_like(V)
        for step in range(self.steps + 1):
            here = U + point[0], V + point[1]
            heads = self.head.at(*here)
            best.offer(self.head.users, heads.values, point)
            bar.update()
            if step == self.steps or best.mean <= least:
                break
            done = step / max(1, self.steps - 1)
            temperature = _between(_TEMPERATURES, done)
            gradient = self.head.gradient(heads, *here, reach * temperature)
            directions = self._each("scale", gradient, (1.0, 1.0))
            momentum = (
                momentum[0].mul_(_MOMENTUM).add_(directions[0], alpha=1 - _MOMENTUM),
                momentum[1].mul_(_MOMENTUM).add_(directions[1], alpha=1 - _MOMENTUM),
            )
            share = _between(_SHARES, done)
            moves = self._each("scale", momentum, (share * sizes[0], share * sizes[1]))
            point = self._each("project", (point[0] + moves[0], point[1] + moves[1]), sizes)

    def _reach(self, factors: Factors, heads: Heads, sizes: tuple[float, float]) -> Tensor:
        """How far an attack may move a score of each user, about."""
        U, V = (self.free(part) for part in factors)
        ids = torch.from_numpy(self.head.users).to(U.device)
        users = self.budgets[0].row_sizes(U, sizes[0])[ids]
        items = self.budgets[1].row_sizes(V, sizes[1])
        norms = torch.linalg.vector_norm(U[ids], dim=1)
        lengths = torch.linalg.vector_norm(V, dim=1)
        places = heads.there.sum(dim=1).clamp_min(1)

        def mean(values: Tensor) -> Tensor:
            return torch.where(heads.there, values[heads.items], 0.0).sum(dim=1) / places

        reach = users * mean(lengths) + norms * mean(items)
        # Where nothing can move, any temperature will do.
        return torch.where(reach > 0, reach, 1.0)

    def _each(self, what: str, parts: Point, sizes: tuple[float, float]) -> Point:
        """A method of the two budgets for the columns that may move."""
        users, items = (
            getattr(budget, what)(self.free(part), size)
            for budget, part, size in zip(self.budgets, parts, sizes, strict=True)
        )
        return users, items


class _Best:
    """The perturbation that left the least so far.

    Args:
        factors: what is perturbed.
        joint: whether users share something, items that move or one budget; if not, each user
            keeps a best row.
    """

    def __init__(self, factors: Factors, *, joint: bool) -> None:
        self.point: Point = torch.zeros_like(factors.users), torch.zeros_like(factors.items)
        self.joint = joint
        self.values: npt.NDArray[np.float64] | None = None

    @property
    def mean(self) -> float:
        """What it left, mean over users."""
        return np.inf if self.values is None else float(self.values.mean())

    def offer(
        self, users: npt.NDArray[np.int64], values: npt.NDArray[np.float64], point: Point
    ) -> None:
        """Keep a point, or the rows of it, that left less."""
        if self.values is None:
            self.values = np.full(len(values), np.inf)
        if self.joint:
            if values.mean() < self.values.mean():
                self.values, self.point = values, (point[0].clone(), point[1].clone())
            return
        better = values < self.values
        rows = torch.from_numpy(users[better]).to(point[0].device)
        self.point[0][rows] = point[0][rows]
        self.values = np.minimum(self.values, values)


def _between(ends: tuple[float, float], done: float) -> float:
    """A share of the way from the first to the last, in factors."""
    return float(ends[0] * (ends[1] / ends[0]) ** done)
