"""What attacked factors really moved by, rounding included, is within the budget: no tolerance."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from robustcf.attacks import BUDGETS, FGM, PGD, Cutoff, OwnRowBudget, RandomNoise, Softmax
from robustcf.attacks.budgets import Budget, RowBudget
from robustcf.data import checkerboard
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.objectives import BCE

BOARD = checkerboard()
NORMS = ("row", "own", "frobenius", "spectral")
SIZES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0)
# A few seeds while one works, the others before one hands in.
FEW_AND_MORE = pytest.mark.parametrize(
    "seeds", [range(2), pytest.param(range(2, 5), marks=pytest.mark.slow)], ids=["few", "more"]
)


def budget_of(norm: str) -> Budget:
    return OwnRowBudget() if norm == "own" else BUDGETS[norm]()


def some_factors(seed: int, dtype: torch.dtype, spread: str) -> Factors:
    """Rows of one size; of sizes many powers of ten apart; next to nothing; huge."""
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
    """By numpy, in the longest floating-point numbers there are."""
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


def test_the_given_tensors_stay_as_they_are():
    factor, delta = torch.ones(3, 2), torch.full((3, 2), 0.5)
    for norm in ("row", "frobenius", "spectral"):
        moved = BUDGETS[norm]().apply(factor, delta, 0.1)
        assert torch.equal(factor, torch.ones(3, 2))
        assert torch.equal(delta, torch.full((3, 2), 0.5))
        assert not torch.equal(moved, factor)


@pytest.mark.parametrize("norm", ["row", "frobenius", "spectral"])
def test_where_rounding_is_larger_than_the_budget_nothing_moves(norm):
    """Next to 1 a float32 moves by 1.2e-7 or not at all."""
    factor = torch.ones(4, 3)
    moved = BUDGETS[norm]().apply(factor, torch.full((4, 3), 1e-7), 1e-8)
    assert torch.equal(moved, factor)


def test_rows_next_to_nothing_have_no_direction():
    direction = torch.tensor([[1e-310, 0.0], [1.0, 0.0]], dtype=torch.float64)
    assert RowBudget().scale(direction, 1e10).tolist() == [[0.0, 0.0], [1e10, 0.0]]
    tiny = torch.full((1, 1), 1e-44)
    assert BUDGETS["frobenius"]().scale(tiny, 2.0).item() == pytest.approx(2.0)


@pytest.mark.parametrize("size", [1e20, 1e40, 1e200, 1e308])
@pytest.mark.parametrize("norm", NORMS)
def test_sizes_beyond_the_numbers_are_refused(norm, size):
    factors = some_factors(0, torch.float32, "even")
    with pytest.raises(InputError, match=r"size 1e\+\d+ makes embeddings or scores larger than fl"):
        RandomNoise(budget_of(norm)).perturb(factors, size)


@pytest.mark.parametrize("norm", NORMS)
def test_large_sizes_that_are_not_refused_can_be_computed(norm):
    factors = some_factors(1, torch.float32, "even")
    budget = budget_of(norm)
    for attack in (
        RandomNoise(budget),
        FGM(Softmax(BOARD.train), budget),
        PGD(BCE(BOARD.train), budget, steps=2),
        Cutoff(BOARD.test, BOARD.train, 5, budget, steps=2),
    ):
        for size in (1e3, 1e8, 1e12):
            check(norm, attack, factors, size)
    half = some_factors(1, torch.float16, "huge")
    with pytest.raises(InputError, match="larger than float16 can hold"):
        RandomNoise(budget).perturb(half, 100.0)


@pytest.mark.parametrize("norm", NORMS)
def test_an_overflow_of_half_precision_is_told(norm):
    """Scores of such factors are beyond float16, and so is the gradient."""
    half = some_factors(0, torch.float16, "huge")
    attack = FGM(Softmax(BOARD.train, dtype=torch.float16), budget_of(norm), relative=False)
    with pytest.raises(InputError, match="not finite for the users, in torch.float16: half prec"):
        attack.perturb(half, 0.1)
