"""A PyTorch Lightning module with the norm of its scores penalized: any module has the same line.

Needs Lightning: pip install 'robustcf[lightning]'.
"""

from __future__ import annotations

import lightning
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus
from torch.utils.data import DataLoader, TensorDataset

from robustcf import Recommender, TwoToInf
from robustcf.data import Interactions, load


class BPR(lightning.LightningModule):
    """Matrix factorization by BPR."""

    def __init__(self, users: int, items: int, weight: float, dim: int = 16) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(users, dim), nn.Embedding(items, dim)
        # A submodule: its state is in Lightning's checkpoints, and eval() reaches it.
        self.reg, self.weight = TwoToInf(), weight

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        """Return the loss of a batch of pairs."""
        users, items = self.users(batch[0]), self.items(batch[1])
        other = self.items(torch.randint(self.items.num_embeddings, (len(items),)))
        loss = softplus((users * (other - items)).sum(dim=1)).mean()
        norm = self.reg(self.users.weight, self.items.weight) / self.items.num_embeddings
        return loss + self.weight * norm

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.Adam(self.parameters(), lr=0.02)


def train(pairs: Interactions, weight: float, seed: int = 0, epochs: int = 5) -> Recommender:
    """Train with Lightning; the result is attacked, certified and saved like any other."""
    lightning.seed_everything(seed, verbose=False)
    module = BPR(pairs.n_users, pairs.n_items, weight)
    data = TensorDataset(torch.tensor(pairs.users), torch.tensor(pairs.items))
    loader = DataLoader(data, batch_size=1024, shuffle=True)
    trainer = lightning.Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, loader)
    return Recommender(module.users.weight.detach(), module.items.weight.detach(), pairs)


if __name__ == "__main__":
    for weight in (0.0, 0.1):
        U, V = train(load("demo").train, weight).factors
        print(f"weight {weight}: largest row of scores {(U @ V.T).norm(dim=1).max():.1f}")
