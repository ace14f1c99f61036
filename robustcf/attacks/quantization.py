"""Quantization: the perturbation that serving embeddings in fewer bits does by itself."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from robustcf._checks import check_choice
from robustcf.errors import InputError
from robustcf.factors import Factors

KINDS: tuple[str, ...] = ("float32", "bfloat16", "float16", "int8")
# Levels either side of zero, of the kinds that have a scale for each row. The table of
# ``robustcf attack`` leaves int4 out: nobody serves from it without a second look.
_LEVELS = {"int8": 127, "int4": 7}


def quantize(factors: Factors, kind: str, fixed: Sequence[int] = ()) -> Factors:
    """Round embeddings to fewer bits and read them back in their own dtype.

    Args:
        factors: finite embeddings.
        kind: ``float32``, ``bfloat16`` or ``float16``: the nearest number of that type.
            ``int8``: each row is 127 levels either side of zero, the largest entry of the row
            being the last one: ``round(x / s) * s`` with ``s = max |x| / 127``. Zero rows stay.
            ``int4``: the same with 7 levels.
        fixed: columns that stay as they are and do not count in a row's scale: biases, which are
            one number a row and are served in full precision next to the vectors.

    Returns:
        Factors that hold exactly what the smaller type can hold (for int8, up to the rounding of
        the product with the row's scale), but for the fixed columns.

    Raises:
        InputError: an unknown kind, or entries beyond what the type can hold.

    Cost: one pass over the factors.

    Example:
        >>> row = torch.tensor([[1.27, -0.004, 0.0]])
        >>> quantize(Factors(row, row), "int8").users.round(decimals=4).tolist()
        [[1.2699999809265137, -0.0, 0.0]]
    """
    check_choice("kind", kind, dict.fromkeys((*KINDS, *_LEVELS)))
    factors.check_finite()
    free = [column for column in range(factors.dim) if column not in fixed]
    parts = [part.clone() for part in factors]
    for part in parts:
        part[:, free] = _rounded(part[:, free], kind)
    rounded = Factors(*parts)
    for name, part in (("users", rounded.users), ("items", rounded.items)):
        if not bool(torch.isfinite(part).all()):
            raise InputError(
                f"{name} have entries beyond what {kind} can hold: rescale them first "
                "(a common factor changes no ranking)"
            )
    return rounded


def _rounded(part: Tensor, kind: str) -> Tensor:
    if kind not in _LEVELS:
        narrow: torch.dtype = getattr(torch, kind)
        return part.to(narrow).to(part.dtype)
    # In float64, so that the levels are those of the definition and not of the dtype's rounding.
    wide = part.double()
    most = _LEVELS[kind]
    scale = wide.abs().amax(dim=1, keepdim=True) / most if part.shape[1] else wide
    levels = torch.where(scale > 0, wide / scale, 0.0).round().clamp(-most, most)
    return (levels * scale).to(part.dtype)
