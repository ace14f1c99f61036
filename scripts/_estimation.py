"""What the estimator scripts share: matrices, methods, trials, pictures."""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from robustcf.estimators import LowRank, NormEstimate, as_operator, exact, two_to_inf
from robustcf.estimators.operators import Operator

Estimator = Callable[..., NormEstimate]

# name -> (method, verify; None is the method's default, a fraction is a share of the budget)
METHODS: dict[str, tuple[str, int | float | None]] = {
    "Adaptive power": ("adaptive_power", None),
    "Rademacher averaging": ("rademacher_averaging", None),
    "TwINEst": ("twinest", None),
    "TwINEst++": ("twinest_pp", None),
    "TwINEst, top 4": ("twinest", 4),
    "TwINEst, top b/8": ("twinest", 1 / 8),
    "sketch, top 4": ("sketch", 4),
    "sketch, top 16": ("sketch", 16),
    "XRowNorm, top 4": ("xrownorm", 4),
    "XNysDiag, top 4": ("xnysdiag", 4),
    "rSVD + sketch, top 4": ("rsvd_sketch", 4),
    "SAVE": ("save", None),
}
PICTURED = tuple(name for name in METHODS if name not in ("TwINEst, top 4", "sketch, top 4"))


def estimate(name: str, op: Operator, budget: int, seed: int) -> NormEstimate:
    """One estimate by a method of the table."""
    method, verify = METHODS[name]
    if isinstance(verify, float):
        verify = max(1, int(verify * budget))
    elif isinstance(verify, int):
        verify = max(1, min(verify, budget // 2))
    return two_to_inf(op, budget, method, verify=verify, generator=seed)


def trials(
    op: Operator, truth: float, names: Iterable[str], budget: int, count: int, seed: int
) -> dict[str, dict[str, float]]:
    """Mean relative error and share of exact answers, with standard errors, per method."""
    results = {}
    for name in names:
        start = time.perf_counter()
        values = [float(estimate(name, op, budget, seed + k)) for k in range(count)]
        results[name] = summary(np.array(values), truth, time.perf_counter() - start)
    return results


def summary(values: np.ndarray, truth: float, seconds: float) -> dict[str, float]:
    """Errors are relative; an answer within 1e-6 (float32 rounding) counts as exact."""
    errors = np.abs(values / truth - 1)
    errors[errors < 1e-6] = 0.0
    right = errors == 0
    root = max(1, len(values)) ** 0.5
    return {
        "error": float(errors.mean()),
        "error_se": float(errors.std() / root),
        "exact": float(right.mean()),
        "exact_se": float(right.std() / root),
        "trials": len(values),
        "ms": 1000 * seconds / max(1, len(values)),
    }


def truth_of(op: Operator) -> float:
    """The exact norm."""
    with torch.no_grad():
        return float(exact(op))


# --- matrices ---------------------------------------------------------------------------------


def paper_gaussian(delta: float, size: int, seed: int) -> torch.Tensor:
    """The paper's synthetic matrix: squared row norms 1 + delta, 1, then uniform on [0, 1]."""
    generator = torch.Generator().manual_seed(seed)
    A = torch.randn(size, size, generator=generator)
    squares = torch.rand(size, generator=generator)
    squares[0], squares[1] = 1 + delta, 1.0
    return A * (squares.sqrt() / A.norm(dim=1)).unsqueeze(1)


def kernel(d: int, n: int, width: float, seed: int) -> np.ndarray:
    """A Gaussian kernel between random points of the unit square: fast spectral decay."""
    rng = np.random.default_rng(seed)
    x, y = rng.uniform(size=(d, 1, 2)), rng.uniform(size=(1, n, 2))
    return np.exp(-((x - y) ** 2).sum(-1) / (2 * width**2))


def jacobian_like(d: int, n: int, power: float, seed: int, spread: float = 0.5) -> np.ndarray:
    """Singular values k^-power with log-normal row sizes: like a classifier's Jacobian."""
    rng = np.random.default_rng(seed)
    left = np.linalg.qr(rng.normal(size=(d, n)))[0] * np.exp(spread * rng.normal(size=(d, 1)))
    right = np.linalg.qr(rng.normal(size=(n, n)))[0]
    return (left * np.arange(1, n + 1.0) ** -power) @ right.T


def relu_jacobian(seed: int) -> np.ndarray:
    """The 3072 x 100 Jacobian of a random three-layer ReLU network."""
    rng = np.random.default_rng(seed)
    W1 = rng.normal(size=(512, 3072)) / 3072**0.5
    W2 = rng.normal(size=(256, 512)) * (2 / 512) ** 0.5
    W3 = rng.normal(size=(100, 256)) * (2 / 256) ** 0.5
    h1 = W1 @ rng.normal(size=3072)
    h2 = W2 @ np.maximum(h1, 0)
    return (W3 @ ((h2 > 0)[:, None] * W2) @ ((h1 > 0)[:, None] * W1)).T


def low_rank_plus_noise(d: int, n: int, k: int, noise: float, seed: int) -> np.ndarray:
    """Rank k plus Gaussian noise."""
    rng = np.random.default_rng(seed)
    low = rng.normal(size=(d, k)) @ rng.normal(size=(k, n)) / k**0.5
    return low + noise * rng.normal(size=(d, n))


def near_ties(d: int, n: int, leaders: int, factor: float, spread: float, seed: int) -> np.ndarray:
    """Unit rows; some are ``factor`` times as long, and within ``spread`` of each other."""
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(d, n))
    A /= np.linalg.norm(A, axis=1, keepdims=True)
    return _lengthened(A, leaders, factor, spread, rng)


def hadamard(
    d: int, n: int, seed: int, leaders: int = 0, factor: float = 1.0, spread: float = 0.0
) -> np.ndarray:
    """Rows of a Hadamard matrix: of uniform sizes in [0.5, 1], or equal but for some longer ones.

    Square, all rows are at right angles; cut to fewer columns, some are copies of each other.
    """
    from scipy.linalg import hadamard as signs

    rng = np.random.default_rng(seed)
    A = signs(1 << (max(d, n) - 1).bit_length())[:d, :n] / n**0.5
    if leaders:
        return _lengthened(A, leaders, factor, spread, rng)
    return A * rng.uniform(0.5, 1, size=(d, 1))


def _lengthened(
    A: np.ndarray, leaders: int, factor: float, spread: float, rng: np.random.Generator
) -> np.ndarray:
    rows = rng.choice(len(A), leaders, replace=False)
    A[rows] *= factor * (1 + spread * rng.uniform(size=(leaders, 1)))
    return A


def interactions(name: str, data_dir: str | None) -> Any:
    """The 0/1 training matrix of a data set, float32 CSR."""
    from robustcf.data import load

    split = load(name, data_dir=data_dir, download=data_dir is None)
    return split.train_full.csr().astype(np.float32).tocsr()


def svd_factors(R: Any, rank: int) -> LowRank:
    """Truncated SVD, singular values with the users."""
    from scipy.sparse.linalg import svds

    U, s, Vt = svds(R, k=rank, v0=np.ones(min(R.shape), np.float32))
    U, V = (U * s).astype(np.float32), np.ascontiguousarray(Vt.T.astype(np.float32))
    return LowRank(torch.from_numpy(U), torch.from_numpy(V))


def als_factors(R: Any, rank: int, reg: float, alpha: float, sweeps: int) -> LowRank:
    """Implicit ALS: confidence 1 + alpha on interactions, 1 elsewhere."""
    V = np.random.default_rng(0).normal(scale=0.1, size=(R.shape[1], rank)).astype(np.float32)
    RT = R.T.tocsr()

    def half(M: Any, F: np.ndarray) -> np.ndarray:
        gram = F.T @ F + reg * np.eye(rank, dtype=np.float32)
        out = np.zeros((M.shape[0], rank), np.float32)
        for row in range(M.shape[0]):
            chosen = F[M.indices[M.indptr[row] : M.indptr[row + 1]]]
            if len(chosen):
                left = gram + alpha * chosen.T @ chosen
                out[row] = np.linalg.solve(left, (1 + alpha) * chosen.sum(axis=0))
        return out

    for _ in range(sweeps):
        U = half(R, V)
        V = half(RT, U)
    return LowRank(torch.from_numpy(U), torch.from_numpy(V))


def suite(data_dir: str | None) -> tuple[dict[str, Callable[[], Any]], ...]:
    """(matrices SAVE was tuned on, held-out ones); those of real data need ``data_dir``."""
    rng = np.random.default_rng
    tune = {
        "kernel 0.25, 1200x900": lambda: kernel(1200, 900, 0.25, 0),
        "kernel 0.08, 1000x1000": lambda: kernel(1000, 1000, 0.08, 1),
        "Jacobian-like k^-0.5": lambda: jacobian_like(3072, 100, 0.5, 0),
        "Jacobian-like k^-1": lambda: jacobian_like(3072, 100, 1.0, 1, 0.3),
        "wide Gaussian 400x3000": lambda: rng(2).normal(size=(400, 3000)),
        "diagonal, linear": lambda: np.diag(np.linspace(1, 2, 1500)),
        "Student t3 2000x500": lambda: rng(3).standard_t(3, size=(2000, 500)),
        "rank 10 + 0.3 noise": lambda: low_rank_plus_noise(2000, 1000, 10, 0.3, 4),
        "Gaussian rows, uniform sizes": lambda: (
            rng(5).normal(size=(1500, 1500)) * rng(6).uniform(size=(1500, 1)) ** 0.5
        ),
        "near-ties 1500x400": lambda: near_ties(1500, 400, 10, 3.0, 1e-3, 0),
        "Hadamard 1024x1024": lambda: hadamard(1024, 1024, 0),
        "Hadamard 2048x512, near-ties": lambda: hadamard(2048, 512, 9, 10, 1.3, 1e-3),
    }
    held = {
        "kernel 0.15, 1500x800": lambda: kernel(1500, 800, 0.15, 10),
        "Jacobian-like k^-0.7": lambda: jacobian_like(3072, 100, 0.7, 16),
        "random ReLU Jacobian": lambda: relu_jacobian(0),
        "wide Gaussian 300x5000": lambda: rng(12).normal(size=(300, 5000)),
        "diagonal, uniform": lambda: np.diag(rng(13).uniform(size=2000) + 0.5),
        "Pareto 2.5 1500x800": lambda: rng(14).pareto(2.5, size=(1500, 800)),
        "rank 20 + 0.5 noise": lambda: low_rank_plus_noise(3000, 800, 20, 0.5, 15),
        "near-ties 2500x600": lambda: near_ties(2500, 600, 20, 2.0, 5e-3, 17),
        "Hadamard 3000x700": lambda: hadamard(3000, 700, 18),
    }
    if data_dir is not None:
        tune |= {
            "ML-1M SVD-64": lambda: svd_factors(interactions("ml-1m", data_dir), 64),
            "ML-1M iALS-64": lambda: als_factors(interactions("ml-1m", data_dir), 64, 10, 2, 8),
            "ML-1M 0/1": lambda: interactions("ml-1m", data_dir),
            "ML-100K 0/1": lambda: interactions("ml-100k", data_dir),
            "CiteULike-a 0/1": lambda: interactions("citeulike-a", data_dir),
        }
        held |= {
            "CiteULike-a SVD-128": lambda: svd_factors(interactions("citeulike-a", data_dir), 128),
            "CiteULike-a iALS-64": lambda: als_factors(
                interactions("citeulike-a", data_dir), 64, 1, 10, 6
            ),
            "CiteULike-t iALS-64": lambda: als_factors(
                interactions("citeulike-t", data_dir), 64, 1, 10, 6
            ),
            "CiteULike-t 0/1": lambda: interactions("citeulike-t", data_dir),
            "Yelp2018 0/1": lambda: interactions("yelp2018", data_dir),
            "Yelp2018 SVD-64": lambda: svd_factors(interactions("yelp2018", data_dir), 64),
        }
    return tune, held


def operator(matrix: Any) -> Operator:
    """As an operator, dense ones in float64."""
    return as_operator(matrix)


# --- scripts ----------------------------------------------------------------------------------


def parser(description: str, count: int) -> argparse.ArgumentParser:
    """The options all these scripts have."""
    arguments = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    arguments.add_argument("--trials", type=int, default=count, help="trials per point")
    arguments.add_argument("--seed", type=int, default=0, help="seed of the first trial")
    arguments.add_argument("--out", type=Path, default=Path("results"), help="output folder")
    arguments.add_argument("--data-dir", help="folder with the data sets; without it, none")
    return arguments


def save_json(path: Path, data: dict[str, Any]) -> None:
    """Write results with the versions and settings that made them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
    }
    path.write_text(json.dumps({"made_with": made, **data}, indent=1) + "\n")


STYLES = {
    "Adaptive power": ("0.55", ":", "x"),
    "Rademacher averaging": ("tab:brown", ":", "v"),
    "TwINEst": ("tab:blue", "--", "o"),
    "TwINEst++": ("tab:cyan", "--", "s"),
    "TwINEst, top b/8": ("tab:blue", "-.", "^"),
    "sketch, top 16": ("tab:green", "-.", "D"),
    "XRowNorm, top 4": ("tab:purple", ":", "P"),
    "XNysDiag, top 4": ("tab:pink", "-.", "h"),
    "rSVD + sketch, top 4": ("tab:olive", "--", "<"),
    "SAVE": ("black", "-", "*"),
    "matfree XRowNorm, top 4": ("tab:red", ":", ">"),
}


def draw_curves(
    axis: Any, curves: dict[str, tuple[list[float], list[float]]], floor: float
) -> None:
    """Lines that differ in marker and dash as well as in colour; zeros sit on the floor."""
    for name, (x, y) in curves.items():
        colour, dash, marker = STYLES.get(name, ("0.3", "-", "."))
        width = 2.2 if name == "SAVE" else 1.2
        axis.plot(
            x,
            np.maximum(y, floor),
            color=colour,
            linestyle=dash,
            marker=marker,
            linewidth=width,
            markersize=9 if name == "SAVE" else 5,
            label=name,
        )
    axis.grid(True, which="major", alpha=0.3)
