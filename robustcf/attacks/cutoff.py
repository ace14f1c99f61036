"""The attack at the cutoff: one perturbation for all users that makes NDCG@k as small as it can.

A ranking metric changes only where items pass each other near the first k places. Losses over the
whole catalogue spend an attack on other scores, too; this attack looks at the head of each ranking
alone, and at the metric itself.

**Objective.** The approximate NDCG of Qin, Liu and Li (2010, doi:10.1007/s10791-009-9124-x) on the
head. Take the first ``3 k`` candidates of each user, in the order of the attacked scores. For a
relevant item i among them::

    rank_i = 1 + sum over the others j of sigmoid((s_j - s_i) / t)
    gain_i = sigmoid(k + 1/2 - rank_i) / log2(1 + rank_i)

With t -> 0 the sum of the gains over relevant items, divided by its best possible value, is NDCG@k
(but for the soft end of the list).

**Temperature.** A score moves by about ``reach = a ||v|| + b ||u||`` at most when rows of U and V
move by a and b. Items further apart cannot pass each other, so the temperature falls from ``0.3
reach``, where the whole head of the list is in contest, to ``0.01 reach``, where neighbours are.

**Ascent.** Steps with momentum (Dong et al., 2018, arXiv:1710.06081), in which every row moves by
the same share of its budget, each followed by a projection; the share falls from the whole budget
to a tenth of it. The perturbation returned is the best by the *metric*, of all that were seen: the
ranking at each step is needed for the gradient anyway. Where items may not move, and every row has
a budget of its own, each user keeps their own best row.

Nothing is drawn at random with one start. Starting from other attacks' solutions, or from random
points, was tried and changes nothing: the first steps go as far as the budget does.
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
from robustcf.attacks.base import Attack, Point
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


Sizes = tuple[float, float]


@dataclass(frozen=True, eq=False)
class Heads:
    """The first places of all rankings: users x places."""

    items: Tensor  # 0 where a list has ended
    there: Tensor  # whether a place holds an item
    hits: Tensor  # whether that item is relevant
    values: npt.NDArray[np.float64]  # NDCG@k of each user


class HeadOfRanking:
    """The metric under attack, and the gradient of its smooth form.

    Args:
        relevant: relevant items by user, at least one.
        seen: pairs that are not candidates, or None.
        k: cutoff; the attack looks no deeper than 1,000 places.

    Example:
        >>> pairs = Interactions(np.array([0]), np.array([1]), 1, 3)
        >>> head = HeadOfRanking(pairs, None, k=1)
        >>> head.at(torch.ones(1, 1), torch.tensor([[1.0], [2.0], [0.0]])).values.tolist()
        [1.0]
    """

    def __init__(self, relevant: Interactions, seen: Interactions | None, k: int) -> None:
        if len(relevant) == 0:
            raise InputError("an attack at the cutoff needs relevant pairs, got none")
        self.relevant, self.seen = relevant, seen
        self.k = min(check_cutoff("k", k), _DEEPEST)
        self.users = np.flatnonzero(relevant.user_degrees).astype(np.int64)
        self.counts = relevant.user_degrees[self.users]
        discounts = 1 / np.log2(np.arange(2, self.k + 2))
        self.best = np.cumsum(discounts)[np.minimum(self.counts, self.k) - 1]
        # Steps are small: most rankings are known from a list of each user's best items.
        self._lists: Shortlists | None = None

    def at(self, U: Tensor, V: Tensor) -> Heads:
        """Return the heads of the rankings by these factors."""
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
        """Return where to move U and V to make the smooth metric, summed over users, fall fastest.

        Args:
            heads: of the rankings by U and V.
            U: users.
            V: items.
            temperatures: one for each user with a relevant item.

        Cost: heads x dim, and one number for each relevant item and place in a head.
        """
        to_users, to_items = torch.zeros_like(U), torch.zeros_like(V)
        size = max(1, _PLACES // heads.items.shape[1])
        for start in range(0, len(self.users), size):
            part = slice(start, start + size)
            ids = torch.from_numpy(self.users[part]).to(U.device)
            items, block = heads.items[part], U[ids]
            rows = torch.arange(len(ids), device=U.device).repeat_interleave(items.shape[1])
            entries = SparseRows(rows, items.flatten(), rows.new_zeros(0))
            scores = sparse_scores(block, V, entries).view_as(items)
            # A list that has ended has no more rivals: they are infinitely far behind.
            scores = torch.where(heads.there[part], scores, -torch.inf)
            best = torch.from_numpy(self.best[part]).to(scores)
            pull = self._pull(scores, heads.hits[part], temperatures[part], best)
            entries = SparseRows(rows, items.flatten(), pull.flatten())
            moved = torch.zeros_like(block)
            add_sparse_product(moved, entries, V, scale=1.0)
            to_users[ids] = moved
            add_sparse_product(to_items, entries, block, scale=1.0, transposed=True)
        return to_users, to_items

    def _pull(self, scores: Tensor, hits: Tensor, temperatures: Tensor, best: Tensor) -> Tensor:
        """The gradient for the scores: rivals gain by rising what relevant items lose."""
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
        relevant: the relevant pairs; those of the evaluation where the attacker knows the labels.
        seen: pairs that are not candidates, or None.
        k: cutoff of the metric.
        *arguments: see :class:`robustcf.attacks.base.Attack`.
        steps: gradients per start.
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
        super().__init__(*arguments, **options)
        self.head = HeadOfRanking(relevant, seen, k)
        self.steps = check_integer("steps", steps)
        self.restarts = check_integer("restarts", restarts)
        self.seed, self.progress = seed, progress

    def propose(self, factors: Factors, allowed: dict[str, float]) -> Point:
        """Return the strongest perturbation out of all steps of all starts."""
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
        self, factors: Factors, sizes: Sizes, point: Point, best: _Best, bar: tqdm[Any]
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
            for kept, new in zip(momentum, directions, strict=True):
                kept.mul_(_MOMENTUM).add_(new, alpha=1 - _MOMENTUM)
            share = _between(_SHARES, done)
            moves = self._each("scale", momentum, (share * sizes[0], share * sizes[1]))
            point = self._each("project", (point[0] + moves[0], point[1] + moves[1]), sizes)

    def _reach(self, factors: Factors, heads: Heads, sizes: Sizes) -> Tensor:
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


class _Best:
    """The strongest perturbation so far.

    Where users share nothing (``joint`` is False), neither items that move nor one budget, each
    user keeps a best row.
    """

    def __init__(self, factors: Factors, *, joint: bool) -> None:
        self.point: Point = torch.zeros_like(factors.users), torch.zeros_like(factors.items)
        self.joint = joint
        self.values: npt.NDArray[np.float64] | None = None

    @property
    def mean(self) -> float:
        return np.inf if self.values is None else float(self.values.mean())

    def offer(
        self, users: npt.NDArray[np.int64], values: npt.NDArray[np.float64], point: Point
    ) -> None:
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
    """Return the geometric interpolation between two ends."""
    return float(ends[0] * (ends[1] / ends[0]) ** done)
