"""Certificates: certified lower bounds on ranking metrics under every attack of a row budget.

The proofs are in :mod:`robustcf.attacks.certificates.radius` (two items of one user) and
:mod:`robustcf.attacks.certificates.bounds` (metrics and top-k sets). For a whole recommender use
:func:`robustcf.robustness.measuring` with ``"certificate"``.
"""

from robustcf.attacks.certificates.bounds import (
    BOUNDS,
    certified_metrics,
    top_radii,
    usable_bound,
)
from robustcf.attacks.certificates.radius import Budgets, plain_radius, tight_radius, worst_case

__all__ = [
    "BOUNDS",
    "Budgets",
    "certified_metrics",
    "plain_radius",
    "tight_radius",
    "top_radii",
    "usable_bound",
    "worst_case",
]
