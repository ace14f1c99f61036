"""A two-tower model with features of users and items, with the norm of the scores penalized.

Users and items enter by several tensors: ids and features. New items need features only.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from robustcf import TwoToInf
from robustcf.data import Interactions, load
from robustcf.estimators import Scores


class Tower(nn.Module):
    """An embedding of an id, and a network of its features, added up."""

    def __init__(self, count: int, features: int, dim: int = 16) -> None:
        super().__init__()
        self.own = nn.Embedding(count, dim)
        self.shared = nn.Sequential(nn.Linear(features, dim), nn.ReLU(), nn.Linear(dim, dim))

    def forward(self, ids: Tensor, features: Tensor) -> Tensor:
        """Return embeddings."""
        return self.own(ids) + self.shared(features)


class TwoTower(nn.Module):
    """The product of two towers, for a block of users and one of items."""

    def __init__(self, users: tuple[Tensor, Tensor], items: tuple[Tensor, Tensor]) -> None:
        super().__init__()
        self.users, self.items = (Tower(len(f), f.shape[1]) for _, f in (users, items))

    def forward(self, users: tuple[Tensor, Tensor], items: tuple[Tensor, Tensor]) -> Tensor:
        """Return scores, users x items."""
        return self.users(*users) @ self.items(*items).T


def inputs(pairs: Interactions) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return ids and features of users and items; here the features are numbers of pairs."""
    found = []
    for degrees in (pairs.user_degrees, pairs.item_degrees):
        sizes = torch.from_numpy(np.log1p(degrees.astype(np.float32)))
        features = torch.stack([sizes, sizes.square(), torch.ones_like(sizes)], dim=1)
        found.append((torch.arange(len(sizes)), features))
    return found[0], found[1]


def train(pairs: Interactions, weight: float, seed: int = 0, epochs: int = 5) -> Scores:
    """Train by a softmax within batches, plus ``weight`` times the largest squared row norm."""
    torch.manual_seed(seed)
    users, items = inputs(pairs)
    model = TwoTower(users, items)
    scores = Scores(model, users, items)
    reg = TwoToInf("sampled", budget=40, seed=seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    all_u, all_i = torch.tensor(pairs.users), torch.tensor(pairs.items)
    for _ in range(epochs):
        for batch in torch.randperm(len(pairs)).split(1024):
            u, i = all_u[batch], all_i[batch]
            logits = model(tuple(part[u] for part in users), tuple(part[i] for part in items))
            loss = cross_entropy(logits, torch.arange(len(batch)))
            if weight:
                loss = loss + weight * reg(scores) / pairs.n_items
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return scores


if __name__ == "__main__":
    data = load("demo").train
    for weight in (0.0, 0.03):
        norm = float(train(data, weight).row_norms().max())
        print(f"weight {weight}: largest row of scores {norm:.1f}")
