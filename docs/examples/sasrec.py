"""SASRec: a causal transformer over the last 50 items, with the norm of the scores penalized.

A user's embedding is a function of the history, and the items of the history share the table that
is scored. `encode(table, histories)` is that function: attacks may alter the table and let it
recompute the users, see `recommender`.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, embedding

from robustcf import TwoToInf
from robustcf.data import Interactions, load

LAST = 50


def histories(pairs: Interactions, last: int = LAST) -> Tensor:
    """Return the last items of each user, oldest first, users x last; -1 after the end."""
    times = np.zeros(len(pairs)) if pairs.timestamps is None else pairs.timestamps
    found = np.full((pairs.n_users, last), -1, dtype=np.int64)
    order = np.lexsort((times, pairs.users))
    for user, own in enumerate(np.split(pairs.items[order], np.cumsum(pairs.user_degrees)[:-1])):
        found[user, : min(last, len(own))] = own[-last:]
    return torch.from_numpy(found)


class SASRec(nn.Module):
    """Kang and McAuley 2018, without dropout; the item table is shared by input and output."""

    def __init__(self, items: int, dim: int = 32, layers: int = 2, last: int = LAST) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(items, dim) * dim**-0.5)
        self.places = nn.Parameter(torch.zeros(last, dim))
        layer = nn.TransformerEncoderLayer(
            dim, 2, 2 * dim, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(dim)

    def states(self, table: Tensor, items: Tensor) -> Tensor:
        """Return the state after each item of some histories."""
        length, dim = items.shape[1], table.shape[1]
        inputs = embedding(items.clamp_min(0), table) * dim**0.5 + self.places[:length]
        mask = nn.Transformer.generate_square_subsequent_mask(length, dtype=table.dtype)
        out: Tensor = self.norm(self.layers(inputs, mask=mask, is_causal=True))
        return out

    def encode(self, table: Tensor, items: Tensor) -> Tensor:
        """Return the embeddings of users: the state after the last item."""
        end = (items >= 0).sum(dim=1).clamp_min(1) - 1  # what follows the end is not looked at
        return self.states(table, items)[torch.arange(len(items)), end]


def train(
    pairs: Interactions, weight: float, seed: int = 0, epochs: int = 5, lr: float = 0.005
) -> SASRec:
    """Train to predict each next item, plus ``weight`` times the largest mean squared score."""
    torch.manual_seed(seed)
    model, reg = SASRec(pairs.n_items), TwoToInf()
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    items = histories(pairs, LAST + 1)
    for _ in range(epochs):
        for batch in torch.randperm(len(items)).split(128):
            inputs, following = items[batch, :-1], items[batch, 1:]
            states = model.states(model.table, inputs)[following >= 0]
            loss = cross_entropy(states @ model.table.T, following[following >= 0])
            users = model.encode(model.table, items[batch, 1:])
            loss = loss + weight * reg(users, model.table) / pairs.n_items
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model.eval()


if __name__ == "__main__":
    data = load("demo").train
    for weight in (0.0, 0.03):
        model = train(data, weight)
        with torch.no_grad():
            users = model.encode(model.table, histories(data))
            norm = (users @ model.table.T).norm(dim=1).max()
        print(f"weight {weight}: largest row of scores {norm:.1f}")
