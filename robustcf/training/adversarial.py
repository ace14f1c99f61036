"""Adversarial training: a second loss at factors that an attack has moved.

An epoch minimizes ``L(U, V) + weight * A(U + D_U, V + D_V)``. A is an objective, and D a one-step
gradient attack, held constant: ``D = eps * median row norm * G / ||G||`` row by row, with G the
gradient of A at (U, V). BPR-MF with its own loss as A is adversarial personalized ranking (He et
al., arXiv:1808.03908). With a ``size`` per user, ``eps`` is multiplied by ``2 sigmoid(x)``:

- ``loss``: x = 1 - the user's loss / the mean loss of the batch, per pair. Users whom the model
  fits best are attacked most (VAT: Zhang et al., arXiv:2409.17476).
- ``norm``: x = the norm of the user's row / the mean norm - 1 (PamaCF: Zhang et al.,
  arXiv:2410.22844).

``bpr`` and ``bce`` sum over pairs, like the models' objectives; ``softmax`` counts a user once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from robustcf._checks import check_choice, check_numbers
from robustcf._registry import ADVERSARIES
from robustcf.errors import InputError
from robustcf.objectives import BCE, BPR, Batch, Batches, Gradient, Objective, Softmax
from robustcf.objectives.base import ComparingObjective, add_rows, no_gradient

#: How ``eps`` is shared among users.
SIZES = ("same", "loss", "norm")


@dataclass(frozen=True)
class AdversaryConfig:
    """Settings of adversarial training.

    Args:
        eps: size of the attack, in median row norms of U and of V.
        weight: weight of the attacked loss.
        size: size of the attack on each user: the ``same`` for all, larger for users of small
            ``loss`` (VAT), or larger for users with a long row (``norm``, PamaCF).
    """

    eps: float = 0.1
    weight: float = 1.0
    size: str = "same"

    def __post_init__(self) -> None:
        check_numbers(self, prefix="adv_")
        check_choice("adv_size", self.size, SIZES)


class Adversary:
    """The adversarial term of a training loop, made by :func:`adversary`.

    Cost of a step: two gradients of the objective (one if it is the loop's own) and a copy of the
    factors; with ``size="loss"`` one more product of users x items x dim (BPR: drawn items).
    """

    Config: ClassVar[type[Any]] = AdversaryConfig
    #: The objective to attack; None for the training's own.
    attacks: ClassVar[type[Objective[Any]] | None] = None

    def __init__(self, batches: Batches, config: AdversaryConfig | None = None) -> None:
        # Imported here: plain training does not load the attacks.
        from robustcf.attacks.budgets import RowBudget, row_norms

        self.batches, self.objective = batches, batches.objective
        self.config = self.Config() if config is None else config
        self.budget, self.row_norms = RowBudget(), row_norms

    @classmethod
    def objective_for(cls, objective: Objective[Any]) -> Objective[Any]:
        """Return the objective to attack in a training with this objective."""
        kind = cls.attacks
        if kind is None or isinstance(objective, kind):
            return objective
        return _on_same_pairs(objective, kind, kind.Config())

    def rounds(self, batches: Batches, epoch: int) -> Iterator[tuple[Batch, Batch]]:
        """Return the loop's batches of an epoch, each with the batch for the adversary."""
        if self.batches is batches:
            yield from ((batch, batch) for batch in batches.epoch(epoch))
        else:
            yield from zip(batches.epoch(epoch), self.batches.epoch(epoch), strict=True)

    def sizes(self, U: Tensor, V: Tensor) -> tuple[float, float]:
        """Return how far rows of U and of V may move."""
        eps, rows = self.config.eps, self.objective.shard.rows
        # The median over the users of all ranks; each rank has all items.
        unit = self.budget.unit(U) if rows.whole else rows.median(self.row_norms(U))
        return eps * unit, eps * self.budget.unit(V)

    def shares(self, batch: Batch, U: Tensor, V: Tensor) -> Tensor:
        """Return the factor of ``eps`` per user, ``2 sigmoid(x)``."""
        if self.config.size == "norm":
            norms = torch.linalg.vector_norm(U, dim=1)
            warm = self.objective.tensor(self.objective.pairs.user_degrees > 0, torch.bool)
            return 2 * torch.sigmoid(self._relative(norms, norms[warm]) - 1)
        shares = U.new_ones(len(U))
        if len(batch.users) == 0:
            self._relative(shares, shares[:0])  # takes part in the other ranks' sum
            return shares
        users, losses = self.objective.user_losses(batch, U, V)
        shares[users] = 2 * torch.sigmoid(1 - self._relative(losses, losses))
        return shares

    def _relative(self, values: Tensor, among: Tensor) -> Tensor:
        """Values divided by the mean of ``among`` over all ranks; 1 if that mean is 0."""
        ranks = self.objective.shard.ranks
        if ranks.size == 1:
            mean = among.mean()
        else:
            total, count = ranks.total(float(among.double().sum()), len(among))
            mean = among.new_tensor(total / max(count, 1.0))
        return values / mean if float(mean) > 0 else torch.ones_like(values)

    def add_gradient(
        self,
        batch: Batch,
        U: Tensor,
        V: Tensor,
        into: Gradient,
        *,
        own: Gradient | None = None,
        value: bool = False,
    ) -> float | None:
        """Add the term's gradient at (U, V) to the loop's gradient, in place.

        Args:
            batch: the adversary's batch.
            into: the loop's gradient, for the same users.
            own: the objective's gradient on this batch, if it is already known.
            value: whether to return the attacked loss, or its bound, unweighted.
        """
        there = self.attacked(batch, U, V, own, value=value)
        into.add(there, self.config.weight)
        return there.value

    def attacked(
        self, batch: Batch, U: Tensor, V: Tensor, own: Gradient | None, *, value: bool
    ) -> Gradient:
        """Return the term's gradient; all ranks must call it, even with an empty batch."""
        empty = no_gradient(batch, U, V) if len(batch.users) == 0 else None
        uphill = own or empty or self.objective.gradient(batch, U, V)
        a, b = self.sizes(U, V)
        items = uphill.items
        ranks = self.objective.shard.ranks
        if ranks.size > 1:
            # All ranks attack the items together; a copy, since the loop sums its own gradient.
            items = ranks.sum(items.clone())
        to_users, to_items = self.budget.scale(uphill.users, a), self.budget.scale(items, b)
        if self.config.size != "same":
            shares = self.shares(batch, U, V)
            to_users.mul_((shares if uphill.rows is None else shares[uphill.rows])[:, None])
        if empty is not None:
            return empty
        moved = U.clone()
        add_rows(moved, to_users, uphill.rows)
        return self.objective.gradient(batch, moved, V + to_items, value=value)


class AttackBPR(Adversary):
    """Adversary that attacks the pairwise loss."""

    attacks = BPR


class AttackSoftmax(Adversary):
    """Adversary that attacks the softmax over the catalogue."""

    attacks = Softmax


class AttackBCE(Adversary):
    """Adversary that attacks the cross-entropy without its item-item term, as in the paper."""

    @classmethod
    def objective_for(cls, objective: Objective[Any]) -> Objective[Any]:
        """Return the training's cross-entropy without that term, or one with default weights."""
        config = objective.config if isinstance(objective, BCE) else BCE.Config()
        if config is objective.config and config.item_weight == 0:
            return objective
        return _on_same_pairs(objective, BCE, replace(config, item_weight=0.0))


class Margin(Adversary):
    """Certified training with a margin against every attack of a size.

    For a pair (u, i) and another item j, the gap ``s_ui - s_uj`` falls under row perturbations of
    at most a (users) and b (items) by at most ``a ||v_i - v_j|| + 2 b ||u|| + 2 a b``. The term is
    an objective that compares items, with every gap reduced by that bound: the training's own, or
    BPR. It raises certified radii (:mod:`robustcf.attacks.certificates`).

    Cost of a step: one gradient, and the distances of items from each other or from their mean.
    """

    objective: ComparingObjective[Any]

    def __init__(self, batches: Batches, config: AdversaryConfig | None = None) -> None:
        super().__init__(batches, config)
        if not isinstance(batches.objective, ComparingObjective):
            raise InputError(
                f"margin expects an objective that compares items, got {batches.objective.name}: "
                "use bpr or softmax"
            )
        if self.config.size != "same":
            raise InputError(
                f"margin expects one size for all users, got adv_size {self.config.size!r}: leave "
                "it out, or choose adversarial bpr, bce or softmax"
            )

    @classmethod
    def objective_for(cls, objective: Objective[Any]) -> Objective[Any]:
        """Return the training's objective if it compares items, else BPR on the same pairs."""
        own = objective.compares_items
        return objective if own else _on_same_pairs(objective, BPR, BPR.Config())

    def attacked(
        self, batch: Batch, U: Tensor, V: Tensor, own: Gradient | None, *, value: bool
    ) -> Gradient:
        """Return the gradient of the bound."""
        slack = self.sizes(U, V)
        if len(batch.users) == 0:
            return no_gradient(batch, U, V)
        return self.objective.margin_gradient(batch, U, V, slack, value=value)


@dataclass(frozen=True)
class NoAdversaryConfig:
    """No settings."""


class NoAdversary(Adversary):
    """Plain training: the adversary ``none``."""

    Config: ClassVar[type[Any]] = NoAdversaryConfig

    def add_gradient(self, *_: Any, **__: Any) -> None:
        """Add nothing."""


def _on_same_pairs(
    objective: Objective[Any], kind: type[Objective[Any]], config: Any
) -> Objective[Any]:
    # The cap on one user's share holds for the attacked loss too.
    cap = getattr(objective.config, "max_share", None)
    config = config if cap is None else replace(config, max_share=cap)
    device, dtype, shard = objective.device, objective.dtype, objective.shard
    return kind(objective.pairs, config, device=device, dtype=dtype, shard=shard)


def adversary(name: str, batches: Batches, config: AdversaryConfig | None = None) -> Adversary:
    """Return the adversary of a name, or ``module:Class``, for the batches of a training.

    If it attacks another objective than the training's, its batches visit the same users or pairs
    in the same order and draw their own negatives.

    Example:
        >>> from robustcf.data import checkerboard
        >>> batches = Batches(BPR(checkerboard().train))
        >>> adversary("bpr", batches).objective is batches.objective
        True
    """
    kind = ADVERSARIES[name]
    objective = kind.objective_for(batches.objective)
    if objective is not batches.objective:
        batches = Batches(objective, batches.config, seed=batches.seed)
    return kind(batches, config)
