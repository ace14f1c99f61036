"""Adapters against plain numpy products; counting; numpy in, numpy out."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as spla
import torch

from robustcf.errors import InputError
from robustcf.estimators import (
    FunctionOperator,
    Jacobian,
    LowRank,
    as_operator,
    exact,
    one_to_two,
    two_to_inf,
)
from robustcf.estimators.operators import (
    Adjoint,
    BudgetExceededError,
    Counted,
    Dense,
    Product,
    Sum,
    rows_by_products,
)

from .conftest import row_norms

rng = np.random.default_rng(0)
REAL = rng.normal(size=(7, 5))
TORCH = torch.from_numpy(REAL)
WHOLE = np.arange(35).reshape(7, 5)
COMPLEX = REAL + 1j * rng.normal(size=(7, 5))
U, V = rng.normal(size=(7, 3)), rng.normal(size=(5, 3))
UC, VC = U + 1j * rng.normal(size=U.shape), V + 1j * rng.normal(size=V.shape)


def _csr(A: np.ndarray) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls its CSR support beta
        return torch.from_numpy(A).to_sparse_csr()


def _of_type(kind: type | str) -> sp.csc_array:
    A = sp.csc_array(REAL)
    A.data = A.data.astype(kind)  # scipy's constructors refuse it
    return A


class Bare:
    """The five names of the protocol alone."""

    def __init__(self, A: np.ndarray, shape: tuple[int, ...] = (7, 5)) -> None:
        self.A = torch.from_numpy(A)
        self.shape, self.dtype, self.device = shape, self.A.dtype, self.A.device

    def matmat(self, X: torch.Tensor) -> torch.Tensor:
        return self.A @ X

    def rmatmat(self, Y: torch.Tensor) -> torch.Tensor:
        return self.A.mH @ Y


CASES = {
    "dense numpy": (REAL, REAL),
    "dense torch": (TORCH, REAL),
    "dense complex": (COMPLEX, COMPLEX),
    "fortran order": (np.asfortranarray(REAL), REAL),
    "reversed view": (REAL[::-1, ::-1], REAL[::-1, ::-1]),
    "big endian": (REAL.astype(">f8"), REAL),
    "integers": (WHOLE, WHOLE.astype(float)),
    "booleans": (REAL > 0, (REAL > 0).astype(float)),
    "long double": (REAL.astype(np.longdouble), REAL),
    "int tensor": (torch.from_numpy(WHOLE), WHOLE.astype(float)),
    "torch coo": (torch.from_numpy(REAL).to_sparse(), REAL),
    "torch coo complex": (torch.from_numpy(COMPLEX).to_sparse(), COMPLEX),
    "torch csr": (_csr(REAL), REAL),
    "scipy csr": (sp.csr_matrix(REAL), REAL),
    "scipy coo complex": (sp.coo_array(COMPLEX), COMPLEX),
    "scipy int": (sp.csc_array((REAL > 0).astype(np.int64)), (REAL > 0).astype(float)),
    "low rank": (LowRank(U, V), U @ V.T),
    "low rank complex": (LowRank(UC, VC), UC @ VC.T),
    "scipy linear operator": (spla.aslinearoperator(REAL), REAL),
    "scipy linear operator complex": (spla.aslinearoperator(COMPLEX), COMPLEX),
    "scipy linear operator int": (spla.aslinearoperator(WHOLE), WHOLE.astype(float)),
    "functions": (FunctionOperator((7, 5), lambda X: REAL @ X, lambda Y: REAL.T @ Y, float), REAL),
    "torch functions": (
        FunctionOperator((7, 5), lambda X: TORCH @ X, lambda Y: TORCH.T @ Y),
        REAL,
    ),
    "bare protocol": (Bare(REAL), REAL),
    "adjoint": (Adjoint(COMPLEX), COMPLEX.conj().T),
    "product": (Product(LowRank(U, V), REAL.T), U @ V.T @ REAL.T),
    "mixed product": (as_operator(REAL.T) @ COMPLEX, REAL.T @ COMPLEX),
    "sum": (LowRank(U, V) + sp.csr_matrix(REAL), U @ V.T + REAL),
    "mixed sum": (Sum(REAL, COMPLEX), REAL + COMPLEX),
    "jacobian": (Jacobian(lambda x: TORCH @ x, torch.ones(5, dtype=torch.float64)), REAL),
}


@pytest.mark.parametrize("name", CASES)
def test_products_equal_numpy_products(name: str) -> None:
    op, dense = as_operator(CASES[name][0]), CASES[name][1]
    assert op.shape == dense.shape
    kind = torch.complex128 if np.iscomplexobj(dense) else torch.float64
    assert op.dtype == kind
    X = torch.randn(dense.shape[1], 3, dtype=kind, generator=torch.Generator().manual_seed(0))
    Y = torch.randn(dense.shape[0], 3, dtype=kind, generator=torch.Generator().manual_seed(1))
    index = torch.tensor([2, 0])
    image, back, rows = dense @ X.numpy(), dense.conj().T @ Y.numpy(), dense[[2, 0]]
    found = [(op.matmat(X), image), (op.rmatmat(Y), back), (rows_by_products(op, index), rows)]
    if hasattr(op, "rows"):
        found += [(op.rows(index), rows), (op.H.H.matmat(X), image), (op.H.matmat(Y), back)]
    for got, expected in found:
        np.testing.assert_allclose(got.detach().resolve_conj().numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_exact_equals_numpy(name: str) -> None:
    A, dense = CASES[name]
    answer = exact(A)
    norms = row_norms(dense)
    assert answer.row == norms.argmax()
    assert float(answer) == pytest.approx(norms.max(), rel=1e-12)
    assert answer.lower == answer.upper == float(answer)
    assert answer.certified
    assert answer.products + answer.rproducts <= 1 + min(dense.shape)
    assert one_to_two(A).row == row_norms(dense.T).argmax()


def test_numpy_in_float_out_and_torch_in_torch_out() -> None:
    for name in ("dense numpy", "scipy csr", "low rank", "functions"):
        assert isinstance(two_to_inf(CASES[name][0]).value, float)
    of_torch = [CASES[n][0] for n in ("dense torch", "torch coo", "bare protocol", "jacobian")]
    for matrix in (*of_torch, LowRank(U, torch.from_numpy(V))):
        value = two_to_inf(matrix).value
        assert isinstance(value, torch.Tensor)
        assert value.dtype == torch.float64
        assert value.ndim == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_multiplies_in_single(dtype: torch.dtype) -> None:
    A = torch.full((5000, 8), 100.0).to(dtype)
    A[4321] = 30000.0  # a sum of squares, or even of entries, overflows float16
    op = Dense(A)
    assert op.dtype == torch.float32
    assert torch.equal(op.matmat(torch.ones(8, 1)), A.float() @ torch.ones(8, 1))
    back = op.rmatmat(torch.ones(5000, 1))
    torch.testing.assert_close(back, A.float().T @ torch.ones(5000, 1))
    for method in ("exact", "save", "sketch", "twinest"):
        answer = two_to_inf(A, 30, method, generator=0)
        assert answer.row == 4321
        assert float(answer) == pytest.approx(float(A[4321].double().norm()), rel=1e-6)


def test_dense_is_not_copied_and_read_only_arrays_do_not_warn() -> None:
    A = REAL.copy()
    op = Dense(A)
    A[0, 0] = 99.0
    assert op.rows(torch.tensor([0]))[0, 0] == 99.0
    A.flags.writeable = False
    assert exact(A).value == pytest.approx(row_norms(A).max())


def test_counting_counts_and_refuses() -> None:
    op = Counted(REAL, budget=6)
    op.matmat(torch.ones(5, 2, dtype=torch.float64))
    op.rmatmat(torch.ones(7, 1, dtype=torch.float64))
    op.rows(torch.tensor([1, 2]))
    assert (op.products, op.rproducts, op.left) == (2, 3, 1)
    with pytest.raises(BudgetExceededError, match="products"):
        op.matmat(torch.ones(5, 2, dtype=torch.float64))
    assert Counted(REAL).left > 10**9


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (lambda: as_operator("matrix"), "got str"),
        (lambda: as_operator(np.ones(3)), "two dimensions"),
        (lambda: as_operator(Bare(REAL, (7,))), "two dimensions"),
        (lambda: as_operator(np.array([["a"]])), "expected numbers"),
        (lambda: as_operator(_of_type(object)), "sparse matrix of object"),
        (lambda: as_operator(_of_type("<U32")), "sparse matrix of <U32"),
        (lambda: LowRank(U, V[:, :2]), "same r"),
        (lambda: LowRank(U, V.T[0]), "same r"),
        (lambda: LowRank(torch.ones(2, 1, device="meta"), torch.ones(2, 1)), "one device"),
        (lambda: Product(REAL, REAL), "inner sides"),
        (lambda: Sum(REAL, REAL.T), "equal shapes"),
        (lambda: Sum(torch.ones(2, 2, device="meta"), torch.ones(2, 2)), "one device"),
        (lambda: FunctionOperator((2, -1), abs, abs), "two dimensions"),
        (lambda: FunctionOperator((2, 2), abs, abs, torch.int64), "floating point"),
        (lambda: exact(FunctionOperator((2, 3), lambda X: X, lambda Y: Y)), "rmatmat must return"),
        (lambda: exact(FunctionOperator((3, 2), lambda X: 1, lambda Y: Y)), "matmat must return"),
        (lambda: Jacobian(lambda x: x, [1.0]), "got list"),
        (lambda: Jacobian(lambda x: x, torch.arange(3)), "got torch.int64"),
        (lambda: Jacobian(lambda x: (x, x), torch.ones(2)), "one real tensor"),
        (lambda: Jacobian(lambda x: x, torch.ones(2), chunk=0), "chunk"),
    ],
)
def test_bad_operators_are_named(bad: object, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        bad()  # type: ignore[operator]
    assert "\n" not in str(caught.value)
