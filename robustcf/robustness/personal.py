"""The worst attack found on each user alone: an upper bound to compare the certificate with.

It moves the user's row, and all items against this user in the worst way of the certificate's
proof: relevant items against the moved row x, all others along it. The choice of x is a search.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from robustcf._distributed import shared
from robustcf.attacks.budgets import RowBudget
from robustcf.attacks.certificates.radius import Budgets
from robustcf.data.interactions import Interactions
from robustcf.errors import InputError
from robustcf.metrics.evaluate import PER_USER
from robustcf.metrics.topk import BLOCK_BYTES
from robustcf.recommender import Recommender
from robustcf.robustness.certified import curve_from_users
from robustcf.robustness.curves import ALONE, RobustnessCurve
from robustcf.robustness.threat import Threat

PERSONAL_STEPS = 3  # of the search

PerUser = dict[str, npt.NDArray[np.float64]]


def personal_curve(
    model: Recommender, threat: Threat, epsilons: Sequence[float], ks: Sequence[int]
) -> RobustnessCurve:
    """Attack every user alone, knowing the relevant items, and keep the worst of each metric.

    It is never below the certificate; with ``side="items"`` both agree. The norm is ``row``. Where
    users are computed from their histories, the history's items move the user by one common step,
    and the others are pushed; the map stays.

    Cost: four evaluations per epsilon (one where users may not move).
    """
    if threat.side == "items+map":
        raise InputError("the attack on each user alone leaves the map: use the side items")
    clean, moves = model.evaluate(ks), threat.row_moves(model)
    search = _Search(model, list(ks), moves)
    n_items, dim = model.factors.n_items, max(1, model.factors.dim)
    # Memory: scores of all items, and the embeddings of those in contest.
    looked_at = min(2 * ks[-1], n_items) * dim
    block = max(1, min(BLOCK_BYTES // (8 * n_items), 16 * BLOCK_BYTES // (8 * looked_at)))
    parts = [clean.users[at : at + block] for at in range(0, len(clean.users), block)]
    # Ranks share whole blocks.
    per_size = [
        shared(parts, partial(search.blocks, size=size)) if size else dict(clean.per_user)
        for size in epsilons
    ]
    moved = (moves.users, moves.items)
    return curve_from_users("personal", threat, epsilons, per_size, clean, moved, ALONE)


class _Search:
    def __init__(self, model: Recommender, ks: list[int], moves: Budgets) -> None:
        self.U, self.V = (part.cpu().double() for part in model.factors)
        self.relevant, self.seen = model.relevant, model.seen
        self.ks, self.moves, self.fixed = ks, moves, list(model.fixed)
        self.item_lengths = torch.linalg.vector_norm(self._free(self.V), dim=1)
        self.histories, self.map, self.reach = model.histories, None, torch.zeros(0)
        if model.histories is not None:
            self.map = model.arrays.users[:-2].cpu().double()
            self.reach = model.histories.sums(moves.item_moves(self.item_lengths)[:, None])[:, 0]

    def _free(self, rows: Tensor) -> Tensor:
        """Return rows with zeros in the fixed columns."""
        if not self.fixed:
            return rows
        kept = rows.clone()
        kept[:, self.fixed] = 0.0
        return kept

    def blocks(self, parts: Sequence[npt.NDArray[np.int64]], size: float) -> PerUser:
        # An empty block has the names of the metrics.
        found = [self.block(users, size) for users in parts or [np.zeros(0, dtype=np.int64)]]
        return {name: np.concatenate([values[name] for values in found]) for name in found[0]}

    def block(self, users: npt.NDArray[np.int64], size: float) -> PerUser:
        U = self.U[torch.from_numpy(users)]
        own = _cells(self.relevant, users, len(self.V))
        hidden = None if self.seen is None else _cells(self.seen, users, len(self.V))
        lengths = torch.linalg.vector_norm(self._free(U), dim=1)
        most = size * self.moves.user_moves(lengths)[:, None]
        past = None
        if self.histories is not None:
            most = size * self.reach[torch.from_numpy(users)][:, None]
            past = _cells(self.histories.pairs, users, len(self.V))
        pushes = size * self.moves.item_moves(self.item_lengths)
        # Y is the move, before the map if there is one.
        X, Y, worst = U, torch.zeros_like(U), PerUser()
        for step in range(PERSONAL_STEPS + 1 if bool((most > 0).any()) else 1):
            scores = X @ self.V.T
            moving = self._free(X)
            push = pushes * torch.linalg.vector_norm(moving, dim=1, keepdim=True)
            push = torch.where(own, -push, push)
            if past is not None:  # a candidate of the history has moved already, with the others
                common = pushes * (Y / most.clamp_min(1e-150) * X).sum(dim=1, keepdim=True)
                push = torch.where(past, common, push)
            scores += push
            if hidden is not None:
                scores[hidden] = -torch.inf
            top = scores.topk(min(2 * self.ks[-1], len(self.V)), dim=1).indices
            hits = own.gather(1, top)
            self._keep_worst(worst, hits, users)
            # The first and the largest cutoff in turn: their contests are at different places.
            window = 2 * self.ks[0] if step % 2 else 2 * self.ks[-1]
            away = self._free(self._towards_own(top[:, :window], hits[:, :window]))
            stride = 1.0 if step == 0 else 0.5
            away = away if self.map is None else away @ self.map.T
            moved = Y - stride * most * RowBudget().scale(away, 1.0)
            norms = torch.linalg.vector_norm(moved, dim=1, keepdim=True)
            Y = moved * torch.where(norms > most, most / norms, 1.0)
            X = U + (Y if self.map is None else Y @ self.map)
        return worst

    def _keep_worst(self, worst: PerUser, hits: Tensor, users: npt.NDArray[np.int64]) -> None:
        counts = self.relevant.user_degrees[users]
        for name, function in PER_USER.items():
            for k in self.ks:
                now = function(hits.numpy(), counts, k)
                worst[f"{name}@{k}"] = np.minimum(worst.get(f"{name}@{k}", np.inf), now)

    def _towards_own(self, top: Tensor, hits: Tensor) -> Tensor:
        """Return the mean of relevant items in contest less that of others, discounted by rank."""
        discounts = 1 / torch.log2(torch.arange(2, top.shape[1] + 2, dtype=torch.float64))
        embedded = self.V[top]

        def mean(chosen: Tensor) -> Tensor:
            weights = discounts * chosen
            whole = weights.sum(dim=1, keepdim=True).clamp_min(1e-12)
            return torch.einsum("uk,ukd->ud", weights / whole, embedded)

        return mean(hits) - mean(~hits)


def _cells(pairs: Interactions, users: npt.NDArray[np.int64], n_items: int) -> Tensor:
    rows, items = pairs.rows(users)
    cells = torch.zeros(len(users), n_items, dtype=torch.bool)
    cells[torch.from_numpy(rows), torch.from_numpy(items).long()] = True
    return cells
