"""How `sketch_and_verify` chooses its next steps: it simulates each option on its first sketch.

Options are more sketching, Hutchinson's samples, or deflating r directions first, each with few to
many rows verified at the end. True norms are drawn around the sketched ones; the noise of an option
is drawn by reweighting the columns of Y (deflated, where the option deflates), so rows that point
the same way share their noise. The option with the least mean shortfall wins, at no products.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from robustcf.estimators.numerics import blocks, norm_scale, row_norms, wide_dtype

_DRAWS = 96
# Standard errors of the simulated difference within which two plans count as alike.
_TOLERANCE = 1.0
_POOL = 256
_FOLDS = 8
# Shortfalls are averaged over the predicted noise and twice that: it is estimated from few columns.
_INFLATIONS = (1.0, 2.0)
# Among options with equal shortfall (often none at all) the less noisy one is preferred.
_NOISE_PRICE = 0.003
# The distribution of the true squares: steps of a grid in their logarithm, how far down it goes,
# bins of the sketched squares, and iterations, few enough to leave it smooth.
_GRID, _GRID_RANGE, _BINS, _EM_STEPS = 96, 12.0, 512, 40
# Rows of any size that the sketch may have hidden among the others.
_UNSEEN = 16.0
# Directions per column of the first sketch: with more it cannot tell structure from noise.
_RANK_SHARE = 0.6


class Plan(NamedTuple):
    """One way to spend the products left."""

    kind: str  # sketch, hutchinson or deflate
    rank: int  # directions to deflate
    samples: int  # further sketch columns, or sign vectors
    verify: int  # rows to read at the end, at least


class FirstLook:
    """A first sketch Y = A G with s columns, and its decomposition.

    Attributes:
        norms: the row norms of A G.
        scale: a power of two near its largest entry.
        Y: A G / scale, d x s.
        squares: means of |Y|^2 over columns, float64: estimates of the squared row norms.
        gram: Y^H Y, s x s, in double precision.
        values: its eigenvalues, descending, with eigenvectors ``vectors``.
    """

    def __init__(self, AG: Tensor) -> None:
        s = AG.shape[1]
        self.scale, self.norms = norm_scale(AG), row_norms(AG)
        self.Y = AG / self.scale
        self.squares = (self.norms / self.scale) ** 2 / s
        self.gram = torch.zeros(s, s, dtype=wide_dtype(AG.dtype), device=AG.device)
        for block in blocks(self.Y, 65536):
            wide = block.to(self.gram.dtype)
            self.gram += wide.mH @ wide
        values, vectors = torch.linalg.eigh(self.gram)
        self.values, self.vectors = values.flip(0).clamp_min(0), vectors.flip(1)

    @property
    def rank(self) -> int:
        """The numerical rank of Y."""
        floor = float(self.values[0]) * torch.finfo(self.Y.dtype).eps * 100
        return int((self.values > floor).sum())

    @property
    def most_directions(self) -> int:
        """The number of leading directions of Y that may be trusted."""
        if self.rank < self.Y.shape[1]:
            return self.rank  # Y spans all of A, without noise
        return int(_RANK_SHARE * self.Y.shape[1])

    def directions(self, r: int) -> Tensor:
        """Return orthonormal leading left singular vectors of Y, d x r."""
        V = self.vectors[:, :r].to(self.Y.dtype)
        Q: Tensor = torch.linalg.qr(self.Y @ V).Q
        return Q

    def residual(self, pool: Tensor, r: int) -> Tensor:
        """Return a sketch of the rows in ``pool`` without r directions.

        Cross-validated: each group of columns is projected off the leading left directions of
        the others, so that directions which merely fit their own columns are not rewarded.
        """
        Y = self.Y[pool].to(self.gram.dtype)
        if r == 0:
            return Y
        rest = torch.empty_like(Y)
        for out, kept, values, vectors in self._folds:
            V = vectors[:, -r:] / values[-r:].sqrt().to(vectors.dtype)
            rest[:, out] = Y[:, out] - (Y[:, kept] @ V) @ (V.mH @ self.gram[kept][:, out])
        return rest

    @cached_property
    def _folds(self) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Per group of columns: those left out, those kept, and the eigenpairs of the kept."""
        s = self.Y.shape[1]
        floor = float(self.values[0]) * torch.finfo(self.Y.dtype).eps
        folds = []
        for out in torch.arange(s, device=self.Y.device).chunk(min(s, _FOLDS)):
            kept = torch.ones(s, dtype=torch.bool, device=self.Y.device)
            kept[out] = False
            values, vectors = torch.linalg.eigh(self.gram[kept][:, kept])
            folds.append((out, kept, values.clamp_min(max(floor, 1e-300)), vectors))
        return folds

    def correlation(self, row: int) -> float:
        """Return a low estimate of rho = ||A A_i^H||^2 / ||A_i||^4, from the sketch alone.

        Orthogonal rows look correlated by chance. This bias is taken off, and twice its error.
        """
        s = self.Y.shape[1]
        size = float(self.squares[row])
        if size <= 0:
            return math.inf
        inner = (self.Y @ self.Y[row].conj()).abs().to(torch.float64) / s
        bias = float(self.squares.sum()) / (size * s)
        spread = math.sqrt(2 / len(self.Y))
        return float((inner**2).sum()) / size**2 - bias * (1 + 2 * spread)


def options(look: FirstLook, left: int, rho: float | None) -> list[Plan]:
    """Return the plans to compare: each continuation, with few to many rows verified."""
    plans = []
    most = look.most_directions
    ranks = {r for r in (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, most) if r <= most}
    # Never all on reading: a sketch that shows no structure does not show which rows to read.
    for share in (0.1, 0.2, 0.35, 0.5, 0.75):
        verify = max(1, min(left, round(share * left)))
        spare = left - verify
        plans.append(Plan("sketch", 0, spare, verify))
        # Two products: a sample of variance rho - 1, or two columns of variance 2 each.
        if rho is not None and rho < 2 and spare >= 2:
            plans.append(Plan("hutchinson", 0, spare // 2, left - 2 * (spare // 2)))
        plans += [Plan("deflate", r, spare - 2 * r, verify) for r in ranks if 2 * r <= spare]
    return sorted(set(plans))


def choose(
    look: FirstLook,
    plans: list[Plan],
    pool: Tensor,
    best: float,
    rho: float | None,
    generator: torch.Generator,
) -> Plan:
    """Return the plan with the least predicted shortfall, for the unverified rows in ``pool``.

    ``best`` is the best squared norm verified, on the scale of ``look``; ``rho`` is Hutchinson's
    relative variance plus one at the best row, if known.
    """
    pool = pool[:_POOL]
    s = look.Y.shape[1]
    Y = look.Y[pool].to(look.gram.dtype)
    seen = look.squares[pool].clamp_min(1e-300)
    middle, posterior = _shrink(look, seen)
    unit = max(best, float(middle.max()))  # so that single precision has the range

    def draw(*shape: int) -> Tensor:
        normal = torch.randn(*shape, generator=generator, device=generator.device)
        return normal.to(device=Y.device, dtype=torch.float64)

    def single(X: Tensor) -> Tensor:
        return X.to(torch.float32)  # ample for a simulation, and twice as fast

    # Truths: the sketch may have been unlucky, so reweight its columns and divide.
    weights = -torch.log(torch.special.ndtr(draw(_DRAWS, s)).clamp_min(1e-12))
    luck = (weights / weights.mean(dim=1, keepdim=True)) @ (Y.abs() ** 2).mT / (s * seen)
    truth = single(middle * luck.clamp_min(0.05) ** -posterior / unit)
    best = best / unit
    ceiling = truth.amax(dim=1).clamp_min(best)
    column_draws, row_draws = draw(_DRAWS, s), single(draw(_DRAWS, len(pool)))
    middle, seen = middle / unit, seen / unit
    size = single(middle)

    noises: dict[int, Tensor] = {}

    def noise(plan: Plan) -> Tensor:
        if plan.kind == "hutchinson" and rho is not None:
            precision = s / 2 + plan.samples / max(rho - 1, 1e-9)
            drawn: Tensor = row_draws * size * precision**-0.5
            return drawn
        if plan.rank not in noises:
            rest = look.residual(pool, plan.rank).abs() ** 2 / unit
            centred = rest - rest.mean(dim=1, keepdim=True)
            noises[plan.rank] = single(column_draws @ centred.mT / s**0.5 * (middle / seen))
        thinned: Tensor = noises[plan.rank] / (s + plan.samples) ** 0.5
        return thinned

    def shortfall(plan: Plan) -> Tensor:
        """The relative shortfall of the plan in each of the draws."""
        error = noise(plan)
        cost = _NOISE_PRICE * (error / middle).pow(2).mean(dim=1).sqrt()
        for inflation in _INFLATIONS:
            ranked = (truth + inflation * error).topk(min(plan.verify, len(pool)), dim=1).indices
            found = truth.gather(1, ranked).amax(dim=1).clamp_min(best)
            cost = cost + (1 - (found / ceiling).sqrt()) / len(_INFLATIONS)
        return cost

    costs = torch.stack([shortfall(plan) for plan in plans])
    excess = costs - costs[costs.mean(dim=1).argmin()]
    # Of plans within the noise of the simulation, take the one that reads most rows: they are
    # certain even where the simulation is wrong.
    alike = excess.mean(dim=1) <= _TOLERANCE * excess.std(dim=1) / costs.shape[1] ** 0.5
    means = costs.mean(dim=1).tolist()
    chosen = torch.nonzero(alike).flatten().tolist()
    return plans[min(chosen, key=lambda n: (-plans[n].verify, means[n]))]


def _shrink(look: FirstLook, seen: Tensor) -> tuple[Tensor, Tensor]:
    """Posterior geometric means of ``seen``, and the exponents that temper the sketch's spread.

    Empirical Bayes: the distribution of the true squares is fit on a grid (EM; the noise is
    chi-square), so that a few long rows are not pulled into a noisy bulk.
    """
    s = look.Y.shape[1] * (2 if look.Y.is_complex() else 1)
    logs = look.squares.clamp_min(1e-300).log()
    top = float(logs.max())
    low = max(float(logs.min()), top - _GRID_RANGE)
    grid = torch.linspace(low, top, _GRID, dtype=torch.float64, device=logs.device)
    # Shares of the values in narrow bins, and the middles of the bins.
    width = max(top - low, 1e-9) / _BINS
    bins = ((logs - low) / width).long().clamp(0, _BINS - 1)
    counts = torch.bincount(bins, minlength=_BINS).to(torch.float64) / len(logs)
    middles = low + width * (torch.arange(_BINS, dtype=torch.float64, device=logs.device) + 0.5)
    likelihood = _likelihood(middles, grid, s)
    weights = torch.full_like(grid, 1 / len(grid))
    for _ in range(_EM_STEPS):
        joint = likelihood * weights
        weights = counts @ (joint / joint.sum(dim=1, keepdim=True))
        weights = (len(logs) * weights + _UNSEEN / len(grid)) / (len(logs) + _UNSEEN)
    posterior = _likelihood(seen.log(), grid, s) * weights
    posterior = posterior / posterior.sum(dim=1, keepdim=True)
    mean = posterior @ grid
    spread = (posterior @ grid**2 - mean**2).clamp_min(0).sqrt()
    return mean.exp(), (spread / (2 / s) ** 0.5).clamp_max(1.0)


def _likelihood(logs: Tensor, grid: Tensor, s: int) -> Tensor:
    """The likelihood of each log square for every point of the grid, up to a factor per row."""
    z = logs[:, None] - grid
    exponents = s / 2 * (z - z.exp())
    likelihood: Tensor = (exponents - exponents.amax(dim=1, keepdim=True)).exp()
    return likelihood
