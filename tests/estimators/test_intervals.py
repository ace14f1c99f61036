"""Upper bounds hold with their stated probability, and certified answers are right."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch

from robustcf.errors import InputError
from robustcf.estimators import certify, two_to_inf
from robustcf.estimators.numerics import chi2_quantile, norm_scale, sign_test_groups

from .conftest import SEEDS, decaying, row_norms

# The same over 1,000 trials: scripts/theory_beside_measurement.py.
TRIALS = 100
DELTA = 0.1
# Three standard errors above the permitted share.
MOST = DELTA * TRIALS + 3 * (DELTA * (1 - DELTA) * TRIALS) ** 0.5


def _kinds() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    kernel = np.exp(-((rng.uniform(size=(150, 1)) - rng.uniform(size=(1, 120))) ** 2) * 40)
    complex_rows = rng.normal(size=(80, 60)) + 1j * rng.normal(size=(80, 60))
    complex_rows[11] *= 1.3
    one_row = np.zeros((90, 70))
    one_row[33] = rng.normal(size=70)
    return {
        "correlated": decaying(120, 90, 0),
        "gaussian": rng.normal(size=(100, 100)),
        "smooth kernel": kernel,
        "complex": complex_rows,
        "a single row": one_row,
    }


KINDS = _kinds()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("method", "budget"),
    [
        *((m, 20) for m in ("sketch", "twinest", "twinest_pp", "rsvd_sketch", "xrownorm")),
        ("xnysdiag", 20),
        ("save", 14),
        ("certify", 60),
    ],
)
@pytest.mark.slow
def test_coverage(method: str, budget: int, kind: str) -> None:
    A = KINDS[kind]
    top = row_norms(A).max() * (1 - 1e-12)
    options = {"generator": torch.Generator().manual_seed(1), "delta": DELTA}
    answers = [
        certify(A, max_products=budget, **options)
        if method == "certify"
        else two_to_inf(A, budget, method, verify=1, **options)
        for _ in range(TRIALS)
    ]
    assert max(answer.products + answer.rproducts for answer in answers) <= budget
    assert sum(answer.upper < top for answer in answers) <= MOST
    assert sum(answer.certified and float(answer) < top for answer in answers) <= MOST
    if method == "certify" and kind in ("correlated", "a single row"):
        assert sum(answer.certified for answer in answers) > 0.5 * TRIALS


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("shape", "delta", "budget"),
    [((60, 50), 0.01, 400), *((s, 0.05, 700) for s in ((200, 5), (5, 200), (1, 1), (300, 300)))],
)
def test_certify_with_enough_products_is_certain(
    shape: tuple[int, int], delta: float, budget: int, seed: int
) -> None:
    A = np.random.default_rng(seed).normal(size=shape)
    answer = certify(A, delta, budget, generator=seed)
    assert answer.certified
    assert float(answer) == pytest.approx(row_norms(A).max())
    assert answer.products + answer.rproducts <= budget


@pytest.mark.parametrize("budget", [2, 3, 4, 5, 9])
def test_certify_with_few_products_is_honest(budget: int) -> None:
    A = np.random.default_rng(0).normal(size=(50, 40))
    with pytest.raises(InputError, match="products"):
        certify(A, 0.05, 1)
    for seed in SEEDS:
        answer = certify(A, 0.05, budget, generator=seed)
        assert not answer.certified
        assert answer.products + answer.rproducts <= budget
        assert answer.lower <= row_norms(A).max() * (1 + 1e-12) <= answer.upper


def test_certify_zero_and_empty() -> None:
    assert certify(np.zeros((50, 40)), 0.05, 30, generator=0).value == 0.0
    assert certify(np.zeros((0, 4))).certified


def test_upper_bounds_need_enough_samples() -> None:
    A = decaying(50, 40, 0)
    assert np.isinf(two_to_inf(A, 2 * 4 + 1, "twinest", generator=0).upper)
    assert np.isfinite(two_to_inf(A, 2 * 5 + 1, "twinest", generator=0).upper)
    assert sign_test_groups(0.05) == 5
    assert sign_test_groups(0.5) == 1


@pytest.mark.parametrize("probability", [1e-12, 1e-3, 0.025, 0.05, 0.5, 0.99])
@pytest.mark.parametrize("dof", [1, 2, 5, 16, 100, 3000])
def test_chi2_quantile_against_scipy(probability: float, dof: int) -> None:
    expected = scipy.stats.chi2.ppf(probability, dof)
    assert chi2_quantile(probability, dof) == pytest.approx(expected, rel=1e-7)


def test_norm_scale() -> None:
    assert norm_scale(torch.zeros(3)) == 1.0
    assert norm_scale(torch.zeros(0)) == 1.0
    assert norm_scale(torch.tensor([float("nan")])) == 1.0
    assert norm_scale(torch.tensor([3.0, -5.0])) == 8.0
