"""LightGCN as another library's code has it, with the norm of the scores penalized.

Its scores are a product of propagated embeddings, so the penalty takes these two matrices, as for
any factorization: `reg(users, items)`. The gradient goes through the propagation by autograd.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from robustcf import TwoToInf
from robustcf.data import Interactions, load


class LightGCN(nn.Module):
    """He et al. 2020: the mean of embeddings propagated over the graph of pairs."""

    def __init__(self, pairs: Interactions, dim: int = 16, layers: int = 2) -> None:
        super().__init__()
        n, size = pairs.n_users, pairs.n_users + pairs.n_items
        users, items = torch.tensor(pairs.users), torch.tensor(pairs.items) + n
        ends = torch.stack([torch.cat([users, items]), torch.cat([items, users])])
        degrees = torch.bincount(ends[0], minlength=size).clamp_min(1).float()
        values = (degrees[ends[0]] * degrees[ends[1]]).rsqrt()
        self.graph = torch.sparse_coo_tensor(ends, values, (size, size), check_invariants=False)
        self.table, self.layers, self.n_users = nn.Embedding(size, dim), layers, n

    def forward(self) -> tuple[Tensor, Tensor]:
        """Return the scored embeddings of users and items."""
        steps = [self.table.weight]
        for _ in range(self.layers):
            steps.append(torch.sparse.mm(self.graph, steps[-1]))
        mean = torch.stack(steps).mean(dim=0)
        return mean[: self.n_users], mean[self.n_users :]


def train(pairs: Interactions, weight: float, seed: int = 0, epochs: int = 5) -> LightGCN:
    """Train by BPR, plus ``weight`` times the mean square of the largest row of scores."""
    torch.manual_seed(seed)
    model, reg = LightGCN(pairs), TwoToInf()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    users, items = torch.tensor(pairs.users), torch.tensor(pairs.items)
    for _ in range(epochs):
        for batch in torch.randperm(len(pairs)).split(4096):
            U, V = model()
            other = V[torch.randint(pairs.n_items, (len(batch),))]
            loss = softplus((U[users[batch]] * (other - V[items[batch]])).sum(dim=1)).mean()
            loss = loss + weight * reg(U, V) / pairs.n_items
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model


if __name__ == "__main__":
    data = load("demo").train
    for weight in (0.0, 0.03):
        U, V = train(data, weight)()
        print(f"weight {weight}: largest row of scores {(U @ V.T).norm(dim=1).max():.1f}")
