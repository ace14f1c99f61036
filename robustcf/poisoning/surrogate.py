"""Attacks that train a model of their own in the victim's place, and choose profiles by it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from robustcf._checks import check_integer, check_number
from robustcf.data.interactions import Interactions
from robustcf.factors import Factors
from robustcf.metrics.topk import top_items
from robustcf.poisoning._half_steps import (
    HalfSteps,
    audience,
    bars,
    cutoff_of,
    fit_surrogate,
    has,
    highest,
)
from robustcf.poisoning.base import Poisoning, Task
from robustcf.poisoning.injection import inject
from robustcf.poisoning.threat import AVAILABILITY, DEMOTE, ItemIds

# Kinds of fake users with a profile of their own each: more fakes share them, up to some noise.
_KINDS = 128
# Fillers that gradients go through, at most.
_FILLERS = 2048
# Crowds of neighbours that are tried as a start.
_CROWDS = 256
# Items to push at most where these are not the targets; half of a profile at most.
_PUSHED = 20
# Gradient steps of a round, how far the first go, and the softness of the count of hits, in mean
# gaps.
_STEPS, _STRIDE, _SOFTNESS = 5, 0.2, 0.15


class Greedy(Poisoning):
    """The targets, and the fillers that a surrogate predicts for a user who nearly sees them.

    The surrogate is ALS on the known pairs and the fakes so far. The next fake user takes after the
    genuine one for whom a target is nearest to being recommended: as many items, those with the
    largest scores, times a probability of which a chosen item loses some. ``demote``: the same
    users, without the targets. ``availability``: users at random, with the items that have the
    smallest scores for them. The idea of Huang et al., arXiv:2101.02644.

    Args:
        retrainings: how often the surrogate is fitted; fakes between two fits come from one.
        decay: what is left of an item's probability once it is chosen.

    Cost: ``retrainings`` fits of ALS, and one row of scores for each fake user.
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
            factors = fit_surrogate(inject(pairs, profiles), seed, pairs.n_users)
            for user in _nearest(task, pairs, factors, taken, len(batch)):
                taken.append(int(user))
                scores = (factors.items @ factors.users[user]).double().numpy()
                scores = -scores if task.goal == AVAILABILITY else scores
                # From 0 on: a probability of a negative score would raise it.
                likely = (scores - scores.min()) * chance
                likely[task.targets] = -1.0
                order = np.argsort(-likely, kind="stable")
                profiles.append(task.profile(order[: int(pairs.user_degrees[user])]))
                chance[profiles[-1]] *= self.decay
        return profiles


def _nearest(
    task: Task, pairs: Interactions, factors: Factors, taken: list[int], count: int
) -> ItemIds:
    """Users for whom a target is nearest to being recommended, none twice; or random ones."""
    users = np.setdiff1d(audience(pairs), taken)
    users = users if len(users) >= count else audience(pairs)
    if task.goal == AVAILABILITY or len(users) < count:
        drawn: ItemIds = task.rng.choice(users, count, replace=len(users) < count)
        return drawn
    gaps = highest(factors, pairs, users, task.targets) - bars(factors, pairs, users)[0]
    nearest: ItemIds = users[torch.topk(gaps, count).indices.numpy()]
    return nearest


@dataclass(frozen=True, eq=False)
class _Push:
    """Items to push above a score of each user."""

    items: ItemIds  # every profile has them
    users: Tensor  # who are to see them
    bars: Tensor  # the score of each of these users that is to be passed
    lacking: Tensor  # users x items: whether the user lacks the item


class Surrogate(Poisoning):
    """Profiles that follow the gradient of exposure through one ALS half-step of the items.

    It fits ALS to the known pairs and starts from copies of a crowd of neighbours: of 256 crowds,
    the one whose members, if they had the targets, would show them to most users. In each round the
    profiles, relaxed to weights in [0, 1], take some projected gradient steps; the largest entries
    become the profile, and the surrogate is fitted anew with the fakes in. The best round is kept
    and continued; after one without a gain, steps are half as long. ``demote`` pushes the items
    just behind the cutoff for the users most likely to see a target; ``availability`` the rarest
    items. The idea of Tang, Wen and Wang, arXiv:2008.04876.

    Args:
        rounds: of gradient steps; each costs one fit of the surrogate.

    Cost: rounds + 1 fits of ALS, and for each step kinds x fillers x 64^2, with at most 128 kinds
    of profiles and 2,048 fillers: memory does not grow with users x items.

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
        # One start for all fits: what differs between rounds is due to the profiles alone.
        seed = int(task.rng.integers(2**31))
        clean = fit_surrogate(pairs, seed)
        push = _push(task, pairs, clean)
        kinds = min(task.fakes, _KINDS)
        counts = torch.from_numpy(np.bincount(np.arange(task.fakes) % kinds)).float()
        crowd = _best_crowd(task, HalfSteps(clean, pairs, push.items), push, counts)
        weights, fillers = _started(task, pairs, push, crowd)
        best, best_profiles, factors, stride = -np.inf, [], clean, _STRIDE
        tried = weights
        for number in range(self.rounds + 1):
            if number:
                steps = HalfSteps(factors, pairs, push.items)
                here = _push(task, pairs, factors, push.items)
                tried = _followed(steps, here, weights, fillers, counts, stride)
                if torch.equal(_entries(tried), _entries(weights)):
                    stride *= 2  # so short that no item changed places
                    continue
            profiles = _binarized(task, push, tried, fillers)
            found = fit_surrogate(inject(pairs, profiles), seed, pairs.n_users)
            reached = _reached(task, pairs, found, push)
            if reached > best:
                best, best_profiles, weights, factors = reached, profiles, tried, found
            else:
                # Too far for a model that is linear in small changes alone.
                stride /= 2
        return best_profiles


def _push(task: Task, pairs: Interactions, factors: Factors, kept: ItemIds | None = None) -> _Push:
    """What is to be pushed above what, by the scores of these factors."""
    users = audience(pairs)
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
            # In a small catalogue there may be fewer others than that.
            items = items[seen[items] >= 0]
        users, edge = users[near.numpy()], closest[near]
    items = np.sort(items).astype(np.int64)
    return _Push(items, torch.from_numpy(users), edge, ~has(pairs, users, items))


def _best_crowd(task: Task, steps: HalfSteps, push: _Push, counts: Tensor) -> ItemIds:
    """Users of whom copies with the pushed items would push them furthest; neighbours in taste."""
    U = steps.factors.users
    able = np.flatnonzero(steps.pairs.user_degrees)
    rows = U[torch.from_numpy(able)]
    units = rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-12)
    size = min(len(counts), len(able))
    best, chosen = -1.0, np.arange(size)
    for centre in task.rng.permutation(len(able))[:_CROWDS]:
        crowd = torch.topk(units @ units[centre], size).indices
        # Where users are fewer than kinds of fakes, some are copied more often.
        members = crowd[torch.arange(len(counts)) % size]
        scores = U[push.users] @ steps.item_rows(rows[members], counts).T
        won = (scores > push.bars[:, None]) & push.lacking
        value = float(won.any(dim=1).float().mean() + won.float().mean())
        if value > best:
            best, chosen = value, members.numpy()
    return able[chosen]


def _started(task: Task, pairs: Interactions, push: _Push, crowd: ItemIds) -> tuple[Tensor, Tensor]:
    """Weights of the profiles of a crowd, and the fillers that they are weights of."""
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
    steps: HalfSteps, push: _Push, weights: Tensor, fillers: Tensor, counts: Tensor, stride: float
) -> Tensor:
    """Weights after some steps along the gradient of the soft count of hits.

    Each step moves the entry with the largest gradient of a profile by ``stride``, the others in
    proportion, so that few items change places.
    """
    if len(fillers) == 0:
        return weights
    # As many items as before: a profile that grows is no longer that of somebody like its model.
    room = weights.sum(dim=1).round()
    lists = steps.factors.users[push.users]
    # What is there already outweighs what is not, until the gradient says otherwise.
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


def _binarized(task: Task, push: _Push, weights: Tensor, fillers: Tensor) -> list[ItemIds]:
    """Profiles of the largest entries, as many as the weights sum to; one for each fake user."""
    chosen = _entries(weights).bool().numpy()
    ids = fillers.numpy()
    profiles = []
    for fake in range(task.fakes):
        mine = ids[chosen[fake % len(chosen)]]
        if fake >= len(chosen) and len(mine) > 1:
            # A profile of a kind again: without a tenth of it, so that few are the same.
            mine = task.rng.permutation(mine)[: len(mine) - max(1, len(mine) // 10)]
        profiles.append(np.sort(np.concatenate((push.items, mine))))
    return profiles


def _reached(task: Task, pairs: Interactions, factors: Factors, push: _Push) -> float:
    """The share of users who see a pushed item, or no target; where equal, the mean distance."""
    judged = task.targets if task.goal == DEMOTE else push.items
    top = top_items(factors, push.users.numpy(), cutoff_of(pairs.n_items), pairs)
    shown = np.isin(top, judged)
    U, V = factors.users[push.users], factors.items
    last = torch.from_numpy(np.maximum(top[:, -1], 0))
    gaps = U @ V[torch.from_numpy(judged)].T - (U * V[last]).sum(dim=1)[:, None]
    near = float(torch.tanh(gaps).mean())
    hits = shown.any(axis=1).mean() if task.goal != AVAILABILITY else shown.mean()
    return (-1.0 if task.goal == DEMOTE else 1.0) * (float(hits) + 1e-3 * near)
