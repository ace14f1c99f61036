"""The objectives written out from their descriptions, slowly, for autograd; and small data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from robustcf.data import Interactions
from robustcf.objectives import Batch, Batches, Gradient

WEIGHTS: dict[str, Any] = {"negative_weight": 7.0, "item_weight": 0.3}
WEIGHTS |= {"w1": 0.1, "w2": 1.3, "w3": 0.05, "w4": 0.9}


def pairs_of(rng: np.random.Generator, n_users: int = 13, n_items: int = 9) -> Interactions:
    """Random pairs; the last user and the last item have none."""
    cells = rng.random((n_users, n_items)) < 0.35
    cells[-1], cells[:, -1] = False, False
    cells[0, 0] = True
    return Interactions(*np.nonzero(cells), n_users, n_items)


def parameters(
    rng: np.random.Generator, train: Interactions, dim: int = 4
) -> tuple[Tensor, Tensor]:
    U = torch.tensor(rng.standard_normal((train.n_users, dim)), requires_grad=True)
    V = torch.tensor(rng.standard_normal((train.n_items, dim)), requires_grad=True)
    return U, V


def of_epoch(batches: Batches, U: Tensor, V: Tensor, epoch: int = 0) -> Gradient:
    """The gradients of all batches of an epoch, added up, and their values."""
    users, items, value = torch.zeros_like(U), torch.zeros_like(V), 0.0
    for batch in batches.epoch(epoch):
        part = batches.objective.gradient(batch, U.detach(), V.detach(), value=True).whole(len(U))
        assert part.value is not None
        users, items, value = users + part.users, items + part.items, value + part.value
    return Gradient(users, None, items, value)


# --- the cross-entropy, by its official code ------------------------------------------------


def official_omega(train: Interactions, neighbours: int) -> list[list[tuple[int, float]]]:
    R = train.csr().toarray().astype(np.float64)
    G = R.T @ R
    g = G.sum(axis=1)
    table = []
    for i in range(train.n_items):
        weights = [
            (G[i, j] * (np.sqrt(g[i] + 1) / g[i]) * (1 / np.sqrt(g[j] + 1)) if g[i] else 0.0, j)
            for j in range(train.n_items)
        ]
        best = sorted(weights, key=lambda e: (-e[0], e[1]))[:neighbours]
        table.append([(j, w) for w, j in best if w > 0])
    return table


def official_pair_loss(
    u: int, i: int, negatives: list[int], S: Tensor, train: Interactions, c: dict[str, Any]
) -> Tensor:
    """One training pair of the official code; ``c["omega"]`` has the neighbours."""
    du, di = train.user_degrees, train.item_degrees

    def beta(user: int, item: int) -> float:
        return float(np.sqrt(du[user] + 1) / du[user] * (1 / np.sqrt(di[item] + 1)))

    loss = (c["w1"] + c["w2"] * beta(u, i)) * -logsigmoid(S[u, i])
    for j in negatives:
        weight = (c["w3"] + c["w4"] * beta(u, j)) * c["negative_weight"] / len(negatives)
        loss = loss + weight * -logsigmoid(-S[u, j])
    for j, omega in c["omega"][i] if c["item_weight"] else ():
        loss = loss + c["item_weight"] * omega * -logsigmoid(S[u, j])
    return loss


def bce_naive(train: Interactions, U: Tensor, V: Tensor, **weights: float) -> Tensor:
    c, S = {**WEIGHTS, **weights, "omega": official_omega(train, 3)}, U @ V.T
    every = list(range(train.n_items))
    return sum(official_pair_loss(u, i, every, S, train, c) for u, i in listed(train))


def listed(pairs: Interactions) -> list[tuple[int, int]]:
    return list(zip(pairs.users.tolist(), pairs.items.tolist(), strict=True))


# --- whole objectives -----------------------------------------------------------------------


def bpr_naive(train: Interactions, U: Tensor, V: Tensor) -> Tensor:
    S = U @ V.T
    loss = S.new_zeros(())
    for u, i in listed(train):
        others = sorted(set(range(train.n_items)) - set(train.items_of(u).tolist()))
        terms = [-logsigmoid(S[u, i] - S[u, j]) for j in others]
        loss = loss + torch.stack(terms).mean()
    return loss


def softmax_naive(pairs: Interactions, U: Tensor, V: Tensor) -> Tensor:
    loss = U.new_zeros(())
    for u in np.unique(pairs.users).tolist():
        scores = V @ U[u]
        own = pairs.items_of(u).tolist()
        loss = loss + torch.log(sum(torch.exp(s) for s in scores)) - sum(scores[own]) / len(own)
    return loss


# --- one batch of any objective, with or without a margin -----------------------------------


def batch_pairs(batch: Batch, pairs: Interactions) -> list[tuple[int, int]]:
    """The training pairs that a batch is about, in order."""
    if batch.items is None:
        return [(u, i) for u in batch.users.tolist() for i in pairs.items_of(u).tolist()]
    return list(zip(batch.users.tolist(), batch.items.tolist(), strict=True))


def batch_loss(
    name: str,
    batch: Batch,
    U: Tensor,
    V: Tensor,
    pairs: Interactions,
    slack: tuple[float, float] = (0.0, 0.0),
    c: dict[str, Any] = WEIGHTS,
) -> Tensor:
    """An objective on a batch, pair by pair; every gap less what the slack may take.

    The cross-entropy is that without its item-item term.
    """
    a, b = slack
    n, total = pairs.n_items, U.new_zeros(())
    degrees = pairs.user_degrees.tolist()
    own = batch_pairs(batch, pairs)
    S, bare = U @ V.T, {**c, "item_weight": 0.0}
    # The centre that distances of the softmax's margin go by counts as a constant.
    from_mean = torch.stack([torch.dist(row, V.detach().mean(dim=0)) for row in V])
    for place, (u, i) in enumerate(own):
        if name == "softmax":
            gap = torch.log(torch.exp(S[u] + a * from_mean).sum()) - S[u, i] + a * from_mean[i]
            total = total + (gap + 2 * b * U[u].norm() + 2 * a * b) / degrees[u]
            continue
        if batch.items is None:
            drawn = list(range(n)) if batch.negatives is None else batch.negatives.tolist()
        else:
            assert batch.negatives is not None
            drawn = batch.negatives[place].tolist()
        if name == "bce":
            total = total + official_pair_loss(u, i, drawn, S, pairs, bare)
            continue
        scale = 1 / len(drawn)
        if batch.items is None:
            scale = n / ((n - degrees[u]) * len(drawn))
            drawn = [j for j in drawn if (u, j) not in set(own)]
        for j in drawn:
            lost = a * torch.dist(V[i], V[j]) + 2 * b * U[u].norm() + 2 * a * b
            total = total + scale * softplus(S[u, j] - S[u, i] + lost)
    return total


def small_case(
    seed: int, *, grad: bool = False, shape: tuple[int, int] = (13, 9), dim: int = 4
) -> tuple[Interactions, Tensor, Tensor]:
    """Random pairs and factors for them; with ``grad``, ones to differentiate by."""
    rng = np.random.default_rng(seed)
    pairs = pairs_of(rng, *shape)
    U, V = parameters(rng, pairs, dim)
    return (pairs, U, V) if grad else (pairs, U.detach(), V.detach())


def assert_autograd(found: Gradient, loss: Tensor, U: Tensor, V: Tensor) -> None:
    """A gradient is that of a loss, by autograd."""
    assert_gradient(found.whole(len(U)), loss.detach(), *torch.autograd.grad(loss, (U, V)))


def assert_gradient(found: Any, value: Any, users: Tensor, items: Tensor) -> None:
    """The value and both halves of a gradient are as expected."""
    assert found.value == pytest.approx(float(value))
    torch.testing.assert_close(found.users, users)
    torch.testing.assert_close(found.items, items)
