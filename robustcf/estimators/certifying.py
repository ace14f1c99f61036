"""Estimate until the answer is certain, up to a stated probability of error."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from robustcf.estimators.estimate import NormEstimate, Run
from robustcf.estimators.exact import norms_by_products
from robustcf.estimators.numerics import Seed, row_norms
from robustcf.estimators.operators import MatrixLike
from robustcf.estimators.planning import FirstLook
from robustcf.estimators.sketches import chi2_bounds

_FIRST_LOOK = 12
# A guess of how many sketches separate the leaders of a matrix without structure: it only sets the
# price of a deflated direction.
_TYPICAL_SKETCH = 60
_POOL = 64


def certify(
    A: MatrixLike, delta: float = 0.05, max_products: int = 1000, *, generator: Seed = None
) -> NormEstimate:
    """Find ||A||_{2->inf} exactly with probability at least 1 - delta, or an honest interval.

    A first look chooses directions Q to deflate (perhaps none). Then sketches of the rest, growing
    by a quarter per look, give every row an upper bound ||A_i Q||^2 + ||A_i (I - Q Q^H) G||^2 / q,
    q the chi-square quantile of delta_k, proportional to delta / k^2, at look k; rows are verified
    while any bound exceeds the best norm found, likeliest first. Only the maximal row's bound has
    to hold, at every look: its failure has probability at most the sum of the delta_k, at most
    delta. Once all rows or columns would cost no more than was spent, they are computed.

    Args:
        A: a matrix or operator; for factors and explicit matrices `exact` is cheaper.
        delta: the probability that a certified answer may be wrong.
        max_products: products in all; when they run out the estimate is not ``certified``.
        generator: a torch generator, an integer seed, or None for fresh entropy.

    Example:
        >>> A = torch.ones(100, 200, dtype=torch.float64)
        >>> A[42] *= 3
        >>> answer = certify(A, generator=0)
        >>> answer.row, answer.certified
        (42, True)
    """
    run = Run(A, max_products, 1, generator, delta, method="certify", cost=1)
    if run.trivial:
        return run.conclude_trivial()
    op = run.op
    with torch.no_grad():
        s = max(1, min(_FIRST_LOOK, op.left // 3))
        if s >= min(op.shape) or op.left < 3:
            return _finish(run)
        G = run.normals(s)
        look = FirstLook(op.matmat(G))
        run.read_best(look.norms, 2)
        bounds = chi2_bounds(look.norms, s, op.dtype.is_complex, _share(run.delta, 1))
        r = _directions(run, look)
        if not r:
            return _sharpen(run, G[:, :0], run.zeros(), look.norms, s, bounds)
        Q = run.row_basis(look.directions(r))
        return _sharpen(run, Q, row_norms(op.matmat(Q)), run.zeros(), 0, bounds)


def _share(delta: float, look: int) -> float:
    """The failure probability of look k: c delta / k^2, with 1 + 2 (pi^2 / 6 - 1) = 1 / c.

    Looks after the first are charged twice: whether its sketch is kept depends on that sketch.
    """
    return delta / ((math.pi**2 / 3 - 1) * look**2)


def _directions(run: Run, look: FirstLook) -> int:
    """The number of directions to deflate: two products each, against the sketches they save."""
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
    """Look after look: sketch the rest, bound, verify the rows that may still win.

    ``known`` are row norms within the deflated directions Q, ``rest`` those of a sketch off them
    with ``s`` columns so far, ``bounds`` those of the first look.
    """
    op, n = run.op, run.op.shape[1]
    look, grow = 1, 8
    while op.left > 0 and bool((~run.verified).any()):
        if op.left > grow:
            everything = min(int((~run.verified).sum()), n + 1)
            if everything <= min(op.left, op.products + op.rproducts):
                return _finish(run)
            rest = torch.hypot(rest, run.sketch_off(Q, grow))
            s, look = s + grow, look + 1
            fresh = chi2_bounds(rest, s, op.dtype.is_complex, _share(run.delta, look))
            # All looks hold together with probability 1 - delta, so the least bound does.
            bounds = torch.minimum(bounds, torch.hypot(known, fresh))
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
    """Read every row or column that the budget allows."""
    n = run.op.shape[1]
    unread = torch.nonzero(~run.verified).flatten()
    if len(unread) <= min(run.op.left, n + 1):
        run.read(unread)
    elif run.op.left >= n + 1:
        run.read_largest(norms_by_products(run.op))
    else:
        run.read_best(run.zeros(), run.op.left)
    return run.conclude(math.inf)
