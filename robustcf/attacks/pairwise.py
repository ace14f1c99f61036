"""The pairwise attack: one perturbation for all users that swaps items near the cutoff.

**Objective.** NDCG@k changes where a relevant item i and another item j pass each other. Among the
first ``2.4 k`` candidates of a user, by hard ranks, each such pair is pulled apart with weight::

    |discount(rank_i) - discount(rank_j)| / ideal DCG * sigmoid(g) sigmoid(-g) / T
    g = (s_i - s_j) / T

The discount is ``1 / log2(1 + rank)``, times 0.05 beyond place k, so that items just behind count a
little. (The weights are LambdaRank's; Burges, Ragno and Le, 2006.) Pairs in which j is ahead
already count a tenth: they hold what was gained, and the budget goes to swaps still to come.

**Ascent.** As in :mod:`robustcf.attacks.cutoff`, whose steps, temperatures and budgets it shares.

**Polish.** With the items fixed, users do not depend on each other. So the best point is improved
by more steps on U alone, of which each user keeps their own best row.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from robustcf.attacks.cutoff import Cutoff, HeadOfRanking
from robustcf.data.interactions import Interactions

STEPS = 90
_BEHIND = 0.05  # discount beyond the cutoff, as a share
_OVERTURNED = 0.1  # weight of pairs in which the other item is ahead already


class PairsOfRanking(HeadOfRanking):
    """The metric under attack, and the gradient of its swaps near the cutoff."""

    times = 2.4

    def _pull(self, scores: Tensor, hits: Tensor, temperatures: Tensor, best: Tensor) -> Tensor:
        """The gradient for the scores: up for rivals, down for relevant items."""
        place = torch.arange(scores.shape[1], device=scores.device)
        discounts = 1 / torch.log2(place + 2.0).to(scores)
        discounts[self.k :] *= _BEHIND
        row, own = torch.nonzero(hits, as_tuple=True)
        # The temperature is a share of the user's length: with it, all users count alike.
        scales = (best * temperatures)[row, None]
        weights = (discounts[own][:, None] - discounts).abs_() / scales
        weights.mul_(torch.where(place < own[:, None], _OVERTURNED, 1.0)).masked_fill_(hits[row], 0)
        ahead = torch.sigmoid((scores[row, own][:, None] - scores[row]) / temperatures[row, None])
        moves = ahead.mul_(1 - ahead).mul_(weights)
        pull = torch.zeros_like(scores).index_add_(0, row, moves)
        return pull.index_put_((row, own), -moves.sum(dim=1), accumulate=True)


class Pairwise(Cutoff):
    """Projected ascent on swaps of pairs near the cutoff, then of users alone: the headline attack.

    Args:
        relevant: the relevant pairs that the attacker knows.
        *arguments: see :class:`robustcf.attacks.cutoff.Cutoff`, as for ``options``.
        steps: gradients per start; a sixth as many come again at the end, for users alone.

    Cost: as :class:`robustcf.attacks.cutoff.Cutoff`; for 90 steps, 14 rankings, and 1 for the last
    15.

    Example:
        >>> from robustcf.data import checkerboard
        >>> from robustcf.factors import Factors
        >>> split = checkerboard()
        >>> parity = torch.eye(2)[torch.arange(30) % 2]
        >>> attack = Pairwise(split.test, split.train, k=10, steps=5)
        >>> attacked = attack.perturb(Factors(parity[:20], parity), 0.8).factors
        >>> bool(attack.head.at(*attacked).values.mean() < 0.5)
        True
    """

    name = "pairwise"
    metric = PairsOfRanking
    polished = 6

    def __init__(self, relevant: Interactions, *arguments: Any, **options: Any) -> None:
        super().__init__(relevant, *arguments, **{"steps": STEPS, **options})
