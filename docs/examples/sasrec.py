"""SASRec: a causal transformer over the last 50 items, with the norm of the scores penalized.

A user's embedding is a function of the history, and the items of the history share the table that
is scored. `encode(table, histories)` is that function: attacks may alter the table and let it
recompute the users, see `recommender`.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, embedding

from robustcf import Recommender, Threat, TwoToInf, measure, two_to_inf
from robustcf import train as train_mf
from robustcf.data import Interactions, Split, load
from robustcf.estimators import LowRank
from robustcf.models.encoding import Encoded

LAST = 50
SIZES = [0, 0.02, 0.05, 0.1]


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


def recommender(model: SASRec, split: Split) -> Recommender:
    """Return the network as a recommender whose users are computed from train and valid."""
    pairs = split.train_full
    scorer = Encoded(model.encode, model.table, histories(pairs), pairs)
    return Recommender.of(scorer, split, fit_on="train and valid", label="SASRec")


def main(dataset: str, data_dir: str | None, epochs: int) -> None:
    """Print quality under attack on the item table, next to matrix factorization's."""
    options = {} if dataset == "demo" else {"split": "leave-one-out"}
    split = load(dataset, data_dir, **options)
    models = {"MF (softmax)": train_mf(split, "softmax-mf")}
    for weight in (0.0, 0.03):
        found = recommender(train(split.train_full, weight, epochs=epochs), split)
        norm = float(two_to_inf(LowRank(*found.factors)))
        print(f"weight {weight}: largest row of scores {norm:.1f}", flush=True)
        models[f"SASRec, weight {weight:g}"] = found
        models[f"SASRec, weight {weight:g}, users stored"] = found.serving("stored")
    print(f"NDCG@10, item table attacked\n{'epsilon':32}", *map("{:7g}".format, SIZES))
    for name, each in models.items():
        result = measure(each, "cutoff", Threat(side="items"), SIZES, steps=20, control=False)
        print(f"{name:32}", *map("{:7.4f}".format, result.curve["ndcg@10"]), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--dataset", default="demo", help="ml-100k has times")
    parser.add_argument("--data-dir")
    parser.add_argument("--epochs", type=int, default=20)
    main(**vars(parser.parse_args()))
