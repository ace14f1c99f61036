"""Adversarial training: a second loss, taken where an attack has moved the factors to.

To the objective of an epoch, L(U, V), it adds ``weight * A(U + D_U, V + D_V)``. A is an objective
(cross-entropy, BPR or softmax), and D the attack of one gradient step with a budget for each row::

    D = eps * median row norm * G / ||G||    row by row, G the gradient of A at (U, V)

A user's size may be their own (``size``): ``eps`` times ``2 sigmoid(x)``, which is 1 for the
average user and between 0 and 2 for all,

- ``loss``: x = 1 - the user's loss / the mean loss, both per pair and over the users of the batch:
  whom the model fits best is attacked most, since such users take up what fakes teach
  (VAT: Zhang et al., RecSys 2024);
- ``norm``: x = the norm of the user's row / the mean norm - 1 (PamaCF: Zhang et al., NeurIPS 2024).
  With rows of length 1 it is the same for all.

Batch by batch, and with D held constant: no gradient goes through the search for it. With BPR-MF
and A its own loss this is adversarial personalized ranking (He et al., 2018).

``margin`` needs no search: it adds ``weight * max A(U + D_U, V + D_V)`` over *all* D of that size,
with an upper bound in place of the maximum, which is known in closed form for each comparison. A
is the model's own objective where that compares items, else BPR. It is what raises certified radii
(:mod:`robustcf.attacks.certificates`) by training.

A is on a scale of its own: ``bpr`` and ``bce`` are sums over pairs as the models' objectives are,
so for a model with that objective a weight of 1 counts the attacked loss as much as the clean one;
``softmax`` counts every user once, whatever the number of their pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from robustcf._checks import check_choice, check_numbers
from robustcf._registry import ADVERSARIES
from robustcf.attacks.budgets import RowBudget, row_norms
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
    """The adversarial term of a training loop.

    Args:
        batches: of the objective that the adversary makes worse and the loop makes better again;
            of the same users or pairs as the loop's own, see :func:`adversary`.
        config: size and weight; None for the defaults.

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

    Config: ClassVar[type[AdversaryConfig]] = AdversaryConfig

    def __init__(self, batches: Batches, config: AdversaryConfig | None = None) -> None:
        """Keep what the attack is made of."""
        self.batches, self.objective = batches, batches.objective
        self.config = AdversaryConfig() if config is None else config
        self.budget = RowBudget()

    @classmethod
    def objective_for(cls, objective: Objective[Any]) -> Objective[Any]:
        """What to attack in a training with this objective: itself, unless a subclass says so."""
        return objective

    def rounds(self, batches: Batches, epoch: int) -> Iterator[tuple[Batch, Batch]]:
        """The loop's batches of an epoch, each with the batch for the adversary."""
        if self.batches is batches:
            yield from ((batch, batch) for batch in batches.epoch(epoch))
        else:
            yield from zip(batches.epoch(epoch), self.batches.epoch(epoch), strict=True)

    def sizes(self, U: Tensor, V: Tensor) -> tuple[float, float]:
        """How far rows of U and of V may move."""
        eps, rows = self.config.eps, self.objective.shard.rows
        # The median over the users of all ranks; of items everybody has all.
        unit = self.budget.unit(U) if rows.whole else rows.median(row_norms(U))
        return eps * unit, eps * self.budget.unit(V)

    def shares(self, batch: Batch, U: Tensor, V: Tensor) -> Tensor:
        """Each user's size in units of the common one, ``2 sigmoid(x)``; 1 outside of the batch."""
        if self.config.size == "norm":
            norms = torch.linalg.vector_norm(U, dim=1)
            warm = self.objective.tensor(self.objective.pairs.user_degrees > 0, torch.bool)
            return 2 * torch.sigmoid(_relative(norms, self._mean(norms[warm])) - 1)
        shares = U.new_ones(len(U))
        if len(batch.users) == 0:
            self._mean(shares[:0])  # the other ranks ask for what is added up
            return shares
        users, losses = self.objective.user_losses(batch, U, V)
        shares[users] = 2 * torch.sigmoid(1 - _relative(losses, self._mean(losses)))
        return shares

    def _mean(self, values: Tensor) -> Tensor:
        """The mean over the users of all ranks."""
        ranks = self.objective.shard.ranks
        if ranks.size == 1:
            return values.mean()
        total, count = ranks.total(float(values.double().sum()), len(values))
        return values.new_tensor(total / max(count, 1.0))

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
            value: whether to compute the attacked loss too.

        Returns:
            The objective at the attacked point, unweighted, or None.
        """
        nobody = len(batch.users) == 0
        uphill = own
        if uphill is None:
            uphill = no_gradient(batch, U, V) if nobody else self.objective.gradient(batch, U, V)
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
        if nobody:
            return 0.0
        attacked = U.clone()
        add_rows(attacked, to_users, uphill.rows)
        there = self.objective.gradient(batch, attacked, V + to_items, value=value)
        into.add(there, self.config.weight)
        return there.value


class AttackBPR(Adversary):
    """Against an attack on the pairwise loss."""

    @classmethod
    def objective_for(cls, objective: Objective[Any]) -> Objective[Any]:
        """The loop's own where it is BPR, else BPR on the same pairs."""
        return objective if isinstance(objective, BPR) else _beside(objective, BPR)


class AttackBCE(Adversary):
    """Against an attack on the cross-entropy without its item-item term, as in the paper's."""

    @classmethod
    def objective_for(cls, objective: Objective[Any]) -> Objective[Any]:
        """The loop's own without the item-item term where it is a cross-entropy."""
        if not isinstance(objective, BCE):
            return _beside(objective, BCE, BCE.Config(item_weight=0.0))
        if objective.config.item_weight == 0:
            return objective
        return _beside(objective, BCE, replace(objective.config, item_weight=0.0))


class AttackSoftmax(Adversary):
    """Against an attack on the softmax over the catalogue."""

    @classmethod
    def objective_for(cls, objective: Objective[Any]) -> Objective[Any]:
        """The loop's own where it is the softmax, else that on the same pairs."""
        return objective if isinstance(objective, Softmax) else _beside(objective, Softmax)


class Margin(Adversary):
    """A margin that no attack of a size can use up: certified training.

    For a pair (u, i) and another item j, the gap ``s_ui - s_uj`` falls under row perturbations of
    at most a (users) and b (items) by at most ``a ||v_i - v_j|| + 2 b ||u|| + 2 a b``. The term is
    an objective that compares items with every gap less that; so it is at least that loss under
    *every* attack of the size, and where it is small, radii are large.

    Args:
        batches: of an objective that compares items.
        config: size and weight; the size is taken anew in every step.

    Cost of a step: one gradient, and the distances of items from each other or from their mean.

    Example:
        >>> from robustcf.data import checkerboard
        >>> from robustcf.models import BPRMF
        >>> train = checkerboard().train
        >>> batches, (U, V) = Batches(BPR(train)), BPRMF(train, dim=4).factors()
        >>> margin = Margin(batches)
        >>> batch, theirs = next(margin.rounds(batches, epoch=0))
        >>> here = batches.objective.gradient(batch, U, V, value=True)
        >>> margin.add_gradient(theirs, U, V, here, value=True) > here.value
        True
    """

    def __init__(self, batches: Batches, config: AdversaryConfig | None = None) -> None:
        """Check that there are comparisons to take a margin off."""
        super().__init__(batches, config)
        if not isinstance(self.objective, ComparingObjective):
            raise InputError(
                f"a margin needs an objective that compares items, {self.objective.name} does not: "
                "use bpr or softmax"
            )
        if self.config.size != "same":
            raise InputError(
                f"a margin is of one size for all users, got adv_size {self.config.size!r}: leave "
                "it out, or choose adversarial bpr, bce or softmax"
            )

    @classmethod
    def objective_for(cls, objective: Objective[Any]) -> Objective[Any]:
        """The loop's own where it compares items, else BPR on the same pairs."""
        return objective if objective.compares_items else _beside(objective, BPR)

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
            batch: the comparisons.
            U: users.
            V: items.
            into: the loop's gradient, for the same users.
            own: not needed here: no attack is searched for.
            value: whether to compute the bound too.

        Returns:
            The bound of the attacked loss, unweighted, or None.
        """
        objective = self.objective
        if not isinstance(objective, ComparingObjective):  # the constructor has seen to that
            raise InputError(f"{objective.name} does not compare items")
        slack = self.sizes(U, V)
        if len(batch.users) == 0:
            return 0.0
        there = objective.margin_gradient(batch, U, V, slack, value=value)
        into.add(there, self.config.weight)
        return there.value


class NoAdversary(Adversary):
    """Plain training."""

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
        """Add nothing."""
        return None


def _relative(values: Tensor, mean: Tensor) -> Tensor:
    """In units of their mean; 1 where that is 0, since nobody differs then."""
    return values / mean if float(mean) > 0 else torch.ones_like(values)


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
    """The adversary of a name for a training, on the training's pairs.

    Where its objective is not the training's own, its batches have the same seed and sizes: they
    visit the same users or pairs in the same order, and draw their own negatives.

    Args:
        name: ``bpr``, ``bce``, ``softmax`` or ``margin``, or ``module:Class``.
        batches: of the training.
        config: size and weight.

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
