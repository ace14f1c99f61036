"""What an attack makes worse: a function of the two factors, with its full gradient."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from robustcf.data.interactions import Interactions
from robustcf.errors import InputError
from robustcf.losses import SparseRows, softmax_rows

# Octaves below their least at which objectives that compare items make strong attacks of relative
# size. First chosen by the test NDCG of two MovieLens-1M runs. Checked on valid of six models since
# (scripts/tune_auto.py): 2 to 6 are alike, together within 0.3 % of the clean quality; the best of
# each alone are 1 for softmax and 6 for bpr, by about one per cent.
SOFT = 2.0

# Users that a slope in the scale of the scores is taken from: one number needs no more.
SLOPE_USERS = 1024


@dataclass(frozen=True, eq=False)
class ObjectiveGradient:
    """Value and gradient of an objective at a point.

    Args:
        users: of U's shape.
        items: of V's shape.
        value: the objective.
    """

    users: Tensor
    items: Tensor
    value: float


class Objective(Protocol):
    """A loss of two tensors; an attack goes uphill on it.

    It may have a ``slope`` and a ``softness`` too, see :mod:`robustcf.attacks.scale`.
    """

    name: str

    def gradient(self, U: Tensor, V: Tensor) -> ObjectiveGradient:
        """Value and full gradient at (U, V): over all the data, no sampling noise."""


class Softmax:
    """Full softmax over the catalogue against a user's own items: aware of the ranking.

    The objective is, summed over the users who have items::

        log sum over all items j of exp(s_uj)  -  mean over own items i of s_ui

    It grows exactly when own items lose ground against the rest, whereas a cross-entropy also
    grows when all scores rise together, which changes no ranking.

    Args:
        positives: the pairs whose items should be pushed down: the training pairs, or, for an
            oracle, the test pairs.
        oracle: whether these are the very pairs that the evaluation counts. No attacker has
            them: it shows how much further the damage could go. It is part of the name.

    Cost of a gradient: three products of users x items x dim; memory of one block of scores.

    Example:
        >>> import numpy as np
        >>> pairs = Interactions(np.array([0]), np.array([1]), 1, 2)
        >>> round(Softmax(pairs).gradient(torch.zeros(1, 1), torch.ones(2, 1)).value, 4)
        0.6931
    """

    softness = SOFT

    def __init__(self, positives: Interactions, *, oracle: bool = False) -> None:
        """Keep the pairs; users without any do not count."""
        if len(positives) == 0:
            raise InputError("softmax needs pairs to attack, got none: give it training pairs")
        self.positives = positives
        self.name = "oracle-softmax" if oracle else "softmax"

    def gradient(self, U: Tensor, V: Tensor) -> ObjectiveGradient:
        """Value and full gradient at (U, V)."""
        pairs = self.positives
        if (len(U), len(V)) != (pairs.n_users, pairs.n_items):
            raise InputError(
                f"factors are for {len(U)} users x {len(V)} items, the pairs for "
                f"{pairs.n_users} x {pairs.n_items}: they belong to different data"
            )
        own = SparseRows(
            _tensor(pairs.users, U.device),
            _tensor(pairs.items, U.device),
            1.0 / _tensor(pairs.user_degrees[pairs.users], U.device).to(U.dtype),
        )
        to_items = torch.zeros_like(V)
        to_users, total = softmax_rows(U, V, own, to_items, value=True)
        return ObjectiveGradient(to_users, to_items, total or 0.0)

    def slope(self, U: Tensor, V: Tensor) -> float:
        """The derivative for the logarithm of a common factor of all scores, of some users."""
        users, pairs = self._sample
        block = U[torch.from_numpy(users).to(U.device)]
        toward = Softmax(pairs).gradient(block, V).users
        return float((toward.double() * block.double()).sum())

    @cached_property
    def _sample(self) -> tuple[npt.NDArray[np.int64], Interactions]:
        """Users with pairs, evenly spaced, and their pairs renumbered."""
        warm = np.flatnonzero(self.positives.user_degrees)
        chosen = np.linspace(0, len(warm) - 1, min(len(warm), SLOPE_USERS)).astype(np.int64)
        users = warm[chosen].astype(np.int64)
        own = self.positives.csr()[users]
        rows = np.repeat(np.arange(len(users)), np.diff(own.indptr))
        return users, Interactions(rows, own.indices, len(users), self.positives.n_items)


def _tensor(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    return torch.tensor(array, dtype=torch.int64, device=device)
