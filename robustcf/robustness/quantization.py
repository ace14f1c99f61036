"""Quantization: the perturbation that serving embeddings in fewer bits does by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from robustcf._checks import check_choice
from robustcf.attacks.budgets import RowBudget
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.metrics.evaluate import MetricReport
from robustcf.recommender import Recommender, check_recommender

KINDS: tuple[str, ...] = ("float32", "bfloat16", "float16", "int8")
# Levels either side of zero, of the kinds that have a scale for each row. Tables leave int4 out:
# nobody serves from it without a second look.
_LEVELS = {"int8": 127, "int4": 7}


def quantize(factors: Factors, kind: str, fixed: Sequence[int] = ()) -> Factors:
    """Round embeddings to fewer bits and read them back in their own dtype.

    Args:
        factors: finite embeddings.
        kind: ``float32``, ``bfloat16`` or ``float16``: the nearest number of that type. ``int8``:
            127 levels either side of zero for each row, ``round(x / s) * s`` with
            ``s = max |x| / 127``; ``int4``: the same with 7 levels.
        fixed: columns that stay as they are and do not count in a row's scale: biases, which are
            served in full precision next to the vectors.

    Raises:
        InputError: an unknown kind, or entries beyond what the type can hold.

    Example:
        >>> row = torch.tensor([[1.27, -0.004, 0.0]])
        >>> quantize(Factors(row, row), "int8").users.round(decimals=4).tolist()
        [[1.2699999809265137, -0.0, 0.0]]
    """
    check_choice("kind", kind, dict.fromkeys((*KINDS, *_LEVELS)))
    factors.check_finite()
    free = [column for column in range(factors.dim) if column not in fixed]
    parts = [part.clone() for part in factors]
    for name, part in zip(("users", "items"), parts, strict=True):
        part[:, free] = _rounded(part[:, free], kind)
        if not bool(torch.isfinite(part).all()):
            raise InputError(
                f"{name} have entries beyond what {kind} can hold: rescale them first "
                "(a common factor changes no ranking)"
            )
    return Factors(*parts)


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


@dataclass(frozen=True, eq=False)
class Quantized:
    """The metrics of factors in fewer bits, and how far they moved.

    Args:
        kind: one of :data:`KINDS`.
        metrics: the evaluation.
        absolute: ``users`` and ``items`` -> the largest row of the perturbation.
        relative: the same in median row norms of the factor, as the relative epsilon of a row
            budget; None where that median is zero.
    """

    kind: str
    metrics: MetricReport
    absolute: dict[str, float]
    relative: dict[str, float | None]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        moved = {"realised": self.absolute, "realised_relative": self.relative}
        return {**self.metrics.values, **moved}


def quantization_table(
    model: Recommender, ks: Sequence[int] = (10, 20), *, kinds: Sequence[str] = KINDS
) -> tuple[Quantized, ...]:
    """Quantize a model's factors in every kind and evaluate each; fixed columns stay as they are.

    Cost: one evaluation per kind.

    Example:
        >>> import torch
        >>> from robustcf.data import checkerboard
        >>> parity = torch.eye(2)[torch.arange(30) % 2]
        >>> table = quantization_table(Recommender(parity[:20], parity, checkerboard()))
        >>> [(row.kind, row.absolute["users"]) for row in table][:2]
        [('float32', 0.0), ('bfloat16', 0.0)]
    """
    check_recommender(model)
    budget, table = RowBudget(), []
    for kind in kinds:
        rounded = quantize(model.factors, kind, model.fixed)
        absolute: dict[str, float] = {}
        relative: dict[str, float | None] = {}
        for name, before, after in zip(("users", "items"), model.factors, rounded, strict=True):
            absolute[name] = budget.measure(after.double() - before.double())
            unit = budget.unit(before[:, model.free])
            relative[name] = absolute[name] / unit if unit else None
        table.append(Quantized(kind, model.evaluate(ks, rounded), absolute, relative))
    return tuple(table)
