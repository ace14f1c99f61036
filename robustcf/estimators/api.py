"""All methods by name: `two_to_inf`, and `one_to_two` by transposition."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from robustcf._checks import check_integer
from robustcf.errors import InputError
from robustcf.estimators.estimate import NormEstimate
from robustcf.estimators.exact import exact, exact_cost
from robustcf.estimators.numerics import Seed
from robustcf.estimators.operators import Adjoint, Matrix, MatrixLike, as_operator
from robustcf.estimators.save import sketch_and_verify
from robustcf.estimators.scores import sampled
from robustcf.estimators.sketches import rsvd_sketch, sketch, xnysdiag, xrownorm
from robustcf.estimators.twinest import adaptive_power, rademacher_averaging, twinest, twinest_pp

METHODS: dict[str, Callable[..., NormEstimate]] = {
    "exact": exact,
    "save": sketch_and_verify,
    "sampled": sampled,
    "sketch": sketch,
    "rsvd_sketch": rsvd_sketch,
    "xrownorm": xrownorm,
    "xnysdiag": xnysdiag,
    "twinest": twinest,
    "twinest_pp": twinest_pp,
    "rademacher_averaging": rademacher_averaging,
    "adaptive_power": adaptive_power,
}


def two_to_inf(
    A: MatrixLike,
    budget: int = 50,
    method: str = "auto",
    *,
    verify: int | None = None,
    generator: Seed = None,
    delta: float = 0.05,
) -> NormEstimate:
    """Estimate ||A||_{2->inf}, the largest Euclidean norm of a row.

    Args:
        A: a tensor, ndarray, sparse matrix, scipy ``LinearOperator`` or operator.
        budget: products with A and A^H in all.
        method: name of the estimator; ``auto`` is exact if that is cheaper, else ``save``.
        verify: best-ranked rows to read exactly (None: the method's default).
        generator: a torch generator, an integer seed, or None for fresh entropy.
        delta: the upper bound may fail with this probability.

    Example:
        >>> import numpy as np
        >>> answer = two_to_inf(np.array([[3.0, 4.0], [1.0, 2.0]]))
        >>> answer.value, answer.row, answer.certified
        (5.0, 0, True)
    """
    operator = as_operator(A)
    if method == "auto":
        check_integer("budget", budget, 1)
        method = "exact" if exact_cost(operator) <= budget else "save"
    if method not in METHODS:
        raise InputError(f"method must be 'auto' or one of {', '.join(METHODS)}, got {method!r}")
    options: dict[str, Any] = {} if verify is None else {"verify": verify}
    return METHODS[method](operator, budget, generator=generator, delta=delta, **options)


def one_to_two(
    A: MatrixLike,
    budget: int = 50,
    method: str = "auto",
    *,
    verify: int | None = None,
    generator: Seed = None,
    delta: float = 0.05,
) -> NormEstimate:
    """Estimate ||A||_{1->2} = ||A^H||_{2->inf}, the largest Euclidean norm of a column.

    Arguments as for `two_to_inf`. ``row`` is the index of the column; ``products`` still counts
    products with A.

    Example:
        >>> import numpy as np
        >>> answer = one_to_two(np.array([[3.0, 0.0], [4.0, 2.0]]))
        >>> answer.value, answer.row
        (5.0, 0)
    """
    operator = as_operator(A)
    adjoint = operator.H if isinstance(operator, Matrix) else Adjoint(operator)
    answer = two_to_inf(adjoint, budget, method, verify=verify, generator=generator, delta=delta)
    return dataclasses.replace(answer, products=answer.rproducts, rproducts=answer.products)
