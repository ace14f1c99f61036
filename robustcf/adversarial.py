"""Adversarial training: a second loss, taken where an attack has moved the factors to.

To the model's objective of a pass, L(U, V), it adds ``weight * A(U + D_U, V + D_V)``. A is an
attack's objective (cross-entropy, BPR or softmax), and D the attack of one gradient step with a
budget for each row::

    D = eps * median row norm * G / ||G||    row by row, G the gradient of A at (U, V)

Batch by batch, and with D held constant: no gradient goes through the search for it. With BPR-MF
and A its own loss this is adversarial personalized ranking (He et al., 2018).

``margin`` needs no search: it adds ``weight * max A(U + D_U, V + D_V)`` over *all* D of that size,
with A the BPR loss and an upper bound in place of the maximum, which is known in closed form for
each comparison. It is what raises certified radii (:mod:`robustcf.certificates`) by training.

A is on the scale of its own: ``bpr`` and ``bce`` are sums over pairs as the models' objectives are,
so for a model with that objective a weight of 1 counts the attacked loss as much as the clean one;
``softmax`` counts every user once, whatever the number of their pairs; ``margin`` is on that of
``bpr``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from robustcf.attacks.budgets import RowBudget
from robustcf.data.interactions import Interactions
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.losses import SparseRows, softmax_rows
from robustcf.models import BPRMF, Batch, Gradient, Model, UltraGCN
from robustcf.models.base import check_number

OBJECTIVES = ("bpr", "bce", "softmax", "margin")
_CROSS_ENTROPY = ("negatives", "negative_weight", "w1", "w2", "w3", "w4", "sampled_items")


class BatchObjective(Protocol):
    """A loss that is a sum over batches; every :class:`robustcf.models.Model` is one."""

    def gradient(self, batch: Batch, U: Tensor, V: Tensor, *, value: bool = False) -> Gradient:
        """The gradient of the batch's share at (U, V)."""


class SoftmaxBatches:
    """:class:`robustcf.attacks.Softmax` batch by batch: over a pass it adds up to that objective.

    A block of users gives their terms. A pair (u, i) gives one over deg(u) of u's:
    ``(log sum over all items j of exp(s_uj) - s_ui) / deg(u)``.

    Args:
        train: the pairs.

    Cost of a gradient: three products of users x items x dim, for the users of the batch.
    """

    def __init__(self, train: Interactions) -> None:
        """Keep the pairs."""
        self.train = train

    def gradient(self, batch: Batch, U: Tensor, V: Tensor, *, value: bool = False) -> Gradient:
        """The gradient of the batch's share at (U, V), for the users of the batch."""
        if batch.items is None:
            users = batch.users
            R = self.train.csr()[users.cpu().numpy()]
            rows = torch.from_numpy(np.repeat(np.arange(len(users)), np.diff(R.indptr)))
            columns = torch.from_numpy(R.indices.astype(np.int64))
        else:
            order = batch.users.argsort(stable=True)
            users, rows = torch.unique(batch.users[order], return_inverse=True)
            columns = batch.items[order]
        rows, columns = rows.to(U.device), columns.to(U.device)
        degrees = torch.from_numpy(self.train.user_degrees.astype(np.int64)).to(U.device)[users]
        entries = SparseRows(rows, columns, (1.0 / degrees.to(U.dtype))[rows])
        items = torch.zeros_like(V)
        part, total = softmax_rows(U[users], V, entries, items, value=value)
        return Gradient(part, users, items, total)


class Adversary:
    """The adversarial term of a training loop.

    Args:
        objective: what the adversary makes worse and the loop makes better again. A model takes
            batches of its own, which must be of the same users or pairs, see :func:`adversary`.
        eps: size of the attack, in median row norms of U and of V.
        weight: of the term.

    Cost of a step: two gradients of the objective (one where it is the model's own), a copy of
    the factors.

    Example:
        >>> from robustcf.data import checkerboard
        >>> model = BPRMF(checkerboard().train, dim=4)
        >>> apr, (U, V) = Adversary(model, eps=0.1, weight=1.0), model.factors()
        >>> for batch, theirs in apr.rounds(model, epoch=0):
        ...     here = model.gradient(batch, U, V)
        ...     loss = apr.add_gradient(theirs, U, V, here, own=here, value=True)
        >>> loss > 0
        True
    """

    def __init__(self, objective: BatchObjective, *, eps: float, weight: float) -> None:
        """Check the numbers."""
        check_number("adv_eps", eps)
        check_number("adv_weight", weight)
        self.objective, self.eps, self.weight = objective, eps, weight
        self.budget = RowBudget()

    def rounds(self, model: Model, epoch: int) -> Iterator[tuple[Batch, Batch]]:
        """The model's batches of a pass, each with the batch for the adversary."""
        if isinstance(self.objective, Model) and self.objective is not model:
            yield from zip(model.batches(epoch), self.objective.batches(epoch), strict=True)
        else:
            yield from ((batch, batch) for batch in model.batches(epoch))

    def perturbation(self, U: Tensor, V: Tensor, gradient: Gradient) -> tuple[Tensor, Tensor]:
        """The attack along a gradient: for its rows of U, and for all of V."""
        return (
            self.budget.scale(gradient.users, self.eps * self.budget.unit(U)),
            self.budget.scale(gradient.items, self.eps * self.budget.unit(V)),
        )

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
        """Add the term's gradient at (U, V) to that of the model, in place.

        Args:
            batch: what the adversary attacks.
            U: users.
            V: items.
            into: the model's gradient, for the same users.
            own: the objective's gradient on this batch, where it is known already.
            value: whether to compute the attacked loss too.

        Returns:
            The objective at the attacked point, unweighted, or None.
        """
        uphill = own if own is not None else self.objective.gradient(batch, U, V)
        to_users, to_items = self.perturbation(U, V, uphill)
        attacked = U.clone()
        _add_rows(attacked, to_users, uphill.rows, 1.0)
        there = self.objective.gradient(batch, attacked, V + to_items, value=value)
        _add(into, there, self.weight)
        return there.value


class Margin(Adversary):
    """BPR with a margin that no attack of a size can use up: certified training.

    For a pair (u, i) and an item j that u does not have, the gap ``s_ui - s_uj`` falls under row
    perturbations of at most a (users) and b (items) by at most ``a ||v_i - v_j|| + 2 b ||u|| +
    2 a b``. The term is BPR's with every gap less that; so it is at least BPR's loss under *every*
    attack of the size, and where it is small, radii are large.

    Args:
        objective: draws the comparisons; the model itself where that is BPR-MF.
        eps: size of the attack, in median row norms of U and of V, taken anew in every step.
        weight: of the term.

    Cost of a step: one gradient of BPR-MF, and the distances of all items from the drawn ones.

    Example:
        >>> from robustcf.data import checkerboard
        >>> model = BPRMF(checkerboard().train, dim=4)
        >>> margin, (U, V) = Margin(model, eps=0.1, weight=1.0), model.factors()
        >>> batch, theirs = next(margin.rounds(model, epoch=0))
        >>> here = model.gradient(batch, U, V, value=True)
        >>> margin.add_gradient(theirs, U, V, here, value=True) > here.value
        True
    """

    objective: BPRMF

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
        """Add the term's gradient at (U, V) to that of the model, in place.

        Args:
            batch: the comparisons.
            U: users.
            V: items.
            into: the model's gradient, for the same users.
            own: not needed here.
            value: whether to compute the bound too.

        Returns:
            The bound of the attacked loss, unweighted, or None.
        """
        # No attack is searched for: the worst of each comparison is known.
        room = self.eps * self.budget.unit(U), self.eps * self.budget.unit(V)
        there = self.objective.gradient(batch, U, V, value=value, room=room)
        _add(into, there, self.weight)
        return there.value


def _add(into: Gradient, there: Gradient, weight: float) -> None:
    """Add a gradient to that of the model, which may name all users."""
    _add_rows(into.users, there.users, there.rows if into.rows is None else None, weight)
    into.items.add_(there.items, alpha=weight)


def _add_rows(whole: Tensor, part: Tensor, rows: Tensor | None, weight: float) -> None:
    """Add to some rows, each named once, or to all."""
    if rows is None:
        whole.add_(part, alpha=weight)
    else:
        whole.index_add_(0, rows, part, alpha=weight)


def adversary(name: str, model: Model, *, eps: float, weight: float, **weights: Any) -> Adversary:
    """The adversary of a name for a model, on the model's training pairs.

    Where its objective is not the model's own, it is a second model with the same seed and sizes
    of batches: it visits the same users or pairs in the same order, and draws its own negatives.

    Args:
        name: ``bpr``: the loss of BPR-MF; ``bce``: UltraGCN's without the item-item term, as in
            the paper's attack; ``softmax``: see :class:`SoftmaxBatches`; ``margin``: see
            :class:`Margin`.
        model: what is trained.
        eps: see :class:`Adversary`.
        weight: see :class:`Adversary`.
        **weights: of the cross-entropy, where the model has none: arguments of UltraGCN.

    Example:
        >>> from robustcf.data import checkerboard
        >>> model = BPRMF(checkerboard().train, dim=4)
        >>> adversary("bpr", model, eps=0.1, weight=1.0).objective is model
        True
    """
    if name not in OBJECTIVES:
        raise InputError(f"adversarial must be one of {', '.join(OBJECTIVES)}, got {name!r}")
    objective: BatchObjective
    if name == "softmax":
        objective = SoftmaxBatches(model.train)
    elif (name in ("bpr", "margin") and isinstance(model, BPRMF)) or (
        name == "bce" and isinstance(model, UltraGCN) and model.item_weight == 0
    ):
        objective = model
    else:
        options: dict[str, Any] = {
            "batching": model.batching,
            "batch_size": model.batch_size,
            "block_users": model.block_users,
            "start": Factors(model.users, model.items),
            "seed": model.seed,
            "device": model.device,
            "dtype": model.dtype,
        }
        if name in ("bpr", "margin"):
            objective = BPRMF(model.train, **options)
        else:
            if isinstance(model, UltraGCN):
                weights = {key: getattr(model, key) for key in _CROSS_ENTROPY}
            objective = UltraGCN(model.train, item_weight=0.0, **options, **weights)
    kind = Margin if name == "margin" else Adversary
    return kind(objective, eps=eps, weight=weight)
