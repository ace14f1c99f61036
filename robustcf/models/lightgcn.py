"""LightGCN: embeddings that are propagated over the graph of users and items before scoring."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from robustcf.models.base import Model, ModelConfig
from robustcf.models.factorizations import through_units, unit_rows
from robustcf.objectives.base import Gradient


@dataclass(frozen=True)
class LightGCNConfig(ModelConfig):
    """Settings of LightGCN, next to those of :class:`robustcf.models.ModelConfig`.

    Args:
        init: of layer 0; the published ``normal`` needs hundreds of epochs.
        layers: number of propagations.
        normalize: whether scores are cosines of the propagated rows, for a softmax.
    """

    init: str = "smooth"
    init_std: float = 0.1
    layers: int = 3
    normalize: bool = False


class LightGCN(Model[LightGCNConfig]):
    """LightGCN (He et al., 2020, arXiv:2002.02126): a mean over layers of propagation is scored.

    With E the parameters, users above items, and A = D^{-1/2} [[0, R], [R^T, 0]] D^{-1/2} the
    normalized graph, the scored factors are ``(E + A E + ... + A^L E) / (L + 1)``. This is linear
    in E and A is symmetric, so a gradient goes back to E by the very same propagation.

    ``--preset paper --reg degree_decay`` is the published procedure: sampled pairs, one negative,
    2,048 pairs per step, three layers, 64 columns, a normal start, the L2 weight 1e-4 on the rows
    of layer 0 that a pair touches.

    Cost of a step: 2 * layers products of the sparse graph with dim columns, for any batch size.

    Example:
        >>> from robustcf.data import checkerboard
        >>> model = LightGCN(checkerboard().train, factors=4, layers=2)
        >>> [part.shape for part in model.scored()]
        [torch.Size([20, 4]), torch.Size([30, 4])]
    """

    name = "lightgcn"
    Config = LightGCNConfig
    objective = "bpr"
    base_logit = 0.0
    # Every step moves every row: users take the items' learning rate, and steps should be few.
    training_defaults = MappingProxyType({"lr": 5e-3, "user_lr": None, "block_users": 512})

    @cached_property
    def _graph(self) -> Tensor:
        """The sparse symmetric matrix A."""
        from scipy.sparse import bmat, csr_matrix

        R = self.train.csr().astype(np.float64)
        A: csr_matrix = bmat([[None, R], [R.T.tocsr(), None]], format="csr")  # type: ignore[assignment]
        degrees = np.concatenate((self.train.user_degrees, self.shard.item_degrees))
        roots = 1.0 / np.sqrt(np.maximum(degrees.astype(np.float64), 1.0))
        A.data *= np.repeat(roots, np.diff(A.indptr)) * roots[A.indices]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
            return torch.sparse_csr_tensor(
                torch.from_numpy(A.indptr.astype(np.int64)),
                torch.from_numpy(A.indices.astype(np.int64)),
                torch.from_numpy(A.data).to(self.dtype),
                size=A.shape,
                device=self.device,
                check_invariants=False,
            )

    def _propagated(self, users: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
        layer = torch.cat((users, items))
        total = layer.clone()
        for _ in range(self.config.layers):
            layer = self._graph @ layer
            # An item's neighbours are users of all ranks.
            self.shard.ranks.sum(layer[len(users) :])
            total += layer
        total /= self.config.layers + 1
        return total[: len(users)], total[len(users) :]

    def scored(self) -> tuple[Tensor, Tensor]:
        """Return the propagated embeddings, of length 1 with ``normalize``."""
        users, items = self._propagated(self.users, self.items)
        if self.config.normalize:
            self._units = unit_rows(users), unit_rows(items)
            users, items = self._units[0][0], self._units[1][0]
        return users, items

    def pull_back(self, gradient: Gradient) -> Gradient:
        """Return the gradient for layer 0 of all users, at the factors that were scored last."""
        if self.config.normalize:
            gradient = through_units(gradient, *self._units)
        users = gradient.users
        if gradient.rows is not None:
            users = torch.zeros_like(self.users).index_add_(0, gradient.rows, users)
        to_users, to_items = self._propagated(users, gradient.items)
        return Gradient(to_users, None, to_items, gradient.value)
