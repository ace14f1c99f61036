"""The exact norm: from entries or factors where they are at hand, else by products."""

from __future__ import annotations

import torch
from torch import Tensor

from robustcf.errors import InputError
from robustcf.estimators.estimate import NormEstimate, Run
from robustcf.estimators.lowrank import LowRank
from robustcf.estimators.numerics import Seed, row_norms
from robustcf.estimators.operators import Counted, MatrixLike, Operator, bad_rows_error

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

    Dense and sparse matrices are read once, ``LowRank`` goes by the Gram matrix of V: no products.
    Any other operator (a Jacobian, two functions) takes one product for every row or for every
    column, whichever are fewer. The row is found without gradients and then read with them: one
    product with A^H, none if the rows were read anyway.

    Args:
        A: a matrix or operator.
        budget: None, or an error is raised if more products would be needed.
        verify: like the next two, accepted so that all methods are called alike.
        generator: nothing is random.
        delta: lower and upper are equal.

    Example:
        >>> answer = exact(torch.tensor([[3.0, 4.0], [6.0, 8.0]]))
        >>> float(answer.value), answer.row
        (10.0, 1)
    """
    run = Run(A, None, 1 if verify is None else verify, generator, delta, method="exact")
    return run.carry_out(lambda run: _read_largest(run, budget))


def _read_largest(run: Run, budget: int | None) -> NormEstimate:
    if budget is not None:
        need = exact_cost(run.op.operator)
        if budget < need:
            raise InputError(
                f"exact needs a budget of at least {need} products here, got {budget}: raise it"
            )
        run.op.budget = budget
    operator = run.op.operator
    with torch.no_grad():
        norms = _refined(operator) if isinstance(operator, LowRank) else known_norms(operator)
        if norms is None:
            norms = norms_by_products(run.op)
        bad = torch.nonzero(torch.isnan(norms) | (norms == torch.inf)).flatten()
    if len(bad):
        raise bad_rows_error(bad, run.op.shape[0], run.op.dtype)
    run.read(norms.argmax().reshape(1))
    run.verified[:] = True
    return run.conclude(0.0)


def exact_cost(operator: Operator) -> int:
    """Products `exact` needs: one to read the row, plus the smaller side if norms are unknown."""
    cheap = isinstance(operator, LowRank) or knows_norms(operator)
    d, n = operator.shape
    return 1 if cheap else 1 + min(d, n)


def knows_norms(operator: Operator) -> bool:
    """Whether the operator offers all its row norms cheaper than by products."""
    from robustcf.estimators.operators import Dense
    from robustcf.estimators.sparse import ScipySparse, TorchSparse

    return isinstance(operator, (Dense, LowRank, ScipySparse, TorchSparse))


def known_norms(operator: Operator) -> Tensor | None:
    """All row norms from entries or factors, or None."""
    method = getattr(operator, "row_norms", None)
    norms: Tensor | None = method() if callable(method) else None
    return norms


def norms_by_products(op: Counted) -> Tensor:
    """All row norms by min(d, n) products with unit vectors, in blocks."""
    d, n = op.shape
    by_rows = d <= n
    side = d if by_rows else n
    norms = torch.zeros(d, dtype=torch.float64, device=op.device)
    for start in range(0, side, _BLOCK):
        index = torch.arange(start, min(start + _BLOCK, side), device=op.device)
        if by_rows:
            norms[index] = row_norms(op.rows(index))
            continue
        units = torch.zeros(n, len(index), dtype=op.dtype, device=op.device)
        units[index, torch.arange(len(index), device=op.device)] = 1
        part = row_norms(op.matmat(units))
        # Norms of column blocks combine as hypot does, so no square leaves the range.
        norms = torch.hypot(norms, part)
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
