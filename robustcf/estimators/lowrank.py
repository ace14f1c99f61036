"""``LowRank(U, V)``: the matrix U V^T of a pair of factors, never formed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from robustcf.errors import InputError
from robustcf.estimators.numerics import blocks, norm_scale, row_norms
from robustcf.estimators.operators import Matrix, tensor_of, working_dtype

_BLOCK = 8192


class LowRank(Matrix):
    """A = U V^T for factors U (d x r) and V (n x r), tensors or ndarrays.

    A product costs (d + n) r multiplications. Row norms need no products at all:
    ||A_i||^2 = u_i^T (V^T V) u_i, in O((d + n) r^2) time and O(r^2) memory beyond one block.
    For complex factors the transpose is plain: A = U V^T, not U V^H.

    Example:
        >>> A = LowRank(torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [4.0]]))
        >>> A.shape, A.row_norms().tolist()
        ((2, 2), [5.0, 10.0])
    """

    def __init__(self, U: Any, V: Any) -> None:
        (u, u_numpy), (v, v_numpy) = tensor_of(U), tensor_of(V)
        if u.ndim != 2 or v.ndim != 2 or u.shape[1] != v.shape[1]:
            raise InputError(
                "LowRank expects U (d x r) and V (n x r) with the same r, got shapes "
                f"{tuple(u.shape)} and {tuple(v.shape)}: transpose one of them"
            )
        if u.device != v.device:
            raise InputError(f"U is on {u.device} and V on {v.device}: move them to one device")
        self.numpy = u_numpy and v_numpy
        self.dtype = working_dtype(torch.promote_types(u.dtype, v.dtype))
        self.device = u.device
        self.shape = (u.shape[0], v.shape[0])
        self.U, self.V = u.to(self.dtype), v.to(self.dtype)

    @property
    def rank(self) -> int:
        """The number of columns of the factors."""
        return int(self.U.shape[1])

    @property
    def H(self) -> LowRank:
        """The conjugate transpose: the factors change places."""
        adjoint = LowRank(self.V.conj(), self.U.conj())
        adjoint.numpy = self.numpy
        return adjoint

    def matmat(self, X: Tensor, /) -> Tensor:
        """U (V^T X)."""
        return self.U @ (self.V.mT @ X)

    def rmatmat(self, Y: Tensor, /) -> Tensor:
        """conj(V) (U^H Y)."""
        return self.V.conj() @ (self.U.mH @ Y)

    def rows(self, index: Tensor) -> Tensor:
        """U[index] V^T."""
        return self.U[index] @ self.V.mT

    def row_norms(self) -> Tensor:
        """All row norms in float64, by the Gram matrix of V in float64.

        ||A_i|| = ||u_i L|| with V^T conj(V) = L L^H: squares are summed, never subtracted, so a
        row's relative error stays near float64's own unless the row nearly cancels in A itself.
        """
        with torch.no_grad():
            u_scale, v_scale = norm_scale(self.U), norm_scale(self.V)
            root = gram_root_of(self.V, v_scale)
            parts = [
                row_norms((block / u_scale).to(root.dtype) @ root)
                for block in blocks(self.U, _BLOCK)
            ]
            if not parts:
                return torch.zeros(0, dtype=torch.float64, device=self.device)
            return torch.cat(parts) * u_scale * v_scale

    def quick_scores(self) -> Tensor | None:
        """Squared row norms in the factors' own precision, or None where that is not safe.

        Twice as fast as `row_norms` for float32; `exact` reads the leaders again in float64.
        """
        if self.dtype is not torch.float32:
            return None
        with torch.no_grad():
            gram = torch.zeros(self.rank, self.rank, dtype=torch.float64, device=self.device)
            for block in blocks(self.V, _BLOCK):
                gram += block.mT @ block
            gram32 = gram.to(torch.float32)
            parts = [((b @ gram32) * b).sum(dim=1) for b in blocks(self.U, _BLOCK)]
            scores = torch.cat(parts) if parts else torch.zeros(0, device=self.device)
        if not len(scores) or not 1e-30 < float(scores.max()) < 1e30:
            return None  # zero, NaN, or near the ends of float32's range
        return scores


def gram_root_of(V: Tensor, scale: float) -> Tensor:
    """L with L L^H = V^T conj(V) / scale^2."""
    wide = torch.complex128 if V.is_complex() else torch.float64
    gram = torch.zeros(V.shape[1], V.shape[1], dtype=wide, device=V.device)
    for block in blocks(V, _BLOCK):
        scaled = (block / scale).to(wide)
        gram += scaled.mT @ scaled.conj()
    return gram_root(gram)


def gram_root(gram: Tensor) -> Tensor:
    """L with L L^H = G for a Gram matrix G, by an eigendecomposition (it may be rank deficient)."""
    if not bool(torch.isfinite(gram).all()):
        return gram  # a NaN or infinite factor: let the norms show it
    values, vectors = torch.linalg.eigh(gram)
    root: Tensor = vectors * values.clamp_min(0).sqrt()
    return root
