"""Gauges: other embeddings with the same rankings, and the one that an attack can move least.

For every vector c and invertible matrix A, ``V -> V - 1 c^T`` adds one number to all scores of a
user, and ``U -> U A``, ``V -> V A^{-T}`` changes no score: rankings stay. The reach of an attack
does not. Let rows of U move by at most ``eps m_U`` and rows of V by at most ``eps m_V``, where m is
the median row norm (a relative row budget). The gap between items i and j of user u then moves by
at most::

    eps (m_U ||v_i - v_j|| + 2 m_V ||u||) + 2 eps^2 m_U m_V

which is small when the norms are. So the *balanced* gauge takes c, the mean of the items, and A
such that ``||U||_F^2 + ||V||_F^2`` is as small as possible: then ``U^T U = V^T V`` is diagonal, and
both squared norms are the nuclear norm of the centred scores (Srebro, Rennie and Jaakkola, 2004,
"Maximum-Margin Matrix Factorization"). Factors that were trained with a cross-entropy are far from
it, since a constant direction, long in every row, carries the base rate.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from robustcf._distributed import Rows
from robustcf.factors import Factors, as_tensor

# Singular values below this share of the largest are rounding errors.
_RELATIVE_RANK = 1e-9


@dataclass(frozen=True, eq=False)
class Gauge:
    """A change of coordinates: ``U A`` and ``(V - 1 c^T) B`` with ``B = A^{-T}``."""

    centre: Tensor
    to_users: Tensor
    to_items: Tensor

    @classmethod
    def balanced(cls, U: Tensor, V: Tensor, rows: Rows | None = None) -> Gauge:
        """Return the balanced gauge of two factors, tensors or numpy arrays.

        Directions that no score depends on get length 0. With ``rows``, U holds the users of one
        of several ranks, all of which must call.

        Cost: a QR decomposition of each factor, O((users + items) d^2), in double precision.

        Example:
            >>> U, V = torch.tensor([[9.0, 1.0], [9.0, -1.0]]), torch.tensor([[7.0, 1.0], [7.0, 3]])
            >>> new = Gauge.balanced(U, V).apply(Factors(U, V))
            >>> round(float(new.users.norm() ** 2), 4), round(float(new.items.norm() ** 2), 4)
            (2.0, 2.0)
        """
        users, items = as_tensor("U", U).double(), as_tensor("V", V).double()
        centre = items.mean(dim=0)
        left = torch.linalg.qr(users, mode="r").R
        if rows is not None and not rows.whole:
            left = torch.linalg.qr(rows.ranks.joined(left), mode="r").R
        right = torch.linalg.qr(items - centre, mode="r").R
        # U V^T = Q_u (R_u R_v^T) Q_v^T, so the small matrix has the singular values.
        a, values, b = torch.linalg.svd(left @ right.mT, full_matrices=False)
        root = torch.where(values > _RELATIVE_RANK * values[:1], values.rsqrt(), 0.0)
        return cls(centre, right.mT @ (b.mT * root), left.mT @ (a * root))

    def apply(self, factors: Factors) -> Factors:
        """Return factors with the same rankings in this gauge."""
        users, items = factors.users, factors.items
        return Factors(
            (users.double() @ self.to_users).to(users.dtype),
            ((items.double() - self.centre) @ self.to_items).to(items.dtype),
        )


def shrink(factors: Factors, share: float, rows: Rows | None = None) -> Factors:
    """Shorten the singular values of balanced factors by ``share`` times their median.

    This is the proximal step of the nuclear norm of the centred scores (Cai, Candes and Shen, 2010,
    arXiv:0810.3286). Unlike a gauge it changes rankings, a little: it removes the weakest
    directions, and with them length that an attack exploits. ``rows``: see :meth:`Gauge.balanced`.

    Cost: one pass over the factors.

    Example:
        >>> both = torch.diag(torch.tensor([3.0, 2.0, 1.0]))
        >>> (shrink(Factors(both, both), 0.5).users ** 2).diag().round(decimals=4).tolist()
        [7.0, 2.0, 0.0]
    """
    values = factors.users.double().square().sum(dim=0)
    if rows is not None:
        rows.ranks.sum(values)
    left = (values - share * values.median()).clamp_min(0.0)
    factor = torch.where(values > 0, (left / values).sqrt(), 0.0)
    return Factors(*((part.double() * factor).to(part.dtype) for part in factors))


def truncate(factors: Factors, rank: int | None) -> Factors:
    """Keep the ``rank`` strongest directions (first columns) of balanced factors; None for all.

    Weak directions carry little of a ranking, and an attack can spend its budget in each of them.
    """
    if rank is None or rank >= factors.dim:
        return factors
    return Factors(factors.users[:, :rank].clone(), factors.items[:, :rank].clone())
