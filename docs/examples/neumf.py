"""NeuMF: scores by a product and a network together, with the norm of the scores penalized.

No product of factors gives these scores, so the penalty takes a function of users and items:
`Scores`. The largest row is found from some columns (`sampled`), and differentiated alone.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from robustcf import TwoToInf
from robustcf.data import Interactions, load
from robustcf.estimators import Scores


class NeuMF(nn.Module):
    """He et al. 2017: a generalized product next to a network, of one pair of ids each."""

    def __init__(self, users: int, items: int, dim: int = 8) -> None:
        super().__init__()
        self.product = nn.ModuleList([nn.Embedding(users, dim), nn.Embedding(items, dim)])
        self.deep = nn.ModuleList([nn.Embedding(users, dim), nn.Embedding(items, dim)])
        self.layers = nn.Sequential(nn.Linear(2 * dim, dim), nn.ReLU(), nn.Linear(dim, dim))
        self.last = nn.Linear(2 * dim, 1)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        """Return a score per pair."""
        product = self.product[0](users) * self.product[1](items)
        deep = torch.cat([self.deep[0](users), self.deep[1](items)], dim=1)
        return self.last(torch.cat([product, self.layers(deep)], dim=1))[:, 0]


def train(pairs: Interactions, weight: float, seed: int = 0, epochs: int = 5) -> Scores:
    """Train with ``weight`` times the largest mean squared score of a user; return scores."""
    torch.manual_seed(seed)
    model = NeuMF(pairs.n_users, pairs.n_items)
    scores = Scores(model, pairs.n_users, pairs.n_items, pairs=True)
    reg = TwoToInf("sampled", budget=40, seed=seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    users, items = torch.tensor(pairs.users), torch.tensor(pairs.items)
    for _ in range(epochs):
        for batch in torch.randperm(len(pairs)).split(1024):
            other = torch.randint(pairs.n_items, (len(batch),))
            logits = model(users[batch].repeat(2), torch.cat([items[batch], other]))
            labels = (torch.arange(len(logits)) < len(batch)).float()
            loss = binary_cross_entropy_with_logits(logits, labels)
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
