"""Adversarial training: a second loss, taken where an attack has moved the factors to.

To the objective of an epoch, L(U, V), it adds ``weight * A(U + D_U, V + D_V)``. A is an objective
(cross-entropy, BPR or softmax), and D the attack of one gradient step with a budget for each row::

    D = eps * median row norm * G / ||G||    row by row, G the gradient of A at (U, V)

D is held constant: no gradient goes through the search for it. With BPR-MF and A its own loss this
is adversarial personalized ranking (He et al., arXiv:1808.03908). A user's size may be their own
(``size``): ``eps`` times ``2 sigmoid(x)``, which is 1 for the average user,

- ``loss``: x = 1 - the user's loss / the mean loss, both per pair and over the users of the batch:
  whom the model fits best is attacked most, since such users take up what fakes teach
  (VAT: Zhang et al., RecSys 2024, arXiv:2409.17476);
- ``norm``: x = the norm of the user's row / the mean norm - 1 (PamaCF: Zhang et al., NeurIPS 2024,
  arXiv:2410.22844). With rows of length 1 it is the same for all.

``margin`` needs no search: it adds ``weight * max A(U + D_U, V + D_V)`` over *all* D of that size,
with an upper bound in place of the maximum, which is known in closed form for each comparison. A
is the model's own objective where that compares items, else BPR. It raises certified radii
(:mod:`robustcf.attacks.certificates`).

``bpr`` and ``bce`` are sums over pairs as the models' objectives are, so that for a model with that
objective a weight of 1 counts the attacked loss as much as the clean one; ``softmax`` counts every
user once, whatever the number of their pairs.
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
from robustcf.objectives import (
    BCE,
    BPR,
    Batch,
    Batches,
    ComparingObjective,
    Gradient,
    Objective,
    Softmax,
)
from robustcf.objectives.base import add_rows, no_gradient

#: Whether all users are attacked alike, or each by their loss or by the norm of their row.
SIZES = ("same", "loss", "norm")


@dataclass(frozen=True)
class AdversaryConfig:
    """Settings of adversarial training.

    Args:
        eps: size of the attack, in median row norms of U and of V.
        weight: weight of the attacked loss.
        size: how ``eps`` is shared: the ``same`` for all users, by their ``loss`` (VAT) or by the
            ``norm`` of their row (PamaCF).
    """

    eps: float = 0.1
    weight: float = 1.0
    size: str = "same"

    def __post_init__(self) -> None:
        check_numbers(self, prefix="adv_")
        check_choice("adv_size", self.size, SIZES)


class Adversary:
    """The adversarial term of a training loop, for batches as :func:`adversary` makes them.

    Cost of a step: two gradients of the objective (one where it is the loop's own), a copy of
    the factors; with a size by loss one more product of users x items x dim (BPR: with the drawn
    items).

    Example:
        >>> from robustcf.data import checkerboard
        >>> from robustcf.models import BPRMF
        >>> train = checkerboard().train
        >>> batches, (U, V) = Batches(BPR(train)), BPRMF(train, dim=4).factors()
        >>> apr = Adversary(batches)
        >>> for batch, theirs in apr.rounds(batches, epoch=0):
        ...     here = batches.objective.gradient(batch, U, V)
        ...     loss = apr.add_gradient(theirs, U, V, here, own=here, value=True)
        >>> loss > 0
        True
    """

    Config: ClassVar[type[Any]] = AdversaryConfig
    #: The objective that it attacks; None for that of the training.
    attacks: ClassVar[type[Objective[Any]] | None] = None

    def __init__(self, batches: Batches, config: AdversaryConfig | None = None) -> None:
        # Not at the top: plain training attacks nothing, and loads no attacks.
        from robustcf.attacks.budgets import RowBudget, row_norms

        self.batches, self.objective = batches, batches.objective
        self.config = self.Config() if config is None else config
        self.budget, self.row_norms = RowBudget(), row_norms

    @classmethod
    def objective_for(cls, objective: Objective[Any]) -> Objective[Any]:
        """Return what to attack in a training with this objective, on its pairs."""
        kind = cls.attacks
        return (
            objective if kind is None or isinstance(objective, kind) else _beside(objective, kind)
        )

    def rounds(self, batches: Batches, epoch: int) -> Iterator[tuple[Batch, Batch]]:
        """Return the loop's batches of an epoch, each with the batch for the adversary."""
        if self.batches is batches:
            yield from ((batch, batch) for batch in batches.epoch(epoch))
        else:
            yield from zip(batches.epoch(epoch), self.batches.epoch(epoch), strict=True)

    def sizes(self, U: Tensor, V: Tensor) -> tuple[float, float]:
        """Return how far rows of U and of V may move."""
        eps, rows = self.config.eps, self.objective.shard.rows
        # The median over the users of all ranks; each has all items.
        unit = self.budget.unit(U) if rows.whole else rows.median(self.row_norms(U))
        return eps * unit, eps * self.budget.unit(V)

    def shares(self, batch: Batch, U: Tensor, V: Tensor) -> Tensor:
        """Return each user's size in units of the common one, ``2 sigmoid(x)``."""
        if self.config.size == "norm":
            norms = torch.linalg.vector_norm(U, dim=1)
            warm = self.objective.tensor(self.objective.pairs.user_degrees > 0, torch.bool)
            return 2 * torch.sigmoid(self._relative(norms, norms[warm]) - 1)
        shares = U.new_ones(len(U))
        if len(batch.users) == 0:
            self._relative(shares, shares[:0])  # the other ranks ask for what is added up
            return shares
        users, losses = self.objective.user_losses(batch, U, V)
        shares[users] = 2 * torch.sigmoid(1 - self._relative(losses, losses))
        return shares

    def _relative(self, values: Tensor, among: Tensor) -> Tensor:
        """Values in units of the mean of others over all ranks; 1 where that is 0."""
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
        """Add the term's gradient at (U, V) to that of the loop, in place.

        Args:
            batch: what the adversary attacks.
            U: users.
            V: items.
            into: the loop's gradient, for the same users.
            own: the objective's gradient on this batch, where it is known already.
            value: whether to return the attacked loss, or its bound, unweighted.
        """
        there = self.attacked(batch, U, V, own, value=value)
        into.add(there, self.config.weight)
        return there.value

    def attacked(
        self, batch: Batch, U: Tensor, V: Tensor, own: Gradient | None, *, value: bool
    ) -> Gradient:
        """Return the term's gradient; of several ranks, all must ask, with an empty batch too."""
        nobody = no_gradient(batch, U, V) if len(batch.users) == 0 else None
        uphill = own or nobody or self.objective.gradient(batch, U, V)
        a, b = self.sizes(U, V)
        items = uphill.items
        ranks = self.objective.shard.ranks
        if ranks.size > 1:
            # An attack on items is one for the users of all ranks. The loop's own gradient stays
            # this rank's: it will be added up later.
            items = ranks.sum(items.clone())
        to_users, to_items = self.budget.scale(uphill.users, a), self.budget.scale(items, b)
        if self.config.size != "same":
            shares = self.shares(batch, U, V)
            to_users.mul_((shares if uphill.rows is None else shares[uphill.rows])[:, None])
        if nobody is not None:
            return nobody
        moved = U.clone()
        add_rows(moved, to_users, uphill.rows)
        return self.objective.gradient(batch, moved, V + to_items, value=value)


class AttackBPR(Adversary):
    """Against an attack on the pairwise loss."""

    attacks = BPR


class AttackBCE(Adversary):
    """Against an attack on the cross-entropy without its item-item term, as in the paper's."""

    @classmethod
    def objective_for(cls, objective: Objective[Any]) -> Objective[Any]:
        """Return the loop's own cross-entropy without that term, or a default one."""
        if not isinstance(objective, BCE):
            return _beside(objective, BCE, BCE.Config(item_weight=0.0))
        if objective.config.item_weight == 0:
            return objective
        return _beside(objective, BCE, replace(objective.config, item_weight=0.0))


class AttackSoftmax(Adversary):
    """Against an attack on the softmax over the catalogue."""

    attacks = Softmax


class Margin(Adversary):
    """A margin that no attack of a size can use up: certified training.

    For a pair (u, i) and another item j, the gap ``s_ui - s_uj`` falls under row perturbations of
    at most a (users) and b (items) by at most ``a ||v_i - v_j|| + 2 b ||u|| + 2 a b``. The term is
    an objective that compares items with every gap less that: a bound of the loss under *every*
    attack of the size.

    Cost of a step: one gradient, and the distances of items from each other or from their mean.
    """

    objective: ComparingObjective[Any]

    def __init__(self, batches: Batches, config: AdversaryConfig | None = None) -> None:
        super().__init__(batches, config)
        if not isinstance(batches.objective, ComparingObjective):
            raise InputError(
                f"a margin needs an objective that compares items, {batches.objective.name} does "
                "not: use bpr or softmax"
            )
        if self.config.size != "same":
            raise InputError(
                f"a margin is of one size for all users, got adv_size {self.config.size!r}: leave "
                "it out, or choose adversarial bpr, bce or softmax"
            )

    @classmethod
    def objective_for(cls, objective: Objective[Any]) -> Objective[Any]:
        """Return the loop's own where it compares items, else BPR on the same pairs."""
        return objective if objective.compares_items else _beside(objective, BPR)

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
    """Plain training: the entry of the table that stands for no adversary, and does nothing."""

    Config: ClassVar[type[Any]] = NoAdversaryConfig

    def add_gradient(self, *_: Any, **__: Any) -> None:
        """Add nothing."""


def _beside(
    objective: Objective[Any], kind: type[Objective[Any]], config: Any = None
) -> Objective[Any]:
    # A cap on what one user decides holds for the attacked loss too.
    cap = getattr(objective.config, "max_share", None)
    if cap is not None:
        config = replace(kind.Config() if config is None else config, max_share=cap)
    return kind(
        objective.pairs,
        config,
        device=objective.device,
        dtype=objective.dtype,
        shard=objective.shard,
    )


def adversary(name: str, batches: Batches, config: AdversaryConfig | None = None) -> Adversary:
    """Return the adversary of a name, or ``module:Class``, for the batches of a training.

    Where its objective is not the training's own, its batches visit the same users or pairs in the
    same order, and draw their own negatives.
    """
    kind = ADVERSARIES[name]
    objective = kind.objective_for(batches.objective)
    if objective is not batches.objective:
        batches = Batches(objective, batches.config, seed=batches.seed)
    return kind(batches, config)
