"""Rows of length 1: how they come out of parameters, and how gradients go back."""

from __future__ import annotations

import torch
from torch import Tensor


def unit_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows divided by their lengths, and the lengths (n x 1); a row of zeros stays one.

    Example:
        >>> rows, lengths = unit_rows(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        >>> rows.tolist(), lengths.flatten().tolist()
        ([[0.6000000238418579, 0.800000011920929], [0.0, 0.0]], [5.0, 1.0])
    """
    lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    lengths = torch.where(lengths > 0, lengths, torch.ones_like(lengths))
    return rows / lengths, lengths


def through_unit_rows(gradient: Tensor, units: Tensor, lengths: Tensor) -> Tensor:
    """The gradient for rows, from that for the rows divided by their lengths.

    It is ``(g - <g, x> x) / length``: no step changes a length to first order.

    Example:
        >>> g, x = torch.tensor([[1.0, 1.0]]), torch.tensor([[1.0, 0.0]])
        >>> through_unit_rows(g, x, torch.tensor([[2.0]])).tolist()
        [[0.0, 0.5]]
    """
    along = (gradient * units).sum(dim=1, keepdim=True)
    return torch.addcmul(gradient, units, along, value=-1.0).div_(lengths)
