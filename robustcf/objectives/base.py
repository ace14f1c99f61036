"""The Objective contract: a loss of two tensors that is a sum over training pairs.

An epoch visits every pair once; the gradients of its batches add up to the gradient of the
objective, exactly or in expectation. All methods are pure functions of the two tensors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from robustcf._checks import check_known
from robustcf._distributed import alone, current
from robustcf.data.interactions import Interactions
from robustcf.data.shards import Shard
from robustcf.errors import InputError

# Users from which a slope in the scale of the scores is taken.
SLOPE_USERS = 1024

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Batch:
    """The users or pairs of one step.

    Args:
        users: rows: the users of the block, each once; pairs: the user of each pair.
        items: pairs: the positive item of each pair; rows: None.
        negatives: sampled items: pairs x number (pairs), or one shared list (rows), or None.
        prepared: constants of this block made by :meth:`Objective.prepare`, or None.
    """

    users: Tensor
    items: Tensor | None = None
    negatives: Tensor | None = None
    prepared: Any = None


@dataclass(frozen=True, eq=False)
class Gradient:
    """The gradient of one batch's share of the objective, or of all of it.

    Args:
        users: for the rows ``rows`` of U only, len(rows) x d.
        rows: the users of ``users``, each once; None means all, in order.
        items: for all of V, n x d.
        value: the loss, or None.
    """

    users: Tensor
    rows: Tensor | None
    items: Tensor
    value: float | None

    def add(self, other: Gradient, weight: float = 1.0) -> None:
        """Add another gradient of the same users, or of some of them if this has all."""
        rows = other.rows if self.rows is None else None
        add_rows(self.users, other.users, rows, weight)
        self.items.add_(other.items, alpha=weight)

    def whole(self, n_users: int) -> Gradient:
        """Return the gradient for all users, 0 for the others."""
        if self.rows is None:
            return self
        users = self.users.new_zeros((n_users, *self.users.shape[1:]))
        users.index_copy_(0, self.rows, self.users)
        return Gradient(users, None, self.items, self.value)


def no_gradient(batch: Batch, U: Tensor, V: Tensor) -> Gradient:
    """Return the gradient of an empty batch, when all users of a step are on other ranks."""
    users = batch.users if batch.items is None else batch.users[:0]
    return Gradient(U.new_zeros((0, *U.shape[1:])), users, torch.zeros_like(V), 0.0)


def add_rows(whole: Tensor, part: Tensor, rows: Tensor | None, weight: float = 1.0) -> None:
    """Add to some rows, each named once, or to all."""
    if rows is None:
        whole.add_(part, alpha=weight)
    else:
        whole.index_add_(0, rows, part, alpha=weight)


@dataclass(frozen=True)
class ObjectiveConfig:
    """The settings of an objective; subclasses add theirs, with defaults and checks."""


ConfigT = TypeVar("ConfigT", bound=ObjectiveConfig)


def configured(kind: Any, config: Any, settings: dict[str, Any]) -> Any:
    """Return a config of ``kind.Config`` from one, or from single settings."""
    name, expected = kind.__name__, kind.Config
    if config is not None and settings:
        raise InputError(f"give {name} a config or single settings, not both")
    if config is None:
        check_known(expected, settings)
        return expected(**settings)
    if not isinstance(config, expected):
        raise InputError(f"{name} takes a {expected.__name__}, got a {type(config).__name__}")
    return config


class Objective(ABC, Generic[ConfigT]):
    """A loss that is a sum over pairs of users and items.

    Args:
        pairs: the positives, to be learnt, or made worse by an attack.
        device: of its constants and of the factors.
        dtype: of its constants and of the factors.
        shard: if the pairs are those of one rank's users, facts about all pairs.

    A subclass sets ``name`` and ``Config`` and defines the gradient of a batch. For ``pairs``
    batches it also defines :meth:`pairs_loss`, which may be differentiated by autograd.
    """

    name: ClassVar[str] = ""
    Config: ClassVar[type[ObjectiveConfig]] = ObjectiveConfig
    #: Whether it is a function of differences of a user's scores, and so can have a margin.
    compares_items: ClassVar[bool] = False
    #: An attack of relative size works on factors whose scores are multiplied by
    #: 2**-log2_temperature, see :mod:`robustcf.attacks.gradient`.
    log2_temperature: ClassVar[float] = 0.0

    config: ConfigT

    def __init__(
        self,
        pairs: Interactions,
        config: ConfigT | None = None,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        shard: Shard | None = None,
        **settings: Any,
    ) -> None:
        with alone():
            self.shard = Shard.of(pairs) if shard is None else shard
        if self.shard.n_pairs == 0:
            raise InputError(f"{self.name} expects training pairs, got none")
        self.pairs = pairs
        self.config = configured(type(self), config, settings)
        self.device, self.dtype = torch.device(device), dtype

    def tensor(self, array: npt.NDArray[Any], dtype: torch.dtype | None = None) -> Tensor:
        """Return an array as a tensor on the objective's device, by default in its dtype."""
        return torch.tensor(array, dtype=dtype or self.dtype, device=self.device)

    def shared_negatives(self, rng: np.random.Generator) -> Tensor | None:
        """Draw items once for a block of users; None: all of them."""
        return None

    def pair_negatives(self, rng: np.random.Generator, users: npt.NDArray[Any]) -> Ids | None:
        """Draw negatives for each of some positives, by their users; None: it needs none."""
        return None

    def prepare(self, users: Ids) -> tuple[Any, int]:
        """Return constants of a block of users to keep, and their number of entries."""
        return None, 0

    @abstractmethod
    def gradient(self, batch: Batch, U: Tensor, V: Tensor, *, value: bool = False) -> Gradient:
        """Return the gradient of the batch's share of the objective at (U, V)."""

    def pairs_loss(self, batch: Batch, U: Tensor, V: Tensor) -> Tensor:
        """Return the loss of a batch of pairs, differentiable."""
        raise InputError(f"{self.name} has no loss of single pairs: use batching 'rows'")

    def pairs_gradient(self, batch: Batch, U: Tensor, V: Tensor, **options: Any) -> Gradient:
        """Return the gradient of :meth:`pairs_loss` with these options, for all of U and V."""
        with torch.enable_grad():
            u, v = U.detach().requires_grad_(), V.detach().requires_grad_()
            loss = self.pairs_loss(batch, u, v, **options)
            users, items = torch.autograd.grad(loss, (u, v))
        return Gradient(users, None, items, float(loss.detach()))

    @cached_property
    def _whole(self) -> Any:
        """The batches of one epoch, drawn once."""
        from robustcf.objectives.batches import Batches

        return Batches(self)

    def full_gradient(self, U: Tensor, V: Tensor) -> Gradient:
        """Return value and gradient over all the pairs at (U, V), at the cost of one epoch."""
        self.check_shapes(U, V)
        total = Gradient(torch.zeros_like(U), None, torch.zeros_like(V), None)
        team, value = current(), 0.0
        for number, batch in enumerate(self._whole.epoch(0)):
            # Ranks take blocks in turn, and add them in order, so that sums round as those of
            # one process.
            owner = number % team.size
            mine = owner == team.rank
            part = self.gradient(batch, U, V, value=True) if mine else no_gradient(batch, U, V)
            if team.size > 1:
                part = _from_owner(part, batch, U, owner)
            total.add(part)
            value += part.value or 0.0
        return Gradient(total.users, None, total.items, value)

    def slope(self, U: Tensor, V: Tensor) -> float:
        """Return the derivative for log t at t = 1 (scores times t): ``<G_U, U>``, or a share."""
        self.check_shapes(U, V)
        total, seen = 0.0, 0
        for batch in self._whole.epoch(0):
            part = self.gradient(batch, U, V)
            rows = U if part.rows is None else U[part.rows]
            total += float((part.users.double() * rows.double()).sum())
            seen += len(batch.users)
            # Blocks are drawn at random, so some of them suffice.
            if batch.items is None and seen >= SLOPE_USERS:
                break
        return total

    def user_loss(self, items: Ids, V: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the objective of a new user with these items, as a function of the row."""
        raise InputError(f"{self.name} does not define the loss of a new user: no fold-in with it")

    def user_losses(self, batch: Batch, U: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
        """Return the users of a batch, each once, and the mean loss of a pair of each.

        By :meth:`user_loss`, user by user; objectives override it for many users at once.
        """
        if type(self).user_loss is Objective.user_loss:
            raise InputError(
                f"{self.name} does not define the loss of a single user: use another objective, or "
                "the same attack size for all users"
            )
        users = batch.users if batch.items is None else torch.unique(batch.users)
        losses = []
        for user in users.tolist():
            items = self.pairs.items_of(user).astype(np.int64)
            losses.append(self.user_loss(items, V)(U[user]) / len(items))
        return users, torch.stack(losses)

    def check_shapes(self, U: Tensor, V: Tensor) -> None:
        """Raise unless the factors are for the users and items of the pairs."""
        if (len(U), len(V)) != (self.pairs.n_users, self.pairs.n_items):
            raise InputError(
                f"factors are for {len(U)} users x {len(V)} items, the pairs for "
                f"{self.pairs.n_users} x {self.pairs.n_items}: they belong to different data"
            )


def _from_owner(part: Gradient, batch: Batch, U: Tensor, owner: int) -> Gradient:
    """The gradient computed by one of the ranks, on all of them."""
    team = current()
    mine = owner == team.rank
    facts = torch.tensor([float(mine and part.rows is None), part.value or 0.0]).double()
    named, value = team.from_first(facts, owner).tolist()
    rows = None if named else batch.users
    users = part.users if mine else U.new_empty((len(U if named else batch.users), U.shape[1]))
    team.from_first(users, owner)
    team.from_first(part.items, owner)
    return Gradient(users, rows, part.items, value)


class ComparingObjective(Objective[ConfigT]):
    """An objective of differences of scores, which can have a margin."""

    compares_items = True

    @abstractmethod
    def margin_gradient(
        self, batch: Batch, U: Tensor, V: Tensor, slack: tuple[float, float], *, value: bool = False
    ) -> Gradient:
        """Return the gradient of an upper bound of the loss under every attack of a size.

        Args:
            slack: how far an attack may move the rows of U and of V, (a, b), see
                :mod:`robustcf.objectives.margin`.
        """
