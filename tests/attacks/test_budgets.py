"""Measures and projections against numpy, and the laws every budget obeys."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from robustcf.attacks import BUDGETS, FGM, OwnRowBudget, RowBudget, Softmax, unevenness
from robustcf.data import checkerboard
from robustcf.errors import InputError
from robustcf.factors import Factors


def naive_measure(name: str, delta: np.ndarray) -> float:
    if name == "row":
        return max((float(np.sqrt((row**2).sum())) for row in delta), default=0.0)
    if name == "frobenius":
        return float(np.sqrt((delta**2).sum()))
    return float(np.linalg.svd(delta, compute_uv=False).max(initial=0.0))


def naive_project(name: str, delta: np.ndarray, epsilon: float) -> np.ndarray:
    if name == "row":
        return np.stack(
            [r if np.linalg.norm(r) <= epsilon else r * epsilon / np.linalg.norm(r) for r in delta]
        )
    if name == "frobenius":
        size = np.linalg.norm(delta)
        return delta if size <= epsilon else delta * epsilon / size
    u, s, vt = np.linalg.svd(delta, full_matrices=False)
    return u @ np.diag(np.minimum(s, epsilon)) @ vt


matrices = st.tuples(st.integers(1, 9), st.integers(1, 5), st.integers(0, 10**6)).map(
    lambda shape: np.random.default_rng(shape[2]).normal(size=shape[:2])
)


@pytest.mark.parametrize("name", list(BUDGETS))
@given(delta=matrices, epsilon=st.floats(0.01, 5.0))
@settings(max_examples=150, deadline=None)
def test_measure_and_projection_are_numpys(name, delta, epsilon):
    budget = BUDGETS[name]()
    tensor = torch.tensor(delta)
    assert budget.measure(tensor) == pytest.approx(naive_measure(name, delta), rel=1e-7)
    projected = budget.project(tensor, epsilon)
    np.testing.assert_allclose(projected, naive_project(name, delta, epsilon), rtol=1e-6, atol=1e-9)
    assert budget.measure(projected) <= epsilon * (1 + 1e-9)
    again = budget.project(projected, epsilon)
    np.testing.assert_allclose(again, projected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", list(BUDGETS))
@given(delta=matrices, epsilon=st.floats(0.01, 5.0))
@settings(max_examples=100, deadline=None)
def test_scaling_reaches_the_edge_and_keeps_the_direction(name, delta, epsilon):
    budget = BUDGETS[name]()
    scaled = budget.scale(torch.tensor(delta), epsilon)
    assert budget.measure(scaled) == pytest.approx(epsilon, rel=1e-6)
    rows = scaled.numpy() if name == "row" else scaled.numpy().reshape(1, -1)
    given_rows = delta if name == "row" else delta.reshape(1, -1)
    cosines = (rows * given_rows).sum(1) / (
        np.linalg.norm(rows, axis=1) * np.linalg.norm(given_rows, axis=1)
    )
    np.testing.assert_allclose(cosines, 1.0, rtol=1e-6)


@pytest.mark.parametrize("name", list(BUDGETS))
def test_nothing_stays_nothing(name):
    budget = BUDGETS[name]()
    zero = torch.zeros(4, 3)
    assert budget.measure(zero) == 0.0
    assert not budget.scale(zero, 1.0).any()
    assert not budget.project(zero, 1.0).any()
    some = torch.zeros(2, 2)
    some[0, 0] = 3.0
    assert not budget.scale(some, 1.0)[1].any(), "a zero row stays zero"


def test_units_are_the_documented_sizes():
    factor = torch.tensor([[3.0, 4.0], [0.0, 1.0], [0.0, 2.0]])
    assert BUDGETS["row"]().unit(factor) == 2.0
    assert BUDGETS["frobenius"]().unit(factor) == pytest.approx(30**0.5)
    assert BUDGETS["spectral"]().unit(factor) == pytest.approx(
        np.linalg.norm(factor.numpy(), 2), rel=1e-6
    )


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_unevenness_is_one_for_equal_rows_and_grows_with_a_tail(seed):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(41, 5))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    assert unevenness(torch.from_numpy(rows)) == pytest.approx(1.0)
    assert unevenness(torch.from_numpy(7 * rows)) == pytest.approx(1.0), "no matter of scale"
    rows *= rng.exponential(size=(41, 1)) ** 3
    norms = np.linalg.norm(rows, axis=1)
    expected = np.sqrt((norms**2).mean()) / np.median(norms)
    assert unevenness(torch.from_numpy(rows)) == pytest.approx(expected)
    assert expected > 2
    assert unevenness(torch.zeros(3, 2)) is unevenness(torch.zeros(0, 2)) is None


# --- each row in its own length ---------------------------------------------------------------


@st.composite
def rows_and_moves(draw):
    """A factor, some rows of which are zero, and a perturbation of it, some rows of which are."""
    n, dim, seed = draw(st.integers(1, 9)), draw(st.integers(1, 5)), draw(st.integers(0, 10**6))
    rng = np.random.default_rng(seed)
    factor, delta = rng.normal(size=(2, n, dim)) * rng.exponential(size=(2, n, 1)) ** 2
    factor[rng.random(n) < 0.2] = 0.0
    delta[rng.random(n) < 0.2] = 0.0
    return factor, delta


@given(rows_and_moves(), st.floats(0.01, 3.0))
@settings(max_examples=200, deadline=None)
def test_own_lengths_are_naive_loops(matrices, epsilon):
    factor, delta = matrices
    budget = OwnRowBudget().of(torch.tensor(factor))
    measured, projected, scaled = 0.0, [], []
    for row, move in zip(factor, delta, strict=True):
        length, size = np.linalg.norm(row), np.linalg.norm(move)
        if size > 0:
            measured = max(measured, size / length if length > 0 else np.inf)
        most = epsilon * length
        projected.append(move if size <= most else move * most / size)
        scaled.append(move * most / size if size > 0 else move)
    tensor = torch.tensor(delta)
    assert budget.measure(tensor) == pytest.approx(measured, rel=1e-9)
    got = budget.project(tensor, epsilon)
    np.testing.assert_allclose(got, np.array(projected), rtol=1e-9, atol=1e-12)
    assert budget.measure(got) <= epsilon * (1 + 1e-9)
    again = budget.project(got, epsilon)
    np.testing.assert_allclose(again, got, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(budget.scale(tensor, epsilon), scaled, rtol=1e-9, atol=1e-12)
    still = np.linalg.norm(factor, axis=1) == 0
    assert not got[still].any()
    assert not budget.scale(tensor, epsilon)[still].any(), "rows of no length may not move"
    assert budget.unit(torch.tensor(factor)) == 1.0
    np.testing.assert_allclose(
        budget.row_sizes(torch.tensor(factor), epsilon), epsilon * np.linalg.norm(factor, axis=1)
    )


def test_own_lengths_of_nothing():
    budget = OwnRowBudget().of(torch.zeros(0, 3))
    assert budget.measure(torch.zeros(0, 3)) == 0.0
    zeros = OwnRowBudget().of(torch.zeros(2, 3))
    assert zeros.measure(torch.zeros(2, 3)) == 0.0
    assert zeros.measure(torch.ones(2, 3)) == np.inf
    assert not zeros.project(torch.ones(2, 3), 1.0).any()


def test_own_lengths_are_of_a_factor_that_is_known():
    budget, delta = OwnRowBudget(), torch.ones(3, 2)
    for ask in (
        lambda: budget.measure(delta),
        lambda: budget.project(delta, 1.0),
        lambda: budget.scale(delta, 1.0),
        lambda: budget.row_sizes(delta, 1.0),
    ):
        with pytest.raises(InputError, match=r"knows no factor yet.*about 3: use budget.of"):
            ask()
    known = budget.of(torch.ones(4, 2))
    with pytest.raises(InputError, match=r"knows 4 rows, and was asked about 3"):
        known.project(delta, 1.0)
    assert budget.lengths is None, "of() makes another one"
    for plain in (RowBudget(), *(kind() for kind in BUDGETS.values())):
        assert plain.of(delta) is plain
    assert {name for name, kind in BUDGETS.items() if kind.by_row} == {"row"}
    assert OwnRowBudget.by_row


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_an_attack_may_be_used_for_factors_after_factors(seed):
    """Own lengths are asked for each time; one attack serves many."""
    board, rng = checkerboard(), np.random.default_rng(seed)
    attack = FGM(Softmax(board.train), OwnRowBudget())
    for scale in (1.0, 30.0):
        lengths = scale * rng.exponential(size=(50, 1))
        rows = torch.from_numpy(rng.normal(size=(50, 3)) * lengths).float()
        factors = Factors(rows[:20].clone(), rows[20:].clone())
        attacked = attack.perturb(factors, 0.25)
        assert attacked.allowed == {"users": 0.25, "items": 0.25}
        for before, after in zip(factors, attacked.factors, strict=True):
            before, after = before.double().numpy(), after.double().numpy()
            shares = np.linalg.norm(after - before, axis=1) / np.linalg.norm(before, axis=1)
            np.testing.assert_allclose(shares, 0.25, rtol=1e-4)
