"""Go on until the answer is certain, up to a stated probability of error."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from robustcf.estimators.estimate import NormEstimate, Run
from robustcf.estimators.exact import norms_by_products
from robustcf.estimators.numerics import Seed, norm_scale, orthonormal, row_norms
from robustcf.estimators.operators import MatrixLike
from robustcf.estimators.planning import FirstLook
from robustcf.estimators.sketches import chi2_bounds

_FIRST_LOOK = 12
# A guess of how many sketches separate the leaders of a matrix without structure; it only sets
# what a deflated direction may cost.
_TYPICAL_SKETCH = 60
_POOL = 64


def certify(
    A: MatrixLike,
    delta: float = 0.05,
    max_products: int = 1000,
    *,
    generator: Seed = None,
) -> NormEstimate:
    """Find ||A||_{2->inf} exactly with probability at least 1 - delta, or an honest interval.

    A first look chooses directions Q to deflate (perhaps none). Then sketches of the rest, growing
    by a quarter a look, give every row an upper bound ||A_i Q||^2 + ||A_i (I - Q Q^H) G||^2 / q,
    q the chi-square quantile of delta_k, proportional to delta / k^2, at look k; rows are verified
    while any bound exceeds the best norm found, likeliest first. Only the maximal
    row's bound has to hold, at every look: its failure has probability at most the sum of the
    delta_k, at most delta. Once as much has been spent as all rows or columns would cost, they
    are computed, if the budget allows.

    Args:
        A: a matrix or operator. It is only multiplied with; for factors and explicit matrices
            `exact` is cheaper.
        delta: the probability that a certified answer may be wrong.
        max_products: products in all; when they run out the interval is what it is.
        generator: a torch generator, an integer seed, or None for fresh entropy.

    Returns:
        The estimate; ``certified`` says whether lower and upper met.

    Example:
        >>> A = torch.ones(100, 200, dtype=torch.float64)
        >>> A[42] *= 3
        >>> answer = certify(A, generator=0)
        >>> answer.row, answer.certified
        (42, True)
    """
    run = Run(A, max_products, 1, generator, delta, method="certify", samples_cost=1)
    return run.carry_out(_look_and_sharpen)


def _look_and_sharpen(run: Run) -> NormEstimate:
    op, (d, n) = run.op, run.op.shape
    with torch.no_grad():
        s = max(1, min(_FIRST_LOOK, op.left // 3))
        if s >= min(d, n) or op.left < 3:
            return _finish(run)
        Y = op.matmat(run.normals(s))
        scale = norm_scale(Y)
        norms = row_norms(Y)
        look = FirstLook.of(Y / scale, (norms / scale) ** 2 / s)
        run.read_best(norms, 2)
        r = _directions(run, look)
        Q = torch.zeros(n, 0, dtype=op.dtype, device=op.device)
        known = torch.zeros(d, dtype=torch.float64, device=op.device)
        if r:
            Z = op.rmatmat(look.directions(r))
            Q = orthonormal(Z / norm_scale(Z))
            known = row_norms(op.matmat(Q))
        bounds = chi2_bounds(norms, s, Y.is_complex(), _share(run.delta, 1))
        if r:
            return _sharpen(run, Q, known, torch.zeros_like(norms), 0, bounds)
        return _sharpen(run, Q, known, norms, s, bounds)


def _share(delta: float, look: int) -> float:
    """What look k may fail with: c delta / k^2.

    The first look chooses between going on with its own sketch and starting afresh off Q. Looks
    from the second on are charged twice, once for either way, since the choice is not independent
    of the sketch that is kept: 1 + 2 (pi^2 / 6 - 1) = 1 / c.
    """
    return delta / ((math.pi**2 / 3 - 1) * look**2)


def _directions(run: Run, look: FirstLook) -> int:
    """How many directions to deflate: two products each, against the sketches they save."""
    pool = run.leaders(look.squares, _POOL)
    if not len(pool):
        return 0
    size = look.squares[pool].clamp_min(1e-300)
    best, choice = math.inf, 0
    for r in range(look.most_directions + 1):
        rest = look.residual(pool, r).abs().pow(2).mean(dim=1)
        cost = 2 * r + _TYPICAL_SKETCH * float((rest / size).median())
        if cost < best and 2 * r <= run.op.left // 2:
            best, choice = cost, r
    return choice


def _sharpen(
    run: Run, Q: Tensor, known: Tensor, rest: Tensor, s: int, bounds: Tensor
) -> NormEstimate:
    """Look after look: sketch the rest, bound, verify what may still win.

    ``known`` are norms of the rows within the deflated directions Q, ``rest`` those of a sketch off
    them with ``s`` columns so far, ``bounds`` those of the first look.
    """
    op, n = run.op, run.op.shape[1]
    is_complex = op.dtype.is_complex
    look, grow = 1, 8
    while op.left > 0 and bool((~run.verified).any()):
        if op.left > grow:
            everything = min(int((~run.verified).sum()), n + 1)
            if everything <= min(op.left, op.products + op.rproducts):
                return _finish(run)  # as much as certainty costs has been spent: buy it
            G = run.normals(grow)
            rest = torch.hypot(rest, row_norms(op.matmat(G - Q @ (Q.mH @ G))))
            s, look = s + grow, look + 1
            fresh = chi2_bounds(rest, s, is_complex, _share(run.delta, look))
            new = torch.hypot(known, fresh)
            # All looks hold together with probability 1 - delta, so the least bound does.
            bounds = torch.minimum(bounds, new)
            grow = max(4, s // 4)
        scores = torch.hypot(known, rest / max(1, s) ** 0.5)
        run.read_best(scores, min(op.left, 1))
        # Verify a batch no larger than the next sketch would be; beyond that sketching is cheaper.
        budget = op.left if op.left <= grow else grow
        while budget > 0:
            open_rows = (bounds > run.lower) & ~run.verified
            if not bool(open_rows.any()):
                return run.conclude(bounds)
            if op.left > grow and int(open_rows.sum()) > grow:
                break
            run.read_best(torch.where(open_rows, scores, -1.0), 1)
            budget -= 1
    return run.conclude(bounds)


def _finish(run: Run) -> NormEstimate:
    """Small sides, or no budget for a first sketch: every row or column that the budget allows."""
    d, n = run.op.shape
    unread = torch.nonzero(~run.verified).flatten()
    if len(unread) <= min(run.op.left, n + 1):
        run.read(unread)
    elif run.op.left >= n + 1:
        norms = norms_by_products(run.op)
        run.read(norms.argmax().reshape(1))
        run.verified[:] = True
    else:
        run.read_best(torch.zeros(d, dtype=torch.float64, device=run.op.device), run.op.left)
    return run.conclude(math.inf)
