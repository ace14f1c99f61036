"""Adapters for sparse matrices of torch and scipy."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from robustcf.errors import InputError
from robustcf.estimators.operators import Matrix, check_shape, torch_dtype, working_dtype


def scaled_row_norms(values: Tensor, row: Tensor, rows: int) -> Tensor:
    """Return row norms in float64 of the matrix with these entries, scaled row by row."""
    size = values.abs().to(torch.float64)
    scale = torch.zeros(rows, dtype=torch.float64, device=values.device)
    scale.scatter_reduce_(0, row, size, reduce="amax")
    safe = torch.where(scale > 0, scale, torch.ones_like(scale))
    squares = torch.zeros_like(scale).index_add_(0, row, (size / safe[row]) ** 2)
    return squares.sqrt_().mul_(safe)


class TorchSparse(Matrix):
    """A torch sparse matrix of any layout, multiplied as COO (differentiable in its values)."""

    def __init__(self, A: Tensor) -> None:
        self.shape = check_shape(A.shape)
        self.dtype = working_dtype(A.dtype)
        self.device = A.device
        coo = A if A.layout is torch.sparse_coo else A.to_sparse(layout=torch.sparse_coo)
        self._A = coo.coalesce().to(self.dtype).coalesce()

    def matmat(self, X: Tensor, /) -> Tensor:
        """Return A X."""
        product: Tensor = torch.sparse.mm(self._A, X)
        return product

    def rmatmat(self, Y: Tensor, /) -> Tensor:
        """Return A^H Y = conj(A^T conj(Y)): sparse conjugation is not implemented everywhere."""
        product: Tensor = torch.sparse.mm(self._A.transpose(0, 1), Y.conj().resolve_conj())
        return product.conj().resolve_conj()

    @property
    def H(self) -> Matrix:
        """The conjugate transpose, sparse again."""
        adjoint = self._A.transpose(0, 1).coalesce()
        if self.dtype.is_complex:
            values = adjoint.values().conj().resolve_conj()
            adjoint = torch.sparse_coo_tensor(
                adjoint.indices(), values, adjoint.shape, check_invariants=False
            )
        return TorchSparse(adjoint)

    def rows(self, index: Tensor) -> Tensor:
        """Return rows, dense."""
        return self._A.index_select(0, index).to_dense()

    def row_norms(self) -> Tensor:
        """Return all row norms from the stored entries."""
        row, values = self._A.indices()[0], self._A.values().detach()
        return scaled_row_norms(values, row, self.shape[0])


class ScipySparse(Matrix):
    """A scipy sparse matrix or array, multiplied by scipy."""

    numpy = True
    device = torch.device("cpu")

    def __init__(self, A: Any) -> None:
        self.shape = check_shape(A.shape)
        if A.dtype.kind not in "biufc":  # scipy cannot even convert them
            raise InputError(f"expected numbers, got a sparse matrix of {A.dtype}")
        csr = A.tocsr()
        if csr.dtype.kind in "iub" or csr.dtype.char in "gG":
            csr = csr.astype(np.complex128 if csr.dtype.kind == "c" else np.float64)
        if not csr.has_canonical_format:
            csr = csr.copy()
            csr.sum_duplicates()
        self._A, self._AH = csr, csr.conj().T
        self.dtype = torch_dtype(csr.dtype)

    def matmat(self, X: Tensor, /) -> Tensor:
        """Return A X."""
        return torch.from_numpy(np.ascontiguousarray(self._A @ X.numpy()))

    def rmatmat(self, Y: Tensor, /) -> Tensor:
        """Return A^H Y."""
        return torch.from_numpy(np.ascontiguousarray(self._AH @ Y.resolve_conj().numpy()))

    @property
    def H(self) -> Matrix:
        """The conjugate transpose, sparse again."""
        return ScipySparse(self._AH)

    def rows(self, index: Tensor) -> Tensor:
        """Return rows, dense."""
        return torch.from_numpy(np.ascontiguousarray(self._A[index.numpy()].toarray()))

    def row_norms(self) -> Tensor:
        """Return all row norms from the stored entries."""
        counts = torch.from_numpy(np.diff(self._A.indptr).astype(np.int64))
        row = torch.repeat_interleave(torch.arange(self.shape[0]), counts)
        return scaled_row_norms(torch.from_numpy(np.array(self._A.data)), row, self.shape[0])
