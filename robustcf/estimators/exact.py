"""The exact norm: from entries or factors if they are known, else by products."""

from __future__ import annotations

import torch
from torch import Tensor

from robustcf.errors import InputError
from robustcf.estimators.estimate import NormEstimate, Run
from robustcf.estimators.lowrank import LowRank
from robustcf.estimators.numerics import Seed, blocks, row_norms
from robustcf.estimators.operators import (
    Counted,
    Matrix,
    MatrixLike,
    Operator,
    bad_rows_error,
    unit_vectors,
)

_BLOCK = 64


def exact(
    A: MatrixLike,
    budget: int | None = None,
    *,
    verify: int | None = None,
    generator: Seed = None,
    delta: float = 0.05,
) -> NormEstimate:
    """Compute ||A||_{2->inf} exactly (up to rounding), ties to the lowest row.

    Cost: dense and sparse matrices are read once, ``LowRank`` uses the Gram matrix of V. Any other
    operator (a Jacobian, two functions) takes one product per row or column (the smaller number),
    and one with A^H to read the row with gradients.

    Args:
        budget: None, or an error is raised if more products would be needed.
        verify: accepted so that all methods are called alike, as ``generator`` and ``delta``.

    Example:
        >>> answer = exact(torch.tensor([[3.0, 4.0], [6.0, 8.0]]))
        >>> float(answer.value), answer.row
        (10.0, 1)
    """
    run = Run(A, None, 1 if verify is None else verify, generator, delta, method="exact")
    if run.trivial:
        return run.conclude_trivial()
    operator = run.op.operator
    if budget is not None:
        need = exact_cost(operator)
        if budget < need:
            raise InputError(f"exact needs a budget of at least {need} products, got {budget}")
        run.op.budget = budget
    with torch.no_grad():
        norms = _refined(operator) if isinstance(operator, LowRank) else known_norms(operator)
        if norms is None:
            norms = norms_by_products(run.op)
    if not bool(torch.isfinite(norms).all()):
        raise bad_rows_error(norms[:, None], run.op.dtype)
    run.read_largest(norms)
    return run.conclude(0.0)


def exact_cost(operator: Operator) -> int:
    """Return the products `exact` needs: one, plus the smaller side if norms are unknown."""
    known = getattr(type(operator), "row_norms", Matrix.row_norms) is not Matrix.row_norms
    return 1 if known else 1 + min(operator.shape)


def known_norms(operator: Operator) -> Tensor | None:
    """Return all row norms from entries or factors, or None."""
    method = getattr(operator, "row_norms", None)
    norms: Tensor | None = method() if callable(method) else None
    return norms


def norms_by_products(op: Counted) -> Tensor:
    """Return all row norms by min(d, n) products with unit vectors, in blocks."""
    d, n = op.shape
    norms = torch.zeros(d, dtype=torch.float64, device=op.device)
    for index in blocks(torch.arange(min(d, n), device=op.device), _BLOCK):
        if d <= n:
            norms[index] = row_norms(op.rows(index))
        else:
            # Norms of column blocks combine as hypot does, so no square leaves the range.
            norms = torch.hypot(norms, row_norms(op.matmat(unit_vectors(op, n, index))))
    return norms


def _refined(operator: LowRank) -> Tensor:
    """Row norms of U V^T: float32 for all rows, then again with care for those that may lead."""
    quick = operator.quick_scores()
    if quick is None:
        return operator.row_norms()
    # Gram sums of float32 blocks err by far less than this; rows below it cannot lead.
    close = torch.nonzero(quick >= quick.max() * (1 - 1e-3)).flatten()
    norms = quick.to(torch.float64).clamp_min(0).sqrt()
    if len(close) <= _BLOCK:
        norms[close] = row_norms(operator.rows(close))
    else:
        norms[close] = LowRank(operator.U[close], operator.V).row_norms()
    return norms
