"""``LowRank(U, V)``: the matrix U V^T of a pair of factors, never formed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from robustcf.errors import InputError
from robustcf.estimators.numerics import blocks, norm_scale, row_norms, wide_dtype
from robustcf.estimators.operators import Matrix, tensor_of, working_dtype

_BLOCK = 8192


class LowRank(Matrix):
    """A = U V^T for factors U (d x r) and V (n x r), tensors or ndarrays.

    For complex factors the transpose is plain: A = U V^T, not U V^H.

    Cost: (d + n) r multiplications per product. Row norms need no products, by
    ||A_i||^2 = u_i^T (V^T V) u_i: O((d + n) r^2) time and O(r^2) memory beyond one block.

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
            raise InputError(f"expected factors on one device, got {u.device} and {v.device}")
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
        """Return U (V^T X)."""
        return self.U @ (self.V.mT @ X)

    def rmatmat(self, Y: Tensor, /) -> Tensor:
        """Return conj(V) (U^H Y)."""
        return self.V.conj() @ (self.U.mH @ Y)

    def rows(self, index: Tensor) -> Tensor:
        """Return U[index] V^T."""
        return self.U[index] @ self.V.mT

    @torch.no_grad()
    def row_norms(self) -> Tensor:
        """Return all row norms in float64, by the Gram matrix of V in float64.

        ||A_i|| = ||u_i L|| with V^T conj(V) = L L^H: squares are summed, never subtracted, so a
        row's relative error stays near float64's own unless the row nearly cancels in A itself.
        """
        u_scale, v_scale = norm_scale(self.U), norm_scale(self.V)
        wide = wide_dtype(self.dtype)
        gram = torch.zeros(self.rank, self.rank, dtype=wide, device=self.device)
        for block in blocks(self.V, _BLOCK):
            scaled = (block / v_scale).to(wide)
            gram += scaled.mT @ scaled.conj()
        root = gram_root(gram)
        parts = (row_norms((u / u_scale).to(wide) @ root) for u in blocks(self.U, _BLOCK))
        none = torch.zeros(0, dtype=torch.float64, device=self.device)
        return torch.cat([none, *parts]) * u_scale * v_scale

    @torch.no_grad()
    def quick_scores(self) -> Tensor | None:
        """Return squared row norms in float32, or None if that is not safe.

        Twice as fast as `row_norms`; `exact` reads the leaders again in float64.
        """
        if self.dtype is not torch.float32 or not len(self.U):
            return None
        gram = torch.zeros(self.rank, self.rank, dtype=torch.float64, device=self.device)
        for block in blocks(self.V, _BLOCK):
            gram += block.mT @ block
        gram32 = gram.to(torch.float32)
        scores = torch.cat([((u @ gram32) * u).sum(dim=1) for u in blocks(self.U, _BLOCK)])
        # Zero, NaN, or near the ends of float32's range.
        return scores if 1e-30 < float(scores.max()) < 1e30 else None


def gram_root(gram: Tensor) -> Tensor:
    """Return L with L L^H = G for a Gram matrix G, which may be rank deficient."""
    if not bool(torch.isfinite(gram).all()):
        return gram  # a NaN or infinite factor: let the norms show it
    values, vectors = torch.linalg.eigh(gram)
    root: Tensor = vectors * values.clamp_min(0).sqrt()
    return root
