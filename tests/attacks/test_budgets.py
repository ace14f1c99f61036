"""Measures and projections against numpy; no factor ever moves further than its budget."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from robustcf.attacks import (
    BUDGETS,
    FGM,
    PGD,
    Budget,
    Cutoff,
    OwnRowBudget,
    RandomNoise,
    RowBudget,
    Softmax,
    unevenness,
)
from robustcf.data import checkerboard
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.objectives import BCE

BOARD = checkerboard()


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
@settings(max_examples=60, deadline=None)
def test_measure_projection_and_scaling_against_numpy(name, delta, epsilon):
    budget = BUDGETS[name]()
    tensor = torch.tensor(delta)
    assert budget.measure(tensor) == pytest.approx(naive_measure(name, delta), rel=1e-7)
    projected = budget.project(tensor, epsilon)
    np.testing.assert_allclose(projected, naive_project(name, delta, epsilon), rtol=1e-6, atol=1e-9)
    assert budget.measure(projected) <= epsilon * (1 + 1e-9)
    again = budget.project(projected, epsilon)
    np.testing.assert_allclose(again, projected, rtol=1e-9, atol=1e-12)
    scaled = budget.scale(tensor, epsilon)  # reaches the edge and keeps the direction
    assert budget.measure(scaled) == pytest.approx(epsilon, rel=1e-6)
    rows = scaled.numpy() if name == "row" else scaled.numpy().reshape(1, -1)
    given_rows = delta if name == "row" else delta.reshape(1, -1)
    cosines = (rows * given_rows).sum(1) / (
        np.linalg.norm(rows, axis=1) * np.linalg.norm(given_rows, axis=1)
    )
    np.testing.assert_allclose(cosines, 1.0, rtol=1e-6)


@pytest.mark.parametrize("name", list(BUDGETS))
def test_zero_stays_zero(name):
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
    largest = np.linalg.norm(factor.numpy(), 2)
    assert BUDGETS["spectral"]().unit(factor) == pytest.approx(largest, rel=1e-6)


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
@settings(max_examples=80, deadline=None)
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


def test_own_lengths_need_a_known_factor():
    assert OwnRowBudget().of(torch.zeros(0, 3)).measure(torch.zeros(0, 3)) == 0.0
    budget, delta = OwnRowBudget(), torch.ones(3, 2)
    for ask in (budget.measure, *(partial(f, epsilon=1.0) for f in (budget.project, budget.scale))):
        with pytest.raises(InputError, match="no factor"):
            ask(delta)
    with pytest.raises(InputError, match="4 rows"):
        budget.of(torch.ones(4, 2)).project(delta, 1.0)
    assert budget.lengths is None, "of() makes another one"
    for plain in (RowBudget(), *(kind() for kind in BUDGETS.values())):
        assert plain.of(delta) is plain
    assert {name for name, kind in BUDGETS.items() if kind.by_row} == {"row"}
    assert OwnRowBudget.by_row


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_an_attack_may_be_used_for_factors_after_factors(seed):
    """Own lengths are asked for each time; one attack serves many."""
    rng = np.random.default_rng(seed)
    attack = FGM(Softmax(BOARD.train), OwnRowBudget())
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


# --- no tolerance: rounding included ----------------------------------------------------------

NORMS = ("row", "own", "frobenius", "spectral")
SIZES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0)
# A few seeds while developing, the others before a release.
FEW_AND_MORE = pytest.mark.parametrize(
    "seeds", [range(2), pytest.param(range(2, 5), marks=pytest.mark.slow)], ids=["few", "more"]
)


def budget_of(norm: str) -> Budget:
    return OwnRowBudget() if norm == "own" else BUDGETS[norm]()


def some_factors(seed: int, dtype: torch.dtype, spread: str) -> Factors:
    """Rows of one size; of sizes many powers of ten apart; tiny; huge."""
    rng = np.random.default_rng(seed)
    U, V = rng.normal(size=(20, 16)), rng.normal(size=(30, 16))
    info = torch.finfo(dtype)
    if spread == "wild":
        powers = 2 if dtype == torch.float16 else 9
        U, V = (part * 10 ** rng.uniform(-powers, powers, (len(part), 1)) for part in (U, V))
    elif spread == "tiny":  # below what the dtype holds in full precision
        U, V = U * info.smallest_normal / 8, V * info.smallest_normal / 8
    elif spread == "huge":
        most = 1e12 if info.max > 1e5 else 1e3
        U, V = U * most, V * most
    return Factors(torch.from_numpy(U).to(dtype), torch.from_numpy(V).to(dtype))


def spent(norm: str, before: torch.Tensor, after: torch.Tensor) -> float:
    """By numpy, in long doubles."""
    clean = before.double().numpy().astype(np.longdouble)
    moved = after.double().numpy().astype(np.longdouble) - clean
    rows = np.sqrt((moved**2).sum(axis=1))
    if norm == "row":
        return float(rows.max())
    if norm == "own":
        lengths = np.sqrt((clean**2).sum(axis=1))
        return float(max(r / n if r else 0.0 for r, n in zip(rows, lengths, strict=True)))
    if norm == "frobenius":
        return float(np.sqrt((moved**2).sum()))
    return float(np.linalg.svd(moved.astype(np.float64), compute_uv=False).max())


def check(norm: str, attack, factors: Factors, size: float) -> dict[str, float]:
    """The shares of the budget that were spent."""
    got = attack.perturb(factors, size)
    shares = {}
    for name, before, after in zip(("users", "items"), factors, got.factors, strict=True):
        assert after.dtype == before.dtype
        most = got.allowed[name]
        assert spent(norm, before, after) <= most, (norm, size, name)
        assert got.realised[name] <= most
        shares[name] = got.realised[name] / most if most else 0.0
    return shares


@FEW_AND_MORE
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("spread", ["even", "wild", "tiny", "huge"])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str
)
@pytest.mark.slow
def test_no_factor_moves_further_than_it_may(norm, spread, dtype, seeds):
    for seed, size in itertools.product(seeds, SIZES):
        factors = some_factors(seed, dtype, spread)
        for relative in (True, False) if norm != "own" else (True,):
            noise = RandomNoise(budget_of(norm), relative=relative, seed=seed)
            check(norm, noise, factors, size)


@FEW_AND_MORE
@pytest.mark.parametrize("norm", NORMS)
def test_nor_by_attacks_that_follow_a_gradient(norm, seeds):
    for seed, size in itertools.product(seeds, (1e-5, 1e-3, 0.1)):
        for dtype, spread in itertools.product((torch.float32, torch.float64), ("even", "wild")):
            factors = some_factors(seed, dtype, spread)
            softmax, budget = Softmax(BOARD.train, dtype=dtype), budget_of(norm)
            check(norm, FGM(softmax, budget), factors, size)
            check(norm, PGD(softmax, budget, steps=2, fixed=[1]), factors, size)
            check(norm, Cutoff(BOARD.test, BOARD.train, 5, budget, steps=2), factors, size)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("seed", range(5))
def test_little_of_the_budget_is_given_up(norm, seed):
    """Shrunk no further than rounding asks for: at ordinary sizes next to nothing is lost."""
    for size, least in ((1e-3, 0.999), (1e-2, 0.9999), (0.1, 0.99999)):
        factors = some_factors(seed, torch.float32, "even")
        shares = check(norm, RandomNoise(budget_of(norm), seed=seed), factors, size)
        assert min(shares.values()) >= least, (size, shares)


@pytest.mark.parametrize("norm", NORMS)
def test_size_0_gives_the_clean_bits_and_too_small_a_size_too(norm):
    factors = some_factors(0, torch.float32, "even")
    noise = RandomNoise(budget_of(norm))
    assert noise.perturb(factors, 0.0).factors is factors
    got = noise.perturb(factors, 1e-12)  # far below the last digit of the entries
    for before, after in zip(factors, got.factors, strict=True):
        near_zero = before.abs() < 1e-4
        assert torch.equal(after[~near_zero], before[~near_zero])


@pytest.mark.parametrize("norm", BUDGETS)
def test_given_tensors_stay_and_steps_below_rounding_do_nothing(norm):
    factor, delta = torch.ones(3, 2), torch.full((3, 2), 0.5)
    assert not torch.equal(BUDGETS[norm]().apply(factor, delta, 0.1), factor)
    assert torch.equal(factor, torch.ones(3, 2))
    assert torch.equal(delta, torch.full((3, 2), 0.5))
    # Next to 1 a float32 moves by 1.2e-7 or not at all.
    assert torch.equal(BUDGETS[norm]().apply(factor, 2e-7 * delta, 1e-8), factor)


def test_rows_next_to_nothing_have_no_direction():
    direction = torch.tensor([[1e-310, 0.0], [1.0, 0.0]], dtype=torch.float64)
    assert RowBudget().scale(direction, 1e10).tolist() == [[0.0, 0.0], [1e10, 0.0]]
    tiny = torch.full((1, 1), 1e-44)
    assert BUDGETS["frobenius"]().scale(tiny, 2.0).item() == pytest.approx(2.0)


@pytest.mark.parametrize("norm", NORMS)
def test_large_sizes_are_computed_or_refused(norm):
    factors = some_factors(1, torch.float32, "even")
    budget = budget_of(norm)
    for size in (1e20, 1e40, 1e200, 1e308):
        with pytest.raises(InputError, match="larger than"):
            RandomNoise(budget).perturb(factors, size)
    for attack in (
        RandomNoise(budget),
        FGM(Softmax(BOARD.train), budget),
        PGD(BCE(BOARD.train), budget, steps=2),
        Cutoff(BOARD.test, BOARD.train, 5, budget, steps=2),
    ):
        for size in (1e3, 1e8, 1e12):
            check(norm, attack, factors, size)
    half = some_factors(1, torch.float16, "huge")
    with pytest.raises(InputError, match="float16"):
        RandomNoise(budget).perturb(half, 100.0)
    # Scores of such factors are beyond float16, and so is the gradient.
    attack = FGM(Softmax(BOARD.train, dtype=torch.float16), budget, relative=False)
    with pytest.raises(InputError, match="half precision"):
        attack.perturb(half, 0.1)
