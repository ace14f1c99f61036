"""The paper's statements, measured: naive transcriptions, moments, theorem, example."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from robustcf.errors import InputError
from robustcf.estimators import (
    adaptive_power,
    bounds,
    hutchinson_diagonal,
    hutchpp_diagonal,
    rademacher_averaging,
    twinest,
    twinest_pp,
)
from robustcf.estimators.twinest import split_samples

from .conftest import SEEDS, row_norms


def recorded(monkeypatch: pytest.MonkeyPatch, seed: int) -> list[np.ndarray]:
    """Hand numpy signs to the estimator under test, so that both see the same vectors."""
    rng, given = np.random.default_rng(seed), []

    def draw(rows, columns, dtype, device, generator):  # type: ignore[no-untyped-def]
        given.append(rng.choice([-1.0, 1.0], size=(rows, columns)))
        return torch.from_numpy(given[-1]).to(dtype)

    monkeypatch.setattr("robustcf.estimators.numerics.rademacher", draw)
    return given


@pytest.mark.parametrize("seed", SEEDS)
def test_twinest_is_algorithm_1(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    A = np.random.default_rng(seed).normal(size=(30, 20))
    given = recorded(monkeypatch, seed)
    answer = twinest(A, 2 * 7 + 1)
    (X,) = given
    assert X.shape == (30, 7)
    D = np.zeros(30)
    for x in X.T:
        D += x * (A @ (A.T @ x)) / 7
    j = D.argmax()
    assert answer.row == j
    assert answer.value == pytest.approx(np.linalg.norm(A[j]))
    assert (answer.products, answer.rproducts) == (7, 8)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("m", [1, 2, 3, 4, 7, 9, 50])
@pytest.mark.parametrize("p", [0.0, 0.2, 1 / 3, 0.5])
def test_twinest_pp_is_algorithm_2(
    seed: int, m: int, p: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    A = np.random.default_rng(seed).normal(size=(30, 20))
    B = A @ A.T
    given = recorded(monkeypatch, seed)
    answer = twinest_pp(A, 2 * m + 1, p=p)
    r = int(p * m + 1e-9)
    D, Q = np.zeros(30), np.zeros((30, 0))
    if r:
        Q = np.linalg.qr(B @ given[0])[0]
        D += np.diag(B @ Q @ Q.T)
    if m - 2 * r:
        X = given[-1]
        assert X.shape == (30, m - 2 * r)
        for x in X.T:
            D += x * (B @ (x - Q @ (Q.T @ x))) / (m - 2 * r)
    j = answer.row
    assert D[j] == pytest.approx(D.max())
    assert answer.value == pytest.approx(np.linalg.norm(A[j]))
    assert answer.products + answer.rproducts <= 2 * m + 1


@pytest.mark.parametrize("seed", SEEDS)
def test_rademacher_averaging_is_the_largest_entry(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    A = np.random.default_rng(seed).normal(size=(30, 20))
    given = recorded(monkeypatch, seed)
    answer = rademacher_averaging(A, 10)
    X = given[0]
    D = (X * (A @ (A.T @ X))).mean(axis=1)
    assert answer.value == pytest.approx(math.sqrt(D.max()))
    assert answer.row == D.argmax()
    assert not answer.witness
    assert answer.lower <= row_norms(A).max()


@pytest.mark.parametrize("seed", SEEDS)
def test_adaptive_power_is_algorithm_3(seed: int) -> None:
    A = np.random.default_rng(seed).normal(size=(30, 20))
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(20, 1, generator=generator, dtype=torch.float64).numpy()[:, 0]
    for _ in range(4):
        image = A @ x
        y = np.sign(image) * (np.abs(image) == np.abs(image).max())
        y /= np.count_nonzero(y)
        x = A.T @ y
        x /= np.linalg.norm(x)
    answer = adaptive_power(A, 9, generator=seed)
    assert answer.value == pytest.approx(np.abs(A @ x).max())
    assert (answer.products, answer.rproducts) == (5, 4)
    assert math.isinf(answer.upper)


def _trials(estimate, count: int) -> np.ndarray:  # type: ignore[no-untyped-def]
    generator = torch.Generator().manual_seed(0)
    return np.stack([estimate(generator) for _ in range(count)])


def test_hutchinson_mean_and_variance() -> None:
    """Unbiased, variance sum_{j != i} B_ij^2 / m: within 4.5 standard errors for 12 entries."""
    B = np.random.default_rng(0).normal(size=(12, 12))
    m, count = 3, 4000
    values = _trials(lambda g: hutchinson_diagonal(B, m, generator=g), count)
    variance = bounds.hutchinson_variance(B).numpy() / m
    naive = np.array([sum(B[i, j] ** 2 for j in range(12) if j != i) for i in range(12)]) / m
    np.testing.assert_allclose(variance, naive)
    error = np.abs(values.mean(axis=0) - np.diag(B))
    assert (error < 4.5 * np.sqrt(variance / count)).all()
    squares = (values - np.diag(B)) ** 2
    spread = squares.std(axis=0) / math.sqrt(count)
    assert (np.abs(squares.mean(axis=0) - variance) < 4.5 * spread).all()


@pytest.mark.parametrize("p", [0.0, 0.2, 1 / 3, 0.5])
def test_hutchpp_is_unbiased(p: float) -> None:
    factor = np.random.default_rng(1).normal(size=(12, 12))
    # p = 1/2 leaves the rest out: exact where B S spans everything, so take rank one there.
    B = factor @ factor.T if p < 0.5 else np.outer(factor[0], factor[0])
    count = 2000
    values = _trials(lambda g: hutchpp_diagonal(B, 10, p=p, generator=g), count)
    standard_error = values.std(axis=0) / math.sqrt(count) + 1e-12 * np.abs(B).max()
    assert (np.abs(values.mean(axis=0) - np.diag(B)) < 4.5 * standard_error).all()


def test_hutchpp_beats_hutchinson_on_low_rank() -> None:
    factor = np.random.default_rng(2).normal(size=(40, 3))
    B = factor @ factor.T
    assert np.allclose(hutchpp_diagonal(B, 12, generator=0), np.diag(B))
    assert not np.allclose(hutchinson_diagonal(B, 12, generator=0), np.diag(B), rtol=1e-2)


def test_complex_diagonals() -> None:
    rng = np.random.default_rng(3)
    A = rng.normal(size=(20, 3)) + 1j * rng.normal(size=(20, 3))
    B = A @ A.conj().T
    np.testing.assert_allclose(hutchpp_diagonal(B, 12, generator=0), np.diag(B), atol=1e-9)
    values = _trials(lambda g: hutchinson_diagonal(B, 4, generator=g), 2000)
    error = np.abs(values.mean(axis=0) - np.diag(B))
    assert (error < 5 * values.std(axis=0) / math.sqrt(2000)).all()


def test_diagonals_of_torch_matrices_differentiate() -> None:
    B = torch.randn(5, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda B: hutchinson_diagonal(B, 3, generator=0), (B,))


def test_concentration_lemma() -> None:
    """The largest error exceeds the lemma's epsilon in at most a share delta of trials."""
    A = np.random.default_rng(4).normal(size=(15, 40))
    B = A @ A.T
    delta, m, count = 0.1, 20, 1000
    epsilon = bounds.diagonal_deviation(m, delta, 15, bounds.offdiagonal_norm(A))
    values = _trials(lambda g: hutchinson_diagonal(B, m, generator=g), count)
    failures = (np.abs(values - np.diag(B)).max(axis=1) >= epsilon).mean()
    assert failures <= delta


@pytest.mark.slow
@pytest.mark.parametrize("budget", [5, 41])
def test_adaptive_power_fails_on_the_example(budget: int) -> None:
    """diag(2, 1): stuck at 1 with probability (2 / pi) atan(1 / 2) for any budget."""
    A = torch.diag(torch.tensor([2.0, 1.0], dtype=torch.float64))
    generator = torch.Generator().manual_seed(0)
    count = 600 if budget > 5 else 2500
    values = [float(adaptive_power(A, budget, generator=generator)) for _ in range(count)]
    stuck = np.isclose(values, 1.0)
    assert (stuck | np.isclose(values, 2.0)).all()
    expected = 2 / math.pi * math.atan(0.5)
    assert abs(stuck.mean() - expected) < 3 * math.sqrt(expected * (1 - expected) / count)


def test_theorem_1_where_it_binds() -> None:
    """At the theorem's m TwINEst is exact at least as often as promised; far below, it is not."""
    rng = np.random.default_rng(5)
    A = rng.normal(size=(60, 400)) / 20
    A *= (np.linspace(0.9, 1.0, 60)[:, None]) / np.linalg.norm(A, axis=1, keepdims=True)
    A[7] *= 1.25 / np.linalg.norm(A[7])
    delta = 0.2
    size, gap = bounds.offdiagonal_norm(A), bounds.gap(A)
    m = bounds.twinest_samples(gap, delta, 60, size)
    assert 5 < m < 400
    truth = row_norms(A).max()
    generator = torch.Generator().manual_seed(0)
    count = 300
    right = [
        math.isclose(float(twinest(A, 2 * m + 1, generator=generator)), truth) for _ in range(count)
    ]
    assert np.mean(right) >= 1 - delta
    few = [math.isclose(float(twinest(A, 3, generator=generator)), truth) for _ in range(count)]
    assert np.mean(few) < 1 - delta


def test_deviation_remark() -> None:
    A = np.random.default_rng(6).normal(size=(40, 300)) / 17
    delta, epsilon = 0.2, 0.5
    m = bounds.twinest_deviation_samples(epsilon, delta, 40, bounds.offdiagonal_norm(A))
    top = row_norms(A).max() ** 2
    generator = torch.Generator().manual_seed(1)
    errors = [top - float(twinest(A, 2 * m + 1, generator=generator)) ** 2 for _ in range(200)]
    assert np.mean(np.array(errors) < epsilon) >= 1 - delta


def test_bounds_of_a_matrix() -> None:
    A = np.random.default_rng(7).normal(size=(9, 6))
    squares = np.sort(row_norms(A) ** 2)
    assert bounds.gap(A) == pytest.approx(squares[-1] - squares[-2])
    gram = A @ A.T
    np.fill_diagonal(gram, 0.0)
    assert bounds.offdiagonal_norm(A) == pytest.approx(row_norms(gram).max())
    assert bounds.gap(np.ones((3, 2))) == 0.0
    assert bounds.gap(np.zeros((0, 2))) == 0.0
    assert bounds.offdiagonal_norm(np.zeros((0, 2))) == 0.0
    assert bounds.twinest_samples(0.0, 0.1, 3, 1.0) == 1
    assert bounds.twinest_pp_samples(0.0, 0.1, 1.0) == 1
    assert bounds.twinest_failure(0.0, 5, 10, 1.0) == 0.0
    assert bounds.twinest_failure(1.0, 1, 10, 100.0) == 1.0


@pytest.mark.parametrize("gap", [0.01, 0.1, 1.0])
@pytest.mark.parametrize("delta", [0.01, 0.3])
def test_samples_and_failure_are_inverse(gap: float, delta: float) -> None:
    m = bounds.twinest_samples(gap, delta, 50, 0.7)
    assert bounds.twinest_failure(gap, m, 50, 0.7) <= delta
    assert m == 1 or bounds.twinest_failure(gap, m - 1, 50, 0.7) >= delta
    formula = 8 * math.log(2 * 50 / delta) / gap**2 * 0.7**2
    assert m - 1 <= formula < m
    pp = math.sqrt(math.log(2 / delta)) / gap * 4.0 + math.log(1 / delta)
    assert bounds.twinest_pp_samples(gap, delta, 2.0) == math.floor(pp) + 1


@pytest.mark.parametrize(
    "call",
    [
        lambda: bounds.twinest_deviation_samples(0.0, 0.1, 5, 1.0),
        lambda: bounds.twinest_deviation_samples(1.0, 2.0, 5, 1.0),
        lambda: bounds.twinest_deviation_samples(1.0, 0.1, 0, 1.0),
        lambda: bounds.twinest_samples(-1.0, 0.1, 5, 1.0),
        lambda: bounds.twinest_failure(math.nan, 3, 5, 1.0),
        lambda: bounds.twinest_pp_samples(1.0, 0.1, "big"),  # type: ignore[arg-type]
        lambda: bounds.twinest_pp_samples(1.0, 0.1, 1.0, constant=0.0),
        lambda: hutchinson_diagonal(np.ones((2, 3)), 1),
        lambda: hutchinson_diagonal(np.ones((2, 2)), 0),
        lambda: hutchpp_diagonal(np.ones((2, 2)), 3, p=0.6),
        lambda: twinest_pp(np.ones((2, 2)), 9, p="third"),  # type: ignore[arg-type]
    ],
)
def test_bad_arguments(call) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError):
        call()


def test_split_rounds_down_but_not_by_rounding_error() -> None:
    assert split_samples(100, 0.29) == (29, 42)
