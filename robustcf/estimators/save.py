"""Sketch and verify (SAVE): look first, choose the cheapest way to rank, read the leaders."""

from __future__ import annotations

import torch
from torch import Tensor

from robustcf.estimators.estimate import NormEstimate, Run
from robustcf.estimators.exact import norms_by_products
from robustcf.estimators.numerics import Seed, norm_scale, orthonormal, row_norms
from robustcf.estimators.operators import MatrixLike
from robustcf.estimators.planning import FirstLook, Plan, choose, options
from robustcf.estimators.sketches import chi2_bounds
from robustcf.estimators.twinest import gram_bounds, gram_samples

# Chosen by trial on the first half of the suite in scripts/bench_estimators.py.
_LOOK_SHARE = 0.4
# Above this the rows are too correlated for Hutchinson, and finding out exactly costs a product.
_CORRELATION_GATE = 4.0


def sketch_and_verify(
    A: MatrixLike,
    budget: int,
    *,
    verify: int | None = None,
    generator: Seed = None,
    delta: float = 0.05,
) -> NormEstimate:
    """Estimate ||A||_{2->inf} by a sketch, the continuation it recommends, and verification.

    1. Look: Y = A G with s = 0.4 budget Gaussian columns, and the best row read.
    2. Choose, by simulation on Y (no products): sketch on; or Hutchinson's samples of A A^H, if one
       more product has shown them to be the less noisy ones; or deflate r directions: Q =
       orth(A^H P), P the leading left singular vectors of Y, splits every row orthogonally into
       ||A_i Q||^2, exact, and a rest that is sketched.
    3. Verify: the products left over read the best-ranked rows.

    With a budget of the smaller side of A (one more for columns) every norm is computed instead.

    Arguments: see `two_to_inf`; the budget is at least 3, and more than ``verify`` rows are read
    where the simulation recommends it.

    Example:
        >>> A = torch.ones(100, 50, dtype=torch.float64)
        >>> A[42] *= 3
        >>> sketch_and_verify(A, 20, generator=0).row
        42
    """
    run = Run(
        A, budget, 1 if verify is None else verify, generator, delta, method="save", samples_cost=2
    )
    return run.carry_out(_look_choose_verify)


def _look_choose_verify(run: Run) -> NormEstimate:
    op, (d, n) = run.op, run.op.shape
    if op.left >= min(d, n + 1):
        return _everything(run)
    with torch.no_grad():
        s = max(1, min(round(_LOOK_SHARE * op.left), op.left - run.verify - 1))
        G = run.normals(s)
        Y = op.matmat(G)
        scale = norm_scale(Y)
        norms = row_norms(Y)
        bounds = chi2_bounds(norms, s, Y.is_complex(), run.delta / 2)
        squares = (norms / scale) ** 2 / s
        run.read_best(squares, 1)
        look = FirstLook.of(Y / scale, squares)
        plan, rho = _plan(run, look, scale)
        scores, more = _follow(run, look, G, plan, rho, scale)
        # Each bound may fail with probability delta / 2, the second one given the first look.
        bounds = torch.minimum(bounds, more * scale)
        run.read_best(scores, op.left)
    return run.conclude(bounds)


def _everything(run: Run) -> NormEstimate:
    d = run.op.shape[0]
    with torch.no_grad():
        if run.op.left >= d:
            run.read(torch.arange(d, device=run.op.device))
        else:
            run.read(norms_by_products(run.op).argmax().reshape(1))
            run.verified[:] = True
    return run.conclude(0.0)


def _plan(run: Run, look: FirstLook, scale: float) -> tuple[Plan, float | None]:
    """Choose a plan; where Hutchinson has a chance, one product settles its variance first."""
    op, rho = run.op, None
    row = run.best_row or 0
    pool = run.leaders(look.squares, len(look.squares))
    if op.left > run.verify + 4 and look.correlation(row) < _CORRELATION_GATE:
        norm = run.norms[row]
        unit = run.best_vector / torch.where(norm > 0, norm, torch.ones_like(norm))
        image = row_norms(op.matmat(unit.conj().reshape(-1, 1).to(op.dtype)).mT)[0]
        rho = float((image / norm) ** 2) if float(norm) > 0 else None
    plans = [p for p in options(look, op.left, rho) if p.verify >= run.verify]
    best = (run.lower / scale) ** 2
    fallback = Plan("sketch", 0, op.left - run.verify, run.verify)
    return choose(look, plans or [fallback], pool, best, rho, run.generator), rho


def _follow(
    run: Run, look: FirstLook, G: Tensor, plan: Plan, rho: float | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Scores of all rows after the plan, and its own upper bounds, both over ``scale``."""
    op, (d, n) = run.op, run.op.shape
    s, t, half = G.shape[1], plan.samples, run.delta / 2
    if plan.kind == "hutchinson" and rho is not None:
        probe = gram_samples(op, run.signs(t))
        ratio = probe.scale / scale**2
        hutchinson = probe.samples.mean(dim=1) * ratio
        # Inverse variances: 2 / s for the sketch, (rho - 1) / t for Hutchinson.
        first, second = s / 2, t / max(rho - 1, 1e-9)
        scores = (first * look.squares + second * hutchinson) / (first + second)
        return scores, gram_bounds(probe.samples, probe.scale, half) / scale
    known = torch.zeros(d, dtype=torch.float64, device=op.device)
    Q = torch.zeros(n, 0, dtype=op.dtype, device=op.device)
    old = look.squares * s
    if plan.rank:
        Z = op.rmatmat(look.directions(plan.rank))
        Q = orthonormal(Z / norm_scale(Z))
        B = op.matmat(Q) / scale
        known = row_norms(B) ** 2
        old = row_norms(look.Y - B @ (Q.mH @ G)) ** 2
    fresh = torch.zeros_like(known)
    if t:
        H = run.normals(t)
        fresh = row_norms(op.matmat(H - Q @ (Q.mH @ H)) / scale)
    scores = known + (old + fresh**2) / (s + t)
    bounds = torch.hypot(known.sqrt(), chi2_bounds(fresh, t, look.Y.is_complex(), half))
    return scores, bounds
