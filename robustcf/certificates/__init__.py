"""Certificates: what no attack within a row budget can do to a ranking, proved and not tried.

Example:
    >>> import torch
    >>> from robustcf.certificates import certified_curve
    >>> from robustcf.data import checkerboard
    >>> from robustcf.factors import Factors
    >>> parity = torch.eye(2)[torch.arange(30) % 2]
    >>> right = Factors(parity[:20], parity)
    >>> certified_curve(right, checkerboard(), [0, 0.316, 0.317])["ndcg@10"].tolist()
    [1.0, 1.0, 0.0]
"""

from robustcf.certificates.curves import (
    BOUNDS,
    CertifiedRadii,
    certified_curve,
    certified_radii,
    worst_hits,
)
from robustcf.certificates.personal import personal_curve
from robustcf.certificates.radius import Budgets, plain_radius, tight_radius, worst_case

__all__ = [
    "BOUNDS",
    "Budgets",
    "CertifiedRadii",
    "certified_curve",
    "certified_radii",
    "personal_curve",
    "plain_radius",
    "tight_radius",
    "worst_case",
    "worst_hits",
]
