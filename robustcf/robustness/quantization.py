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
# Levels either side of zero, of the kinds with a scale per row.
_LEVELS = {"int8": 127, "int4": 7}


def quantize(factors: Factors, kind: str, fixed: Sequence[int] = ()) -> Factors:
    """Round embeddings to fewer bits and read them back in their own dtype.

    Args:
        factors: finite embeddings.
        kind: ``float32``, ``bfloat16`` or ``float16``: the nearest number of that type. ``int8``:
            ``round(x / s) * s`` with ``s = max |x| / 127`` per row; ``int4``: the same with 7.
        fixed: columns (biases) that stay as they are and do not count in a row's scale.

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
            advice = "rescale them first (a common factor changes no ranking)"
            raise InputError(f"{name} have entries beyond the range of {kind}: {advice}")
    return Factors(*parts)


def _rounded(part: Tensor, kind: str) -> Tensor:
    if kind not in _LEVELS:
        narrow: torch.dtype = getattr(torch, kind)
        return part.to(narrow).to(part.dtype)
    # In float64, so that the levels are exact.
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
        relative: the same in median row norms of the factor; None where that median is zero.
    """

    kind: str
    metrics: MetricReport
    absolute: dict[str, float]
    relative: dict[str, float | None]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        moved = {"realised": self.absolute, "realised_relative": self.relative}
        return {**self.metrics.values, **moved}


def quantized(model: Recommender, kind: str) -> Factors:
    """Return a model's embeddings, served in fewer bits; computed users by the rounded items."""
    if model.histories is None:
        return quantize(model.factors, kind, model.fixed)
    table, V = model.arrays
    return model.histories.factors(Factors(table, quantize(Factors(V, V), kind).items))


def quantization_table(
    model: Recommender, ks: Sequence[int] = (10, 20), *, kinds: Sequence[str] = KINDS
) -> tuple[Quantized, ...]:
    """Quantize a model's factors in every kind and evaluate each; fixed columns stay as they are.

    Cost: one evaluation per kind.
    """
    check_recommender(model)
    budget, table = RowBudget(), []
    for kind in kinds:
        rounded = quantized(model, kind)
        absolute, relative = dict[str, float](), dict[str, float | None]()
        for name, before, after in zip(("users", "items"), model.factors, rounded, strict=True):
            absolute[name] = budget.measure(after.double() - before.double())
            unit = budget.unit(before[:, model.free])
            relative[name] = absolute[name] / unit if unit else None
        table.append(Quantized(kind, model.evaluate(ks, rounded), absolute, relative))
    return tuple(table)
