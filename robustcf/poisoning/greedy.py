"""Greedy: fake users a few at a time, each with the fillers that a retrained model gives it.

The idea of Huang et al. ("Data poisoning attacks to deep learning based recommender systems", NDSS
2021): one fake user after the other gets the targets and the items that a surrogate, trained with
the fakes so far, predicts for it; items chosen already become less likely, so that fakes differ.
"""

from __future__ import annotations

import numpy as np
import torch

from robustcf._checks import check_integer, check_number
from robustcf.data.interactions import Interactions
from robustcf.factors import Factors
from robustcf.poisoning.audience import audience, bars, has
from robustcf.poisoning.base import Poisoning, Task
from robustcf.poisoning.half_step import fit_surrogate
from robustcf.poisoning.injection import inject
from robustcf.poisoning.threat import AVAILABILITY, ItemIds


class Greedy(Poisoning):
    """The targets, and the fillers that a surrogate predicts for a user who nearly sees them.

    The surrogate is ALS on the known pairs and the fakes so far. The next fake user takes after the
    genuine one for whom a target is nearest to being shown: as many items, those with the largest
    scores for that user, times the probability of being chosen. An item chosen loses some of its
    probability. Retrained, the surrogate brings the targets nearer to that user's neighbours, which
    are the next: the fakes grow a crowd.

    ``demote``: the same users, without the targets: what else they are shown gains on the targets.
    ``availability``: users at random, with the items that have the smallest scores for them.

    Args:
        retrainings: how often the surrogate is fitted; fakes between two fits come from one.
        decay: what is left of an item's probability once it is chosen.

    Cost: ``retrainings`` fits of ALS, and one row of scores for each fake user.

    Example:
        >>> from robustcf.data import load
        >>> from robustcf.poisoning import PoisonThreat
        >>> attack = Greedy(retrainings=2)
        >>> attack.attack(load("demo").train, PoisonThreat(fakes=4, length=20)).realised["fakes"]
        4
    """

    name = "greedy"
    needs_pairs = True

    def __init__(self, retrainings: int = 10, decay: float = 0.98) -> None:
        """Keep the options."""
        self.retrainings = check_integer("retrainings", retrainings)
        self.decay = check_number("decay", decay, positive=True)

    def propose(self, task: Task) -> list[ItemIds]:
        """A few profiles after each fit."""
        pairs = task.known.pairs(self.name)
        chance = np.ones(pairs.n_items)
        profiles: list[ItemIds] = []
        taken: list[int] = []
        seed = int(task.rng.integers(2**31))
        for batch in np.array_split(np.arange(task.fakes), min(self.retrainings, task.fakes)):
            fitted = fit_surrogate(inject(pairs, profiles), seed)
            factors = Factors(fitted.users[: pairs.n_users], fitted.items)
            for user in _nearest(task, pairs, factors, taken, len(batch)):
                taken.append(int(user))
                scores = (factors.items @ factors.users[user]).double().numpy()
                scores = -scores if task.goal == AVAILABILITY else scores
                # From 0 on: a probability of a negative score would raise it.
                likely = (scores - scores.min()) * chance
                likely[task.targets] = -1.0
                profile = task.profile(
                    np.argsort(-likely, kind="stable")[: int(pairs.user_degrees[user])]
                )
                profiles.append(profile)
                chance[profile] *= self.decay
        return profiles


def _nearest(
    task: Task, pairs: Interactions, factors: Factors, taken: list[int], count: int
) -> ItemIds:
    """Users for whom a target is nearest to being shown, none twice; or random ones."""
    users = np.setdiff1d(audience(pairs), taken)
    users = users if len(users) >= count else audience(pairs)
    if task.goal == AVAILABILITY or len(users) < count:
        drawn: ItemIds = task.rng.choice(users, count, replace=len(users) < count)
        return drawn
    edge, _ = bars(factors, pairs, users)
    U, V = factors
    scores = U[torch.from_numpy(users)] @ V[torch.from_numpy(task.targets)].T
    scores[torch.from_numpy(has(pairs, users, task.targets))] = -torch.inf
    nearest: ItemIds = users[torch.topk(scores.max(dim=1).values - edge, count).indices.numpy()]
    return nearest
