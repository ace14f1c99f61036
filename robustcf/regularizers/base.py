"""What every penalty is: settings, a value, and in-place ways to its gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from robustcf._checks import check_numbers
from robustcf._distributed import Rows
from robustcf.errors import InputError


@dataclass(frozen=True)
class RegularizerConfig:
    """Settings that every regularizer has in training.

    Args:
        weight: for every 1,024 training pairs: an epoch adds ``weight * pairs / 1024`` times the
            penalty to the summed loss, whatever the batching and the size of a step. At batches of
            1,024 pairs this is the published meaning, once per batch.
    """

    weight: float = 6.5e-5

    def __post_init__(self) -> None:
        check_numbers(self, prefix="reg_")


class Regularizer(nn.Module):
    """A penalty ``reg(U, V)``, with an in-place way to its gradient for large factors.

    Subclasses define ``forward``, which is all that a plain training loop needs. A loop that
    updates some rows of U at a time calls :meth:`add_gradient` instead.
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
        """Told once before training: how many pairs each user and each item has.

        Most penalties do not depend on it. Where users are on several ranks, these are the degrees
        of the users that are here, and of all items by all users.
        """

    def add_gradient(
        self,
        U: Tensor,
        V: Tensor,
        rows: Tensor | None,
        user_gradient: Tensor,
        item_gradient: Tensor,
        *,
        weight: float = 1.0,
        row_scale: float = 1.0,
    ) -> float:
        """Add ``weight`` times the gradient: of V to one tensor, of some rows of U to another.

        Args:
            U: all of U.
            V: all of V.
            rows: the rows that ``user_gradient`` holds, ascending; None for all.
            user_gradient: changed in place.
            item_gradient: changed in place.
            weight: of the penalty.
            row_scale: extra factor for the rows of U: a row that is visited in one of n steps
                takes n times its share then, so that all steps together do what they should.

        Returns:
            The penalty, without the weight.
        """
        return add_gradient(
            self,
            U,
            V,
            rows,
            user_gradient,
            item_gradient,
            weight=weight,
            row_scale=row_scale,
        )

    def add_shared_gradient(
        self,
        U: Tensor,
        V: Tensor,
        rows: Tensor | None,
        user_gradient: Tensor,
        item_gradient: Tensor,
        *,
        shared: Rows,
        weight: float = 1.0,
        row_scale: float = 1.0,
    ) -> float:
        """:meth:`add_gradient` where each of several ranks has some rows of U; all call it.

        Args:
            U: the rows of U that are here.
            V: all of V.
            rows: the rows that ``user_gradient`` holds, by their numbers here; None for all.
            user_gradient: changed in place.
            item_gradient: that of all ranks together, changed in place in the same way everywhere.
            shared: which rows are here.
            weight: of the penalty.
            row_scale: see :meth:`add_gradient`.

        Returns:
            The penalty of all ranks together, without the weight.

        Cost: here all of U goes to every rank, which is right for every penalty; those of this
        module say better.
        """
        return add_shared_gradient(
            self, U, V, rows, user_gradient, item_gradient,
            shared=shared, weight=weight, row_scale=row_scale,
        )  # fmt: skip


def add_shared_gradient(
    reg: nn.Module,
    U: Tensor,
    V: Tensor,
    rows: Tensor | None,
    user_gradient: Tensor,
    item_gradient: Tensor,
    *,
    shared: Rows,
    weight: float = 1.0,
    row_scale: float = 1.0,
) -> float:
    """:meth:`Regularizer.add_shared_gradient` for any module of two tensors.

    Cost: all of U goes to every rank, and each computes the whole penalty.
    """
    if shared.whole:
        everybody, here = U, rows
    else:
        # Nothing is known of the penalty but that it is a function of all rows.
        everybody = shared.ranks.joined(U)
        mine = torch.arange(len(U), device=U.device) if rows is None else rows
        here = mine + shared.start
    places = (user_gradient, item_gradient)
    if isinstance(reg, Regularizer):
        return reg.add_gradient(everybody, V, here, *places, weight=weight, row_scale=row_scale)
    return add_gradient(reg, everybody, V, here, *places, weight=weight, row_scale=row_scale)


def add_gradient(
    reg: nn.Module,
    U: Tensor,
    V: Tensor,
    rows: Tensor | None,
    user_gradient: Tensor,
    item_gradient: Tensor,
    *,
    weight: float = 1.0,
    row_scale: float = 1.0,
) -> float:
    """:meth:`Regularizer.add_gradient` for any module of two tensors, by autograd.

    Raises:
        InputError: the module does not return one number, as a tensor that depends on U or V.

    Cost: that of the module, forward and backward, and a gradient of U's size.
    """
    with torch.enable_grad():
        u, v = U.detach().requires_grad_(), V.detach().requires_grad_()
        value: Tensor = reg(u, v)
        _check_penalty(reg, value)
        gradients: tuple[Tensor | None, ...] = (None, None)
        if value.requires_grad:
            gradients = torch.autograd.grad(value, (u, v), allow_unused=True)
    to_u, to_v = gradients
    if to_u is not None:
        user_gradient.add_(to_u if rows is None else to_u[rows], alpha=weight * row_scale)
    if to_v is not None:
        item_gradient.add_(to_v, alpha=weight)
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
    """The penalty 0.

    Example:
        >>> float(NoPenalty()(torch.ones(2, 1), torch.ones(2, 1)))
        0.0
    """

    name = "none"

    def forward(self, U: Tensor, V: Tensor) -> Tensor:
        """Zero, on the device and in the dtype of U."""
        return U.new_zeros(())

    def add_shared_gradient(self, *places: Any, **options: Any) -> float:
        """Nothing."""
        return 0.0
