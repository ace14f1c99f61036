"""A loop in the style of RecBole: the model has `calculate_loss`, the trainer has the loop.

The penalty goes into `calculate_loss`, next to the model's own loss; trainer, sampler and
evaluation stay as they are. A subclass of RecBole's BPR needs the same two lines.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from robustcf import Recommender, TwoToInf
from robustcf.data import Interactions, load


class BPR(nn.Module):
    """Named as RecBole names its parts."""

    def __init__(self, users: int, items: int, size: int = 16) -> None:
        super().__init__()
        self.user_embedding = nn.Embedding(users, size)
        self.item_embedding = nn.Embedding(items, size)

    def calculate_loss(self, interaction: dict[str, Tensor]) -> Tensor:
        """Return the loss of a batch."""
        user = self.user_embedding(interaction["user_id"])
        good = self.item_embedding(interaction["item_id"])
        bad = self.item_embedding(interaction["neg_item_id"])
        return softplus((user * (bad - good)).sum(dim=1)).mean()


class RobustBPR(BPR):
    """The same model with the penalty."""

    def __init__(self, users: int, items: int, weight: float) -> None:
        super().__init__(users, items)
        self.reg, self.weight = TwoToInf(), weight

    def calculate_loss(self, interaction: dict[str, Tensor]) -> Tensor:
        """Return the loss of a batch, plus the largest mean squared score of a user."""
        norm = self.reg(self.user_embedding.weight, self.item_embedding.weight)
        penalty = self.weight * norm / self.item_embedding.num_embeddings
        return super().calculate_loss(interaction) + penalty


class Trainer:
    """The loop; it knows nothing of penalties."""

    def __init__(self, model: nn.Module, lr: float = 0.02) -> None:
        self.model, self.optimizer = model, torch.optim.Adam(model.parameters(), lr=lr)

    def fit(self, pairs: Interactions, epochs: int) -> None:
        """Train."""
        users, items = torch.tensor(pairs.users), torch.tensor(pairs.items)
        for _ in range(epochs):
            for batch in torch.randperm(len(pairs)).split(1024):
                drawn = torch.randint(pairs.n_items, (len(batch),))
                self.optimizer.zero_grad()
                self.model.calculate_loss(
                    {"user_id": users[batch], "item_id": items[batch], "neg_item_id": drawn}
                ).backward()
                self.optimizer.step()


def train(pairs: Interactions, weight: float, seed: int = 0, epochs: int = 5) -> Recommender:
    """Train; the result is attacked, certified and saved like any other recommender."""
    torch.manual_seed(seed)
    model = RobustBPR(pairs.n_users, pairs.n_items, weight)
    Trainer(model).fit(pairs, epochs)
    U, V = model.user_embedding.weight.detach(), model.item_embedding.weight.detach()
    return Recommender(U, V, pairs)


if __name__ == "__main__":
    for weight in (0.0, 0.1):
        U, V = train(load("demo").train, weight).factors
        print(f"weight {weight}: largest row of scores {(U @ V.T).norm(dim=1).max():.1f}")
