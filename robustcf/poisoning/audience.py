"""The users whose lists an attack looks at in its surrogate, and what it takes to enter them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from robustcf.data.interactions import Interactions
from robustcf.factors import Factors
from robustcf.metrics.topk import TopItems, top_items
from robustcf.poisoning.threat import ItemIds

# Longer than the lists that people see, so that an item which nearly gets there counts; and no more
# than a quarter of the catalogue, where being in the list would say nothing.
_CUTOFF, _QUARTER = 50, 4
_MOST_USERS = 20_000


def cutoff_of(n_items: int) -> int:
    """The cutoff at which a surrogate's lists are looked at: 50, less for small catalogues.

    Example:
        >>> cutoff_of(3000), cutoff_of(40), cutoff_of(2)
        (50, 10, 1)
    """
    return max(1, min(_CUTOFF, n_items // _QUARTER))


def audience(pairs: Interactions) -> npt.NDArray[np.int64]:
    """Users with pairs, at most 20,000: every so-manieth of more, the same ones each time.

    Example:
        >>> from robustcf.data import checkerboard
        >>> len(audience(checkerboard().train)) == checkerboard().n_users
        True
    """
    users = np.flatnonzero(pairs.user_degrees)
    if len(users) > _MOST_USERS:
        users = users[np.linspace(0, len(users) - 1, _MOST_USERS).astype(np.int64)]
    return users


def bars(
    factors: Factors, pairs: Interactions, users: npt.NDArray[np.int64]
) -> tuple[Tensor, TopItems]:
    """The score that an item must pass to enter each user's list, and lists of twice the length.

    It is infinite where a list ends before that: everything is shown there, nothing is to be won.
    """
    U, V = factors
    cutoff = cutoff_of(pairs.n_items)
    top = top_items(factors, users, 2 * cutoff, pairs)
    last = top[:, cutoff - 1]
    scores = (U[torch.from_numpy(users)] * V[torch.from_numpy(np.maximum(last, 0))]).sum(dim=1)
    return torch.where(torch.from_numpy(last >= 0), scores, torch.inf), top


def has(pairs: Interactions, users: npt.NDArray[np.int64], items: ItemIds) -> npt.NDArray[np.bool_]:
    """Users x items: who has which of them.

    Example:
        >>> pairs = Interactions.from_pairs([0, 1, 1], [2, 0, 1], 2, 3)[0]
        >>> has(pairs, np.array([1]), np.array([0, 2])).tolist()
        [[True, False]]
    """
    found: npt.NDArray[np.bool_] = pairs.csr()[users][:, items].toarray() > 0
    return found
