"""Sketch and verify (SAVE): look first, choose the cheapest way to rank, read the leaders."""

from __future__ import annotations

import torch
from torch import Tensor

from robustcf.estimators.estimate import NormEstimate, Run, ranking_method
from robustcf.estimators.exact import norms_by_products
from robustcf.estimators.numerics import row_norms
from robustcf.estimators.planning import FirstLook, Plan, choose, options
from robustcf.estimators.sketches import chi2_bounds
from robustcf.estimators.twinest import gram_bounds, gram_samples

# Chosen by trial on the first half of the suite in scripts/bench_estimators.py.
_LOOK_SHARE = 0.4
# Above this the rows are too correlated for Hutchinson; the exact correlation costs a product.
_CORRELATION_GATE = 4.0


@ranking_method(cost=2, verify=1, name="save")
def sketch_and_verify(run: Run) -> NormEstimate:
    """Estimate ||A||_{2->inf} by a sketch, the continuation it recommends, and verification.

    1. Look: Y = A G with s = 0.4 budget Gaussian columns, and the best row read.
    2. Choose, by simulation on Y (no products): sketch on; or Hutchinson's samples of A A^H, if one
       more product has shown them to be the less noisy ones; or deflate r directions: Q =
       orth(A^H P), P the leading left singular vectors of Y, splits every row orthogonally into
       ||A_i Q||^2, exact, and a rest that is sketched.
    3. Verify: the products left over read the best-ranked rows.

    With a budget of the smaller side of A (one more for columns) every norm is computed instead.

    Arguments: see `two_to_inf`; the budget is at least 3, and more than ``verify`` rows are read
    if the simulation recommends it.

    Example:
        >>> A = torch.ones(100, 50, dtype=torch.float64)
        >>> A[42] *= 3
        >>> sketch_and_verify(A, 20, generator=0).row
        42
    """
    op, (d, n) = run.op, run.op.shape
    if op.left >= d:
        run.read(torch.arange(d, device=op.device))
        return run.conclude(0.0)
    if op.left >= n + 1:
        run.read_largest(norms_by_products(op))
        return run.conclude(0.0)
    s = max(1, min(round(_LOOK_SHARE * op.left), op.left - run.verify - 1))
    G = run.normals(s)
    look = FirstLook(op.matmat(G))
    run.read_best(look.squares, 1)
    plan, rho = _plan(run, look)
    scores, more = _follow(run, look, G, plan, rho)
    # Each bound may fail with probability delta / 2, the second one given the first look.
    bounds = chi2_bounds(look.norms, s, op.dtype.is_complex, run.delta / 2)
    run.read_best(scores, op.left)
    return run.conclude(torch.minimum(bounds, more * look.scale))


def _plan(run: Run, look: FirstLook) -> tuple[Plan, float | None]:
    """Choose a plan; if Hutchinson has a chance, one product settles its variance first."""
    op, rho = run.op, None
    row = run.best_row or 0
    pool = run.leaders(look.squares, len(look.squares))
    if op.left > run.verify + 4 and look.correlation(row) < _CORRELATION_GATE:
        norm = run.norms[row]
        unit = run.best_vector / torch.where(norm > 0, norm, torch.ones_like(norm))
        image = row_norms(op.matmat(unit.conj().reshape(-1, 1).to(op.dtype)).mT)[0]
        rho = float((image / norm) ** 2) if float(norm) > 0 else None
    plans = [plan for plan in options(look, op.left, rho) if plan.verify >= run.verify]
    best = (run.lower / look.scale) ** 2
    fallback = Plan("sketch", 0, op.left - run.verify, run.verify)
    return choose(look, plans or [fallback], pool, best, rho, run.generator), rho


def _follow(
    run: Run, look: FirstLook, G: Tensor, plan: Plan, rho: float | None
) -> tuple[Tensor, Tensor]:
    """Scores of all rows after the plan, and its own upper bounds, on the scale of ``look``."""
    op, scale = run.op, look.scale
    s, t, half = G.shape[1], plan.samples, run.delta / 2
    if plan.kind == "hutchinson" and rho is not None:
        probe = gram_samples(op, run.signs(t))
        hutchinson = probe.samples.mean(dim=1) * (probe.scale / scale**2)
        # Inverse variances: 2 / s for the sketch, (rho - 1) / t for Hutchinson.
        first, second = s / 2, t / max(rho - 1, 1e-9)
        scores = (first * look.squares + second * hutchinson) / (first + second)
        return scores, gram_bounds(probe.samples, probe.scale, half) / scale
    Q, known, old = G[:, :0], run.zeros(), look.squares * s
    if plan.rank:
        Q = run.row_basis(look.directions(plan.rank))
        B = op.matmat(Q) / scale
        known = row_norms(B) ** 2
        old = row_norms(look.Y - B @ (Q.mH @ G)) ** 2
    fresh = run.sketch_off(Q, t) / scale if t else run.zeros()
    scores = known + (old + fresh**2) / (s + t)
    bounds = torch.hypot(known.sqrt(), chi2_bounds(fresh, t, op.dtype.is_complex, half))
    return scores, bounds
