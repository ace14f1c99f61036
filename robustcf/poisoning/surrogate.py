"""Attacks that choose profiles by a surrogate model of the victim."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from robustcf._checks import check_integer, check_number
from robustcf.data.interactions import Interactions
from robustcf.factors import Factors
from robustcf.metrics.topk import top_items
from robustcf.poisoning._half_steps import HalfSteps, active, bars, cutoff_of, fit_als, has, highest
from robustcf.poisoning.base import Poisoning, Task
from robustcf.poisoning.injection import inject
from robustcf.poisoning.threat import AVAILABILITY, DEMOTE, ItemIds

# Different profiles; with more fakes, several share one up to noise.
_KINDS = 128
# Fillers with gradients, at most.
_FILLERS = 2048
# Crowds of neighbours that are tried as a start.
_CROWDS = 256
# Pushed items at most if they are not the targets; at most half of a profile.
_PUSHED = 20
# Gradient steps per round, length of the first, and softness of the count of hits in mean gaps.
_STEPS, _STRIDE, _SOFTNESS = 5, 0.2, 0.15


class Greedy(Poisoning):
    """The targets and the fillers that a surrogate predicts for users who nearly see a target.

    ALS is fitted to the known pairs and the fakes so far. The next fake user models the genuine one
    for whom a target is nearest to being recommended: as many items, those with the largest scores
    times a probability that decays when an item is chosen. ``demote`` leaves out the targets;
    ``availability`` takes random users and their smallest scores. After Huang et al.,
    arXiv:2101.02644.

    Args:
        retrainings: how often the surrogate is fitted.
        decay: factor of an item's probability once it is chosen.

    Cost: ``retrainings`` fits of ALS, and one row of scores per fake user.
    """

    name = "greedy"
    needs_pairs = True

    def __init__(self, retrainings: int = 10, decay: float = 0.98) -> None:
        self.retrainings = check_integer("retrainings", retrainings)
        self.decay = check_number("decay", decay, positive=True)

    def propose(self, task: Task) -> list[ItemIds]:
        """Return profiles, a few after each fit."""
        pairs = task.known.pairs(self.name)
        chance = np.ones(pairs.n_items)
        profiles: list[ItemIds] = []
        taken: list[int] = []
        seed = int(task.rng.integers(2**31))
        for batch in np.array_split(np.arange(task.fakes), min(self.retrainings, task.fakes)):
            factors = fit_als(inject(pairs, profiles), seed, pairs.n_users)
            for user in _nearest(task, pairs, factors, taken, len(batch)):
                taken.append(int(user))
                scores = (factors.items @ factors.users[user]).double().numpy()
                scores = -scores if task.goal == AVAILABILITY else scores
                # Shifted to 0, since a probability would raise a negative score.
                likely = (scores - scores.min()) * chance
                likely[task.targets] = -1.0
                order = np.argsort(-likely, kind="stable")
                profiles.append(task.profile(order[: int(pairs.user_degrees[user])]))
                chance[profiles[-1]] *= self.decay
        return profiles


def _nearest(
    task: Task, pairs: Interactions, factors: Factors, taken: list[int], count: int
) -> ItemIds:
    """Different users for whom a target is nearest to being recommended, or random ones."""
    users = np.setdiff1d(active(pairs), taken)
    users = users if len(users) >= count else active(pairs)
    if task.goal == AVAILABILITY or len(users) < count:
        drawn: ItemIds = task.rng.choice(users, count, replace=len(users) < count)
        return drawn
    gaps = highest(factors, pairs, users, task.targets) - bars(factors, pairs, users)[0]
    nearest: ItemIds = users[torch.topk(gaps, count).indices.numpy()]
    return nearest


@dataclass(frozen=True, eq=False)
class Push:
    """Items to push above a score of each user."""

    items: ItemIds  # in every profile
    users: Tensor  # to whom they should be recommended
    bars: Tensor  # the score to exceed per user
    lacking: Tensor  # users x items: whether the user lacks the item


class Surrogate(Poisoning):
    """Profiles that follow the gradient of exposure through one ALS half-step of the items.

    The start is copies of a crowd of neighbours, the one of 256 whose copies with the targets would
    expose most users. In each round the profiles, relaxed to weights in [0, 1], take projected
    gradient steps; the largest entries become the profile, and ALS is fitted again with the fakes.
    The best round is kept and continued; without a gain, steps are halved. ``demote`` pushes the
    items just behind the cutoff for the users most likely to see a target, ``availability`` the
    rarest items. After Tang, Wen and Wang, arXiv:2008.04876.

    Cost: ``rounds`` + 1 fits of ALS, and per step kinds x fillers x 64^2, with at most 128 kinds of
    profiles and 2,048 fillers.

    Example:
        >>> from robustcf.data import load
        >>> from robustcf.poisoning import PoisonThreat
        >>> found = Surrogate(rounds=1).attack(load("demo").train, PoisonThreat(fakes=5, length=20))
        >>> found.realised["fakes"]
        5
    """

    name = "surrogate"
    needs_pairs = True

    def __init__(self, rounds: int = 3) -> None:
        self.rounds = check_integer("rounds", rounds, 0)

    def propose(self, task: Task) -> list[ItemIds]:
        """Return the profiles of the best round."""
        pairs = task.known.pairs(self.name)
        # One seed for all fits, so that rounds differ by their profiles alone.
        seed = int(task.rng.integers(2**31))
        clean = fit_als(pairs, seed)
        push = push_of(task, pairs, clean)
        kinds = min(task.fakes, _KINDS)
        counts = torch.from_numpy(np.bincount(np.arange(task.fakes) % kinds)).float()
        crowd = _best_crowd(task, HalfSteps(clean, pairs, push.items), push, counts)
        weights, fillers = _started(task, pairs, push, crowd)
        best, best_profiles, factors, stride = -np.inf, [], clean, _STRIDE
        tried = weights
        for number in range(self.rounds + 1):
            if number:
                steps = HalfSteps(factors, pairs, push.items)
                here = push_of(task, pairs, factors, push.items)
                tried = _followed(steps, here, weights, fillers, counts, stride)
                if torch.equal(_entries(tried), _entries(weights)):
                    stride *= 2  # too short: no item changed
                    continue
            profiles = _binarized(task, push, tried, fillers)
            found = fit_als(inject(pairs, profiles), seed, pairs.n_users)
            reached = reached_by(task, pairs, found, push)
            if reached > best:
                best, best_profiles, weights, factors = reached, profiles, tried, found
            else:
                stride /= 2
        return best_profiles


def push_of(task: Task, pairs: Interactions, factors: Factors, kept: ItemIds | None = None) -> Push:
    """Return the items to push, and the scores to exceed, by these factors."""
    users = active(pairs)
    edge, top = bars(factors, pairs, users)
    most = max(1, min(_PUSHED, task.length // 2))
    items = task.targets if kept is None else kept
    if task.goal == AVAILABILITY and kept is None:
        there = np.flatnonzero(task.known.popularity)
        items = there[np.argsort(task.known.popularity[there], kind="stable")[:most]]
    if task.goal == DEMOTE:
        closest = highest(factors, pairs, users, task.targets)
        near = torch.topk(closest - edge, max(1, len(users) // 10)).indices
        if kept is None:
            behind = top[near.numpy(), cutoff_of(pairs.n_items) :]
            behind = behind[(behind >= 0) & ~np.isin(behind, task.targets)]
            seen = np.bincount(behind, minlength=pairs.n_items)
            seen[task.targets] = -1
            items = np.argsort(-seen, kind="stable")[:most]
            items = items[seen[items] >= 0]  # fewer in a small catalogue
        users, edge = users[near.numpy()], closest[near]
    items = np.sort(items).astype(np.int64)
    return Push(items, torch.from_numpy(users), edge, ~has(pairs, users, items))


def _best_crowd(task: Task, steps: HalfSteps, push: Push, counts: Tensor) -> ItemIds:
    """Similar users whose copies would expose the pushed items most."""
    U = steps.factors.users
    able = np.flatnonzero(steps.pairs.user_degrees)
    rows = U[torch.from_numpy(able)]
    units = rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-12)
    size = min(len(counts), len(able))
    best, chosen = -1.0, np.arange(size)
    for centre in task.rng.permutation(len(able))[:_CROWDS]:
        crowd = torch.topk(units @ units[centre], size).indices
        # With fewer users than kinds of fakes, some are copied several times.
        members = crowd[torch.arange(len(counts)) % size]
        scores = U[push.users] @ steps.item_rows(rows[members], counts).T
        won = (scores > push.bars[:, None]) & push.lacking
        value = float(won.any(dim=1).float().mean() + won.float().mean())
        if value > best:
            best, chosen = value, members.numpy()
    return able[chosen]


def _started(task: Task, pairs: Interactions, push: Push, crowd: ItemIds) -> tuple[Tensor, Tensor]:
    """Weights of the profiles of a crowd, and their fillers."""
    popularity = np.bincount(
        np.concatenate([pairs.items_of(int(user)) for user in crowd]), minlength=pairs.n_items
    ) + task.known.popularity / max(1.0, 1.0 + task.known.popularity.max())
    popularity[np.union1d(push.items, task.targets)] = -1
    fillers = np.argsort(-popularity, kind="stable")[:_FILLERS]
    fillers = np.sort(fillers[popularity[fillers] >= 0])
    place = np.full(pairs.n_items, -1)
    place[fillers] = np.arange(len(fillers))
    weights = torch.zeros(len(crowd), len(fillers))
    room = task.length - len(push.items)
    for row, user in enumerate(crowd):
        items = place[task.rng.permutation(pairs.items_of(int(user)))]
        weights[row, torch.from_numpy(items[items >= 0][:room])] = 1.0
    return weights, torch.from_numpy(fillers)


def _followed(
    steps: HalfSteps, push: Push, weights: Tensor, fillers: Tensor, counts: Tensor, stride: float
) -> Tensor:
    """Weights after steps along the gradient of the soft count of hits.

    Each step moves the entry of a profile with the largest gradient by ``stride``.
    """
    if len(fillers) == 0:
        return weights
    # Profiles keep their length, as those of the copied users.
    room = weights.sum(dim=1).round()
    lists = steps.factors.users[push.users]
    free = _entries(weights)
    softness = None
    for _ in range(_STEPS):
        free.requires_grad_()
        rows = steps.item_rows(steps.fake_rows(free, fillers), counts)
        gaps = (push.bars[:, None] - lists @ rows.T)[push.lacking]
        gaps = gaps[torch.isfinite(gaps)]
        if len(gaps) == 0:
            return weights
        if softness is None:
            softness = _SOFTNESS * gaps.detach().abs().mean().clamp_min(1e-6)
        gain = torch.sigmoid(-gaps / softness).sum()
        (slope,) = torch.autograd.grad(gain, free)
        slope = slope / slope.abs().amax(dim=1, keepdim=True).clamp_min(1e-30)
        free = _projected(free.detach() + stride * slope, room)
    return free


def _projected(weights: Tensor, most: Tensor) -> Tensor:
    """The nearest weights in [0, 1] whose rows sum to at most ``most`` each, by bisection."""
    inside = weights.clamp(0.0, 1.0)
    over = inside.sum(dim=1) > most
    if not bool(over.any()):
        return inside
    rows = weights[over]
    limit, low = most[over][:, None], torch.zeros(len(rows), 1)
    high = rows.amax(dim=1, keepdim=True)
    for _ in range(30):
        middle = (low + high) / 2
        more = (rows - middle).clamp(0.0, 1.0).sum(dim=1, keepdim=True) > limit
        low, high = torch.where(more, middle, low), torch.where(more, high, middle)
    inside[over] = (rows - high).clamp(0.0, 1.0)
    return inside


def _entries(weights: Tensor) -> Tensor:
    """0/1: the largest entries of each row, as many as the row sums to."""
    lengths = weights.sum(dim=1).round().long()
    order = weights.argsort(dim=1, descending=True, stable=True)
    return (order.argsort(dim=1) < lengths[:, None]).to(weights.dtype)


def _binarized(task: Task, push: Push, weights: Tensor, fillers: Tensor) -> list[ItemIds]:
    """The profile of each fake user: the largest entries, as many as the weights sum to."""
    chosen = _entries(weights).bool().numpy()
    ids = fillers.numpy()
    profiles = []
    for fake in range(task.fakes):
        mine = ids[chosen[fake % len(chosen)]]
        if fake >= len(chosen) and len(mine) > 1:
            # A repeated profile loses a tenth of its items, so that few are equal.
            mine = task.rng.permutation(mine)[: len(mine) - max(1, len(mine) // 10)]
        profiles.append(np.sort(np.concatenate((push.items, mine))))
    return profiles


def reached_by(task: Task, pairs: Interactions, factors: Factors, push: Push) -> float:
    """Return the share of users with a pushed item, or without a target; ties by distance."""
    judged = task.targets if task.goal == DEMOTE else push.items
    top = top_items(factors, push.users.numpy(), cutoff_of(pairs.n_items), pairs)
    shown = np.isin(top, judged)
    U, V = factors.users[push.users], factors.items
    last = torch.from_numpy(np.maximum(top[:, -1], 0))
    gaps = U @ V[torch.from_numpy(judged)].T - (U * V[last]).sum(dim=1)[:, None]
    near = float(torch.tanh(gaps).mean())
    hits = shown.any(axis=1).mean() if task.goal != AVAILABILITY else shown.mean()
    return (-1.0 if task.goal == DEMOTE else 1.0) * (float(hits) + 1e-3 * near)
