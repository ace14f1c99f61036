"""Fold-in: the embedding of a new user, the items' embeddings held fixed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.objectives.base import Objective
from robustcf.support.checks import check_number


def fold_in(
    objective: Objective[Any],
    factors: Factors,
    items: npt.ArrayLike,
    *,
    ridge: float = 0.0,
    steps: int = 60,
    offset: bool = False,
    unit: bool = False,
    fixed: Sequence[int] = (),
) -> Tensor:
    """An embedding for a new user who has these items; the items' embeddings stay.

    It minimizes the user's own part of an objective, a convex function of one row, from the mean
    of the users.

    Args:
        objective: what the factors were trained with.
        factors: trained embeddings.
        items: ids of the items, at least one, each once.
        ridge: weight of the squared norm of the row.
        steps: iterations of L-BFGS at most.
        offset: whether one number, free and then forgotten, is added to all scores of the user:
            for items in a gauge that has taken it from them, see :mod:`robustcf.models.gauge`.
        unit: whether the row has length 1: for models that score such rows.
        fixed: columns that stay at the mean of the users: a bias, and the constant it is multiplied
            with.

    Returns:
        The embedding, of length dim.

    Cost: a few products of n_items x dim for each step.

    Example:
        >>> from robustcf.data import checkerboard
        >>> from robustcf.models import BPRMF
        >>> from robustcf.objectives import BPR
        >>> train = checkerboard().train
        >>> fold_in(BPR(train), BPRMF(train, dim=4).factors(), [0, 2]).shape
        torch.Size([4])
    """
    n_items = factors.n_items
    ids = np.asarray(items)
    if ids.ndim != 1 or len(ids) == 0 or ids.dtype.kind not in "iu":
        raise InputError(f"fold-in needs a list of item ids, at least one, got {items!r}")
    if ids.min() < 0 or ids.max() >= n_items or len(np.unique(ids)) != len(ids):
        raise InputError(f"item ids must be in [0, {n_items}) and differ, got {ids.tolist()}")
    check_number("ridge", ridge)
    # float64: the line search compares losses that differ by little.
    V = factors.items.detach().double()
    start = factors.users.detach().double().mean(dim=0)
    if offset:
        V, start = torch.cat([V, V.new_ones(len(V), 1)], 1), torch.cat([start, V.new_zeros(1)])
    loss = objective.user_loss(ids.astype(np.int64), V)
    held, mean = list(fixed), start.clone()
    row = start.requires_grad_()
    optimizer = torch.optim.LBFGS(
        [row], max_iter=steps, tolerance_grad=1e-7, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        own, scored = row[: factors.dim], row
        if held:
            own = own.index_fill(0, torch.tensor(held), 0.0)
            scored = row.index_copy(0, torch.tensor(held), mean[held])
        if unit:
            scored = torch.cat((own / own.norm(), row[factors.dim :]))
        value = loss(scored) + ridge * (own @ own if not unit else (own.norm() - 1) ** 2)
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    own = row.detach()[: factors.dim]
    return (own / own.norm() if unit else own).to(factors.users.dtype)
