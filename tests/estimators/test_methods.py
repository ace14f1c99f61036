"""The contract of every method: budgets, true values, ties, edges, seeds, gradients."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from robustcf.errors import InputError
from robustcf.estimators import (
    METHODS,
    FunctionOperator,
    LowRank,
    NormEstimate,
    certify,
    one_to_two,
    two_to_inf,
    xsymrownorm,
)

from .conftest import SEEDS, decaying, row_norms, watched

NO_WITNESS = ("rademacher_averaging", "adaptive_power")
LEAST = {"save": 3, "sketch": 2, "rsvd_sketch": 5, "xrownorm": 4, "xnysdiag": 3, "twinest": 3}
LEAST |= {"twinest_pp": 3, "rademacher_averaging": 2, "adaptive_power": 1, "sampled": 3}
MATRIX_FREE = tuple(LEAST)
every_method = pytest.mark.parametrize("method", sorted(METHODS))


def by_products(A: np.ndarray) -> FunctionOperator:
    """A as two functions, so that its entries cannot be read."""
    adjoint = A.conj().T

    def quiet(B: np.ndarray, X: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return B @ X

    return FunctionOperator(A.shape, lambda X: quiet(A, X), lambda Y: quiet(adjoint, Y), A.dtype)


def check(
    answer: NormEstimate, A: np.ndarray, budget: int, rel: float = 1e-9, tiny: float = 1e-300
) -> None:
    norms = row_norms(A)
    top = norms.max()
    assert answer.products + answer.rproducts <= budget
    assert answer.row is not None
    assert answer.lower <= top * (1 + rel)
    assert answer.upper >= answer.lower
    if answer.witness:
        assert float(answer) == pytest.approx(norms[answer.row], rel=rel, abs=tiny)
        assert float(answer) <= top * (1 + rel)
        assert answer.lower >= float(answer) * (1 - 1e-12)
    else:
        assert answer.method in NO_WITNESS
        assert not answer.certified


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("budget", [5, 6, 7, 20, 61])
@pytest.mark.parametrize("method", MATRIX_FREE)
def test_contract(method: str, budget: int, seed: int) -> None:
    A = decaying(60, 40, seed)
    op = by_products(A)
    spent = watched(op)
    answer = two_to_inf(op, budget, method, generator=seed)
    check(answer, A, budget)
    assert (answer.products, answer.rproducts) == (spent["matmat"], spent["rmatmat"])
    assert answer.method == method


@pytest.mark.parametrize(("method", "least"), [*LEAST.items(), ("exact", 21)])
def test_the_least_budget_is_named_and_kept(method: str, least: int) -> None:
    A = decaying(30, 20, 0)
    check(two_to_inf(by_products(A), least, method, generator=0), A, least)
    with pytest.raises(InputError, match=f"at least {least} products"):
        two_to_inf(by_products(A), least - 1, method, generator=0)


@pytest.mark.parametrize("method", MATRIX_FREE)
@pytest.mark.parametrize("verify", [1, 2, 5])
def test_top_k_verification(method: str, verify: int) -> None:
    A = decaying(50, 30, 3)
    answer = two_to_inf(by_products(A), 26, method, verify=verify, generator=1)
    check(answer, A, 26)
    assert answer.witness
    assert answer.rproducts >= verify


@every_method
def test_same_generator_same_bits(method: str) -> None:
    A = decaying(50, 30, 0)
    generator = torch.Generator().manual_seed(5)
    before = generator.get_state()
    assert two_to_inf(A, 20, method, generator=generator) == two_to_inf(A, 20, method, generator=5)
    assert torch.equal(generator.get_state(), before) == (method == "exact"), "it advances"
    state = torch.random.get_rng_state()
    two_to_inf(A, 20, method)
    assert torch.equal(state, torch.random.get_rng_state())


@every_method
@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (5, 0)])
def test_empty(method: str, shape: tuple[int, int]) -> None:
    answer = two_to_inf(np.zeros(shape), 5, method, generator=0)
    assert (answer.value, answer.lower, answer.upper) == (0.0, 0.0, 0.0)
    assert answer.row == (0 if shape[0] else None)
    assert (answer.products, answer.rproducts, answer.certified) == (0, 0, True)
    assert float(two_to_inf(torch.zeros(shape), 5, method, generator=0)) == 0.0


@every_method
@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (7, 1), (4, 4)])
def test_zero_one_row_one_column(method: str, shape: tuple[int, int]) -> None:
    for seed in SEEDS:
        zero = two_to_inf(np.zeros(shape), 9, method, generator=seed)
        assert float(zero) == 0.0
        assert zero.row == 0
        A = np.random.default_rng(seed).normal(size=shape)
        check(two_to_inf(A, 9, method, generator=seed), A, 9)


@every_method
def test_ties_go_to_the_lowest_row(method: str) -> None:
    A = np.zeros((6, 4))
    A[[2, 4]] = 1.0
    for seed in SEEDS:
        answer = two_to_inf(A, 24, method, generator=seed)
        assert answer.row == 2
        assert not answer.witness or float(answer) == pytest.approx(2.0)


@every_method
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
@pytest.mark.parametrize("size", [1.0, 1e-3])
def test_dtypes(method: str, dtype: type, size: float) -> None:
    rng = np.random.default_rng(0)
    A = rng.normal(size=(40, 30)) + 1j * rng.normal(size=(40, 30))
    A = (size * A if np.issubdtype(dtype, np.complexfloating) else size * A.real).astype(dtype)
    rel = 1e-5 if dtype in (np.float32, np.complex64) else 1e-10
    for seed in SEEDS:
        check(two_to_inf(A, 25, method, generator=seed), A, 25, rel=rel)


@every_method
@pytest.mark.parametrize(("dtype", "size"), [("f8", 1e200), ("f8", 1e-200), ("f4", 1e30)])
def test_squares_out_of_range(method: str, dtype: str, size: float) -> None:
    """The same answer as for the matrix at scale one, though squares overflow or vanish."""
    A = decaying(40, 30, 1)
    plain = two_to_inf(A.astype(dtype), 25, method, generator=0)
    scaled = two_to_inf((A * size).astype(dtype), 25, method, generator=0)
    rel = 1e-4 if dtype == "f4" else 1e-9
    assert scaled.row == plain.row
    assert float(scaled) == pytest.approx(float(plain) * size, rel=rel)
    assert scaled.lower == pytest.approx(plain.lower * size, rel=rel)
    if math.isfinite(plain.upper):
        assert scaled.upper == pytest.approx(plain.upper * size, rel=rel)


# Entries of other columns than the drawn ones are not seen by `sampled`.
@pytest.mark.parametrize("method", sorted(METHODS.keys() - {"sampled"}))
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_bad_rows_are_named(method: str, bad: float) -> None:
    A = decaying(40, 30, 0)
    A[17, 3] = bad
    for matrix in (A, torch.from_numpy(A), by_products(A)):
        for seed in SEEDS:
            with pytest.raises(InputError, match=r"row 17 of 40"):
                two_to_inf(matrix, 40, method, generator=seed)


def test_many_bad_rows_are_listed_and_an_overflow_without_a_bad_row_is_named() -> None:
    A = np.ones((40, 30))
    A[10:20, 0] = math.nan
    with pytest.raises(InputError, match=r"rows 10, 11, 12, 13, 14, \.\.\. of 40"):
        two_to_inf(A, method="exact")
    with pytest.raises(InputError, match="overflow"):
        two_to_inf(np.full((3, 4), 1e308), 12, "twinest", generator=0)


@pytest.mark.parametrize("method", ["save", "rsvd_sketch", "xrownorm", "xnysdiag"])
def test_exact_on_low_rank(method: str) -> None:
    rng = np.random.default_rng(1)
    A = rng.normal(size=(300, 4)) @ rng.normal(size=(4, 200))
    for seed in range(10):
        answer = two_to_inf(by_products(A), 40, method, generator=seed)
        assert float(answer) == pytest.approx(row_norms(A).max(), rel=1e-9)


@pytest.mark.parametrize("method", [m for m in sorted(METHODS) if m not in NO_WITNESS])
def test_gradient_is_that_of_the_chosen_row(method: str) -> None:
    rng = np.random.default_rng(2)
    U, V = (torch.from_numpy(rng.normal(size=(n, 3))).requires_grad_() for n in (20, 15))

    def value(U: torch.Tensor, V: torch.Tensor) -> torch.Tensor:
        return two_to_inf(LowRank(U, V), 12, method, generator=0).value

    assert torch.autograd.gradcheck(value, (U, V), fast_mode=True)
    row = two_to_inf(LowRank(U, V), 12, method, generator=0).row
    value(U, V).backward()
    assert torch.nonzero(U.grad.abs().sum(dim=1)).flatten().tolist() == [row]


def test_gradients_of_zero_and_without_a_graph() -> None:
    A = torch.zeros(4, 3, dtype=torch.float64, requires_grad=True)
    two_to_inf(A, method="exact").value.backward()
    assert torch.equal(A.grad, torch.zeros(4, 3, dtype=torch.float64))
    A = torch.randn(20, 10, dtype=torch.float64, requires_grad=True)
    with torch.no_grad():
        assert not two_to_inf(A, 9, "save", generator=0).value.requires_grad
    assert two_to_inf(A, 9, "save", generator=0).value.requires_grad


@pytest.mark.parametrize("method", ["auto", *sorted(METHODS)])
@pytest.mark.parametrize("kind", ["dense", "functions", "low rank"])
def test_one_to_two_is_the_transpose(method: str, kind: str) -> None:
    rng = np.random.default_rng(0)
    U, V = rng.normal(size=(30, 4)), rng.normal(size=(25, 4))
    A = U @ V.T
    matrix = {"dense": A, "functions": by_products(A), "low rank": LowRank(U, V)}[kind]
    answer = one_to_two(matrix, 31, method, generator=0)
    other = two_to_inf(by_products(A.T) if kind == "functions" else A.T, 31, method, generator=0)
    if kind == "functions":
        assert answer.products == other.rproducts
        assert answer.rproducts == other.products
    if answer.witness:
        assert answer.value == pytest.approx(np.linalg.norm(A[:, answer.row]))


def test_auto() -> None:
    A = decaying(60, 40, 0)
    assert two_to_inf(A).method == "exact"
    assert two_to_inf(LowRank(A, A[:5])).method == "exact"
    assert two_to_inf(by_products(A), 41).method == "exact"
    assert two_to_inf(by_products(A), 40, generator=0).method == "save"
    assert two_to_inf(by_products(A.T), 41).method == "exact"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "magic"}, "method must be"),
        ({"budget": 0}, "budget must be an integer of at least 1, got 0"),
        ({"budget": 2.5}, "budget must be an integer of at least 1, got 2.5"),
        ({"budget": True}, "budget must be an integer of at least 1, got True"),
        ({"delta": 0}, "between 0 and 1"),
        ({"delta": 1.0}, "between 0 and 1"),
        ({"delta": "small"}, "between 0 and 1"),
        ({"delta": True}, "between 0 and 1"),
        ({"generator": "seed"}, "generator must be"),
        ({"generator": True}, "generator must be"),
        ({"generator": 2**64}, "64 bits"),
        ({"verify": 0, "method": "twinest"}, "verify .* at least 1"),
        ({"verify": -1, "method": "rademacher_averaging"}, "verify .* at least 0"),
        ({"verify": 1.5, "method": "sketch"}, "verify .* at least 1"),
    ],
)
def test_bad_arguments(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        two_to_inf(np.eye(3), **arguments)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_as_dict_is_plain() -> None:
    plain = two_to_inf(torch.eye(3), 9, "adaptive_power", generator=0).as_dict()
    assert plain["upper"] is None
    assert isinstance(plain["value"], float)
    keys = ["value", "row", "lower", "upper", "products", "rproducts", "certified", "method"]
    assert list(plain) == [*keys, "enough"]


matrices = hnp.arrays(
    np.float64,
    hnp.array_shapes(min_dims=2, max_dims=2, max_side=12),
    elements=st.floats(-1e6, 1e6, allow_subnormal=False),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(A=matrices, budget=st.integers(5, 40), seed=st.integers(0, 2**32))
@every_method
@pytest.mark.slow
def test_any_matrix(method: str, A: np.ndarray, budget: int, seed: int) -> None:
    tiny = 1e-9 * row_norms(A).max()
    check(two_to_inf(A, budget, method, generator=seed), A, budget, tiny=tiny)


@settings(max_examples=60, deadline=None)
@given(A=matrices, budget=st.integers(1, 60), seed=st.integers(0, 2**32))
def test_certify_any_matrix(A: np.ndarray, budget: int, seed: int) -> None:
    answer = certify(A, 1e-9, max(2, budget), generator=seed)
    norms = row_norms(A)
    assert answer.products + answer.rproducts <= max(2, budget)
    assert answer.lower <= norms.max() * (1 + 1e-9)
    assert answer.upper >= norms.max() * (1 - 1e-9)  # delta is too small to fail here
    if answer.certified:
        assert float(answer) == pytest.approx(norms.max(), rel=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_xsymrownorm_on_normal_matrices(seed: int) -> None:
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.normal(size=(60, 60)))[0] * np.exp(0.4 * rng.normal(size=(60, 1)))
    basis = np.linalg.qr(basis)[0]
    A = (basis * np.arange(1, 61) ** -1.5) @ basis.T
    spent = watched(op := by_products(A))
    answer = xsymrownorm(op, 30, generator=seed)
    check(answer, A, 30)
    assert answer.row == int(row_norms(A).argmax())
    assert spent["rmatmat"] == answer.rproducts == 4  # the rows that are read
    with pytest.raises(InputError, match="square|normal"):
        xsymrownorm(A[:30], 30, generator=seed)


def test_an_uncertain_answer_says_what_would_be_enough() -> None:
    A = np.random.default_rng(0).normal(size=(200, 150))
    answer = two_to_inf(by_products(A), 20, generator=0)
    assert not answer.certified
    assert answer.enough == 151
    assert "budget=151" in str(answer)
    sure = two_to_inf(by_products(A), answer.enough)
    assert sure.certified
    assert sure.enough is None
    assert "certain" in str(sure)
