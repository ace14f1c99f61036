"""The base of penalties: settings, a value, and its gradient in place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from robustcf._checks import check_numbers
from robustcf._distributed import Ranks, Rows
from robustcf.errors import InputError


@dataclass(frozen=True)
class RegularizerConfig:
    """Settings that every regularizer has in training.

    Args:
        weight: weight of the penalty, per 1,024 training pairs. An epoch adds ``weight * pairs /
            1024`` times the penalty to the summed loss, for every batching. At batches of 1,024
            pairs this is the published meaning, once per batch.
    """

    weight: float = 6.5e-5

    def __post_init__(self) -> None:
        check_numbers(self, prefix="reg_")


@dataclass(frozen=True, eq=False)
class Accumulator:
    """The gradients to which a step adds that of a penalty.

    Args:
        users: gradient of some rows of U, changed in place.
        items: gradient of V, changed in place; the same on every rank.
        rows: the rows that ``users`` holds, ascending; None for all.
        weight: of the penalty.
        row_scale: extra factor for the rows of U: n for rows visited in one of n steps.
        shared: the rows of U that this rank has; None for all.
    """

    users: Tensor
    items: Tensor
    rows: Tensor | None = None
    weight: float = 1.0
    row_scale: float = 1.0
    shared: Rows | None = None

    def owner(self, U: Tensor) -> Rows:
        """Return the rows of the whole U that are here."""
        return Rows.of(len(U), Ranks()) if self.shared is None else self.shared


class Regularizer(nn.Module):
    """A penalty ``reg(U, V)``; subclasses define ``forward``, and may add gradients in place."""

    name: ClassVar[str] = ""
    Config: ClassVar[type[RegularizerConfig]] = RegularizerConfig
    #: The penalized factors, in a model whose scored factors are a function of its parameters.
    on: ClassVar[Literal["scored", "parameters"]] = "scored"
    #: Buffers that hold row numbers, of the users or, by ``side``, of the items.
    row_numbers: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def configured(cls, config: Any, seed: int = 0) -> Regularizer:
        """Return the regularizer that a config describes; here without settings."""
        return cls()

    def prepare(self, user_degrees: Tensor, item_degrees: Tensor) -> None:
        """Take the numbers of pairs per user (of this rank) and item, once before training."""

    def add_gradient(self, U: Tensor, V: Tensor, into: Accumulator) -> float:
        """Add the gradient at (U, V), and return the penalty without the weight.

        With several ranks, U has the rows that are here, and all ranks call it.
        """
        return add_gradient(self, U, V, into)


def add_gradient(reg: nn.Module, U: Tensor, V: Tensor, into: Accumulator) -> float:
    """Add the gradient of any module of two tensors, by autograd.

    Cost: forward and backward of the module, and a gradient of U's size; all of U goes to each
    rank.

    Raises:
        InputError: the module does not return one number, as a tensor that depends on U or V.
    """
    rows, shared = into.rows, into.owner(U)
    if not shared.whole:
        mine = torch.arange(len(U), device=U.device) if rows is None else rows
        U, rows = shared.ranks.joined(U), mine + shared.start
    with torch.enable_grad():
        u, v = U.detach().requires_grad_(), V.detach().requires_grad_()
        value: Tensor = reg(u, v)
        _check_penalty(reg, value)
        to_u = to_v = None
        if value.requires_grad:
            to_u, to_v = torch.autograd.grad(value, (u, v), allow_unused=True)
    if to_u is not None:
        into.users.add_(to_u if rows is None else to_u[rows], alpha=into.weight * into.row_scale)
    if to_v is not None:
        into.items.add_(to_v, alpha=into.weight)
    return float(value.detach())


def _check_penalty(reg: nn.Module, value: object) -> None:
    wanted = f"the penalty of {type(reg).__name__} must be a tensor of one number"
    if not isinstance(value, Tensor):
        raise InputError(f"{wanted}, got {type(value).__name__}: leave out float() and .item()")
    if value.numel() != 1:
        raise InputError(f"{wanted}, got shape {tuple(value.shape)}: sum it up")
    if not value.requires_grad and bool(value != 0):  # a constant 0 needs no gradient
        got = f"got {float(value):g} without a gradient"
        raise InputError(f"{wanted} of U or V, {got}: leave out detach(), numpy() and no_grad()")


class NoPenalty(Regularizer):
    """The penalty 0."""

    name = "none"

    def forward(self, U: Tensor, V: Tensor) -> Tensor:
        """Return zero, on the device and in the dtype of U."""
        return U.new_zeros(())

    def add_gradient(self, U: Tensor, V: Tensor, into: Accumulator) -> float:
        """Add nothing."""
        return 0.0
