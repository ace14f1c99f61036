"""The Model contract: parameters, batches of a pass, and the gradient of a batch.

A pass (epoch) visits every training pair once. The pass objective is the sum of the losses of
all its pairs; the gradients of the batches of a pass add up to its gradient, exactly or in
expectation. ``gradient`` is a pure function of the two tensors it is given, so an attack or an
adversarial trainer can ask for it elsewhere than at the parameters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from robustcf.data.interactions import Interactions
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.models.spectral import spectral_factors
from robustcf.randomness import stream

Batching = Literal["rows", "pairs"]
Init = Literal["spectral", "smooth", "normal"]
BATCHINGS: tuple[str, ...] = ("rows", "pairs")
INITS: tuple[str, ...] = ("spectral", "smooth", "normal")


@dataclass(frozen=True, eq=False)
class Batch:
    """What one step learns from.

    Args:
        users: rows: the users of the block, each once; pairs: the user of each pair.
        items: pairs: the positive item of each pair; rows: None.
        negatives: sampled items: pairs x number (pairs), or one shared list (rows), or None.
        number: rows: which block of the model's partition this is; -1: none of them.
    """

    users: Tensor
    items: Tensor | None = None
    negatives: Tensor | None = None
    number: int = -1


@dataclass(frozen=True, eq=False)
class Gradient:
    """The gradient of one batch's share of the pass objective.

    Args:
        users: for the rows ``rows`` of U only, len(rows) x d.
        rows: the users that ``users`` speaks of, each once; None means all, in order.
        items: for all of V, n x d.
        value: the loss of the batch, or None where it was not asked for.
    """

    users: Tensor
    rows: Tensor | None
    items: Tensor
    value: float | None


class Model(ABC):
    """A factorization U V^T with an objective that is a sum over training pairs.

    Args:
        train: the pairs to learn from.
        dim: columns of U and V.
        batching: ``rows``: a block of users against all items a step (or a shared sample of
            items); ``pairs``: the published procedure, sampled negatives for each positive.
        batch_size: pairs a step, for ``pairs``.
        block_users: users a step, for ``rows``.
        init: ``spectral`` or ``smooth``, see
            :func:`robustcf.models.spectral.spectral_factors`, or ``normal`` with standard
            deviation ``init_std``.
        init_std: for ``normal``.
        base_logit: for ``spectral`` and ``smooth``, minus the score that everything starts from.
        start: factors to start from instead of ``init``.
        seed: of initialization, blocks and sampling, each from a stream of its own.
        device: where the tensors live.
        dtype: of the tensors.
    """

    name: str = ""
    users: Tensor
    items: Tensor

    def __init__(
        self,
        train: Interactions,
        dim: int = 64,
        *,
        batching: Batching = "rows",
        batch_size: int = 1024,
        block_users: int = 256,
        init: Init = "spectral",
        init_std: float = 1e-3,
        base_logit: float = 5.0,
        start: Factors | None = None,
        seed: int = 0,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Build the parameters; nothing is learnt yet."""
        if len(train) == 0:
            raise InputError("train has no pairs: there is nothing to learn from")
        if batching not in BATCHINGS:
            raise InputError(f"batching must be one of {', '.join(BATCHINGS)}, got {batching!r}")
        if init not in INITS:
            raise InputError(f"init must be one of {', '.join(INITS)}, got {init!r}")
        check_integer("dim", dim, 1)
        check_integer("batch_size", batch_size, 1)
        check_integer("block_users", block_users, 1)
        check_number("init_std", init_std, positive=True)
        check_number("base_logit", base_logit)
        self.train, self.dim, self.seed = train, dim, seed
        self.batching: Batching = batching
        self.batch_size, self.block_users = batch_size, block_users
        self.device, self.dtype = torch.device(device), dtype
        self._blocks = self._partition()
        if start is not None:
            if (start.n_users, start.n_items) != (train.n_users, train.n_items):
                raise InputError(
                    f"start is for {start.n_users} users x {start.n_items} items, train has "
                    f"{train.n_users} x {train.n_items}: they belong to different data"
                )
            self.dim = start.dim
            self.users, self.items = (
                part.detach().to(device=self.device, dtype=dtype).clone() for part in start
            )
            return
        if init != "normal":
            U, V = spectral_factors(
                train, dim, stream(seed, "init"), base_logit=base_logit, smooth=init == "smooth"
            )
        else:
            rng = stream(seed, "init")
            U = rng.normal(0.0, init_std, (train.n_users, dim)).astype(np.float32)
            V = rng.normal(0.0, init_std, (train.n_items, dim)).astype(np.float32)
        self.users = self._tensor(U, dtype)
        self.items = self._tensor(V, dtype)

    def _tensor(self, array: npt.NDArray[Any], dtype: torch.dtype) -> Tensor:
        return torch.tensor(array, dtype=dtype, device=self.device)

    def _partition(self) -> list[npt.NDArray[np.int64]]:
        """Users with pairs, shuffled once, cut into blocks."""
        warm = np.flatnonzero(self.train.user_degrees)
        warm = stream(self.seed, "blocks").permutation(warm)
        count = -(-len(warm) // self.block_users)
        return [np.sort(part) for part in np.array_split(warm, count)]

    @property
    def n_steps(self) -> int:
        """Steps a pass takes."""
        if self.batching == "rows":
            return len(self._blocks)
        return -(-len(self.train) // self.batch_size)

    def batches(self, epoch: int) -> Iterator[Batch]:
        """The batches of pass number ``epoch``, which depend on the seed and that number only."""
        if self.batching == "pairs":
            yield from self._pair_batches(stream(self.seed, "batches", str(epoch)))
            return
        rng = stream(self.seed, "batches", str(epoch))
        for number in rng.permutation(len(self._blocks)).tolist():
            users = self._tensor(self._blocks[number], torch.int64)
            yield Batch(users, negatives=self._shared_negatives(rng), number=number)

    def _pair_batches(self, rng: np.random.Generator) -> Iterator[Batch]:
        order = rng.permutation(len(self.train))
        for start in range(0, len(order), self.batch_size):
            chosen = order[start : start + self.batch_size]
            users, items = self.train.users[chosen], self.train.items[chosen]
            negatives = self._negatives(rng, users)
            yield Batch(
                self._tensor(users, torch.int64),
                self._tensor(items, torch.int64),
                self._tensor(negatives, torch.int64),
            )

    def _shared_negatives(self, rng: np.random.Generator) -> Tensor | None:
        """Items drawn once for a block of users; None: all of them."""
        return None

    @abstractmethod
    def _negatives(
        self, rng: np.random.Generator, users: npt.NDArray[Any]
    ) -> npt.NDArray[np.int64]:
        """Negatives for each of some positives, by their users."""

    @abstractmethod
    def gradient(self, batch: Batch, U: Tensor, V: Tensor, *, value: bool = False) -> Gradient:
        """The gradient of the batch's share of the objective at (U, V)."""

    def factors(self) -> Factors:
        """The embeddings. A user without training pairs gets the mean of those who have some.

        Such a user has no gradient of their own; the mean ranks by average taste, which is the
        best guess there is. An item without pairs is pushed down as everybody's negative.
        """
        users = self.users.clone()
        cold = np.flatnonzero(self.train.user_degrees == 0)
        if len(cold):
            warm = self._tensor(np.flatnonzero(self.train.user_degrees), torch.int64)
            users[self._tensor(cold, torch.int64)] = users[warm].mean(dim=0)
        return Factors(users, self.items.clone())

    @abstractmethod
    def pairs_loss(self, batch: Batch, U: Tensor, V: Tensor) -> Tensor:
        """The loss of a batch of pairs, differentiable."""

    def pairs_gradient(self, batch: Batch, U: Tensor, V: Tensor, **options: Any) -> Gradient:
        """The gradient of :meth:`pairs_loss` with these options, for all of U and V."""
        with torch.enable_grad():
            u, v = U.detach().requires_grad_(), V.detach().requires_grad_()
            loss = self.pairs_loss(batch, u, v, **options)
            users, items = torch.autograd.grad(loss, (u, v))
        return Gradient(users, None, items, float(loss.detach()))

    @abstractmethod
    def _user_loss(self, items: npt.NDArray[np.int64], V: Tensor) -> Callable[[Tensor], Tensor]:
        """What the objective is for a new user with these items, as a function of the row."""

    def fold_in(
        self,
        items: npt.ArrayLike,
        *,
        ridge: float = 0.0,
        steps: int = 60,
        offset: bool = False,
    ) -> Tensor:
        """An embedding for a new user who has these items; the items' embeddings stay.

        It minimizes the user's own part of the objective, a convex function of one row, from
        the mean of the users.

        Args:
            items: ids of the items, at least one, each once.
            ridge: weight of the squared norm of the row beside the objective.
            steps: iterations of L-BFGS at most.
            offset: whether one number, free and then forgotten, is added to all scores of the user:
                for items in a gauge that has taken it from them, see :mod:`robustcf.gauge`.

        Returns:
            The embedding, of length dim.

        Cost: a few products of n_items x dim for each step.

        Example:
            >>> from robustcf.data import checkerboard
            >>> from robustcf.models import UltraGCN
            >>> UltraGCN(checkerboard().train, dim=4).fold_in([0, 2]).shape
            torch.Size([4])
        """
        ids = np.asarray(items)
        if ids.ndim != 1 or len(ids) == 0 or ids.dtype.kind not in "iu":
            raise InputError(f"fold-in needs a list of item ids, at least one, got {items!r}")
        if ids.min() < 0 or ids.max() >= self.train.n_items or len(np.unique(ids)) != len(ids):
            raise InputError(
                f"item ids must be in [0, {self.train.n_items}) and differ, got {ids.tolist()}"
            )
        check_number("ridge", ridge)
        # float64: the line search compares losses that differ by little.
        V = self.items.detach().double()
        start = self.users.detach().double().mean(dim=0)
        if offset:
            V, start = torch.cat([V, V.new_ones(len(V), 1)], 1), torch.cat([start, V.new_zeros(1)])
        loss = self._user_loss(ids.astype(np.int64), V)
        row = start.requires_grad_()
        optimizer = torch.optim.LBFGS(
            [row], max_iter=steps, tolerance_grad=1e-7, line_search_fn="strong_wolfe"
        )

        def closure() -> Tensor:
            optimizer.zero_grad()
            own = row[: self.dim]
            value = loss(row) + ridge * (own @ own)
            value.backward()  # type: ignore[no-untyped-call]
            return value

        optimizer.step(closure)  # type: ignore[no-untyped-call]
        return row.detach()[: self.dim].to(self.dtype)


def check_integer(name: str, value: object, least: int) -> None:
    """Raise unless value is an integer of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise InputError(f"{name} must be an integer of at least {least}, got {value!r}")


def check_number(name: str, value: object, *, positive: bool = False) -> None:
    """Raise unless value is a finite number that is not negative (or is positive)."""
    good = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not good or not np.isfinite(value) or value < 0 or (positive and value == 0):  # type: ignore[call-overload,operator]
        wanted = "positive" if positive else "not negative"
        raise InputError(f"{name} must be a finite number and {wanted}, got {value!r}")
