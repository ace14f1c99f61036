"""The worst that was found for each user alone: how much a certificate leaves on the table.

A certificate bounds what an attack may do to one user, with all rows of V moved against that user.
Attacks on everybody at once have one V for all and stay far above it. This one does not: for
every user it moves that user's row, and all items for that user, in the way that the proof of the
certificate calls the worst: relevant items against the moved row x, all others along it. The
choice of x is a search. What each user truly keeps in the worst case lies between both curves.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from robustcf.attacks.base import Side
from robustcf.attacks.budgets import RowBudget
from robustcf.certificates.curves import curve_of, row_budgets
from robustcf.certificates.radius import Budgets
from robustcf.data.interactions import Interactions, Split
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.metrics.evaluate import PER_USER, evaluate, masked_pairs
from robustcf.metrics.topk import BLOCK_BYTES, rows_of
from robustcf.robustness import RobustnessCurve, check_epsilons

PerUser = dict[str, npt.NDArray[np.float64]]


def personal_curve(
    factors: Factors,
    split: Split,
    epsilons: Sequence[float],
    ks: Sequence[int] = (10, 20),
    *,
    relative: bool = False,
    side: Side = "both",
    mask: Sequence[str] | None = None,
    steps: int = 3,
) -> RobustnessCurve:
    """Attack every user alone, knowing the test pairs, and keep the worst of each metric.

    Not an attack that could be mounted on a system: it is the yardstick of
    :func:`robustcf.certificates.certified_curve`, whose options it shares. With ``side="items"``
    both agree.

    Args:
        factors: trained embeddings.
        split: the data; the test pairs are the relevant ones.
        epsilons: ascending, from 0 on.
        ks: cutoffs of the metrics.
        relative: epsilons in units of the median row norms.
        side: which factors may move.
        mask: parts that are not candidates; None for the set's own protocol.
        steps: of the search for x.

    Returns:
        A curve with ``attack="personal"``; never below the certified one.

    Raises:
        InputError: bad epsilons, side or steps; factors that do not fit the split.

    Cost: ``steps + 1`` evaluations an epsilon (one where users may not move).

    Example:
        >>> from robustcf.data import checkerboard
        >>> parity = torch.eye(2)[torch.arange(30) % 2]
        >>> right = Factors(parity[:20], parity)
        >>> personal_curve(right, checkerboard(), [0, 0.31, 0.34])["ndcg@10"].tolist()
        [1.0, 1.0, 0.0]
    """
    sizes = check_epsilons(epsilons)
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
        raise InputError(f"steps must be an integer of at least 0, got {steps!r}")
    clean = evaluate(factors, split, ks, mask=mask)
    budgets = row_budgets(factors, relative, side)
    seen = masked_pairs(split, "test", clean.protocol.masked)
    search = _Search(factors, split.test, seen, sorted({int(k) for k in ks}), steps)
    block = max(1, BLOCK_BYTES // (8 * factors.n_items))
    parts = [clean.users[at : at + block] for at in range(0, len(clean.users), block)]
    per_size: list[PerUser] = []
    for size in sizes:
        if size == 0:
            per_size.append(dict(clean.per_user))
            continue
        found = [search.block(users, size, budgets) for users in parts]
        per_size.append({name: np.concatenate([f[name] for f in found]) for name in found[0]})
    return curve_of("personal", per_size, clean, sizes, budgets, relative, side)


class _Search:
    """What all blocks share."""

    def __init__(
        self,
        factors: Factors,
        relevant: Interactions,
        seen: Interactions | None,
        ks: list[int],
        steps: int,
    ) -> None:
        self.U, self.V = (part.cpu().double() for part in factors)
        self.relevant, self.seen, self.ks, self.steps = relevant, seen, ks, steps

    def block(self, users: npt.NDArray[np.int64], size: float, budgets: Budgets) -> PerUser:
        U = self.U[torch.from_numpy(users)]
        own = _cells(self.relevant, users, len(self.V))
        hidden = None if self.seen is None else _cells(self.seen, users, len(self.V))
        room, X, worst = size * budgets.users, U, PerUser()
        for step in range(self.steps + 1 if room > 0 else 1):
            scores = X @ self.V.T
            push = size * budgets.items * torch.linalg.vector_norm(X, dim=1, keepdim=True)
            scores += torch.where(own, -push, push)
            if hidden is not None:
                scores[hidden] = -torch.inf
            top = scores.topk(min(2 * self.ks[-1], len(self.V)), dim=1).indices
            hits = own.gather(1, top)
            self._keep_worst(worst, hits, users)
            # The first and the largest cutoff in turn: their contests are at different places.
            window = 2 * self.ks[0] if step % 2 else 2 * self.ks[-1]
            away = self._towards_own(top[:, :window], hits[:, :window])
            stride = room if step == 0 else room / 2
            X = U + RowBudget().project(X - RowBudget().scale(away, stride) - U, room)
        return worst

    def _keep_worst(self, worst: PerUser, hits: Tensor, users: npt.NDArray[np.int64]) -> None:
        counts = self.relevant.user_degrees[users]
        for name, function in PER_USER.items():
            for k in self.ks:
                now = function(hits.numpy(), counts, k)
                worst[f"{name}@{k}"] = np.minimum(worst.get(f"{name}@{k}", np.inf), now)

    def _towards_own(self, top: Tensor, hits: Tensor) -> Tensor:
        """Mean of the relevant items in contest less that of the others, discounted by rank."""
        discounts = 1 / torch.log2(torch.arange(2, top.shape[1] + 2, dtype=torch.float64))
        embedded = self.V[top]

        def mean(chosen: Tensor) -> Tensor:
            weights = discounts * chosen
            whole = weights.sum(dim=1, keepdim=True).clamp_min(1e-12)
            return torch.einsum("uk,ukd->ud", weights / whole, embedded)

        return mean(hits) - mean(~hits)


def _cells(pairs: Interactions, users: npt.NDArray[np.int64], n_items: int) -> Tensor:
    rows, items = rows_of(pairs, users)
    cells = torch.zeros(len(users), n_items, dtype=torch.bool)
    cells[torch.from_numpy(rows), torch.from_numpy(items).long()] = True
    return cells
