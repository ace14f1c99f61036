"""Norms of matrices that are too large to write down, from their products alone.

||A||_{2->inf} is the largest Euclidean norm of a row, ||A||_{1->2} of a column. `two_to_inf` and
`one_to_two` estimate them with a true lower bound and an upper bound that holds with a stated
probability; `certify` continues until both meet.

Example:
    >>> import numpy as np
    >>> from robustcf.estimators import LowRank, two_to_inf
    >>> rng = np.random.default_rng(0)
    >>> users, items = rng.normal(size=(5000, 16)), rng.normal(size=(3000, 16))
    >>> answer = two_to_inf(LowRank(users, items))
    >>> answer.method, answer.certified
    ('exact', True)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from robustcf._lazy import lazy_names
from robustcf.estimators.api import METHODS, one_to_two, two_to_inf
from robustcf.estimators.estimate import NormEstimate
from robustcf.estimators.exact import exact
from robustcf.estimators.lowrank import LowRank
from robustcf.estimators.operators import FunctionOperator, Operator, as_operator
from robustcf.estimators.save import sketch_and_verify
from robustcf.estimators.scores import Scores, sampled
from robustcf.estimators.sketches import rsvd_sketch, sketch, xnysdiag, xrownorm, xsymrownorm
from robustcf.estimators.twinest import (
    adaptive_power,
    hutchinson_diagonal,
    hutchpp_diagonal,
    rademacher_averaging,
    twinest,
    twinest_pp,
)

if TYPE_CHECKING:
    from robustcf.estimators import bounds
    from robustcf.estimators.certifying import certify
    from robustcf.estimators.files import read_matrix
    from robustcf.estimators.jacobian import Jacobian
    from robustcf.estimators.spectral import spectral_norm

__all__ = [
    "METHODS",
    "FunctionOperator",
    "Jacobian",
    "LowRank",
    "NormEstimate",
    "Operator",
    "Scores",
    "adaptive_power",
    "as_operator",
    "bounds",
    "certify",
    "exact",
    "hutchinson_diagonal",
    "hutchpp_diagonal",
    "one_to_two",
    "rademacher_averaging",
    "read_matrix",
    "rsvd_sketch",
    "sampled",
    "sketch",
    "sketch_and_verify",
    "spectral_norm",
    "twinest",
    "twinest_pp",
    "two_to_inf",
    "xnysdiag",
    "xrownorm",
    "xsymrownorm",
]

# On demand: a penalty needs neither files nor derivatives.
_LAZY = {"bounds": ".bounds:", "certify": ".certifying", "read_matrix": ".files"}
_LAZY |= {"Jacobian": ".jacobian", "spectral_norm": ".spectral"}
__getattr__, __dir__ = lazy_names(__name__, _LAZY)
