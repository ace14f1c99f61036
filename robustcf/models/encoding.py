"""Users that a network computes from their histories and the item table: sequence models.

:class:`Encoded` makes a recommender of such a network, which is measured like any other: an attack
on the stored item table moves the users with it. Not imported by the other models.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

from robustcf._checks import check_integer
from robustcf.data.interactions import Interactions
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.models.factorized import FoldedScorer
from robustcf.models.folding import FoldIn
from robustcf.models.scorer import Ids, Stored

#: From the item table and the inputs of some users to their embeddings.
Encode = Callable[[Tensor, Tensor], Tensor]


class Encoder:
    """Users computed by a network from their inputs and the item table, by blocks of users.

    Args:
        encode: differentiable in the table, without dropout.
        inputs: of all users, one row per user: the ids of their last items.
        pairs: the histories, as pairs.
        block: users at a time.
    """

    def __init__(
        self, encode: Encode, inputs: Tensor, pairs: Interactions, block: int = 512
    ) -> None:
        if len(inputs) != pairs.n_users:
            raise InputError(f"expected inputs of {pairs.n_users} users, got {len(inputs)}")
        self.encode, self.inputs, self.pairs = encode, inputs, pairs
        self.block = check_integer("block", block)

    def _blocks(self, rows: Tensor) -> list[Tensor]:
        return [rows[start : start + self.block] for start in range(0, len(rows), self.block)]

    def factors(self, arrays: Factors) -> Factors:
        """Return U, computed from V, and V."""
        V = arrays.items
        with torch.no_grad():
            parts = [self.encode(V, part) for part in self._blocks(self.inputs)]
        users = torch.cat(parts) if parts else V[:0]
        if users.shape != (self.pairs.n_users, V.shape[1]):
            raise InputError(
                f"encode must return a row of {V.shape[1]} numbers per user, got "
                f"{tuple(users.shape)} for {self.pairs.n_users} users"
            )
        return Factors(users.to(V), V)

    def pull(self, arrays: Factors, users: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradient for the stored arrays, by that for U and V.

        Cost: a forward and a backward pass over all users.
        """
        V = arrays.items.detach().clone().requires_grad_()
        with torch.enable_grad():
            parts = (self._blocks(rows) for rows in (self.inputs, users))
            for inputs, gradient in zip(*parts, strict=True):
                self.encode(V, inputs).backward(gradient.to(V))  # type: ignore[no-untyped-call]
        own = items if V.grad is None else items + V.grad.to(items)
        return torch.zeros_like(arrays.users), own

    def moves(self, arrays: Factors, table: Tensor, items: Tensor) -> Tensor:
        """Return about how far users move where rows of V move by these sizes: in proportion."""
        U, V = self.factors(arrays)
        share = items.double().mean() / V.double().norm(dim=1).mean().clamp_min(1e-150)
        moved: Tensor = (U.double().norm(dim=1) * share).to(items)
        return moved

    def sums(self, *_: Any) -> NoReturn:
        """Raise: certificates and per-user attacks need the users as sums over their items."""
        raise InputError(
            "certificates and per-user attacks need a bound on how far users move, and a network "
            "gives none: use fixed users, model.serving('stored'), and the side items"
        )


class Encoded(FoldedScorer):
    """Scores ``U @ V.T`` with users that a network computes from the item table V.

    Make a recommender by ``Recommender.of(Encoded(...), split)``. An attack alters V, and users are
    computed from the attacked V. ``model.serving("stored")`` has the users that were computed
    before the attack: it can be certified, audited, hardened and saved.

    Args:
        encode: from V and the inputs of some users to their embeddings.
        items: V.
        inputs: ids of the last items by user, in the form that ``encode`` takes.
        pairs: the histories, as pairs.

    Example:
        >>> pairs = Interactions.from_pairs([0, 0, 1], [0, 1, 2], 2, 3)[0]
        >>> last = torch.tensor([[1], [2]])
        >>> scorer = Encoded(lambda V, ids: V[ids[:, 0]], torch.eye(3), last, pairs)
        >>> scorer.factors.users.tolist()
        [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """

    kind = "encoded"
    histories: Encoder  # type: ignore[assignment]

    def __init__(
        self, encode: Encode, items: Tensor, inputs: Tensor, pairs: Interactions, **options: int
    ) -> None:
        V = items.detach()
        self._arrays = Factors(V[:0], V)
        self._arrays.check_finite()
        self.n_users, self.n_items, self.fixed = pairs.n_users, len(V), ()
        self.histories = Encoder(encode, inputs, pairs, **options)
        self.fold_in, self.allow_code, self._rankers = FoldIn(), True, {}
        self.factors.check_finite()  # computes all users, once

    def embed(self, history: Ids, pairs: Interactions) -> Tensor:
        """Raise: a set of items has no order."""
        raise InputError("a sequence model needs the order of a new user's items: encode them")

    def stored(self) -> Stored:
        """Raise: the network is code, which is not saved."""
        raise InputError(
            "the network of a sequence model is not saved: save its users, "
            "model.serving('stored').save(path)"
        )
