"""What quantization costs: metrics and the size of the perturbation, one row per kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from robustcf.attacks.budgets import RowBudget
from robustcf.attacks.quantization import KINDS, quantize
from robustcf.metrics.evaluate import MetricReport
from robustcf.recommender import Recommender, check_recommender


@dataclass(frozen=True, eq=False)
class Quantized:
    """Factors in fewer bits: what they are worth, and how far they moved.

    Args:
        kind: one of :data:`robustcf.attacks.quantization.KINDS`.
        metrics: the evaluation.
        absolute: ``users`` and ``items`` -> the largest row of the perturbation.
        relative: the same in median row norms of the factor, so that it compares with the relative
            epsilon of a row budget; None where that median is zero.
    """

    kind: str
    metrics: MetricReport
    absolute: dict[str, float]
    relative: dict[str, float | None]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            **self.metrics.values,
            "realised": self.absolute,
            "realised_relative": self.relative,
        }


def quantization_table(
    model: Recommender, ks: Sequence[int] = (10, 20), *, kinds: Sequence[str] = KINDS
) -> tuple[Quantized, ...]:
    """Quantize a model's factors in every kind and evaluate each.

    Columns held fixed (biases) are kept as they are, and count in no scale and no length.

    Args:
        model: what is quantized.
        ks: cutoffs of the metrics.
        kinds: which ones, in this order.

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
    budget, factors, free = RowBudget(), model.factors, model.free
    units = {
        "users": budget.unit(factors.users[:, free]),
        "items": budget.unit(factors.items[:, free]),
    }
    table = []
    for kind in kinds:
        rounded = quantize(factors, kind, model.fixed)
        moved = {
            "users": budget.measure(rounded.users.double() - factors.users.double()),
            "items": budget.measure(rounded.items.double() - factors.items.double()),
        }
        table.append(
            Quantized(
                kind=kind,
                metrics=model.evaluate(ks, rounded),
                absolute=moved,
                relative={n: moved[n] / units[n] if units[n] else None for n in moved},
            )
        )
    return tuple(table)
