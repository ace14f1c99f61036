"""What every penalty is: settings, a value, and its gradient in place."""

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
            1024`` times the penalty to the summed loss, whatever the batching. At batches of 1,024
            pairs this is the published meaning, once per batch.
    """

    weight: float = 6.5e-5

    def __post_init__(self) -> None:
        check_numbers(self, prefix="reg_")


@dataclass(frozen=True, eq=False)
class Accumulator:
    """Where a step adds the gradient of a penalty, and how much of it.

    Args:
        users: gradient of some rows of U, changed in place.
        items: gradient of V, changed in place; with several ranks, in the same way on each.
        rows: the rows that ``users`` holds, ascending; None for all.
        weight: of the penalty.
        row_scale: extra factor for the rows of U: a row that is visited in one of n steps takes
            n times its share then.
        shared: which rows of U this rank has; None where it has all.
    """

    users: Tensor
    items: Tensor
    rows: Tensor | None = None
    weight: float = 1.0
    row_scale: float = 1.0
    shared: Rows | None = None

    def owner(self, U: Tensor) -> Rows:
        """Which rows of the whole U are here."""
        return Rows.of(len(U), Ranks()) if self.shared is None else self.shared


class Regularizer(nn.Module):
    """A penalty ``reg(U, V)``, with an in-place way to its gradient for large factors.

    Subclasses define ``forward``, which is all that a plain training loop needs.
    """

    name: ClassVar[str] = ""
    Config: ClassVar[type[RegularizerConfig]] = RegularizerConfig
    #: What it is a penalty on, in a model whose scored factors are a function of its parameters.
    on: ClassVar[Literal["scored", "parameters"]] = "scored"
    #: Buffers that hold numbers of rows, of the users or, by ``side``, of the items.
    row_numbers: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def configured(cls, config: Any, seed: int = 0) -> Regularizer:
        """The regularizer that a config describes; here one without settings but its weight."""
        return cls()

    def prepare(self, user_degrees: Tensor, item_degrees: Tensor) -> None:
        """Told once before training: how many pairs each user (of this rank) and item has."""

    def add_gradient(self, U: Tensor, V: Tensor, into: Accumulator) -> float:
        """Add the gradient at (U, V), and return the penalty without the weight.

        With several ranks, U is the rows that are here, and all ranks call it. Cost: see
        :func:`add_gradient`; subclasses do better.
        """
        return add_gradient(self, U, V, into)


def add_gradient(reg: nn.Module, U: Tensor, V: Tensor, into: Accumulator) -> float:
    """:meth:`Regularizer.add_gradient` for any module of two tensors, by autograd.

    Cost: that of the module, forward and backward, and a gradient of U's size; with several
    ranks all of U goes to each, and each computes the whole penalty.

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
        gradients: tuple[Tensor | None, ...] = (None, None)
        if value.requires_grad:
            gradients = torch.autograd.grad(value, (u, v), allow_unused=True)
    to_u, to_v = gradients
    if to_u is not None:
        into.users.add_(to_u if rows is None else to_u[rows], alpha=into.weight * into.row_scale)
    if to_v is not None:
        into.items.add_(to_v, alpha=into.weight)
    return float(value.detach())


def _check_penalty(reg: nn.Module, value: object) -> None:
    wanted = f"the penalty of {type(reg).__name__} must be a tensor of one number"
    if not isinstance(value, Tensor):
        kind = type(value).__name__
        raise InputError(f"{wanted}, got {kind}: compute it by torch, without float() or .item()")
    if value.numel() != 1:
        raise InputError(f"{wanted}, got one of shape {tuple(value.shape)}: sum it up")
    # A constant 0 has no gradient and needs none.
    if not value.requires_grad and bool(value != 0):
        raise InputError(
            f"{wanted} that depends on U or V, got {float(value):g} without a gradient: leave out "
            "detach(), numpy() and no_grad() in forward"
        )


class NoPenalty(Regularizer):
    """The penalty 0."""

    name = "none"

    def forward(self, U: Tensor, V: Tensor) -> Tensor:
        """Zero, on the device and in the dtype of U."""
        return U.new_zeros(())

    def add_gradient(self, U: Tensor, V: Tensor, into: Accumulator) -> float:
        """Nothing."""
        return 0.0
