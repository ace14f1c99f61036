"""Rows of length 1: how they come out of parameters, and how gradients go back."""

from __future__ import annotations

import torch
from torch import Tensor

# Rows at a time: what is in between stays in the cache. Tensors of the size of a catalogue are not
# made anew in every step, since what the system hands out it clears first.
_ROWS = 4096


def unit_rows(rows: Tensor, out: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
    """Rows divided by their lengths, and the lengths (n x 1); a row of zeros stays one.

    Args:
        rows: n x d.
        out: tensors to write both into, and to return; None makes new ones.

    Example:
        >>> rows, lengths = unit_rows(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        >>> rows.tolist(), lengths.flatten().tolist()
        ([[0.6000000238418579, 0.800000011920929], [0.0, 0.0]], [5.0, 1.0])
    """
    units, lengths = (torch.empty_like(rows), rows.new_empty(len(rows), 1)) if out is None else out
    for start in range(0, len(rows), _ROWS):
        span = slice(start, start + _ROWS)
        norms = torch.linalg.vector_norm(rows[span], dim=1, keepdim=True)
        lengths[span] = torch.where(norms > 0, norms, torch.ones_like(norms))
        torch.div(rows[span], lengths[span], out=units[span])
    return units, lengths


def through_unit_rows(
    gradient: Tensor, units: Tensor, lengths: Tensor, out: Tensor | None = None
) -> Tensor:
    """The gradient for rows, from that for the rows divided by their lengths.

    It is ``(g - <g, x> x) / length``: no step changes a length to first order.

    Args:
        gradient: n x d.
        units: the rows divided by their lengths.
        lengths: n x 1.
        out: a tensor to write it into, the gradient itself perhaps; None makes a new one.

    Example:
        >>> g, x = torch.tensor([[1.0, 1.0]]), torch.tensor([[1.0, 0.0]])
        >>> through_unit_rows(g, x, torch.tensor([[2.0]])).tolist()
        [[0.0, 0.5]]
    """
    found = torch.empty_like(gradient) if out is None else out
    for start in range(0, len(gradient), _ROWS):
        span = slice(start, start + _ROWS)
        g, x = gradient[span], units[span]
        along = (g * x).sum(dim=1, keepdim=True)
        torch.addcmul(g, x, along, value=-1.0, out=found[span]).div_(lengths[span])
    return found
